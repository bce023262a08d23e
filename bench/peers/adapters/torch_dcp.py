"""PyTorch's distributed checkpoints (DCP), here of one process."""

import warnings
from pathlib import Path
from typing import Any

from peers.adapters.base import FilePeer, Wait
from peers.state import Arrays


class Dcp(FilePeer):
    """`torch.distributed.checkpoint.save` and `load`."""

    name = "dcp"
    title = "DCP"
    packages = ("torch", "numpy")
    in_place = True

    def adopt(self, arrays: Arrays) -> Any:
        """Returns tensors in the same memory."""
        import torch

        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def write(self, state: Any, path: Path) -> None:
        """Writes a directory."""
        import torch.distributed.checkpoint as dcp

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(state, checkpoint_id=path, no_dist=True)

    def restore(self, into: Any = None) -> Arrays:
        """Reads into tensors of the program, or else into empty ones that it makes first."""
        import torch
        import torch.distributed.checkpoint as dcp

        path = self.newest_path()
        if into is None:
            stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
            into = {
                name: torch.empty(tensor.size, dtype=tensor.properties.dtype)
                for name, tensor in stored.items()
            }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(into, checkpoint_id=path, no_dist=True)
        return {name: tensor.numpy() for name, tensor in into.items()}


class DcpAsync(Dcp):
    """`torch.distributed.checkpoint.async_save`."""

    name = "dcp-async"
    title = "DCP, asynchronous"
    background = True
    like = "dcp"

    def save(self, state: Any) -> Wait:
        """Copies the tensors, then writes in a thread."""
        import torch.distributed.checkpoint as dcp

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            future = dcp.async_save(state, checkpoint_id=self.next_path(), no_dist=True)
        return lambda: _finish(future)


def _finish(future: Any) -> None:
    future.result()
