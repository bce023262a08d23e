"""A normal interpreter exit completes every save that is under way."""

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outlive._errors import Error

if TYPE_CHECKING:
    from outlive import _core

_log = logging.getLogger("outlive")
Tick = Callable[[], None]

# Native jobs whose Python job is alive, by the id of the entry; with their process and pool.
_alive: dict[int, tuple[int, "_core.Job", Tick]] = {}
# Those whose Python job is gone while a save was under way, or had failed unheard.
_orphans: list[tuple[int, "_core.Job", Tick]] = []


def watch(job: object, core: "_core.Job", tick: Tick) -> None:
    """Has a job's last save completed at exit, even if nobody holds the job any more."""
    entry = (os.getpid(), core, tick)
    _alive[id(entry)] = entry
    weakref.finalize(job, _lost, id(entry)).atexit = False


def _lost(key: int) -> None:
    """The program has dropped a job."""
    entry = _alive.pop(key, None)
    if entry is None or entry[0] != os.getpid():
        return
    _orphans[:] = [orphan for orphan in _orphans if _unfinished(orphan)]
    if _unfinished(entry):
        _orphans.append(entry)


def _unfinished(entry: tuple[int, "_core.Job", Tick]) -> bool:
    process, core, _ = entry
    return process == os.getpid() and core.unfinished()


@atexit.register
def _finish() -> None:
    entries: list[tuple[int, Any, Tick]] = [*_alive.values(), *_orphans]
    for process, core, tick in entries:
        # A forked child inherits its parent's jobs, which are none of its business.
        if process != os.getpid():
            continue
        try:
            core.wait(tick)
        except Error as error:
            message = f"the last save before the end of the program failed: {error}"
            _log.error(message)
            # Without a handler `logging` prints it by itself.
            if _log.hasHandlers():
                print(f"outlive: {message}", file=sys.stderr)
        except KeyboardInterrupt:
            print("outlive: interrupted; the save under way is lost", file=sys.stderr)
            return
        try:
            core.close(True, tick)
        except Error as error:
            # Nothing is lost by that: the session ends with the process.
            _log.info("a job was not closed: %s", error)
