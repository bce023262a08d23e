"""The native half; programs use `outlive`."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, TypedDict

from outlive._errors import Error

Tick = Callable[[], None]

class Notice(TypedDict):
    """A notice for the people who run the program."""

    level: str
    text: str

class Progress(TypedDict):
    """Progress of an operation."""

    what: str
    done_bytes: int
    total_bytes: int

class Notices(TypedDict):
    """Notices and progress of the engine."""

    notices: list[Notice]
    progress: list[Progress]

__version__: str

def command(args: Sequence[str]) -> int: ...
def process_metrics() -> dict[str, Any]: ...
def process_metrics_text() -> str: ...
def on_preempt(grace_s: float) -> None: ...
def plain_containers(state: object, least: int) -> frozenset[int]: ...
def offer(mapping: object) -> tuple[object, str | None]: ...
def borrow_dlpack(capsule: object, is_mutable: bool) -> dict[str, Any]: ...
def insist(begin: Callable[[], Callable[[list[BaseException]], bool]]) -> None: ...

class Lent:
    """Memory of another package's array."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Notes:
    """Label, pin and metrics of a checkpoint."""

    def __new__(cls, *, label: str, pin: bool, metrics: dict[str, float]) -> Notes: ...

class Rules:
    """Rules of a prune."""

    def __new__(
        cls,
        *,
        last: int | None,
        every: int | None,
        within_s: float | None,
        best: list[str],
        none: bool,
        drop: set[int],
        text: str | None,
    ) -> Rules: ...

class Collection:
    """Options of a garbage collection."""

    def __new__(
        cls,
        *,
        unused_max: float,
        collect: bool = True,
        fence: list[str] = ...,
        dry_run: bool,
    ) -> Collection: ...

class Pool:
    """A pool."""

    def __new__(
        cls,
        location: str | PathLike[str],
        *,
        create: bool,
        staging_bytes: int | None,
        freeze_bytes_max: int | None,
        index_bytes_max: int | None,
        threads: int | None,
        freeze: str | None,
        tracker: str | None,
    ) -> Pool: ...
    def job(
        self,
        name: str,
        *,
        every_s: float | None,
        every: str | None,
        slowdown_max: float | None,
        keep: Rules | None,
        on_failure: str | None,
        fail_after: float | str | None,
        group: Any,
        patience_s: float,
        schedule: str,
    ) -> Job: ...
    def jobs(self) -> list[str]: ...
    def gc(self, options: Collection, tick: Tick) -> dict[str, Any]: ...
    def take_notices(self) -> Notices: ...

class Job:
    """A job."""

    def due(self, tick: Tick) -> bool: ...
    def should_stop(self, tick: Tick) -> bool: ...
    def stop_request(self) -> tuple[str, float | None] | None: ...
    def plain_containers(self, state: object, least: int) -> frozenset[int]: ...
    def group(self) -> tuple[int, int] | None: ...
    def abort_collective(self, tick: Tick, message: str) -> None: ...
    def commit_events(self) -> CommitEvents: ...
    def notices_waiting(self) -> bool: ...
    def unfinished(self) -> bool: ...
    def unwatch(self) -> None: ...
    def saving(self) -> bool: ...
    def save(
        self,
        tick: Tick,
        *,
        names: list[str],
        dtypes: list[str],
        shapes: list[tuple[int, ...]],
        leaves: list[Any],
        distributions: dict[int, Any],
        attachment: bytes,
        notes: Notes,
    ) -> Save: ...
    def restore(
        self,
        plan: Callable[..., list[Any]],
        tick: Tick,
        *,
        epoch: int | None,
        user_only: bool | None,
    ) -> dict[str, Any] | None: ...
    def put_files(
        self,
        paths: list[str],
        tick: Tick,
        *,
        patterns: list[str],
        ignore_files: bool,
        one_file_system: bool,
        reread: bool,
        leave_out: list[str],
        notes: Notes,
    ) -> dict[str, Any]: ...
    def get_files(
        self, to: str, paths: list[bytes], tick: Tick, *, epoch: int | None, overwrite: bool
    ) -> dict[str, Any] | None: ...
    def epochs(self) -> list[dict[str, Any]]: ...
    def epoch_named(self, name: str, tick: Tick) -> int: ...
    def tiers(self, epoch: int | None) -> list[str]: ...
    def note(
        self, epoch: int, tick: Tick, *, label: str | None, pin: bool | None, mark: str | None
    ) -> None: ...
    def prune(self, rules: Rules, options: Collection, tick: Tick) -> dict[str, Any]: ...
    def plot(self) -> str: ...
    def wait(self, tick: Tick) -> None: ...
    def take_over(self) -> None: ...
    def status(self) -> dict[str, Any]: ...
    def untold_failures(self) -> tuple[int, int, str] | None: ...
    def close(self, tick: Tick, *, at_exit: bool, together: bool) -> None: ...

class CommitEvents:
    """A subscription to the fate of each checkpoint."""

    def next(self, timeout_s: float | None, tick: Tick) -> tuple[int, str, Error | None] | None: ...
    def ended(self) -> bool: ...
    def close(self) -> None: ...

class FillHandle:
    """Memory that is being filled."""

    def done(self) -> bool: ...
    def progress(self) -> tuple[int, int]: ...
    def how(self) -> dict[str, Any]: ...
    def wait(self, names: list[str] | None, timeout_s: float | None, tick: Tick) -> bool: ...

class Save:
    """A save that is under way or over."""

    @property
    def held_s(self) -> float: ...
    @property
    def epoch(self) -> int: ...
    def done(self) -> bool: ...
    def is_last(self) -> bool: ...
    def settle(self, tick: Tick) -> None: ...
    def wait(self, timeout_s: float | None, tick: Tick) -> dict[str, Any] | None: ...
