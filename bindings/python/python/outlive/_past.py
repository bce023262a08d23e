"""The checkpoints that a job has: looks at them, remarks on them, and prunes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Literal

from outlive import _core
from outlive._arguments import best_of, epoch_name, rules_of, tags_of
from outlive._errors import InvalidError
from outlive._saves import Collected, Epoch, Pruned
from outlive._teller import Teller


class Past:
    """The part of a `Job` that needs no state of the program."""

    _core: _core.Job
    _name: str
    _tick: Teller

    def _number_of(self, epoch: int | str | Epoch | None) -> int | None:
        """Returns a checkpoint's number. One counted from the newest waits for a save under way."""
        name = epoch_name(epoch)
        return self._core.epoch_named(name, self._tick) if isinstance(name, str) else name

    def _named(self, epoch: int | str | Epoch | None) -> int:
        """Does the same for one that must be named."""
        named = self._number_of(epoch)
        if named is None:
            raise InvalidError("no checkpoint is named: give its epoch, or -1 for the newest")
        return named

    def _wanted(self, epoch: int | str | Epoch | None, tags: list[str]) -> list[int | None]:
        """Returns the checkpoints to try, newest first; None is the newest whole one."""
        if not tags:
            return [self._number_of(epoch)]
        if epoch is not None:
            raise InvalidError(
                f"epoch = {epoch!r} is one checkpoint, and `tag` chooses the newest with a tag: "
                "give one of them"
            )
        found = [there for there in self.epochs() if {*tags} <= {*there.tags}]
        sound = [there.epoch for there in found if there.mark != "bad"]
        if not sound:
            but = " that is not marked as bad" if found else ""
            raise InvalidError(
                f"no checkpoint of job {self._name}{but} has the tags {', '.join(tags)}"
            )
        return [*reversed(sound)]

    def epochs(self) -> list[Epoch]:
        """Returns the committed checkpoints, oldest first."""
        return [Epoch(**values) for values in self._core.epochs()]

    @property
    def latest(self) -> Epoch | None:
        """The newest committed checkpoint; None without one. Does not wait for a save."""
        epochs = self.epochs()
        return epochs[-1] if epochs else None

    def best(self, metric: str) -> Epoch | None:
        """Returns the checkpoint that is best by a metric, given to `save`; of equals the newest.

        ```python
        job.restore(into=state, epoch=job.best("loss"))
        ```

        Args:
            metric: Name of the metric: "loss", for which the lowest is best, or "accuracy:max".

        Returns:
            The checkpoint; None if the job has none at all. Those marked as bad do not count.

        Raises:
            InvalidError: If no checkpoint has the metric.
        """
        return best_of(self.epochs(), metric)

    def tiers(self, epoch: int | str | Epoch | None = None) -> tuple[str, ...]:
        """Returns the tiers from which alone a checkpoint can be read now.

        The result is "fast", "slow", both or none. A pool without a slow tier has only a fast one.
        The call asks every target for its shards. Data that is only on a fast tier in memory is
        lost when its host restarts: see `Save.wait(tier="slow")`.

        Args:
            epoch: The checkpoint, as in `restore`. None is the newest.

        Raises:
            InvalidError: If there is no such checkpoint.
        """
        return tuple(self._core.tiers(self._number_of(epoch)))

    def note(
        self, epoch: int | str | Epoch, *, label: str | None = None, pin: bool | None = None
    ) -> None:
        """Changes the label or the pin of a checkpoint. First waits for a save that is under way.

        Args:
            epoch: The checkpoint, as in `restore`.
            label: New label; an empty text removes it. None leaves it unchanged.
            pin: Whether prunes keep it. None leaves it unchanged.

        Raises:
            InvalidError: If there is no such checkpoint.
        """
        self._core.note(self._named(epoch), self._tick, label=label, pin=pin)

    def tag(
        self,
        epoch: int | str | Epoch,
        add: str | Iterable[str] = (),
        *,
        remove: str | Iterable[str] = (),
        set: str | Iterable[str] | None = None,
    ) -> tuple[str, ...]:
        """Changes the tags of a checkpoint. First waits for a save that is under way.

        Several programs may change tags of one checkpoint at the same time: each change counts.

        Args:
            epoch: The checkpoint, as in `restore`.
            add: Tags to add.
            remove: Tags to remove; those that it lacks are no error.
            set: Tags that replace all others, before `add` and `remove`; an empty list removes all.

        Returns:
            The tags that the checkpoint then has, sorted.

        Raises:
            InvalidError: If there is no such checkpoint, or a tag is empty, longer than 255 bytes,
                or has blanks, commas, quotes or bars.
        """
        tags = None if set is None else tags_of(set)
        added, removed = tags_of(add), tags_of(remove)
        of = self._named(epoch)
        return tuple(self._core.note(of, self._tick, set=tags, add=added, remove=removed))

    def mark(self, epoch: int | str | Epoch, mark: Literal["good", "bad", "none"]) -> None:
        """Marks the state in a checkpoint as good or bad. First waits for a save that is under way.

        A restore without an epoch passes over bad checkpoints, with a warning, and rules such as
        `keep_last` do not count them. `outlive run` marks a checkpoint as bad if the program fails
        again and again after its restore. `restore(epoch=...)` takes a bad one all the same.

        Args:
            epoch: The checkpoint, as in `restore`.
            mark: "bad", "good", or "none" to take the mark back.

        Raises:
            InvalidError: If there is no such checkpoint or mark.
        """
        self._core.note(self._named(epoch), self._tick, mark=mark)

    def prune(
        self,
        keep: str | None = None,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_within: timedelta | str | None = None,
        keep_best: str | Iterable[str] = (),
        keep_tag: str | Iterable[str] = (),
        drop: Iterable[int | str | Epoch] = (),
        everything: bool = False,
        collect: bool = True,
        max_unused: float = 0.02,
        dry_run: bool = False,
    ) -> Pruned:
        """Drops checkpoints by rules, and frees the space that only they needed.

        A checkpoint stays if any rule keeps it. Pinned and labelled checkpoints stay, too, and so
        does the newest of those that are not dropped by name. This or another program may save to
        the pool meanwhile. First waits for a save of this job that is under way.

        Without any rule, the rules of `keep` in the `[tuning]` of `pool.toml` apply.

        Args:
            keep: Rules in one text: "last 10 | every 100 | newer than 7d | best loss:min:3".
                "daily 7" keeps the newest of each of the last 7 days, in UTC, that have one;
                `hourly`, `weekly`, `monthly` and `yearly` do so for their periods.
            keep_last: Number of newest checkpoints to keep. Damaged ones do not count.
            keep_every: Interval of epochs to keep: those that are a multiple of it.
            keep_within: Age up to which to keep checkpoints, counted from the newest: a timedelta,
                or text such as "7d". If times do not fit the order of epochs, a clock has jumped:
                then more is kept, never less.
            keep_best: Metric given to `save` by which to keep the best: "loss", "accuracy:max",
                "loss:min:3" (the best three).
            keep_tag: Tags whose checkpoints to keep.
            drop: Epochs to drop, named as in `restore`, even if a rule, label or pin would keep
                them. Rules choose among the rest. At least one checkpoint must stay.
            everything: Whether to drop all checkpoints. No other program may have the job open;
                for a dry run, neither may this one: call `close` first.
            collect: Whether to free space now; otherwise a later `gc` does.
            max_unused: Share of the bytes in packs that may stay unused, 0 to 1.
            dry_run: Whether to report only what would be done.

        Raises:
            InvalidError: If there is no rule, or one is not possible. Nothing was dropped.
            DamagedError: If stored data that a decision needs cannot be read. No pack was deleted.
            Error: If freeing the space failed for another reason. If checkpoints had been dropped
                by then, the message says so, as with `DamagedError`. They are gone, and the next
                `gc` frees their space once the cause is removed.
        """
        rules = rules_of(
            keep,
            keep_last=keep_last,
            keep_every=keep_every,
            keep_within=keep_within,
            keep_best=keep_best,
            keep_tag=keep_tag,
            drop=[epoch for epoch in map(self._number_of, drop) if epoch is not None],
            everything=everything,
        )
        options = _core.Collection(unused_max=max_unused, collect=collect, dry_run=dry_run)
        done = self._core.prune(rules, options, self._tick)
        return Pruned(collected=Collected(**done.pop("collected")), **done)
