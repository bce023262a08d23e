"""Completes every save that is under way when the interpreter ends.

`atexit` reports a normal end. Workers of `multiprocessing` end by `os._exit`, which skips
`atexit`; they have exit functions of their own. A `__del__` or a running thread may save after
both. No exit function would complete such a save, so it returns when it is committed.
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
    """A native job, with the data to complete it."""

    process: int
    name: str
    core: "_core.Job"
    tick: Tick


# After all other exit functions of a worker, since these may save.
_WORKER_PRIORITY = -100

# Native jobs whose Python job is alive, by the id of the entry.
_alive: dict[int, Entry] = {}
# Native jobs whose Python job is gone while a save was under way, or its failure not reported.
_orphans: list[Entry] = []
# Ids of this process, once it is ending, and once it is a worker with our exit function.
_ended: set[int] = set()
_workers: set[int] = set()
_hooked: list[bool] = []


def watch(job: object, name: str, core: "_core.Job", tick: Tick) -> None:
    """Completes a job's last save at exit, even if no variable refers to the job any more."""
    entry = Entry(os.getpid(), name, core, tick)
    _alive[id(entry)] = entry
    weakref.finalize(job, _lost, id(entry)).atexit = False
    _watch_worker()


def ended() -> bool:
    """Whether this process has begun to complete the saves under way at its end."""
    return os.getpid() in _ended


def _lost(key: int) -> None:
    """Handles the end of a Python job that the program has dropped."""
    entry = _alive.pop(key, None)
    if entry is None or entry.process != os.getpid():
        return
    _orphans[:] = [orphan for orphan in _orphans if _unfinished(orphan)]
    if _unfinished(entry):
        # Its memory may be gone, and other objects may get the same addresses.
        entry.core.unwatch()
        _orphans.append(entry)


def _unfinished(entry: Entry) -> bool:
    return entry.process == os.getpid() and entry.core.unfinished()


def _watch_worker(_: object = None) -> None:
    """Registers the completion of saves, if this process is a worker of `multiprocessing`."""
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
    """Completes the jobs left, call by call: each continues where a signal handler ended another.

    A handler may raise between any two calls of functions. A step that it must not interrupt
    contains no calls.
    """

    def __init__(self) -> None:
        self.left: list[Entry] | None = None
        # Whether the first of the jobs left had a save to wait for.
        self.saving = True
        self.interrupts = 0
        self.is_told = False

    def __call__(self, raised: list[BaseException]) -> bool:
        """Continues; true when all is done.

        Args:
            raised: Exceptions that ended earlier calls. It removes those that it has handled.
        """
        # Set this before the waits: each later save waits for itself.
        _ended.add(os.getpid())
        if self.left is None:
            # Only jobs of this process: those that a forked child inherits belong to the parent.
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
        """Handles the first exception, which mostly comes from a signal handler."""
        is_interrupt = isinstance(raised[0], KeyboardInterrupt) and bool(_names(left))
        # From here on no function is called.
        if is_interrupt:
            self.interrupts += 1
        elif not self.saving:
            # There was no save to wait for, so the exception may come again forever: skip the job.
            del left[:1]
        self.saving = True
        del raised[0]

    def _tell(self, left: list[Entry]) -> None:
        """Explains Ctrl-C, and at the second one gives up the saves left."""
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
        # No checkpoint is lost: the session ends with the process.
        _notices.tell(logging.INFO, "a job was not closed: %s", error)


# Native, so that no signal handler interrupts it before its end.
_finish = functools.partial(_core.insist, _End)
atexit.register(_finish)
# A child starts with empty sets, and ids of processes may come again.
os.register_at_fork(after_in_child=_ended.clear)
os.register_at_fork(after_in_child=_workers.clear)
