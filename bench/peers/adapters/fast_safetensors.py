"""fastsafetensors: files of safetensors, written and read by several threads."""

import os
from pathlib import Path
from typing import Any, ClassVar

from peers.adapters.base import FilePeer
from peers.state import Arrays


class FastSafetensors(FilePeer):
    """`fastsafetensors.ParallelSaver` and `fastsafe_open`, on the processor."""

    name = "fastsafetensors"
    title = "fastsafetensors"
    packages = ("fastsafetensors", "torch", "numpy")
    suffix: ClassVar[str] = ".shards"

    def adopt(self, arrays: Arrays) -> Any:
        """Returns tensors in the same memory."""
        import torch

        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def write(self, state: Any, path: Path) -> None:
        """Writes its default of 16 files into a directory."""
        from fastsafetensors import ParallelSaver

        path.mkdir(exist_ok=True)
        saver = ParallelSaver(num_threads=os.cpu_count() or 1)
        saver.save(state, str(path / "state"))

    def restore(self, into: None = None) -> Arrays:
        """Reads the files into memory of their tensors."""
        from fastsafetensors import fastsafe_open

        files = sorted(str(file) for file in self.newest_path().iterdir())
        with fastsafe_open(files, device="cpu", nogds=True) as stored:
            return {name: stored.get_tensor(name).numpy() for name in stored.keys()}  # noqa: SIM118
