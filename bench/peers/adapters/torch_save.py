"""`torch.save`: a zip file of tensors."""

from pathlib import Path
from typing import Any, ClassVar

from peers.adapters.base import FilePeer
from peers.state import Arrays


class TorchSave(FilePeer):
    """`torch.save(state, path)` and `torch.load(path, weights_only=True)`."""

    name = "torch"
    title = "`torch.save`"
    packages = ("torch", "numpy")
    suffix: ClassVar[str] = ".pt"

    def adopt(self, arrays: Arrays) -> Any:
        """Returns tensors in the same memory."""
        import torch

        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def write(self, state: Any, path: Path) -> None:
        """Writes the tensors."""
        import torch

        torch.save(state, path)

    def restore(self, into: None = None) -> Arrays:
        """Reads the tensors."""
        import torch

        tensors = torch.load(self.newest_path(), weights_only=True)
        return {name: tensor.numpy() for name, tensor in tensors.items()}
