"""outlive itself."""

import re
from pathlib import Path
from typing import Any, ClassVar

import outlive
from peers.adapters.base import Peer, Wait
from peers.state import Arrays


class Outlive(Peer):
    """`job.save(state)` and `job.restore()`, with the defaults."""

    name = "outlive"
    title = "**outlive**"
    packages = ("outlive", "numpy")
    background = True
    syncs = True
    in_place = True
    compression: ClassVar[str | None] = None
    # Whether the whole state may be copied before the program goes on, as other asynchronous peers
    # do.
    copy_all: ClassVar[bool] = False

    def __init__(self, root: Path, *, keep: bool) -> None:
        """Opens the pool, or creates it."""
        super().__init__(root, keep=keep)
        if self.compression is not None:
            outlive.open(root).close()
            settings = root / "pool.toml"
            text = settings.read_text()
            line = f'compression = "{self.compression}"'
            wished, found = re.subn(r"(?m)^#? *compression *=.*$", line, text)
            settings.write_text(wished if found else f"{text}\n[tuning]\n{line}\n")
        freeze = 1 << 40 if self.copy_all else None
        self._job = outlive.open(root, freeze_bytes_max=freeze).job("bench")

    def allocate(self, length: int) -> Any:
        """Allocates page-aligned memory, as in the README."""
        return outlive.empty(length, "float32")

    def save(self, state: Any) -> Wait:
        """Saves the next epoch."""
        save = self._job.save(state, force=True)
        return lambda: _finish(save)

    def restore(self, into: Any = None) -> Arrays:
        """Reads the newest epoch, verified."""
        if into is not None:
            if not self._job.restore(into=into):
                raise FileNotFoundError("there is no checkpoint")
            arrays: Arrays = into
            return arrays
        tree = self._job.restore()
        if tree is None:
            raise FileNotFoundError("there is no checkpoint")
        arrays = tree
        return arrays

    def close(self) -> None:
        """Waits for a save under way."""
        self._job.close()


def _finish(save: outlive.Save) -> None:
    save.wait()


class OutliveNone(Outlive):
    """Without compression."""

    name = "outlive-none"
    title = "**outlive**, compression none"
    like = "outlive"
    compression = "none"


class OutliveCopy(Outlive):
    """With memory for a copy of the whole state."""

    name = "outlive-copy"
    title = "**outlive**, memory for a whole copy"
    like = "outlive"
    copy_all = True
    note = "`freeze_bytes_max` is larger than the state, so a save copies it and returns."
