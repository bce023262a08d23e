"""outlive for Orbax: a `CheckpointableHandler` that keeps the arrays of a checkpoint in a pool.

```python
import orbax.checkpoint.experimental.v1 as ocp
import outlive.orbax

with outlive.orbax.context("ckpt", "training", keep_last=3):
    ocp.save("/checkpoints/step-100", state)
    state = ocp.load("/checkpoints/step-100", abstract_state)
```

The directory of a checkpoint gets a small file, which names the checkpoint in the pool.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from outlive import _dtypes
from outlive._adapters import _pointers
from outlive._adapters._source import Source, To
from outlive._errors import InvalidError
from outlive._flat import escape
from outlive._look import look
from outlive._saves import Save

__all__ = ["Handler", "context", "handler"]

# Orbax takes a directory with a file of this name for a pytree.
_FILE = "_METADATA"
_JAX, _NUMPY, _OTHER = "jax", "numpy", "other"


def handler(to: To, name: str | None = None, **options: Any) -> type[Handler]:
    """Returns a class for a registry of Orbax: handlers which save in one job.

    ```python
    registry = ocp.handlers.local_registry()
    registry.add(outlive.orbax.handler("ckpt", "training"), checkpointable_name="state")
    ```

    Args:
        to: A pool or its location, with the name of a job; or a job.
        name: Name of the job.
        options: Options of `Pool.job`, such as `keep_last=3`.
    """
    source = Source(to, name, options)

    class Bound(Handler):
        _source = source

    # Checkpoints name their handler, and any of these loads them.
    Bound.__name__ = Bound.__qualname__ = "Handler"
    return Bound


def context(to: To, name: str | None = None, **options: Any) -> Any:
    """Returns a context of Orbax in which the pytree named "state" is saved in a job.

    That is the pytree of `ocp.save`, `ocp.load` and `Checkpointer`, inside of the `with`. Orbax
    itself writes all else as files: metrics, JSON, objects with a state, and pytrees of other
    names. Arguments as for `handler`.
    """
    import orbax.checkpoint.experimental.v1 as ocp

    bound = handler(to, name, **options)
    registry = ocp.handlers.local_registry(include_global_registry=False)
    entries = ocp.handlers.global_registry().get_all_entries()
    for other, key in entries:
        # The name that Orbax gives to the pytree of `ocp.save`.
        is_of_pytrees = key is not None and other is ocp.handlers.PyTreeHandler
        registry.add(bound if is_of_pytrees else other, checkpointable_name=key)
    made = _context_class()()
    made.checkpointables.registry = registry
    return made


@functools.cache
def _context_class() -> Any:
    """Returns a class of contexts that may be entered while they are active.

    A `Checkpointer` enters the active context again as it saves. At the end of that, Orbax's own
    class leaves both, and later saves of the program would be outside of the context.
    """
    import orbax.checkpoint.experimental.v1 as ocp

    class Context(ocp.Context):  # type: ignore[misc]
        def __enter__(self) -> Any:
            manager = self.__contextmanager__()
            found = manager.__enter__()
            _entered().setdefault(id(self), []).append(manager)
            return found

        def __exit__(self, *error: Any) -> Any:
            managers = _entered()[id(self)]
            manager = managers.pop()
            if not managers:
                del _entered()[id(self)]
            return manager.__exit__(*error)

    return Context


_local_to_thread = threading.local()


def _entered() -> dict[int, list[Any]]:
    """Returns what this thread has entered, by the id of the context."""
    if not hasattr(_local_to_thread, "managers"):
        _local_to_thread.managers = {}
    found: dict[int, list[Any]] = _local_to_thread.managers
    return found


class Handler:
    """Saves pytrees in a job, and loads them; see `handler`.

    A save returns to the program as soon as the arrays may be donated or changed. Orbax completes
    the checkpoint when it is committed in the pool. If that fails, Orbax raises the error where it
    waits for the save, or at the next one.

    Orbax deletes only its directories. The rules of the job, such as `keep_last`, decide how long
    the pool keeps the data. Give at least as many as Orbax keeps.
    """

    _source: Source | None = None

    async def save(self, directory: Any, checkpointable: Any) -> Awaitable[None]:
        """Begins to save a pytree.

        Args:
            directory: Directory of the checkpointable, which Orbax makes.
            checkpointable: Pytree of arrays, numbers and strings.

        Returns:
            A coroutine that completes the save.

        Raises:
            InvalidError: If a leaf cannot be saved, or there are several processes.
            Error: As `Job.save`: also the failure of the save before.
        """
        if jax.process_count() > 1:
            raise InvalidError(
                "JAX has several processes, and this handler saves from one: use a job with a "
                "group, and `outlive.sharded`"
            )
        job = self._bound().job
        names, leaves, structure = _flat(checkpointable)
        stamp = _pointers.new_stamp()
        state = {
            _pointers.KEY: {"stamp": stamp},
            "leaves": {name: _held(leaf) for name, leaf in zip(names, leaves, strict=True)},
            "kinds": {name: _kind(leaf) for name, leaf in zip(names, leaves, strict=True)},
            "structure": structure,
        }
        save = job.save(state, force=True)
        return self._complete(directory, save, stamp)

    async def _complete(self, directory: Any, save: Save, stamp: str) -> None:
        await asyncio.to_thread(save.wait)
        there = _local(await directory.await_creation())
        job = self._bound().job
        await asyncio.to_thread(_pointers.write, there / _FILE, job, save.epoch, stamp)

    async def load(self, directory: Any, abstract_checkpointable: Any = None) -> Awaitable[Any]:
        """Begins to load a pytree.

        Args:
            directory: Directory of the checkpointable.
            abstract_checkpointable: Pytree of the wanted structure. Its leaves are arrays or
                `jax.ShapeDtypeStruct`, types or values of numbers, and `...` for parts to leave
                out. Arrays get the dtype and sharding of their leaf, and must have its shape. None
                loads all as it was saved.

        Returns:
            A coroutine that completes the load, and returns the pytree.
        """
        return asyncio.to_thread(self._load, _local(directory), abstract_checkpointable)

    async def metadata(self, directory: Any) -> Any:
        """Returns the pytree with a `jax.ShapeDtypeStruct` for each array, and types of values."""
        place = _local(directory)
        job, epoch = self._find(place)
        small = job.restore(epoch=epoch, only=["kinds", "structure"])
        seen = look(job, epoch)
        assert seen is not None
        at = {name: number for number, name in enumerate(seen.names)}

        def describe(name: str) -> Any:
            number = at.get(f"leaves/{escape(name)}")
            if small["kinds"][name] == _OTHER or number is None:
                return type(job.restore(epoch=epoch, only=f"leaves/{escape(name)}")["leaves"][name])
            return jax.ShapeDtypeStruct(seen.shapes[number], _dtypes.memory(seen.dtypes[number]))

        names = list(small["kinds"])
        return jax.tree.map(lambda number: describe(names[number]), small["structure"])

    def is_handleable(self, checkpointable: Any) -> bool:
        """Whether a pytree has leaves, all of which can be saved."""
        leaves = jax.tree.leaves(checkpointable)
        return bool(leaves) and all(map(_is_leaf, leaves))

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        """Whether a pytree has leaves, all of which say what is to be loaded."""
        leaves = jax.tree.leaves(abstract_checkpointable)
        return bool(leaves) and all(map(_is_abstract, leaves))

    def _bound(self) -> Source:
        if self._source is None:
            raise InvalidError(
                "this handler has no job: register `outlive.orbax.handler(pool, name)`"
            )
        return self._source

    def _find(self, place: Path) -> tuple[Any, int]:
        pointer = _pointers.read(place / _FILE)
        if pointer is None:
            raise FileNotFoundError(
                f"{place} has no {_FILE} that names a checkpoint of outlive: load it with the "
                "handler that saved it"
            )
        job = _pointers.job_of(pointer, None if self._source is None else self._source.job)
        return job, _pointers.epoch_of(pointer, job, str(place))

    def _load(self, place: Path, abstract: Any) -> Any:
        job, epoch = self._find(place)
        if abstract is None:
            tree = job.restore(epoch=epoch)
            names = list(tree["kinds"])
            values = tree["leaves"]
            return jax.tree.map(
                lambda number: _as_saved(values[names[number]], tree["kinds"][names[number]]),
                tree["structure"],
            )
        kinds = job.restore(epoch=epoch, only="kinds")["kinds"]
        paths, definition = jax.tree_util.tree_flatten_with_path(abstract, is_leaf=_is_placeholder)
        wanted = [(_name(path), leaf) for path, leaf in paths]
        missing = [name for name, leaf in wanted if name not in kinds and leaf is not ...]
        extra = set(kinds) - {name for name, _ in wanted}
        if missing or (extra and not _is_partial()):
            raise InvalidError(
                f"{place}: the checkpoint and the abstract pytree differ: "
                + "; ".join(
                    f"{what}: {', '.join(sorted(names)[:5])}"
                    for what, names in (
                        ("only in the pytree", missing),
                        ("only in the checkpoint", extra),
                    )
                    if names
                )
                + ". Give `...` for leaves that are not wanted"
            )
        only = [f"leaves/{escape(name)}" for name, leaf in wanted if leaf is not ...]
        values = job.restore(epoch=epoch, only=only)["leaves"] if only else {}
        made = [
            leaf if leaf is ... else _as_wanted(values[name], leaf, kinds[name], name)
            for name, leaf in wanted
        ]
        return jax.tree.unflatten(definition, made)


def _flat(tree: Any) -> tuple[list[str], list[Any], Any]:
    """Returns the leaves with their names, and the pytree with their numbers."""
    paths, definition = jax.tree_util.tree_flatten_with_path(tree)
    names = [_name(path) for path, _ in paths]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidError(f"two leaves of the pytree are named {twice!r}: rename one")
    return names, [leaf for _, leaf in paths], jax.tree.unflatten(definition, range(len(names)))


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "."


def _kind(leaf: Any) -> str:
    if isinstance(leaf, jax.Array):
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return _OTHER if is_key else _JAX
    return _NUMPY if isinstance(leaf, np.ndarray) else _OTHER


def _held(leaf: Any) -> Any:
    """Returns the memory of a leaf: one array of the host, whatever devices have its parts."""
    if _kind(leaf) == _JAX and len(leaf.devices()) > 1:
        return np.asarray(leaf)
    return leaf


def _is_leaf(leaf: Any) -> bool:
    return isinstance(
        leaf, jax.Array | np.ndarray | np.generic | int | float | complex | str | bytes
    )


def _is_placeholder(leaf: Any) -> bool:
    return leaf is ...


def _is_abstract(leaf: Any) -> bool:
    if leaf is ... or hasattr(leaf, "shape") or _is_leaf(leaf):
        return True
    return isinstance(leaf, type) and issubclass(leaf, int | float | complex | str | bytes)


def _as_saved(value: Any, kind: str) -> Any:
    return jax.numpy.asarray(value) if kind == _JAX else value


def _as_wanted(value: Any, leaf: Any, kind: str, name: str) -> Any:
    """Returns a value as an abstract leaf wants it."""
    if leaf is None:
        return _as_saved(value, kind)
    if isinstance(leaf, type):
        return leaf(value)
    if not hasattr(leaf, "shape"):
        return type(leaf)(value)
    if kind == _OTHER and not isinstance(value, np.generic | int | float | complex):
        return value  # a typed key
    array = np.asarray(value)
    if tuple(leaf.shape) != array.shape:
        raise InvalidError(
            f"{name} has the shape {array.shape} in the checkpoint, and {tuple(leaf.shape)} is "
            "wanted: give the model that was saved"
        )
    array = array.astype(leaf.dtype, copy=False)
    if not hasattr(leaf, "sharding"):
        return array
    return jax.device_put(array, leaf.sharding)


def _is_partial() -> bool:
    from orbax.checkpoint.experimental.v1._src.context import context as contexts

    return bool(contexts.get_context().pytree_options.loading.partial_load)


def _local(path: Any) -> Path:
    text = os.fspath(path)
    if "://" in text:
        raise InvalidError(
            f"{text}: the file that names a checkpoint must lie in a directory; the pool may be in "
            "a bucket"
        )
    return Path(text)
