"""A pool: the storage of checkpoints."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from outlive import _core
from outlive._arguments import failures_of, interval_of, rules_of
from outlive._errors import Error, InvalidError
from outlive._group import adapt
from outlive._job import Job, close_after
from outlive._saves import Collected, Pruned
from outlive._select import Selection
from outlive._teller import Progress, Teller


class Pool:
    """The storage of checkpoints, from `open`. Any thread may use it.

    As a context manager, it closes itself at the end.
    """

    def __init__(self, core: _core.Pool, location: str, progress: Progress | None) -> None:
        """Made by `open`."""
        self._core = core
        self._location = location
        self._progress = progress
        # In the order of their opening, which is the same on all ranks of a group.
        self._jobs: list[weakref.ref[Job]] = []
        self._tick = Teller(core, progress)

    def job(
        self,
        name: str,
        every_s: float | None = None,
        *,
        every: float | timedelta | str | None = None,
        slowdown_max: float | None = None,
        keep_last: int | None = None,
        keep: str | None = None,
        on_failure: str | None = None,
        fail_after: timedelta | str | None = None,
        allow_pickle: bool = False,
        group: Any = None,
        replicated: str | Iterable[str] = (),
        schedule: str = "coordinated",
        patience_s: float = 120.0,
    ) -> Job:
        """Opens a job, a named series of checkpoints. Nothing is written before its first save.

        Only one program saves a job at a time. A second one takes the job over, and the first gets
        `FencedError`. Within a process, all `Job` objects of a job are one writer: a second one
        joins the first, and its `restore` waits for a save under way. Jobs of a group are separate.

        Args:
            name: Name of the job: one line of text, not empty, up to 200 plain characters.
            every_s: Seconds between saves. Calls of `Job.save` in between return at once.
            every: The same as seconds, a timedelta, or text such as "30s" or "10m". "auto" learns
                the interval from the costs of saves and the failures of the job. "continuous"
                begins the next save as soon as the last one is durable. `outlive run --every`
                overrides both arguments (docs/running.md).
            slowdown_max: With "continuous": largest share of the program's time that saves may
                take; None for 0.03. Later saves come when that allows it.
            keep_last: Number of newest whole checkpoints to keep. After each commit a background
                thread drops older ones and frees their space, except those with a label or a pin.
                If no `Job` of this process has rules, all are kept until `Job.prune`.
            keep: More rules in one text, as for `Job.prune`: "every 100 | best loss:min:3". A
                checkpoint stays if any rule keeps it.
            on_failure: Policy for saves that fail. "raise", the default: the next `save`, `restore`
                or `close` raises its error. "warn": the program goes on. It gets a
                `FailedSaveWarning`, the logger "outlive" gives the reason, and the next save stores
                the data that the failed one could not. The policy covers only failures of storage:
                errors of the program (`InvalidError`), `FencedError` and `BugError` are raised in
                any case. None keeps the policy that this process has set for the job before.
            fail_after: With "warn": time without a commit after which a failure is raised
                nevertheless: a timedelta, or text such as "1h", the default. It counts from the
                last commit, or from when the job was opened.
            allow_pickle: Whether objects other than arrays and plain values may be pickled in a
                save, and unpickled in a restore. Unpickling runs code that the checkpoint chooses,
                so allow it only if you trust all people who can write to the pool.
            group: Communicator of the program, if it has several ranks: of mpi4py,
                `torch.distributed` or one of its process groups, any `Group`, or, for processes
                that share only the pool, `ranks(...)`. Then every rank calls `save` and `restore`,
                in the same order, and one checkpoint holds the states of all ranks
                (docs/groups.md).
            replicated: Names of leaves that are the same on all ranks, such as "step" or
                "model/*". Rank 0 stores them, once.
            schedule: When the ranks write: "coordinated" (all at once), "staggered" (one after the
                other), "striped(WIDTH)" (WIDTH at a time), or "adaptive".
            patience_s: Seconds without a message of a rank after which a save fails. With
                `ranks(...)`, also the time after which a rank that has not come to a call is given
                up.

        Raises:
            InvalidError: If the name, a time or a rule is not possible, or `group` is no group.
        """
        if group is None and replicated:
            raise InvalidError("`replicated` says what is the same on all ranks: give `group` too")
        if group is not None and allow_pickle:
            raise InvalidError(
                "objects cannot be pickled in a group of ranks: save arrays and plain values"
            )
        every_s, every_text = interval_of(every_s, every, slowdown_max)
        on_failure, after = failures_of(on_failure, fail_after)
        adapter = None if group is None else adapt(group)
        rules = None
        if keep_last is not None or keep is not None:
            rules = rules_of(keep, keep_last=keep_last)
        core = self._core.job(
            name,
            every_s=every_s,
            every=every_text,
            slowdown_max=slowdown_max,
            keep=rules,
            on_failure=on_failure,
            fail_after=after,
            group=adapter,
            patience_s=patience_s,
            schedule=schedule,
            tick=self._tick,
        )
        same = Selection(replicated) if replicated else None
        job = Job(core, name, self._location, self._tick, allow_pickle, same)
        job._ranks = adapter
        self._jobs = [opened for opened in self._jobs if opened() is not None]
        self._jobs.append(weakref.ref(job))
        return job

    def jobs(self) -> list[str]:
        """Returns the names of the jobs that have a checkpoint, or a program that may save."""
        return self._core.jobs()

    def delete_job(
        self, name: str, *, fence: bool = False, collect: bool = True, max_unused: float = 0.02
    ) -> Pruned:
        """Deletes a job: all its checkpoints, labelled and pinned ones too, and its history.

        The checkpoints go in one step. A program that has the job open loses it with `fence`: its
        next save raises `FencedError`. If the name is used again, epochs go on where they ended.
        After an interruption, call it again.

        Args:
            name: Name of the job.
            fence: Whether to end the session of a program that has the job open. A `Job` of this
                process counts as such until its `close`.
            collect: Whether to free space now; otherwise a later `gc` does.
            max_unused: Share of the bytes in packs that may stay unused, 0 to 1.

        Returns:
            The dropped epochs, and the report of the collection.

        Raises:
            InvalidError: If there is no such job, or a program has it open, or `outlive run`
                supervises it. Nothing was deleted.
            RetryError: If another program has opened the job meanwhile. Nothing was deleted.
            DamagedError: If a record of the job's log cannot be read.
        """
        options = _core.Collection(unused_max=max_unused, collect=collect, dry_run=False)
        dropped, collected = self._core.delete_job(name, options, self._tick, fence=fence)
        return Pruned(kept={}, dropped=dropped, collected=Collected(**collected))

    def rename_job(self, old: str, new: str, *, fence: bool = False) -> list[int]:
        """Gives a job another name, with all its checkpoints and its history.

        The data of the checkpoints stays where it is. First each checkpoint gets the new name, and
        then the old name loses all of them in one step. After an interruption, call it again: it
        goes on from there. A program that has the job open loses it with `fence`, as in
        `delete_job`. Change the name in that program.

        Args:
            old: Name of the job.
            new: New name, which no job has. A name that had newer checkpoints before is refused,
                since epochs only go forward.
            fence: Whether to end the session of a program that has the job open.

        Returns:
            The epochs of the checkpoints, oldest first.

        Raises:
            InvalidError: If there is no such job, if another job has or had the new name, or if a
                program has the job open.
            DamagedError: If a checkpoint cannot be read. The job keeps its name.
            RetryError: If another program has opened the job meanwhile.
        """
        return self._core.rename_job(old, new, self._tick, fence=fence)

    @property
    def location(self) -> str:
        """The location that was opened."""
        return self._location

    def gc(
        self,
        *,
        max_unused: float = 0.02,
        fence: Iterable[str] = (),
        dry_run: bool = False,
    ) -> Collected:
        """Deletes data that no checkpoint needs, and rewrites packs that are mostly unused.

        Programs may save meanwhile. A collection never deletes data that a checkpoint needs, even
        if it is interrupted. The next one continues.

        Args:
            max_unused: Share of the bytes in packs that may stay unused, 0 to 1.
            fence: Names of jobs whose program is gone, or must stop: it cannot save any more.
            dry_run: Whether to report only what would be done.

        Raises:
            DamagedError: If stored data that a decision needs cannot be read. Nothing was deleted.
            RetryError: If another collection, prune or scrub is running. Nothing was done.
            FencedError: If another collection has begun meanwhile, and the pool has no locks.
        """
        options = _core.Collection(unused_max=max_unused, fence=list(fence), dry_run=dry_run)
        return Collected(**self._core.gc(options, self._tick))

    def close(self) -> None:
        """Waits until all saves of its jobs are over, and closes the jobs: see `Job.close`.

        Raises:
            Error: If a save failed and its error has not been raised yet.
        """
        self._close(together=True)

    def _close(self, *, together: bool) -> None:
        failure: Error | None = None
        for opened in list(self._jobs):
            job = opened()
            try:
                if job is not None:
                    job._close(together=together)  # a class of this package
            except Error as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        """Returns the pool itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it. An exception of `close` does not replace one of the program."""
        close_after(self._close, error)

    def __repr__(self) -> str:
        """Returns the location, for people."""
        return f"<outlive.Pool at {self._location!r}>"
