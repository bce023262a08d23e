"""The protocol of each peer's adapter."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

from peers.state import Arrays, plain

Wait = Callable[[], None]


class Peer(ABC):
    """Saves a state into `root` and restores it; used within one process.

    Attributes:
        name: Name on the command line.
        title: Name in tables.
        packages: Distributions that it needs, the first being the peer's own.
        background: Whether a save goes on after `save` has returned.
        syncs: Whether the peer itself makes a save durable before the wait for it ends. Otherwise
            the bench calls fsync for every file and directory, and counts the time.
        in_place: Whether a restore can fill the arrays that the program has.
        like: The peer with the same format on disk; figures of the format are measured there.
        note: A note for readers on how it was used.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ("numpy",)
    background: ClassVar[bool] = False
    syncs: ClassVar[bool] = False
    in_place: ClassVar[bool] = False
    like: ClassVar[str | None] = None
    note: ClassVar[str] = ""

    def __init__(self, root: Path, *, keep: bool) -> None:
        """Opens `root`, a directory, for saving or restoring.

        Args:
            root: Directory of checkpoints. Other objects may have saved there before.
            keep: Whether to keep each save beside the ones before. Otherwise it replaces the one
                before, as users of the peer usually do.
        """
        self.root = root
        self.keep = keep

    @classmethod
    def version(cls) -> str | None:
        """Returns the installed version; None if a package that it needs is missing."""
        try:
            found = [metadata.version(package) for package in cls.packages]
        except metadata.PackageNotFoundError:
            return None
        return found[0]

    def allocate(self, length: int) -> Any:
        """Allocates an array, as the peer's documentation recommends."""
        return plain(length)

    def adopt(self, arrays: Arrays) -> Any:
        """Returns the state in the form that the peer's users have."""
        return arrays

    def changed(self, state: Any, arrays: Arrays, names: list[str]) -> Any:
        """Returns the state again, after the named arrays have changed in place."""
        del arrays, names
        return state

    @abstractmethod
    def save(self, state: Any) -> Wait:
        """Begins to save, and returns when the state may be changed again.

        Returns:
            A function that waits until the peer reports the checkpoint complete.
        """

    @abstractmethod
    def restore(self, into: Any = None) -> Arrays:
        """Reads the newest checkpoint, into `into` if the peer can, with every byte in memory.

        Raises:
                Exception: Any error of the peer for a damaged or missing checkpoint.
        """

    def close(self) -> None:
        """Frees its resources; none, unless a peer overrides this."""
        return


class FilePeer(Peer):
    """A peer that writes one path for each checkpoint.

    Attributes:
            suffix: Suffix of the path's name.
    """

    suffix: ClassVar[str] = ""

    def next_path(self) -> Path:
        """Returns the path of the next checkpoint: a new name, or the same again."""
        if not self.keep:
            return self.root / f"checkpoint{self.suffix}"
        return self.root / f"checkpoint-{len(self._kept()):03}{self.suffix}"

    def newest_path(self) -> Path:
        """Returns the path of the newest checkpoint."""
        return self._kept()[-1] if self.keep else self.root / f"checkpoint{self.suffix}"

    def _kept(self) -> list[Path]:
        return sorted(self.root.glob(f"checkpoint-*{self.suffix}"))

    @abstractmethod
    def write(self, state: Any, path: Path) -> None:
        """Writes the state."""

    def save(self, state: Any) -> Wait:
        """Writes, while the program waits."""
        self.write(state, self.next_path())
        return _nothing


def _nothing() -> None:
    """Returns at once, since the save is complete."""
