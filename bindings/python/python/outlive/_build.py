"""Builds a tree from its leaves."""

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from outlive import _seeds
from outlive._errors import InvalidError
from outlive._flat import (
    BITS,
    GENERATOR,
    LIST,
    ORDERED,
    RANDOM,
    RANDOM_STATE,
    RANDOMS,
    TUPLE,
    Node,
    Wrap,
    unescape,
)
from outlive._keys import Keys
from outlive._kinds import Finder

# Stands for a leaf that was not selected.
ABSENT: Any = object()


# Makes an object: of its path, of all that a tree stands for, and of the tree.
Make = Callable[[str, tuple[Wrap, ...], Any], Any]


class Wrapped:
    """The tree of an object that is not made yet."""

    __slots__ = ("path", "tree", "wraps")

    def __init__(self, path: str, wraps: tuple[Wrap, ...], tree: Any) -> None:
        """Takes what stands at a path: the objects, the outermost first, and the tree."""
        self.path, self.wraps, self.tree = path, wraps, tree


class Opaque:
    """A leaf that has parts, and is no container of the state, whatever its class is.

    `build` takes it unchanged; a merge replaces it by its content.
    """

    __slots__ = ("is_tree", "value")

    def __init__(self, value: Any, is_tree: bool) -> None:
        """Wraps an unpickled object, or a tree of plain values, which a merge goes through."""
        self.value, self.is_tree = value, is_tree


_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def build(
    nodes: list[Node],
    names: list[str],
    objects: list[Any],
    *,
    has: Callable[[str], bool],
    new: bool,
    find: Finder | None,
    make: Make | None,
) -> Any:
    """Returns the tree of all objects, one for each name.

    Args:
        nodes: Its containers.
        names: The leaves' names.
        objects: The leaves, `ABSENT` for those that were not selected.
        has: Whether a path is selected; empty containers have no leaf that shows it.
        new: Whether to make new random generators. Otherwise only their state stands in their
            place, for a merge.
        find: Finds the classes of keys; None for plain keys only.
        make: Makes objects. Without it their trees stand in their place, as `Wrapped`.

    Raises:
        InvalidError: If a random generator is of an unknown class.
        LookupError, TypeError, ValueError, AttributeError: If nodes and names do not fit together.
    """
    if not nodes:
        (leaf,) = objects
        return leaf
    trunk = _Trunk(find)
    waiting = iter(nodes)
    node = next(waiting, None)
    last_path, children, keys = None, None, None
    for at, name in enumerate(names):
        while node is not None and node.at <= at:
            trunk.add(node)
            node = next(waiting, None)
        path, _, part = name.rpartition("/")
        if path != last_path:
            children, keys, last_path = trunk.made[path], trunk.keys.get(path), path
        if type(children) is list:
            children.append(objects[at])
        else:
            key = part if keys is None and "~" not in part else _key(part, keys)
            children[key] = objects[at]  # type: ignore[index]
    while node is not None:
        trunk.add(node)
        node = next(waiting, None)
    return trunk.finish(nodes, has, new, make)


class _Trunk:
    """Containers while they are being filled: tuples as lists, generators as dicts."""

    def __init__(self, find: Finder | None) -> None:
        self.made: dict[str, Any] = {}
        self.keys: dict[str, Keys] = {}
        self.find = find

    def add(self, node: Node) -> None:
        """Puts an empty container into the one above it."""
        new: Any = {}
        if node.kind in (LIST, TUPLE):
            new = []
        elif node.kind == ORDERED:
            new = OrderedDict()
            if isinstance(node.metadata, dict):
                new._metadata = OrderedDict(node.metadata)
        if node.detail is not None and node.kind not in RANDOMS:
            self.keys[node.path] = Keys(node.detail, self.find)
        self.made[node.path] = new
        if node.path:
            path, _, part = node.path.rpartition("/")
            above = self.made[path]
            if type(above) is list:
                above.append(new)
            else:
                above[_key(part, self.keys.get(path))] = new

    def finish(
        self, nodes: list[Node], has: Callable[[str], bool], new: bool, make: Make | None
    ) -> Any:
        """Makes tuples, generators and objects of their placeholders, the inner ones first."""
        for node in reversed(nodes):
            contents = self.made[node.path]
            if not contents and not has(node.path):
                done: Any = ABSENT
            elif node.kind == TUPLE:
                done = tuple(contents)
            elif node.kind in RANDOMS:
                done = RandomState(node.kind, str(node.detail), contents)
                if new:
                    done = done.make()
            elif node.wraps:
                done = contents
            else:
                continue
            if node.wraps and done is not ABSENT:
                done = (make or Wrapped)(node.path, node.wraps, done)
            if not node.path:
                return done
            path, _, part = node.path.rpartition("/")
            above = self.made[path]
            key = int(part) if type(above) is list else _key(part, self.keys.get(path))
            above[key] = done
        return self.made[""]


def _key(part: str, keys: Keys | None) -> Any:
    return unescape(part) if keys is None else keys.of(part)


class RandomState:
    """The state of a random generator, to be set in one."""

    def __init__(self, kind: str, name: str, state: dict[str, Any]) -> None:
        self.kind, self.name, self.state = kind, name, state

    def absent(self) -> bool:
        """Whether it is not selected; a state is selected only as a whole."""
        return any(value is ABSENT for value in self.state.values())

    def make(self) -> Any:
        """Returns a new generator with this state, of a known class."""
        if self.absent():
            return ABSENT
        if self.kind == RANDOM:
            return self.give(random.Random())
        if self.name not in _BIT_GENERATORS:
            raise InvalidError(
                f"a generator of class {self.name!r} cannot be recreated: restore with `into`"
            )
        bits = getattr(np.random, self.name)()
        if self.kind == GENERATOR:
            return self.give(np.random.Generator(bits))
        if self.kind == RANDOM_STATE:
            return self.give(np.random.RandomState(bits))
        return self.give(bits)

    def give(self, generator: Any) -> Any:
        """Sets this state in a generator, and returns the generator."""
        if self.absent():
            return generator
        if self.kind == RANDOM:
            numbers = tuple(map(int, self.state["numbers"]))
            generator.setstate((self.state["version"], numbers, self.state["gauss"]))
            return generator
        state = dict(self.state)
        # Checkpoints of earlier builds lack it.
        seeds = state.pop(_seeds.KEY, None)
        if self.kind == RANDOM_STATE:
            bits = generator._bit_generator
            generator.set_state(state)
        else:
            bits = generator if self.kind == BITS else generator.bit_generator
            bits.state = state
        if seeds is not None:
            _seeds.give(bits, seeds)
        return generator
