"""The native half; `outlive` is what programs use."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, TypedDict

Tick = Callable[[], None]

class Notice(TypedDict):
    """Something that the program's people should know."""

    level: str
    text: str

class Progress(TypedDict):
    """How far something is."""

    what: str
    done_bytes: int
    total_bytes: int

class Events(TypedDict):
    """What the engine has told."""

    notices: list[Notice]
    progress: list[Progress]

# Label, pin, metrics.
Notes = tuple[str, bool, list[tuple[str, float]]]
# Last, every, seconds, best, all, drop; rules in one text.
RuleValues = tuple[int | None, int | None, float | None, list[str], bool, list[int], str | None]
# Patterns, use of ignore files, one file system, reread, what is left out.
FileChoices = tuple[list[str], bool, bool, bool, list[str]]
# Unused share, collect, fenced jobs, forget damaged, dry run.
OptionValues = tuple[float, bool, list[str], bool, bool]

__version__: str

def command(args: Sequence[str]) -> int: ...
def offer(mapping: object) -> tuple[object, str | None]: ...
def borrow_dlpack(capsule: object, is_mutable: bool) -> dict[str, Any]: ...
def insist(begin: Callable[[], Callable[[list[BaseException]], bool]]) -> None: ...

class Lent:
    """Memory of another package's array."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Pool:
    """A pool."""

    def __new__(
        cls, location: str | PathLike[str], create: bool, tuning: Sequence[tuple[str, int | str]]
    ) -> Pool: ...
    def job(self, name: str, every_s: float | None) -> Job: ...
    def jobs(self) -> list[str]: ...
    def gc(self, options: OptionValues, tick: Tick) -> dict[str, Any]: ...
    def take_events(self) -> Events: ...

class Job:
    """A job."""

    def due(self) -> bool: ...
    def events_waiting(self) -> bool: ...
    def unfinished(self) -> bool: ...
    def unwatch(self) -> None: ...
    def saving(self) -> bool: ...
    def save(
        self,
        names: list[str],
        dtypes: list[str],
        shapes: list[tuple[int, ...]],
        leaves: list[Any],
        attachment: bytes,
        notes: Notes,
        tick: Tick,
    ) -> Save: ...
    def restore(
        self,
        epoch: int | None,
        plan: Callable[..., list[Any]],
        user_only: bool | None,
        tick: Tick,
    ) -> dict[str, Any] | None: ...
    def put_files(
        self, paths: list[str], choices: FileChoices, notes: Notes, tick: Tick
    ) -> dict[str, Any]: ...
    def get_files(
        self, to: str, paths: list[bytes], epoch: int | None, overwrite: bool, tick: Tick
    ) -> dict[str, Any] | None: ...
    def epochs(self) -> list[dict[str, Any]]: ...
    def note(self, epoch: int, label: str | None, pin: bool | None, tick: Tick) -> None: ...
    def prune(self, rules: RuleValues, options: OptionValues, tick: Tick) -> dict[str, Any]: ...
    def plot(self) -> str: ...
    def wait(self, tick: Tick) -> None: ...
    def take_over(self) -> None: ...
    def close(self, at_exit: bool, tick: Tick) -> None: ...

class Fill:
    """Memory that is being filled."""

    def done(self) -> bool: ...
    def progress(self) -> tuple[int, int]: ...
    def how(self) -> dict[str, Any]: ...
    def wait(self, names: list[str] | None, timeout_s: float | None, tick: Tick) -> bool: ...

class Save:
    """A save under way, or over."""

    @property
    def epoch(self) -> int: ...
    def done(self) -> bool: ...
    def wait(self, timeout_s: float | None, tick: Tick) -> dict[str, Any] | None: ...
