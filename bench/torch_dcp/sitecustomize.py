"""Swaps the storage in each process of PyTorch's tests: Python imports this at its start.

Once PyTorch's distributed checkpoints are imported, outlive's storage takes the place of theirs.
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_NAME = "torch.distributed.checkpoint"


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the package as Python does, and swaps its storage once it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns where the package is; None for all other modules."""
        if name != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            import swapped

            swapped.swap(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
