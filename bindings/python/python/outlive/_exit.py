"""An end of the interpreter completes every save that is under way.

`atexit` tells of a normal end. Workers of `multiprocessing` end by `os._exit`, which runs nothing
of `atexit`; they have exit functions of their own. What is saved after either, by a `__del__` or
by a thread that still runs, nobody would complete: such a save returns when it is committed.
"""

import atexit
import functools
import logging
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from outlive import _core, _notices
from outlive._errors import Error

Tick = Callable[[], None]


class Entry(NamedTuple):
    """A native job, and what belongs to it."""

    process: int
    name: str
    core: "_core.Job"
    tick: Tick


# After all else that a worker does at its end: other exit functions may save.
_WORKER_PRIORITY = -100

# Native jobs whose Python job is alive, by the id of the entry.
_alive: dict[int, Entry] = {}
# Those whose Python job is gone while a save was under way, or had failed unheard.
_orphans: list[Entry] = []
# This process, once its end has come, and if it is a worker whose exit functions know of us.
_ended: set[int] = set()
_workers: set[int] = set()
_hooked: list[bool] = []


def watch(job: object, name: str, core: "_core.Job", tick: Tick) -> None:
    """Has a job's last save completed at exit, even if nobody holds the job any more."""
    entry = Entry(os.getpid(), name, core, tick)
    _alive[id(entry)] = entry
    weakref.finalize(job, _lost, id(entry)).atexit = False
    _watch_worker()


def ended() -> bool:
    """Whether this process is past the point at which the saves under way are completed."""
    return os.getpid() in _ended


def _lost(key: int) -> None:
    """The program has dropped a job."""
    entry = _alive.pop(key, None)
    if entry is None or entry.process != os.getpid():
        return
    _orphans[:] = [orphan for orphan in _orphans if _unfinished(orphan)]
    if _unfinished(entry):
        # Its memory may be gone, and others may get the same addresses.
        entry.core.unwatch()
        _orphans.append(entry)


def _unfinished(entry: Entry) -> bool:
    return entry.process == os.getpid() and entry.core.unfinished()


def _watch_worker(_: object = None) -> None:
    """Has a worker of `multiprocessing` complete its saves, if this process is one."""
    util: Any = sys.modules.get("multiprocessing.util")
    process: Any = sys.modules.get("multiprocessing.process")
    if util is None or process is None:
        return
    if not _hooked:
        # A worker of a fork server imports the program, which may open jobs, and only then clears
        # its list of exit functions. This is called after that.
        util.register_after_fork(_watch_worker, _watch_worker)
        _hooked.append(True)
    if process.parent_process() is not None and os.getpid() not in _workers:
        util.Finalize(None, _finish, exitpriority=_WORKER_PRIORITY)
        _workers.add(os.getpid())


class _End:
    """Completes what is left, call by call: each goes on where a signal's handler ended another.

    A handler may raise between any two calls of functions. What must not be torn apart by that has
    no calls in it.
    """

    def __init__(self) -> None:
        self.left: list[Entry] | None = None
        # Whether the first of those left had something to be waited for.
        self.saving = True
        self.interrupts = 0
        self.is_told = False

    def __call__(self, raised: list[BaseException]) -> bool:
        """Goes on; true when all is done.

        Args:
            raised: What ended earlier calls. What has been dealt with is removed.
        """
        # First this, then the waits: whoever saves from now on waits for it.
        _ended.add(os.getpid())
        if self.left is None:
            # A forked child inherits its parent's jobs, which are none of its business.
            jobs = (*_alive.values(), *_orphans)
            self.left = [entry for entry in jobs if entry.process == os.getpid()]
        while raised:
            self._take(self.left, raised)
        if self.interrupts:
            self._tell(self.left)
        while self.left:
            self.saving = self.left[0].core.saving()
            _complete(self.left[0])
            self.saving = True
            del self.left[0]
        return True

    def _take(self, left: list[Entry], raised: list[BaseException]) -> None:
        """Deals with the first of what was raised, by a signal handler mostly."""
        is_interrupt = isinstance(raised[0], KeyboardInterrupt) and bool(_names(left))
        # From here on nothing is called.
        if is_interrupt:
            self.interrupts += 1
        elif not self.saving:
            # There was nothing to wait for: what raised all the same may do so for ever.
            del left[:1]
        self.saving = True
        del raised[0]

    def _tell(self, left: list[Entry]) -> None:
        """Says what Ctrl-C does, and at the second gives up what is left."""
        names = _names(left)
        if not names:
            return
        if self.interrupts > 1:
            _notices.to_stderr(f"interrupted again; these saves are lost: {names}")
            left.clear()
        elif not self.is_told:
            _notices.to_stderr(
                f"interrupted; saves are being completed ({names}): interrupt again to give them up"
            )
            self.is_told = True


def _names(left: list[Entry]) -> str:
    return ", ".join(entry.name for entry in left if entry.core.saving())


def _complete(entry: Entry) -> None:
    """Waits for a job's last save, and ends its session."""
    try:
        entry.core.wait(entry.tick)
    except Error as error:
        message = f"the last save before the end of the program failed: {error}"
        _notices.tell(logging.ERROR, "%s", message)
        # Without a handler `logging` prints it by itself.
        if _notices.heard():
            _notices.to_stderr(message)
    try:
        entry.core.close(entry.tick, at_exit=True, together=False)
    except Error as error:
        # Nothing is lost by that: the session ends with the process.
        _notices.tell(logging.INFO, "a job was not closed: %s", error)


# Native, so that no signal handler comes between it and its end.
_finish = functools.partial(_core.insist, _End)
atexit.register(_finish)
# A child begins anew, and numbers of processes come again.
os.register_at_fork(after_in_child=_ended.clear)
os.register_at_fork(after_in_child=_workers.clear)
