"""A state as a flat list of named leaves, and the skeleton that puts it together again.

A leaf's name is the path to it: keys and indices joined by "/". Inside a key, "~" becomes "~0" and
"/" becomes "~1"; an empty key becomes "~". The skeleton lists the paths that are containers, with
their kinds; it is stored beside the leaves as JSON (docs/format.md).
"""

import json
from dataclasses import dataclass, field
from typing import Any

from outlive._errors import InvalidError
from outlive._layouts import Note

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
SCALAR = "scalar:"
# The name of a state that is a single leaf.
ROOT = "."

DICT, ORDERED, LIST, TUPLE = "dict", "ordered", "list", "tuple"
GENERATOR, BITS, RANDOM_STATE, RANDOM = "generator", "bit_generator", "random_state", "random"
RANDOMS = (GENERATOR, BITS, RANDOM_STATE, RANDOM)

# Version 2 has trees among the leaves. Version 3 has objects, tensors of PyTorch, or keys that are
# neither str nor int.
_VERSION = 1
_WITH_TREES = 2
_WITH_OBJECTS = 3

# An object that the tree at some path stands for: the name of its kind, and details of it, in
# tuples. `outlive._kinds` knows the kinds.
Wrap = tuple[str, Any]


@dataclass(slots=True)
class Node:
    """A container: the number of leaves before it, its path, its kind.

    `detail` is the class of a random generator. Of a dict it tells the keys that are no str: True
    if all are int, or the parts of the path of those that are int. If there are others, it has the
    code of each key by its part (see `outlive._keys`). `metadata` is the attribute that PyTorch
    puts beside the entries of a `state_dict`: the versions of its modules.
    """

    at: int
    path: str
    kind: str
    detail: Any = None
    metadata: Any = None

    @property
    def wraps(self) -> tuple[Wrap, ...]:
        """The objects that the container stands for, the outermost first."""
        return ()

    def moved(self, at: int) -> "Node":
        """Returns the same container with another number of leaves before it."""
        return Node(at, self.path, self.kind, self.detail, self.metadata)


@dataclass(slots=True)
class ObjectNode(Node):
    """A container that stands for objects; there are few of these in most states."""

    wraps: tuple[Wrap, ...] = ()

    def moved(self, at: int) -> Node:
        """Returns the same container with another number of leaves before it."""
        return ObjectNode(at, self.path, self.kind, self.detail, self.metadata, self.wraps)


@dataclass(slots=True)
class Lowered:
    """An object of a state, and the tree that stands for it."""

    value: Any
    # Its `outlive._kinds.Kind`.
    kind: Any
    detail: Any
    tree: Any


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
    # By number of the leaf, how the tensor of PyTorch there is made of its region.
    notes: dict[int, Note] = field(default_factory=dict)
    # The arrays of these tensors, on the program's memory unless that is a device's.
    tensors: dict[int, Any] = field(default_factory=dict)
    # By number of the leaf, the objects that it stands for, the outermost first.
    wraps: dict[int, tuple[Wrap, ...]] = field(default_factory=dict)
    # By id of an object, the tree that stands for it, if the state belongs to the program.
    lowered: dict[int, Lowered] = field(default_factory=dict)
    # Trees that stand for objects: the walk knows containers by their id, so they must stay.
    kept: list[Any] = field(default_factory=list)
    # Paths of objects that cannot change, if the state belongs to the program.
    fixed: set[str] = field(default_factory=set)
    # Names of objects of a class that no restore can find, and the class.
    hidden: list[tuple[str, str]] = field(default_factory=list)

    def end_of(self, node: Node) -> int:
        """Returns the number after that of the last leaf in a container."""
        inside = f"{node.path}/" if node.path else ""
        end = node.at
        while end < len(self.names) and self.names[end].startswith(inside):
            end += 1
        return end

    def has_objects(self) -> bool:
        """Whether a container or leaf stands for an object."""
        return bool(self.wraps) or any(node.wraps for node in self.nodes)

    def skeleton(self, *, with_names: bool = False) -> bytes:
        """Returns the containers as JSON; with names if other ranks store some of the leaves."""
        table: dict[Wrap, int] = {}
        nodes: list[list[Any]] = []
        has_keys = False
        for n in self.nodes:
            if n.wraps:
                wraps = _numbers(n.wraps, table)
                nodes.append([n.at, n.path, n.kind, n.detail, n.metadata, wraps])
            elif n.metadata is not None:
                nodes.append([n.at, n.path, n.kind, n.detail, n.metadata])
            elif n.detail is not None:
                nodes.append([n.at, n.path, n.kind, n.detail])
            else:
                nodes.append([n.at, n.path, n.kind])
            has_keys = has_keys or type(n.detail) is dict
        version = _WITH_TREES if TREE in self.dtypes else _VERSION
        whole: dict[str, Any] = {"outlive.python": version, "nodes": nodes, "fortran": self.fortran}
        if with_names:
            whole["names"] = self.names
        if self.notes:
            whole["outlive.python"] = _WITH_OBJECTS
            whole["tensors"] = [at for at, note in self.notes.items() if not note]
            whole["notes"] = [[at, note] for at, note in self.notes.items() if note]
        if table or self.wraps or has_keys:
            whole["outlive.python"] = _WITH_OBJECTS
            leaves: dict[tuple[Wrap, ...], list[int]] = {}
            for at, found in self.wraps.items():
                leaves.setdefault(found, []).append(at)
            whole["wrapped"] = [[_numbers(w, table), ats] for w, ats in leaves.items()]
            whole["objects"] = list(table)
        return json.dumps(whole, separators=(",", ":")).encode()


def _numbers(wraps: tuple[Wrap, ...], table: dict[Wrap, int]) -> list[int]:
    return [table.setdefault(wrap, len(table)) for wrap in wraps]


@dataclass(slots=True)
class Skeleton:
    """The tree of a checkpoint, as far as the leaves do not tell: see `Flat`."""

    nodes: list[Node] = field(default_factory=list)
    fortran: list[int] = field(default_factory=list)
    names: list[str] | None = None
    wraps: dict[int, tuple[Wrap, ...]] = field(default_factory=dict)
    notes: dict[int, Note] = field(default_factory=dict)


def read_skeleton(text: bytes) -> Skeleton | None:
    """Returns the skeleton of a checkpoint; None if a binding other than Python's has written it.

    Raises:
        InvalidError: If a newer build has written it.
    """
    try:
        whole = json.loads(text)
        version = whole.get("outlive.python") if isinstance(whole, dict) else None
        if type(version) is int and version > _WITH_OBJECTS:
            raise InvalidError(
                f"a newer outlive has saved this checkpoint (its skeleton has version {version}, "
                f"this build reads up to {_WITH_OBJECTS}): restore it with that"
            )
        if version not in (_VERSION, _WITH_TREES, _WITH_OBJECTS):
            return None
        names = whole.get("names")
        if names is not None and not all(type(name) is str for name in names):
            return None
        table = [(str(name), tuples(detail)) for name, detail in whole.get("objects", ())]
        nodes = [_node(*entry[:5], numbers=entry[5:], table=table) for entry in whole["nodes"]]
        wraps: dict[int, tuple[Wrap, ...]] = {}
        for numbers, leaves in whole.get("wrapped", ()):
            wraps.update(dict.fromkeys(map(int, leaves), tuple(table[at] for at in numbers)))
        notes: dict[int, Note] = {int(at): {} for at in whole.get("tensors", ())}
        notes.update({int(at): dict(note) for at, note in whole.get("notes", ())})
        return Skeleton(nodes, list(whole["fortran"]), names, wraps, notes)
    except InvalidError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None


def _node(*entry: Any, numbers: list[Any], table: list[Wrap]) -> Node:
    if not numbers:
        return Node(*entry)
    at, path, kind, detail, metadata = entry
    wraps = tuple(table[number] for number in numbers[0])
    return ObjectNode(at, path, kind, detail, metadata, wraps)


def tuples(detail: Any) -> Any:
    """Returns details as they were before they became JSON."""
    return tuple(map(tuples, detail)) if type(detail) is list else detail


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
