"""`numpy.savez`: a zip file of arrays."""

from pathlib import Path
from typing import ClassVar

import numpy as np

from peers.adapters.base import FilePeer
from peers.state import Arrays


class Savez(FilePeer):
    """`numpy.savez(path, **arrays)` and `numpy.load`."""

    name = "savez"
    title = "`numpy.savez`"
    suffix: ClassVar[str] = ".npz"

    def write(self, state: Arrays, path: Path) -> None:
        """Writes the arrays, not compressed."""
        np.savez(path, allow_pickle=False, **state)

    def restore(self, into: None = None) -> Arrays:
        """Reads every array."""
        with np.load(self.newest_path()) as stored:
            return {name: stored[name] for name in stored.files}
