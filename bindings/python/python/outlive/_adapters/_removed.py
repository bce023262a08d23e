"""Checkpoints whose pointers a framework has removed or replaced, and which are then dropped."""

from __future__ import annotations

import threading

from outlive._adapters import _pointers
from outlive._adapters._pointers import Pointer
from outlive._adapters._source import Source
from outlive._errors import Error
from outlive._job import Job
from outlive._saves import Save


class Removed:
    """Drops checkpoints behind the saves, since a prune waits, and the training must not.

    A replaced checkpoint stays until the one that replaces it is committed. An epoch alone names no
    checkpoint, since the save after one that failed gets the same number. So stamps decide, and the
    outcomes of this process's own saves.

    To ask a save for its outcome takes its failure from the program. So this asks only saves that
    are not the last one: the job has raised or told their failures when it began the next.
    """

    def __init__(self, source: Source) -> None:
        """Takes the job's source."""
        self._source = source
        self._saves: dict[str, Save] = {}  # of this process, by stamp
        self._last: Save | None = None
        # Pointers, each with the save that must be committed before, if any.
        self._gone: list[tuple[Pointer, Save | None]] = []
        self._changed = threading.Condition()
        self._waiting = 0

    def saving(self, save: Save, stamp: str, replaced: Pointer | None) -> None:
        """Notes a save that has begun, and drops checkpoints when it is over."""
        with self._changed:
            self._saves[stamp] = self._last = save
            if replaced is not None:
                self._gone.append((replaced, save))
            if not self._gone:
                return
            self._waiting += 1
        save.add_done_callback(self._after)

    def add(self, pointer: Pointer) -> None:
        """Notes a pointer that was removed."""
        with self._changed:
            self._gone.append((pointer, None))

    def has_failed(self, pointer: Pointer) -> bool:
        """Whether this process began to save a checkpoint, and failed. Not for the last save."""
        save = self._saves.get(pointer.stamp)
        return save is not None and not _is_committed(save)

    def finish(self) -> None:
        """Drops all, once the job is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._last = None
        self._drop()

    def _after(self, save: Save) -> None:
        try:
            self._drop()
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    def _drop(self) -> None:
        with self._changed:
            gone, self._gone = self._gone, []
            last = self._last
        left = gone
        try:
            job = self._source.job
            there = [each.epoch for each in job.epochs()]
            told = [each for each in gone if last is None or last not in (each[1], self._of(each))]
            free = [each for each in told if self._may_go(*each, job, there)]
            dropped = [each for each in free if each[0].epoch != there[-1]]  # one must stay
            if dropped:
                job.prune(drop=sorted({pointer.epoch for pointer, _ in dropped}))
            for pointer, _ in dropped:
                self._saves.pop(pointer.stamp, None)
            kept = [each for each in free if each not in dropped]
            left = kept + [each for each in gone if each not in told]
        finally:
            with self._changed:
                self._gone = left + self._gone

    def _of(self, gone: tuple[Pointer, Save | None]) -> Save | None:
        return self._saves.get(gone[0].stamp)

    def _may_go(self, pointer: Pointer, newer: Save | None, job: Job, there: list[int]) -> bool:
        if pointer.epoch not in there or not _pointers.is_of(pointer, job):
            return False
        if newer is not None and not _is_committed(newer):
            return False
        mine = self._saves.get(pointer.stamp)
        return _pointers.has_stamp(job, pointer) if mine is None else _is_committed(mine)


def _is_committed(save: Save) -> bool:
    try:
        save.wait()
    except Error:
        return False
    return True
