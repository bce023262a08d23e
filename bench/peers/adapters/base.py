"""The protocol that each peer's adapter keeps."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

from peers.state import Arrays, plain

Wait = Callable[[], None]


class Peer(ABC):
    """A way to save a state into `root` and to get it back; used within one process.

    Attributes:
        name: What the command line calls it.
        title: What tables call it.
        packages: Distributions that it needs, the first being the peer's own.
        background: Whether a save goes on after `save` has returned.
        syncs: Whether a save, once waited for, is durable by the peer's own doing. Otherwise the
            bench calls fsync for every file and directory, and counts the time.
        in_place: Whether a restore can fill the arrays that the program has.
        like: The peer that leaves the same on disk; what only depends on that is measured there.
        note: What a reader must know of how it was used.
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
            root: Where checkpoints are. Other objects may have saved there before.
            keep: Whether each save is kept beside the ones before. Otherwise it replaces the one
                before in the way in which users of the peer usually do that.
        """
        self.root = root
        self.keep = keep

    @classmethod
    def version(cls) -> str | None:
        """The version installed; None if something that it needs is not installed."""
        try:
            found = [metadata.version(package) for package in cls.packages]
        except metadata.PackageNotFoundError:
            return None
        return found[0]

    def allocate(self, length: int) -> Any:
        """Memory for an array, as the peer's documentation tells its users to get it."""
        return plain(length)

    def adopt(self, arrays: Arrays) -> Any:
        """The state in the form in which the peer's users have it."""
        return arrays

    def changed(self, state: Any, arrays: Arrays, names: list[str]) -> Any:
        """The state again, after the named arrays have changed in place."""
        del arrays, names
        return state

    @abstractmethod
    def save(self, state: Any) -> Wait:
        """Begins to save, and returns when the state may be changed again.

        Returns:
            What waits until the peer says that the checkpoint is complete.
        """

    @abstractmethod
    def restore(self, into: Any = None) -> Arrays:
        """Reads the newest checkpoint, into `into` if the peer can, with every byte in memory.

        Raises:
            Exception: Whatever the peer says of a damaged or missing checkpoint.
        """

    def close(self) -> None:
        """Lets go of what it holds; nothing, unless a peer says otherwise."""
        return


class FilePeer(Peer):
    """A peer that writes one path for each checkpoint.

    Attributes:
        suffix: How the path's name ends.
    """

    suffix: ClassVar[str] = ""

    def next_path(self) -> Path:
        """Where the next checkpoint goes: a new name, or the same again."""
        if not self.keep:
            return self.root / f"checkpoint{self.suffix}"
        return self.root / f"checkpoint-{len(self._kept()):03}{self.suffix}"

    def newest_path(self) -> Path:
        """Where the newest checkpoint is."""
        return self._kept()[-1] if self.keep else self.root / f"checkpoint{self.suffix}"

    def _kept(self) -> list[Path]:
        return sorted(self.root.glob(f"checkpoint-*{self.suffix}"))

    @abstractmethod
    def write(self, state: Any, path: Path) -> None:
        """Writes the state."""

    def save(self, state: Any) -> Wait:
        """Writes, while the program stands still."""
        self.write(state, self.next_path())
        return _nothing


def _nothing() -> None:
    """Nothing is left to wait for."""
