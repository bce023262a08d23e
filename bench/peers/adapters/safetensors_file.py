"""safetensors: a header and the raw bytes."""

from pathlib import Path
from typing import ClassVar

from peers.adapters.base import FilePeer
from peers.state import Arrays


class Safetensors(FilePeer):
    """`safetensors.numpy.save_file` and `load_file`."""

    name = "safetensors"
    title = "safetensors"
    packages: ClassVar[tuple[str, ...]] = ("safetensors", "numpy")
    suffix: ClassVar[str] = ".safetensors"

    def write(self, state: Arrays, path: Path) -> None:
        """Writes the arrays."""
        from safetensors.numpy import save_file

        save_file(state, path)

    def restore(self, into: None = None) -> Arrays:
        """Reads the arrays, copied out of the mapped file."""
        from safetensors.numpy import load_file

        arrays: Arrays = load_file(self.newest_path())
        return arrays
