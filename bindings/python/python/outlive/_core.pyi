"""The native half; `outlive` is what programs use."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

Tick = Callable[[], None]
EventTuple = tuple[str, str] | tuple[str, str, int, int]

def command(args: Sequence[str]) -> int: ...

class Pool:
    """A pool."""

    def __new__(
        cls, location: str | PathLike[str], create: bool, tuning: Sequence[tuple[str, int]]
    ) -> Pool: ...
    def job(self, name: str, every_s: float | None) -> Job: ...
    def jobs(self) -> list[str]: ...
    def take_events(self) -> list[EventTuple]: ...

class Job:
    """A job."""

    def due(self) -> bool: ...
    def events_waiting(self) -> bool: ...
    def unfinished(self) -> bool: ...
    def save(
        self,
        names: list[str],
        dtypes: list[str],
        shapes: list[tuple[int, ...]],
        leaves: list[Any],
        attachment: bytes,
        tick: Tick,
    ) -> Save: ...
    def restore(
        self,
        epoch: int | None,
        plan: Callable[
            [int, list[str], list[str], list[tuple[int, ...]], list[int], bytes], list[Any]
        ],
        tick: Tick,
    ) -> dict[str, Any] | None: ...
    def epochs(self) -> list[tuple[int, int, int, int, int, int, int]]: ...
    def wait(self, tick: Tick) -> None: ...
    def close(self, tick: Tick) -> None: ...

class Save:
    """A save under way, or over."""

    @property
    def epoch(self) -> int: ...
    def done(self) -> bool: ...
    def wait(self, timeout_s: float | None, tick: Tick) -> dict[str, Any] | None: ...
