"""Results of `Job.save`, `Job.restore` and `Job.epochs`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from outlive._callbacks import Callbacks
from outlive._errors import Error, InvalidError

if TYPE_CHECKING:
    from outlive import _core


@dataclass(frozen=True, slots=True)
class SaveInterval:
    """The interval between saves, and its reasons, as of the commit of a save.

    Attributes:
        every: The rule: "always", "auto", "continuous", or a time.
        is_overridden: Whether `outlive run --every` gives the rule, in place of the program.
        seconds: The interval. For "auto" the work between two saves, otherwise the time from the
            beginning of one to that of the next.
        bound: Cause of its length. "given": the rule is a time. "unmeasured": no save is measured
            yet, so the next call saves. "optimum": the least loss by saves and failures. "latency":
            the time until a save is durable. "budget": `slowdown_max`. "copies": the
            memory for copies, since changes of a longer interval would not fit. "trial": whether
            saves cost less while all changes fit there.
        saves: Number of saves that were measured.
        stall_s: Seconds for which a save holds the program up.
        slowdown_s: Seconds by which the program's steps take longer because of a save; None if that
            cannot be told yet.
        constant_s: Part of the cost that does not depend on the interval, in seconds; 0 unless the
            rule is "auto".
        growth: Cost for each second of the interval, in seconds; 0 unless the rule is "auto".
        latency_s: Seconds from the call until a save is durable.
        restart_s: Seconds from the start of an attempt until its state is restored; None if the
            history does not know it.
        failures: Number of failures seen. Those on other hosts count for a quarter.
        exposure_s: Seconds in which they were seen.
        mtbf_s: Mean time between failures, with the prior of one failure a day, in seconds.
        is_prior: Whether the rate rests on the prior, as no failure was seen.
        useful_share: Share of useful work that is expected; None without a measured save.
        slowdown_max: Budget of "continuous".
        copy_s: Seconds by which the program's steps take longer because of one copy to the slow
            tier; None without such a tier, or if that cannot be told yet.
        slow_every: Best step between checkpoints that go to the slow tier, for `[tiers] every` in
            `pool.toml`.
        reasons: All of this in a sentence.
    """

    every: str
    is_overridden: bool
    seconds: float
    bound: str
    saves: int
    stall_s: float
    slowdown_s: float | None
    constant_s: float
    growth: float
    latency_s: float
    restart_s: float | None
    failures: float
    exposure_s: float
    mtbf_s: float
    is_prior: bool
    useful_share: float | None
    slowdown_max: float | None
    copy_s: float | None
    slow_every: int | None
    reasons: str


@dataclass(frozen=True, slots=True)
class SaveStats:
    """Figures of a committed save.

    Attributes:
        epoch: Epoch of the checkpoint.
        state_bytes: Bytes of the whole state.
        changed_bytes: Bytes of changed pages. If nearly all of an array had changed, all its pages
            count.
        evacuated_bytes: Bytes of unchanged pages that were written again to keep restores fast.
        zero_bytes: Bytes of all-zero pages among the changed ones; they take no space.
        known_bytes: Bytes of changed pages whose contents the pool had already.
        new_bytes: All bytes written to the pool.
        node_bytes: Part of `new_bytes` that is metadata.
        segment_bytes: Part of `new_bytes` that is merged index segments.
        raw_bytes: Bytes of new data before compression.
        packs: Number of packs written.
        freeze: Way in which the changed pages were held still while they were written, and the
            reason. For example: "fork: 3.1 GiB exceed freeze_bytes_max = 64.0 MiB".
        tracker: Way in which the changes were found.
        copied_bytes: Bytes copied aside while `save` held the program up.
        ahead_bytes: Bytes that had been copied before, in the background.
        forked_bytes: Bytes that a forked process held.
        live_bytes: Bytes written while `save` held the program up.
        stall_s: Seconds for which `save` held the program up, with the walk through the state, and
            without the wait for an earlier save.
        total_s: Seconds from the call until the commit.
        interval: The interval between saves and its reasons. None on other ranks than 0, which
            decides for its group.
    """

    epoch: int
    state_bytes: int
    changed_bytes: int
    evacuated_bytes: int
    zero_bytes: int
    known_bytes: int
    new_bytes: int
    node_bytes: int
    segment_bytes: int
    raw_bytes: int
    packs: int
    freeze: str
    tracker: str
    copied_bytes: int
    ahead_bytes: int
    forked_bytes: int
    live_bytes: int
    stall_s: float
    total_s: float
    interval: SaveInterval | None = None


class Save:
    """A save that is under way or over, or was skipped because none was due yet.

    It is true unless it was skipped: ``if job.save(state): ...``. A coroutine of `asyncio` may
    await it, which does the same as `wait`: ``stats = await job.save(state)``.
    """

    __slots__ = ("_callbacks", "_core", "_stats", "_tick", "_tiers", "_walk_s")

    def __init__(
        self,
        core: _core.Save | None,
        tick: Callable[[], None] | None,
        walk_s: float = 0.0,
        tiers: Callable[[int], Sequence[str]] | None = None,
    ) -> None:
        """Made by `Job.save`, which took `walk_s` seconds to walk through the state."""
        self._core = core
        self._tiers = tiers
        self._walk_s = walk_s
        self._tick = tick
        self._stats: SaveStats | None = None
        self._callbacks: Callbacks | None = None

    @property
    def skipped(self) -> bool:
        """True if nothing was saved, since none was due yet."""
        return self._core is None

    @property
    def epoch(self) -> int | None:
        """Epoch of the checkpoint, which exists once it is committed; None if skipped."""
        return None if self._core is None else self._core.epoch

    def done(self) -> bool:
        """True once the checkpoint is committed, or the save has failed, or it was skipped.

        Also reports progress to the callback.
        """
        if self._core is None or self._tick is None:
            return True
        done = self._core.done()
        self._tick()
        return done

    def wait(self, timeout: float | None = None, *, tier: str | None = None) -> SaveStats | None:
        """Waits until the checkpoint is committed, and so survives a crash.

        With a fast tier in memory, it survives the end of the program, but no restart of the host.
        With ``tier="slow"`` this waits until the slow tier has it as well. The program copies it
        there in the background, if `[tiers]` in `pool.toml` chooses it; otherwise `outlive pool
        fill` does. This asks the targets up to ten times a second, and less often after a while.

        Args:
            timeout: Longest time to wait, in seconds; None waits without limit.
            tier: "fast" or "slow": the tier that must have all of it. None waits for the commit.
                Give a timeout with it, since this waits forever if the pool lacks that tier.

        Returns:
            Figures of the save; None if it was skipped.

        Raises:
            TimeoutError: If the save is not over by then, or the tier lacks it. The save goes on.
            InvalidError: If there is no such tier, or the checkpoint was pruned.
            Error: If the save failed. The next save does not raise this error again.
        """
        if tier not in (None, "fast", "slow"):
            raise InvalidError(f'tier={tier!r} is not possible: give "fast" or "slow"')
        if self._core is None or self._tick is None:
            return None
        begun = time.monotonic()
        if self._stats is None:
            figures = self._core.wait(timeout, self._tick)
            if figures is None:
                raise TimeoutError(f"checkpoint {self.epoch} is not committed yet; it goes on")
            # The engine counts neither the walk through the state nor the encoding of its values.
            held_s = max(self._core.held_s, figures["stall_s"])
            before_s = self._walk_s + held_s - figures["stall_s"]
            for key in ("stall_s", "total_s"):
                figures[key] += before_s
            interval = figures.pop("interval")
            told = None if interval is None else SaveInterval(**interval)
            self._stats = SaveStats(**figures, interval=told)
        if tier is not None and self._tiers is not None:
            self._wait_for(tier, None if timeout is None else begun + timeout)
        return self._stats

    def add_done_callback(self, function: Callable[[Save], object]) -> None:
        """Calls a function with this save once it is over, committed or failed.

        A thread of its own calls it, without any call of the program. If the save is over or was
        skipped, this calls it at once. To learn the outcome, the function calls `wait`, which
        returns at once then. An exception of the function goes to the logger, and changes nothing.
        Functions are called in the order in which they were added. At its end, Python waits until
        all of them have returned.

        Args:
            function: Function to call. It must not wait for the thread that saves.

        Raises:
            InvalidError: In a forked child.
        """
        if self._core is None:
            function(self)
            return
        self._core.done()  # refuses a forked child
        if self._callbacks is None:
            self._callbacks = Callbacks(self, self._core)
        self._callbacks.add(function)

    def __await__(self) -> Generator[Any, None, SaveStats | None]:
        """Waits until the checkpoint is committed, while the event loop runs other coroutines.

        Returns:
            Figures of the save; None if it was skipped.

        Raises:
            Error: If the save failed. If the coroutine is cancelled, the save goes on.
        """
        return self._over().__await__()

    async def _over(self) -> SaveStats | None:
        if self._core is None or self._core.done():
            return self.wait()
        # Slow to import, and a program that awaits has it.
        import asyncio

        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def finish() -> None:
            if not over.done():
                over.set_result(None)

        def call(_: Save) -> None:
            # A loop that is closed waits for nothing.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(finish)

        self.add_done_callback(call)
        await over
        return self.wait()

    def _wait_for(self, tier: str, deadline: float | None) -> None:
        """Waits until a tier has all of the committed checkpoint."""
        assert self._stats is not None
        assert self._tiers is not None
        assert self._tick is not None
        pause = 0.1
        while tier not in self._tiers(self._stats.epoch):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(
                    f"checkpoint {self.epoch} is committed, and the {tier} tier lacks it still"
                )
            left = pause if deadline is None else max(0.0, deadline - time.monotonic())
            time.sleep(min(pause, left))
            pause = min(2.0, pause * 1.5)
            self._tick()

    @property
    def stats(self) -> SaveStats | None:
        """Figures of the save; None while it is under way, or if it was skipped.

        Raises:
            Error: If the save failed.
        """
        return self.wait() if self.done() else None

    @property
    def stall_ms(self) -> float:
        """Milliseconds for which `save` held the program up; only once it is done."""
        return self._figures().stall_s * 1e3

    @property
    def changed_bytes(self) -> int:
        """Bytes of the pages that had changed; only once it is done."""
        return self._figures().changed_bytes

    @property
    def new_bytes(self) -> int:
        """All bytes written to the pool; only once it is done."""
        return self._figures().new_bytes

    def _figures(self) -> SaveStats:
        stats = self.stats
        if stats is None:
            why = "it was skipped" if self.skipped else "it is under way: call `wait()` first"
            raise InvalidError(f"this save has no figures: {why}")
        return stats

    def __bool__(self) -> bool:
        """Whether anything is being saved."""
        return self._core is not None

    def __repr__(self) -> str:
        """The epoch and the progress, for people."""
        if self.skipped:
            return "<outlive.Save skipped>"
        try:
            # Not by `done`, which calls the program's callback.
            state = "under way" if self._core and not self._core.done() else "done"
        except InvalidError:
            state = "of another process"
        return f"<outlive.Save of epoch {self.epoch}, {state}>"


@dataclass(frozen=True, slots=True)
class Restored:
    """Report of a restore. It is true if there was a checkpoint.

    Attributes:
        epoch: The epoch that was restored; None if the job has no checkpoint yet.
        seconds: Seconds that the restore took.
        restored_bytes: Bytes restored, zeros included.
        read_bytes: Bytes read from the pool for them.
        skipped: Newer checkpoints that the restore skipped because they are damaged, each as epoch
            and reason. The epoch is None if it cannot be read.
        missing: Names of leaves of `into` that the checkpoint lacks, so that they are unchanged.
            A list of values, or a random generator, counts as one. Empty unless `strict=False`.
        left_over: Names of leaves of the checkpoint, after `rename`, that `into` lacks. Empty
            unless `strict=False`.
        partly: Names of arrays that have another shape in the checkpoint, so that only the part
            that both have was filled. Empty unless `shapes` allows that.
    """

    epoch: int | None
    seconds: float = 0.0
    restored_bytes: int = 0
    read_bytes: int = 0
    skipped: tuple[tuple[int | None, str], ...] = ()
    missing: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything was restored."""
        return self.epoch is not None


@dataclass(frozen=True, slots=True)
class LazyRestored(Restored):
    """Report of a lazy restore so far, also in `restored_bytes` and `read_bytes`.

    Attributes:
        mode: "full" if system calls may use arrays before they are whole. "user-only" if only the
            program's own instructions may: a system call that touches missing memory fails with
            EFAULT, so call `wait` first. "eager" if everything was read before the return.
        lazy_bytes: Bytes that follow, or have followed, while the program runs.
        eager_because: Reason why large arrays were read before the return; empty if none was.
    """

    mode: str = "eager"
    lazy_bytes: int = 0
    eager_because: str = ""
    _fill: _core.FillHandle | None = field(default=None, repr=False, compare=False)
    _select: Callable[[str], list[str]] | None = field(default=None, repr=False, compare=False)
    _tick: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    @property
    def done(self) -> bool:
        """True once all memory is there."""
        return self._fill is None or self._fill.done()

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes that the background has brought so far, and the total."""
        return (0, 0) if self._fill is None else self._fill.progress()

    def wait(self, name: str | None = None, timeout: float | None = None) -> None:
        """Waits until memory is there. From then on, system calls may use it, too.

        Args:
            name: Name of the leaves to wait for, as in `only` of `Job.restore`, such as
                "model/weights". They are fetched first. None waits for everything.
            timeout: Longest time to wait, in seconds; None waits without limit.

        Raises:
            TimeoutError: If the memory is not there by then. The restore goes on.
            InvalidError: If no leaf has that name.
        """
        if self._fill is None or self._tick is None or self._select is None:
            return
        names = None if name is None else self._select(name)
        if not self._fill.wait(names, timeout, self._tick):
            raise TimeoutError(f"{name or 'the memory'} is not there yet; it goes on")


@dataclass(frozen=True, slots=True)
class Epoch:
    """A committed checkpoint of a job.

    Attributes:
        epoch: Number of the checkpoint.
        parent: The epoch with which it shares unchanged data; None if it stands alone.
        frozen_at: Time when the state was frozen, by the clock of that machine.
        regions: Number of leaves of the state.
        state_bytes: Bytes of the whole state.
        changed_bytes: Bytes of changed pages. If nearly all of an array had changed, all its pages
            count.
        new_bytes: Bytes that this checkpoint added to the pool.
        known_bytes: Bytes of changed pages whose contents the pool had already.
        zero_bytes: Bytes of all-zero pages among the changed ones.
        raw_bytes: Bytes of new data before compression.
        stall_s: Seconds for which the program stood still.
        drain_s: Seconds from then until just before the commit.
        label: Label of the checkpoint; empty if it has none.
        tags: Tags of the checkpoint, sorted.
        pinned: Whether it is pinned, so that prunes keep it.
        mark: The mark of its state: "good", "bad" or "none".
        metrics: Figures of merit that the program gave.
        failed_before: Number of saves of its program that have failed since the checkpoint before
            it, or since the program opened the job.
    """

    epoch: int
    parent: int | None
    frozen_at: datetime
    regions: int
    state_bytes: int
    changed_bytes: int
    new_bytes: int
    known_bytes: int = 0
    zero_bytes: int = 0
    raw_bytes: int = 0
    stall_s: float = 0.0
    drain_s: float = 0.0
    label: str = ""
    tags: tuple[str, ...] = ()
    pinned: bool = False
    mark: str = "none"
    metrics: Mapping[str, float] = field(default_factory=dict)
    failed_before: int = 0


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Figures of a job's saves in this process.

    Attributes:
        on_failure: Policy for saves that fail: "raise" or "warn".
        fail_after_s: Seconds without a commit after which a failure is raised even so; None for
            "raise".
        failed_in_a_row: Number of saves that have failed since the last commit.
        failed: Number of all saves that have failed.
        committed: Number of saves that were committed.
        last_error: Error of the save that failed last, also after a later commit; None if none
            has failed.
        since_commit_s: Seconds since the last commit; None if nothing was committed.
    """

    on_failure: str
    fail_after_s: float | None
    failed_in_a_row: int
    failed: int
    committed: int
    last_error: Error | None
    since_commit_s: float | None


@dataclass(frozen=True, slots=True)
class Collected:
    """Report of a garbage collection.

    Attributes:
        live_bytes: Bytes in use.
        copied_bytes: Bytes that were, or would be, copied to rewrite mostly unused packs.
        freed_bytes: Approximate number of bytes freed: the packs deleted, less the bytes written
            for that. After a dry run, the bytes that a collection would free now.
        deleted_packs: Number of packs deleted.
        deleted_bytes: Bytes of these packs.
        held_packs: Number of packs that wait until the programs in `held_by` have saved or ended;
            0 after a dry run.
        held_bytes: Bytes of these packs, or of those that would wait.
        held_by: Programs that may still need these packs, such as "process 12 on node7", by the
            name of their job.
        held_by_restore: Whether they wait until a lazy restore, here or elsewhere, has filled its
            memory.
        postponed: Whether nothing was collected, since another collection is running. That one, or
            the next, frees the space.
        damaged: Descriptions of data in use that cannot be read. It was left unchanged.
    """

    live_bytes: int
    copied_bytes: int
    freed_bytes: int
    deleted_packs: int
    deleted_bytes: int
    held_packs: int
    held_bytes: int
    held_by: Mapping[str, str]
    held_by_restore: bool
    postponed: bool
    damaged: list[str]


@dataclass(frozen=True, slots=True)
class Pruned:
    """Report of a prune.

    Attributes:
        kept: Reason for each checkpoint that stays, by epoch.
        dropped: Epochs of the checkpoints that were dropped, or would be.
        collected: Report of the garbage collection.
    """

    kept: Mapping[int, str]
    dropped: list[int]
    collected: Collected
