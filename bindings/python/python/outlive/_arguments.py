"""Checks arguments of the programming interface, and converts them for the engine."""

from __future__ import annotations

import logging
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from numbers import Real

from outlive import _core, _notices
from outlive._errors import InvalidError
from outlive._saves import Epoch

_UNITS = {"": 0, "b": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30}


def number(name: str, value: int) -> int:
    """Returns a number for the engine; `name` is that of the argument."""
    try:
        found = operator.index(value)
    except TypeError:
        found = -1
    if not 0 <= found < 1 << 64:
        raise InvalidError(f"{name} = {value!r} is not possible: give a whole number from 0 on")
    return found


def size(name: str, value: int | str | None) -> int | None:
    """Returns bytes from a number, or from text such as "64MiB", as the command reads it."""
    if value is None:
        return None
    if not isinstance(value, str):
        try:
            return number(name, value)
        except InvalidError:
            raise InvalidError(
                f"{name} = {value!r} is not possible: give a whole number of bytes from 0 on, or "
                'text with a unit, such as "64MiB"'
            ) from None
    digits, unit = re.fullmatch(r"([0-9]*)\s*(.*)", value.strip(), re.DOTALL).groups()  # type: ignore[union-attr]
    if not digits or unit.lower() not in _UNITS:
        raise InvalidError(
            f"{name} = {value!r} is not possible: give a number of bytes, or one with a unit, "
            'such as "64MiB"'
        )
    return number(name, int(digits) << _UNITS[unit.lower()])


def word(name: str, value: str | None) -> str | None:
    """Returns text or None, after a check of the type."""
    if not isinstance(value, str | None):
        raise InvalidError(f"{name} = {value!r} is not possible: give text, such as 'auto'")
    return value


def interval_of(
    every_s: float | None,
    every: float | timedelta | str | None,
    slowdown_max: float | None,
) -> tuple[float | None, str | None]:
    """Returns the seconds between saves, or the text that the engine reads; see `Pool.job`."""
    if every_s is not None and every is not None:
        raise InvalidError(f"every_s = {every_s!r} and every = {every!r}: give one of them")
    for name, value in (("every_s", every_s), ("slowdown_max", slowdown_max)):
        if isinstance(value, bool) or not isinstance(value, Real | None):
            also = ', or every="30s" in its place' if name == "every_s" else ""
            raise InvalidError(f"{name} = {value!r} is not possible: give a number{also}")
    if slowdown_max is not None and every != "continuous":
        raise InvalidError('slowdown_max is the budget of every="continuous": give both')
    if isinstance(every, timedelta):
        every = every.total_seconds()
    if every is None or isinstance(every, str):
        return every_s, every
    if isinstance(every, bool) or not isinstance(every, int | float):
        raise InvalidError(
            f"every = {every!r} is no interval: give seconds, a timedelta, or text such as "
            '"auto", "continuous" or "30s"'
        )
    return float(every), None


def epoch_name(epoch: int | str | Epoch | None) -> int | str | None:
    """Returns the number of a checkpoint, or text that the engine counts from the newest."""
    found = epoch.epoch if isinstance(epoch, Epoch) else epoch
    if found is None or isinstance(found, str):
        return found
    if not isinstance(found, int) or abs(found) >= 1 << 64:
        raise InvalidError(
            f"there is no epoch {found!r}: give a number, one of `epochs()`, or -1 for the newest"
        )
    return found if found >= 0 else str(found)


def rules_of(
    keep: str | None = None,
    *,
    keep_last: int | None = None,
    keep_every: int | None = None,
    keep_within: timedelta | str | None = None,
    keep_best: str | Iterable[str] = (),
    keep_tag: str | Iterable[str] = (),
    drop: Iterable[int] = (),
    everything: bool = False,
) -> _core.Rules:
    """Returns checked rules for a prune; see `Job.prune`."""
    keep = word("keep", keep)
    if isinstance(keep_within, str):
        # The engine parses ages.
        keep = " | ".join([*([keep] if keep else []), f"newer than {keep_within}"])
        keep_within = None
    if not isinstance(keep_within, timedelta | None):
        raise InvalidError(
            f"keep_within = {keep_within!r} is not possible: give a timedelta, or text such as "
            '"7d" or "36h"'
        )
    return _core.Rules(
        last=None if keep_last is None else number("keep_last", keep_last),
        every=None if keep_every is None else number("keep_every", keep_every),
        within_s=None if keep_within is None else keep_within.total_seconds(),
        best=[keep_best] if isinstance(keep_best, str) else list(keep_best),
        tags=tags_of(keep_tag),
        none=everything,
        drop={number("drop", epoch) for epoch in drop},
        text=keep,
    )


def best_of(epochs: Sequence[Epoch], metric: str) -> Epoch | None:
    """Returns the best of these checkpoints; see `Job.best`."""
    name, _, rule = metric.partition(":") if isinstance(metric, str) else ("", "", "")
    if not name or rule not in ("", "min", "max"):
        raise InvalidError(
            f'metric = {metric!r} is not possible: give a name such as "loss", or "accuracy:max"'
        )
    sign = -1 if rule == "max" else 1
    sound = [epoch for epoch in epochs if name in epoch.metrics and epoch.mark != "bad"]
    if epochs and not sound:
        names = sorted({other for epoch in epochs for other in epoch.metrics})
        have = f"they have {', '.join(map(repr, names))}" if names else "they have no metrics"
        raise InvalidError(
            f"no checkpoint that counts has the metric {name!r} ({have}): give it to "
            "`save(..., metrics=...)`, or name another"
        )
    # Zero is added because -0.0 + 0.0 is 0.0.
    return min(sound, key=lambda e: (sign * e.metrics[name] + 0.0, -e.epoch), default=None)


def failures_of(
    on_failure: str | None, fail_after: timedelta | str | None
) -> tuple[str | None, float | str | None]:
    """Returns the checked policy for saves that fail; see `Pool.job`."""
    on_failure = word("on_failure", on_failure)
    if not isinstance(fail_after, timedelta | str | None):
        raise InvalidError(
            f"fail_after = {fail_after!r} is not possible: give a timedelta, or text such as "
            '"1h" or "90m"'
        )
    if fail_after is not None and on_failure != "warn":
        raise InvalidError('`fail_after` goes with on_failure="warn"')
    if isinstance(fail_after, timedelta):
        return on_failure, fail_after.total_seconds()
    return on_failure, fail_after


def tags_of(tags: str | Iterable[str]) -> list[str]:
    """Returns a list of tags from one tag or several; the engine checks each."""
    if isinstance(tags, str):
        return [tags]
    found = list(tags) if isinstance(tags, Iterable) and not isinstance(tags, bytes) else [None]
    if not all(isinstance(tag, str) for tag in found):
        raise InvalidError(f"tags are texts such as 'best-of-run', or a list of them, not {tags!r}")
    return found


def notes_of(
    job: str,
    label: str | None,
    pin: bool,
    metrics: Mapping[str, float] | None,
    tags: str | Iterable[str] = (),
) -> _core.Notes:
    """Returns the label, tags, pin and metrics of a checkpoint."""
    if not isinstance(metrics, Mapping | None):
        raise InvalidError(
            f'`metrics` are figures by name, such as {{"loss": 0.02}}, not {metrics!r}'
        )
    figures: dict[str, float] = {}
    for name, value in (metrics or {}).items():
        if not isinstance(name, str):
            raise InvalidError(f"the name of a metric must be text, not {name!r}")
        try:
            figures[name] = float(value)
        except (TypeError, ValueError, OverflowError):
            raise InvalidError(f"the metric {name!r} must be a number, not {value!r}") from None
        if math.isnan(figures[name]):
            # A loss that became NaN must not prevent the save of the state.
            del figures[name]
            _notices.tell(
                logging.WARNING,
                "job %s: the metric %r is NaN: the checkpoint is saved without it, so that it is "
                "never the best by it",
                job,
                name,
            )
    return _core.Notes(label=label or "", tags=tags_of(tags), pin=pin, metrics=figures)
