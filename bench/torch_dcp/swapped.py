"""`DCPWriter` and `DCPReader` in the shape of PyTorch's writer and reader of files.

Those take a folder. Here the folder is a pool, with one job.
"""

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import outlive
from outlive.torch import DCPReader, DCPWriter

_JOB = "state"


class Writer(DCPWriter):
    """Saves into a pool in a folder, as `FileSystemWriter` saves into a folder."""

    def __init__(self, path: Any, *_: Any, **__: Any) -> None:
        """Opens the pool."""
        self._open(path)

    def _open(self, path: Any) -> None:
        self.path = Path(path)
        super().__init__(outlive.open(self.path), _JOB)

    def reset(self, checkpoint_id: Any = None) -> None:
        """Begins a save, into another folder if one is given."""
        if checkpoint_id and Path(checkpoint_id) != self.path:
            self.close()
            self._open(checkpoint_id)
        super().reset(None)

    @property
    def checkpoint_id(self) -> Any:
        """The folder."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Whether a text or path names a folder."""
        return _is_folder(checkpoint_id)


class Reader(DCPReader):
    """Loads from such a pool, as `FileSystemReader` loads from a folder."""

    def __init__(self, path: Any, *_: Any, **__: Any) -> None:
        """Opens the pool."""
        self._open(path)

    def _open(self, path: Any) -> None:
        self.path = Path(path)
        # Planners of the tests keep data that JSON cannot hold.
        super().__init__(outlive.open(self.path), _JOB, allow_pickle=True)

    def reset(self, checkpoint_id: Any = None) -> None:
        """Begins a load, from another folder if one is given."""
        if checkpoint_id and Path(checkpoint_id) != self.path:
            self._open(checkpoint_id)

    @property
    def checkpoint_id(self) -> Any:
        """The folder."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Whether a text or path names a folder."""
        return _is_folder(checkpoint_id)


def _is_folder(checkpoint_id: Any) -> bool:
    return isinstance(checkpoint_id, str | os.PathLike) and "://" not in str(checkpoint_id)


def swap(package: ModuleType) -> None:
    """Puts both in place of PyTorch's, wherever the package has these."""
    modules = [package, package.filesystem, package._storage_utils]
    for module in modules:
        for name, made in (("FileSystemWriter", Writer), ("FileSystemReader", Reader)):
            if hasattr(module, name):
                setattr(module, name, made)
