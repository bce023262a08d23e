"""Orbax: checkpoints of JAX arrays, by its `CheckpointManager`."""

import logging
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from peers.adapters.base import Peer, Wait
from peers.state import Arrays


class OrbaxAsync(Peer):
    """Asynchronous saves with Orbax's defaults."""

    name = "orbax-async"
    title = "Orbax, asynchronous"
    packages = ("orbax-checkpoint", "jax", "jaxlib")
    background = True
    like: ClassVar[str | None] = "orbax"
    note = "JAX arrays cannot be changed, so a save need not copy them first."
    asynchronous: ClassVar[bool] = True
    compression: ClassVar[bool] = True

    def __init__(self, root: Path, *, keep: bool) -> None:
        """Opens a manager of checkpoints, which are numbered steps."""
        super().__init__(root, keep=keep)
        logging.getLogger("absl").setLevel(logging.ERROR)
        import orbax.checkpoint as ocp

        self._ocp = ocp
        handler = ocp.PyTreeCheckpointHandler(use_compression=self.compression)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None if keep else 1,
            enable_async_checkpointing=self.asynchronous,
            cleanup_tmp_directories=True,
        )
        self._manager = ocp.CheckpointManager(root, options=options, item_handlers=handler)

    def adopt(self, arrays: Arrays) -> Any:
        """Returns JAX arrays with the same bits, in memory of their own."""
        return {name: self._jax(array) for name, array in arrays.items()}

    def changed(self, state: Any, arrays: Arrays, names: list[str]) -> Any:
        """Makes new arrays for the changed ones."""
        return {**state, **{name: self._jax(arrays[name]) for name in names}}

    def save(self, state: Any) -> Wait:
        """Saves the next step."""
        step = (self._manager.latest_step() or 0) + 1
        self._manager.save(step, args=self._ocp.args.PyTreeSave(state))
        wait: Wait = self._manager.wait_until_finished
        return wait

    def restore(self, into: None = None) -> Arrays:
        """Reads the newest step as JAX arrays."""
        import jax

        step = self._manager.latest_step()
        if step is None:
            raise FileNotFoundError("there is no step")
        tree = self._manager.restore(step, args=self._ocp.args.PyTreeRestore())
        tree = jax.block_until_ready(tree)
        return {name: np.asarray(array) for name, array in tree.items()}

    def close(self) -> None:
        """Ends its threads."""
        self._manager.close()

    def _jax(self, array: np.ndarray[Any, Any]) -> Any:
        import jax

        return jax.block_until_ready(jax.numpy.array(array, copy=True))


class Orbax(OrbaxAsync):
    """Synchronous saves with Orbax's defaults."""

    name = "orbax"
    title = "Orbax"
    background = False
    like = None
    note = ""
    asynchronous = False


class OrbaxRaw(OrbaxAsync):
    """Asynchronous saves without zstd."""

    name = "orbax-raw"
    title = "Orbax, asynchronous, without zstd"
    compression = False
