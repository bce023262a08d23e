"""The walk that makes a state flat.

A container that holds only plain values is one leaf, from `TREE_LEAST` values on: a list of a
million numbers need not be a million leaves. An object of one of the kinds (`outlive._kinds`) is
the tree that stands for it.
"""

import json
import pickle
import random
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable
from itertools import repeat
from typing import Any

import numpy as np

from outlive import (
    _core,
    _dtypes,
    _foreign,
    _jax_arrays,
    _keys,
    _kinds,
    _layouts,
    _seeds,
    _ties,
)
from outlive._errors import InvalidError
from outlive._flat import (
    BITS,
    DICT,
    GENERATOR,
    LIST,
    ORDERED,
    PICKLE,
    RANDOM,
    RANDOM_STATE,
    RANDOMS,
    ROOT,
    SCALAR,
    TREE,
    TUPLE,
    VALUES,
    Flat,
    Lowered,
    Node,
    ObjectNode,
    Wrap,
    is_value,
    shown,
)
from outlive._group import Sharded
from outlive._kinds import Kind, UnsuitedError
from outlive._kinds._numpy import VIEWS, kind_of_array

# With this many values a plain container is one leaf. Fewer are leaves of their own, which people
# and `only` can name.
TREE_LEAST = 64

_DEPTH_MAX = 200
# From here on pickling an object is worth a warning.
_HEAVY_BYTES = 16 << 20
_HEAVY_S = 0.5


def flatten(
    state: Any,
    *,
    allow_pickle: bool = False,
    to_save: bool = True,
    trees: Collection[str] | None = None,
    plain: frozenset[int] | None = None,
) -> Flat:
    """Flattens a state.

    Args:
        state: The tree.
        allow_pickle: Whether objects of other types may be pickled.
        to_save: Whether the leaves must be contiguous memory, copied if they are not. Otherwise
            they are the very arrays of the state.
        trees: Paths of the containers that are one leaf each, "" for the state itself; None means
            those of plain values.
        plain: Ids of the containers of plain values, if they are known.

    Raises:
        InvalidError: If an object in it cannot be saved; the message names its path.
    """
    walk = _Walk(allow_pickle, to_save)
    if trees is not None:
        walk.trees = frozenset(trees)
    else:
        walk.finds_plain = True
        walk.plain = set(_core.plain_containers(state, TREE_LEAST) if plain is None else plain)
    try:
        walk.child("", state, 0)
    except RecursionError:
        raise InvalidError("the state is nested too deeply") from None
    if to_save and len(walk.flat.tensors) > 1:
        _ties.tie(walk.flat)
    return walk.flat


def _kind_of(value: Any) -> str | None:
    """Returns the kind of container that a value is; None for leaves."""
    cls = type(value)
    kind = _CONTAINERS.get(cls)
    if kind is None and cls not in VALUES and isinstance(value, np.random.BitGenerator):
        return BITS
    return kind


_CONTAINERS: dict[type, str] = {
    dict: DICT,
    OrderedDict: ORDERED,
    list: LIST,
    tuple: TUPLE,
    np.random.Generator: GENERATOR,
    np.random.RandomState: RANDOM_STATE,
    random.Random: RANDOM,
}


class _Walk:
    def __init__(self, allow_pickle: bool, to_save: bool) -> None:
        self.flat = Flat()
        self.allow_pickle = allow_pickle
        self.to_save = to_save
        # Containers that are one leaf each, by id and by path, and whether to find those in the
        # trees of objects.
        self.plain: set[int] = set()
        self.trees: frozenset[str] = frozenset()
        self.finds_plain = False
        self.open: set[int] = set()
        # Whether the leaf is a part of a global array.
        self.is_part = False
        self.texts: dict[np.dtype[Any], str | None] = {}
        self.kinds: dict[type, Kind | None] = {}
        # Objects that the next container or leaf stands for, the outermost first.
        self.pending: list[Wrap] = []
        # Number of objects around that are whole.
        self.whole = 0

    def child(self, name: str, value: Any, depth: int) -> None:
        """Adds a value of any kind."""
        kind = _kind_of(value)
        if kind is None:
            cls = type(value)
            try:
                of_object = self.kinds[cls]
            except KeyError:
                is_leaf = cls in VALUES or cls is Sharded
                of_object = None if is_leaf else _kinds.kind_of(value)
                # Tensors of one class may be of several kinds.
                if not _foreign.is_tensor(value):
                    self.kinds[cls] = of_object
            if of_object is None:
                self.leaf(name or ROOT, value)
            else:
                self.object(of_object, name, value, depth)
            return
        if id(value) in self.plain or name in self.trees:
            self.add(name or ROOT, TREE, (), value)
            return
        if id(value) in self.open:
            raise InvalidError(f"{shown(name)} contains itself: a state must be a tree")
        if depth > _DEPTH_MAX:
            raise InvalidError(f"{shown(name)} is nested more than {_DEPTH_MAX} deep")
        identity = id(value)
        self.open.add(identity)
        node = Node(len(self.flat.names), name, kind)
        if self.pending:
            node = ObjectNode(node.at, name, kind, wraps=tuple(self.pending))
            self.pending.clear()
        if kind == ORDERED and self.to_save:
            node.metadata = self.metadata(name, value)
        self.flat.nodes.append(node)
        if not self.to_save:
            self.flat.containers.append(value)
        inside = f"{name}/" if name else ""
        if kind in (LIST, TUPLE):
            self.items(inside, map(str, range(len(value))), value, depth + 1)
        else:
            if kind in RANDOMS:
                node.detail, value = _random_state(name, value, kind)
            # A copy, so that an insertion by another thread cannot break the walk.
            entries = list(value.items())
            detail, parts = _keys.parts_of(name, entries)
            if kind not in RANDOMS:
                node.detail = detail
            self.items(inside, parts, [entry for _, entry in entries], depth + 1)
        self.open.discard(identity)

    def metadata(self, name: str, value: Any) -> Any:
        """Returns the `_metadata` of a `state_dict` if it is plain; notes the lost attributes."""
        beside = vars(value)
        found = beside.get("_metadata")
        try:
            is_plain = isinstance(found, dict) and json.loads(json.dumps(found)) == found
        except (TypeError, ValueError, RecursionError):
            is_plain = False
        lost = [key for key in beside if key != "_metadata" or not is_plain]
        if lost:
            self.flat.lost.append((name, ", ".join(map(repr, lost))))
        return found if is_plain else None

    def items(self, prefix: str, keys: Iterable[str], values: Iterable[Any], depth: int) -> None:
        """Adds the entries of a container. This loop sees every leaf, so it is kept short."""
        flat = self.flat
        values = list(values)
        kinds = [VALUES.get(cls) for cls in map(type, values)]
        if None not in kinds:
            flat.names.extend([prefix + key for key in keys])
            flat.dtypes.extend(kinds)  # type: ignore[arg-type]
            flat.shapes.extend(repeat((), len(values)))
            flat.leaves.extend(values)
            return
        array, child = self.array, self.child
        for key, value, dtype in zip(keys, values, kinds, strict=True):
            if dtype is not None:
                flat.names.append(prefix + key)
                flat.dtypes.append(dtype)
                flat.shapes.append(())
                flat.leaves.append(value)
            elif type(value) is np.ndarray:
                array(prefix + key, value, value)
            else:
                child(prefix + key, value, depth)

    def object(self, kind: Kind, name: str, value: Any, depth: int) -> None:
        """Adds an object: the tree that stands for it, and what it is."""
        if id(value) in self.open:
            raise InvalidError(f"{shown(name)} contains itself: a state must be a tree")
        if depth > _DEPTH_MAX:
            raise InvalidError(f"{shown(name)} is nested more than {_DEPTH_MAX} deep")
        try:
            detail, tree = kind.lower(value)
        except UnsuitedError as why:
            self.strange(name or ROOT, value, f"{_a(type(value))}, and {why}")
            return
        except (InvalidError, RecursionError):
            raise
        except Exception as error:
            # Code of the program and of other packages may raise any exception.
            what = f"{shown(name)} is {_a(type(value))}, and cannot become a tree"
            raise InvalidError(f"{what}: {error!r}") from error
        if self.to_save:
            if "<locals>" in type(value).__qualname__:
                self.flat.hidden.append((name, _kinds.said(_kinds.ref_of(type(value)))))
        else:
            self.flat.lowered[id(value)] = Lowered(value, kind, detail, tree)
            if kind.fill is None:
                self.flat.fixed.add(name)
            if not kind.lends:
                tree = {}
        self.whole += kind.is_whole
        if type(tree) in (list, tuple, dict):
            self.flat.kept.append(tree)
            self.find_plain(tree)
        self.pending.append((kind.name, detail))
        self.open.add(id(value))
        self.child(name, tree, depth + 1)
        self.open.discard(id(value))
        self.whole -= kind.is_whole

    def find_plain(self, tree: Any) -> None:
        """Finds the containers of plain values in the tree of an object."""
        if self.whole:
            # No part of it is ever restored alone, so a small one can be one leaf, too.
            if id(tree) in _core.plain_containers(tree, 0):
                self.plain.add(id(tree))
                return
        elif not self.finds_plain:
            return
        self.plain |= _core.plain_containers(tree, TREE_LEAST)

    def take_pending(self) -> None:
        """Notes the objects that the next leaf stands for."""
        self.flat.wraps[len(self.flat.names)] = tuple(self.pending)
        self.pending.clear()

    def add(self, name: str, dtype: str, shape: tuple[int, ...], leaf: Any) -> None:
        """Adds a leaf."""
        if self.pending:
            self.take_pending()
        self.flat.names.append(name)
        self.flat.dtypes.append(dtype)
        self.flat.shapes.append(shape)
        self.flat.leaves.append(leaf)

    def array(
        self, name: str, value: "np.ndarray[Any, Any]", original: Any, text: str | None = None
    ) -> None:
        """Adds an array; `text` is its dtype, if NumPy lacks it."""
        if text is None:
            try:
                text = self.texts[value.dtype]
            except KeyError:
                text = self.text_of(value.dtype)
        if text is None:
            kind = kind_of_array(original)
            if kind is not None:
                self.object(kind, "" if name == ROOT else name, original, len(self.open))
            else:
                what = f"an array of dtype {value.dtype}, which is not plain memory"
                self.strange(name, original, what)
            return
        flat = self.flat
        # As `add` does: most states consist of arrays.
        flat.shapes.append(value.shape)
        if original is not value:
            flat.originals[len(flat.names)] = original
        flags = value.flags
        if not flags.c_contiguous:
            if flags.f_contiguous:
                flat.fortran.append(len(flat.names))
                value = value.T if self.to_save else value
            elif self.to_save:
                value = value.copy(order="C")
        if self.pending:
            self.take_pending()
        flat.names.append(name)
        flat.dtypes.append(text)
        flat.leaves.append(value)

    def text_of(self, dtype: "np.dtype[Any]") -> str | None:
        """Returns the text of a dtype, which takes long to make."""
        try:
            return self.texts[dtype]
        except KeyError:
            found = self.texts[dtype] = _dtypes.text_of(dtype)
            return found

    def leaf(self, name: str, value: Any) -> None:
        """Adds a leaf of any kind."""
        cls = type(value)
        if cls in VALUES:
            self.add(name, VALUES[cls], (), value)
        elif cls is np.ndarray:
            self.array(name, value, value)
        elif cls is Sharded:
            self.part(name, value)
        elif isinstance(value, np.generic):
            text = self.text_of(value.dtype)
            if text is None:
                self.strange(name, value, f"a NumPy scalar of dtype {value.dtype}")
            else:
                self.add(name, SCALAR + text, (), np.asarray(value))
        elif isinstance(value, np.ndarray):
            if isinstance(value, np.memmap | np.recarray | np.matrix):
                if cls in VIEWS and _dtypes.text_of(value.dtype) is not None:
                    self.pending.append((VIEWS[cls].name, None))
                self.array(name, value.view(np.ndarray), value)
            else:
                self.strange(name, value, f"{_a(cls)}, of which the array is only a part")
        elif isinstance(value, _BUILT_IN):
            self.strange(name, value, f"{_a(cls)}, a class of its own")
        else:
            self.foreign(name, value)

    def part(self, name: str, value: Sharded) -> None:
        """Adds a part of a global array."""
        at = len(self.flat.names)
        self.is_part = True
        self.leaf(name, value.array)
        self.is_part = False
        self.flat.tensors.pop(at, None)
        if self.flat.names[at:] != [name] or is_value(self.flat.dtypes[at]):
            raise InvalidError(f"{shown(name)} is sharded, and its part is no array")
        if at in self.flat.fortran:
            raise InvalidError(
                f"{shown(name)} is sharded, and its part is in Fortran's order: save its "
                "transpose, with global shape, offset and the like reversed"
            )
        if _layouts.signs(self.flat.notes.get(at, {}), {}):
            raise InvalidError(
                f"{shown(name)} is sharded, and its part is conjugated or negated only by a mark: "
                "save `resolve_conj().resolve_neg()` of it"
            )
        if self.flat.shapes[at] != tuple(value.array.shape):
            raise InvalidError(f"{shown(name)} is sharded, and its part has changed its shape")
        blocks = () if value.block is None else (value.block, value.stride)
        self.flat.parts[at] = (value.global_shape, value.offset, *blocks)
        if not self.to_save:
            self.flat.originals[at] = value

    def foreign(self, name: str, value: Any) -> None:
        """Adds an object of another package, if it shows its memory."""
        if _foreign.is_tensor(value):
            self.tensor(name, value)
            return
        if _foreign.is_constant(value) and _jax_arrays.is_global(value):
            self.of_processes(name, value)
            return
        try:
            found = _foreign.view(value)
        except _foreign.UnusableError as error:
            self.strange(name, value, f"{_a(type(value))}, whose memory NumPy cannot use ({error})")
            return
        if found is None:
            self.strange(name, value, _a(type(value)))
            return
        view, text = found
        self.array(name, view, value, text)
        if self.to_save and _foreign.is_constant(value):
            # A save need not copy an array that cannot change; a memory view marks it for the core.
            leaf = self.flat.leaves[-1]
            if isinstance(leaf, np.ndarray) and leaf.size > 0:
                self.flat.leaves[-1] = leaf.reshape(-1).view(np.uint8).data.toreadonly()

    def of_processes(self, name: str, value: Any) -> None:
        """Adds the part that this process has of an array of JAX that lies on those of several."""
        part = _jax_arrays.part_of(value)
        if part is None:
            what = f"{_a(type(value))}, of which the devices of this process hold no box"
            self.strange(name, value, what)
        else:
            self.part(name, part)

    def tensor(self, name: str, value: Any) -> None:
        """Adds a tensor of PyTorch with memory of its own."""
        try:
            found = _foreign.tensors().dense(value, fetch=self.to_save)
        except _foreign.UnusableError as error:
            what = f"{_a(type(value))}, whose memory cannot be saved as such ({error})"
            self.strange(name, value, what)
            return
        at = len(self.flat.names)
        if type(found) is Sharded:
            self.part(name, found)
        else:
            array, self.flat.notes[at] = found.array, found.note
            self.flat.tensors[at] = array
            if self.to_save and not array.flags.c_contiguous:
                self.in_order(name, found.text, array, found.note)
            else:
                self.add(name, found.text, array.shape, array)
        self.flat.originals[at] = value

    def in_order(self, name: str, text: str, array: Any, note: _layouts.Note) -> None:
        """Adds the memory of a tensor that is not in C order, and notes its order."""
        if self.is_part:
            self.add(name, text, array.shape, array.copy(order="C"))
            return
        once = _layouts.unrepeated(array)
        if once is not array:
            note["shape"] = list(array.shape)
        axes = _layouts.axes_of(once)
        if axes is None:
            leaf = once.copy(order="C")
        elif once.flags.c_contiguous or not once.flags.f_contiguous:
            leaf = once.transpose(axes)
            if axes != sorted(axes):
                note["axes"] = axes
        else:
            leaf = once.T
            self.flat.fortran.append(len(self.flat.names))
        self.add(name, text, once.shape, leaf)

    def strange(self, name: str, value: Any, what: str) -> None:
        """Adds an object that can only be pickled."""
        if not self.allow_pickle:
            hint = _foreign.way_out(value)
            raise InvalidError(
                f"{shown(name)} is {what}{': ' if hint else ''}{hint}. A state consists of "
                "containers, values, arrays, tables, dataclasses and the like (docs/states.md). "
                "Convert it, leave it out, say with `outlive.register` how it becomes a tree, or "
                "have it pickled with `pool.job(..., allow_pickle=True)`; unpickling runs code, so "
                "do that only if you trust every user that can write to the pool"
            )
        if not self.to_save:
            self.add(name, PICKLE, (), value)
            return
        begun = time.perf_counter()
        try:
            pickled = pickle.dumps(value, protocol=5)
        except Exception as error:
            raise InvalidError(f"{shown(name)} is {what}; pickling it failed: {error}") from error
        seconds = time.perf_counter() - begun
        if len(pickled) >= _HEAVY_BYTES or seconds >= _HEAVY_S:
            self.flat.heavy.append((name, len(pickled), seconds))
        self.add(name, PICKLE, (), pickled)


_BUILT_IN = (dict, list, tuple, set, frozenset, int, float, complex, str, bytes, bytearray)


def _a(cls: type) -> str:
    return f"of type {cls.__module__}.{cls.__qualname__}"


def _random_state(name: str, value: Any, kind: str) -> tuple[str, dict[str, Any]]:
    """Returns the class of a random generator and its state."""
    if kind == RANDOM:
        version, numbers, gauss = value.getstate()
        state = {"version": version, "numbers": np.array(numbers, np.uint64), "gauss": gauss}
        return "Random", state
    if kind == RANDOM_STATE:
        state = dict(value.get_state(legacy=False))
        bits = value._bit_generator
    else:
        bits = value.bit_generator if kind == GENERATOR else value
        state = dict(bits.state)
    try:
        state[_seeds.KEY] = _seeds.text_of(bits)
    except TypeError as error:
        raise InvalidError(f"{shown(name)} cannot be saved: {error}") from None
    return str(state["bit_generator"]), state
