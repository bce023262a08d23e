"""A state tree as a flat list of named leaves, and the skeleton that puts it together again.

A container that holds only plain values is one leaf, from `TREE_LEAST` values on: a list of a
million numbers need not be a million leaves.

A leaf's name is the path to it: keys and indices joined by "/". Inside a key, "~" becomes "~0" and
"/" becomes "~1"; an empty key becomes "~". The skeleton lists the paths that are containers, with
their kinds; it is stored beside the leaves as JSON.
"""

import json
import pickle
import random
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np

from outlive import _core, _dtypes, _foreign, _seeds
from outlive._errors import InvalidError
from outlive._group import Sharded

# Values: leaves that are replaced as a whole when a state is restored.
VALUES: dict[type, str] = {
    float: "py:float",
    int: "py:int",
    bool: "py:bool",
    str: "py:str",
    bytes: "py:bytes",
    bytearray: "py:bytearray",
    complex: "py:complex",
    type(None): "py:none",
}
PICKLE = "py:pickle"
# A container of plain values (dict, list and tuple), with all its content.
TREE = "py:tree"
# With this many values it is one leaf. Fewer are leaves of their own, which people and `only` can
# name.
TREE_LEAST = 64
SCALAR = "scalar:"
# The name of a state that is a single leaf.
ROOT = "."

DICT, ORDERED, LIST, TUPLE = "dict", "ordered", "list", "tuple"
GENERATOR, BITS, RANDOM_STATE, RANDOM = "generator", "bit_generator", "random_state", "random"
RANDOMS = (GENERATOR, BITS, RANDOM_STATE, RANDOM)

_DEPTH_MAX = 200
# From here on pickling an object is worth a warning.
_HEAVY_BYTES = 16 << 20
_HEAVY_S = 0.5
# Version 2 has trees among the leaves.
_SKELETON_VERSION = 1
_SKELETON_WITH_TREES = 2


@dataclass(slots=True)
class Node:
    """A container: the number of leaves before it, its path, its kind.

    `detail` is the class of a random generator, or of a dict the keys that are integers: all
    (True), none (None), or those listed. `metadata` is the attribute that PyTorch puts beside the
    entries of a `state_dict`: the versions of its modules.
    """

    at: int
    path: str
    kind: str
    detail: Any = None
    metadata: Any = None


@dataclass(slots=True)
class Flat:
    """A state, flat: four lists of equal length, and the containers in the order of the walk."""

    names: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    leaves: list[Any] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    # Numbers of the leaves whose memory is in Fortran's order.
    fortran: list[int] = field(default_factory=list)
    # By number of the leaf, the program's object there, if that is no NumPy array.
    originals: dict[int, Any] = field(default_factory=dict)
    # The containers themselves, if they belong to the program.
    containers: list[Any] = field(default_factory=list)
    # Names of pickled leaves that take long, with their bytes and seconds.
    heavy: list[tuple[str, int, float]] = field(default_factory=list)
    # Names of ordered dicts with attributes that are not saved, and the names of these.
    lost: list[tuple[str, str]] = field(default_factory=list)
    # By number of the leaf, its part of a global array: global shape and offset, with block and
    # stride if it is no box.
    parts: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    def end_of(self, node: Node) -> int:
        """Returns the number after that of the last leaf in a container."""
        inside = f"{node.path}/" if node.path else ""
        end = node.at
        while end < len(self.names) and self.names[end].startswith(inside):
            end += 1
        return end

    def skeleton(self, *, with_names: bool = False) -> bytes:
        """Returns the containers as JSON; with names if other ranks store some of the leaves."""
        nodes: list[list[Any]] = [
            [n.at, n.path, n.kind, n.detail, n.metadata]
            if n.metadata is not None
            else [n.at, n.path, n.kind, n.detail]
            if n.detail is not None
            else [n.at, n.path, n.kind]
            for n in self.nodes
        ]
        whole: dict[str, Any] = {
            "outlive.python": _SKELETON_WITH_TREES if TREE in self.dtypes else _SKELETON_VERSION,
            "nodes": nodes,
            "fortran": self.fortran,
        }
        if with_names:
            whole["names"] = self.names
        return json.dumps(whole, separators=(",", ":")).encode()


def read_skeleton(text: bytes) -> tuple[list[Node], list[int], list[str] | None] | None:
    """Returns the containers, the numbers of Fortran-ordered leaves, and any names.

    Returns None if a binding other than Python's has written it.

    Raises:
        InvalidError: If a newer build has written it.
    """
    try:
        whole = json.loads(text)
        version = whole.get("outlive.python") if isinstance(whole, dict) else None
        if type(version) is int and version > _SKELETON_WITH_TREES:
            raise InvalidError(
                f"a newer outlive has saved this checkpoint (its skeleton has version {version}, "
                f"this build reads up to {_SKELETON_WITH_TREES}): restore it with that"
            )
        if version not in (_SKELETON_VERSION, _SKELETON_WITH_TREES):
            return None
        names = whole.get("names")
        if names is not None and not all(type(name) is str for name in names):
            return None
        return [Node(*node) for node in whole["nodes"]], list(whole["fortran"]), names
    except InvalidError:
        raise
    except (ValueError, KeyError, TypeError):
        return None


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
        walk.plain = _core.plain_containers(state, TREE_LEAST) if plain is None else plain
    try:
        walk.child(ROOT if _kind_of(state) is None else "", state, "", 0)
    except RecursionError:
        raise InvalidError("the state is nested too deeply") from None
    return walk.flat


def escape(key: str) -> str:
    """Returns a key as a part of a path."""
    if "~" in key or "/" in key:
        return key.replace("~", "~0").replace("/", "~1")
    return key or "~"


def unescape(part: str) -> str:
    """Returns the key that `escape` was given."""
    if "~" in part:
        return "" if part == "~" else part.replace("~1", "/").replace("~0", "~")
    return part


def shown(path: str) -> str:
    """Returns a path for a message."""
    return repr(path if len(path) <= 200 else path[:199] + "…") if path else "the state itself"


def parent(name: str) -> str:
    """Returns the path of the container that holds a leaf or container."""
    return name.rpartition("/")[0]


def is_value(dtype: str) -> bool:
    """Whether a leaf is a value, replaced as a whole, and no array to be filled."""
    return dtype.startswith(("py:", SCALAR))


def is_single_value(value: Any) -> bool:
    """Whether an object is a number, a text or the like."""
    return type(value) in VALUES and type(value) is not bytearray


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
        # Containers that are one leaf each, by id and by path.
        self.plain: frozenset[int] = frozenset()
        self.trees: frozenset[str] = frozenset()
        self.open: set[int] = set()
        self.texts: dict[np.dtype[Any], str | None] = {}

    def child(self, name: str, value: Any, prefix: str, depth: int) -> None:
        """Adds a value of any kind."""
        kind = _kind_of(value)
        if kind is None:
            self.leaf(name, value)
            return
        if id(value) in self.plain or name in self.trees:
            self.add(name or ROOT, TREE, (), value)
            return
        if id(value) in self.open:
            raise InvalidError(f"{shown(name)} contains itself: a state must be a tree")
        if depth > _DEPTH_MAX:
            raise InvalidError(f"{shown(name)} is nested more than {_DEPTH_MAX} deep")
        self.open.add(id(value))
        node = Node(len(self.flat.names), name, kind)
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
                node.detail, value_dict = _random_state(name, value, kind)
            else:
                value_dict = value
                node.detail = _int_keys(name, value)
            # A copy, so that an insertion by another thread cannot break the walk.
            entries = list(value_dict.items())
            keys = (escape(key if type(key) is str else str(key)) for key, _ in entries)
            self.items(inside, keys, [entry for _, entry in entries], depth + 1)
        self.open.discard(id(value))

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
                child(prefix + key, value, prefix, depth)

    def add(self, name: str, dtype: str, shape: tuple[int, ...], leaf: Any) -> None:
        """Adds a leaf."""
        self.flat.names.append(name)
        self.flat.dtypes.append(dtype)
        self.flat.shapes.append(shape)
        self.flat.leaves.append(leaf)

    def array(
        self, name: str, value: "np.ndarray[Any, Any]", original: Any, text: str | None = None
    ) -> None:
        """Adds an array; `text` is its dtype, if NumPy lacks it."""
        dtype = value.dtype
        if text is None:
            try:
                text = self.texts[dtype]
            except KeyError:
                text = self.texts[dtype] = _dtypes.text_of(dtype)
        if text is None:
            self.strange(name, original, f"an array of dtype {dtype}, which is not plain memory")
            return
        shape = value.shape
        if original is not value:
            self.flat.originals[len(self.flat.names)] = original
        flags = value.flags
        if not flags.c_contiguous:
            if flags.f_contiguous:
                self.flat.fortran.append(len(self.flat.names))
                value = value.T if self.to_save else value
            elif self.to_save:
                value = value.copy(order="C")
        self.add(name, text, shape, value)

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
            text = _dtypes.text_of(value.dtype)
            if text is None:
                self.strange(name, value, f"a NumPy scalar of dtype {value.dtype}")
            else:
                self.add(name, SCALAR + text, (), np.asarray(value))
        elif isinstance(value, np.ndarray):
            if isinstance(value, np.memmap | np.recarray):
                self.array(name, value.view(np.ndarray), value)
            else:
                self.strange(name, value, f"{_a(cls)}, of which the array is only a part")
        elif cls in _UNORDERED:
            hint = "which has no order: save a sorted list of it"
            self.strange(name, value, f"{_a(cls)}, {hint}")
        elif isinstance(value, _BUILT_IN):
            self.strange(name, value, f"{_a(cls)}, a class of its own")
        else:
            self.foreign(name, value)

    def part(self, name: str, value: Sharded) -> None:
        """Adds a part of a global array."""
        at = len(self.flat.names)
        self.leaf(name, value.array)
        if self.flat.names[at:] != [name] or is_value(self.flat.dtypes[at]):
            raise InvalidError(f"{shown(name)} is sharded, and its part is no array")
        if at in self.flat.fortran:
            raise InvalidError(
                f"{shown(name)} is sharded, and its part is in Fortran's order: save its "
                "transpose, with global shape, offset and the like reversed"
            )
        if self.flat.shapes[at] != tuple(value.array.shape):
            raise InvalidError(f"{shown(name)} is sharded, and its part has changed its shape")
        blocks = () if value.block is None else (value.block, value.stride)
        self.flat.parts[at] = (value.global_shape, value.offset, *blocks)
        if not self.to_save:
            self.flat.originals[at] = value

    def foreign(self, name: str, value: Any) -> None:
        """Adds an object of another package, if it shows its memory."""
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

    def strange(self, name: str, value: Any, what: str) -> None:
        """Adds an object that can only be pickled."""
        if not self.allow_pickle:
            hint = _foreign.way_out(value)
            raise InvalidError(
                f"{shown(name)} is {what}{': ' if hint else ''}{hint}. A state consists of dict, "
                "list and tuple with arrays, numbers, strings, bytes, None and random generators. "
                "Convert it, leave it out, or have it pickled with "
                "`pool.job(..., allow_pickle=True)`; unpickling runs code, so do that only if you "
                "trust every user that can write to the pool"
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


_UNORDERED = (set, frozenset)


def _a(cls: type) -> str:
    return f"of type {cls.__module__}.{cls.__qualname__}"


def _int_keys(name: str, value: dict[Any, Any]) -> Any:
    """Returns which keys are integers; refuses other types, and pairs such as 1 and "1"."""
    kinds = set(map(type, list(value)))
    if kinds <= {str}:
        return None
    for key in list(value):
        if type(key) is not str and type(key) is not int:
            raise InvalidError(
                f"the key {str(key)[:100]!r} of {shown(name)} is {_a(type(key))}: keys must be "
                "str or int, or plain values in a dict with nothing but plain values, if one "
                "process saves"
            )
    if kinds == {int}:
        return True
    numbers = [str(key) for key in list(value) if type(key) is int]
    for number in numbers:
        if number in value:
            raise InvalidError(
                f"{shown(name)} has both the key {number} and the key {number!r}, which would have "
                "the same name: rename one"
            )
    return numbers


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
