"""An end of the interpreter completes every save that is under way.

`atexit` tells of a normal end. Workers of `multiprocessing` end by `os._exit`, which runs nothing
of `atexit`; they have exit functions of their own. What is saved after either, by a `__del__` or
by a thread that still runs, nobody would complete: such a save returns when it is committed.
"""

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from outlive import _notices
from outlive._errors import Error

if TYPE_CHECKING:
    from outlive import _core

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


@atexit.register
def _finish() -> None:
    # First this, then the waits: whoever saves from now on waits for it.
    _ended.add(os.getpid())
    # A forked child inherits its parent's jobs, which are none of its business.
    left = [entry for entry in (*_alive.values(), *_orphans) if entry.process == os.getpid()]
    raised: BaseException | None = None
    is_interrupted = False
    while left:
        saving = True
        try:
            while left:
                saving = left[0].core.saving()
                _complete(left[0])
                saving = True
                del left[0]
        except BaseException as error:  # of a signal handler, mostly
            raised = raised or error
            names = ", ".join(entry.name for entry in left if entry.core.saving())
            if isinstance(error, KeyboardInterrupt) and names:
                if is_interrupted:
                    _notices.to_stderr(f"interrupted again; these saves are lost: {names}")
                    break
                is_interrupted = True
                _notices.to_stderr(
                    f"interrupted; saves are being completed ({names}): interrupt again to give "
                    "them up"
                )
            elif not saving:
                # There was nothing to wait for: what raised all the same may do so for ever.
                del left[:1]
    if raised is not None:
        raise raised


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
        entry.core.close(True, entry.tick)
    except Error as error:
        # Nothing is lost by that: the session ends with the process.
        _notices.tell(logging.INFO, "a job was not closed: %s", error)


# A child begins anew, and numbers of processes come again.
os.register_at_fork(after_in_child=_ended.clear)
os.register_at_fork(after_in_child=_workers.clear)
