"""`pickle` from the standard library, protocol 5."""

import pickle
from pathlib import Path
from typing import ClassVar

from peers.adapters.base import FilePeer
from peers.state import Arrays


class Pickle(FilePeer):
    """`pickle.dump(state, file, protocol=5)` and `pickle.load`."""

    name = "pickle"
    title = "`pickle`, protocol 5"
    suffix: ClassVar[str] = ".pickle"

    def write(self, state: Arrays, path: Path) -> None:
        """Writes the state."""
        with path.open("wb") as file:
            pickle.dump(state, file, protocol=5)

    def restore(self, into: None = None) -> Arrays:
        """Reads the state."""
        with self.newest_path().open("rb") as file:
            state: Arrays = pickle.load(file)
        return state
