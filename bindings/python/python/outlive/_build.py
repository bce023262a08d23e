"""Builds a tree from its leaves, and merges its values into another one."""

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from outlive import _seeds
from outlive._errors import InvalidError
from outlive._tree import (
    BITS,
    GENERATOR,
    LIST,
    ORDERED,
    RANDOM,
    RANDOM_STATE,
    RANDOMS,
    TUPLE,
    Node,
    unescape,
)

# Stands for a leaf that was not selected.
ABSENT: Any = object()


class Opaque:
    """A leaf that has parts, and is no container of the state, whatever its class is.

    `build` takes it unchanged; `merge` and `without_absent` replace it by its content.
    """

    __slots__ = ("is_tree", "value")

    def __init__(self, value: Any, is_tree: bool) -> None:
        """Wraps an unpickled object, or a tree of plain values, which `merge` goes through."""
        self.value, self.is_tree = value, is_tree


_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def build(
    nodes: list[Node],
    names: list[str],
    objects: list[Any],
    *,
    has: Callable[[str], bool],
    new: bool,
) -> Any:
    """Returns the tree of all objects, one for each name.

    Args:
        nodes: Its containers.
        names: The leaves' names.
        objects: The leaves, `ABSENT` for those that were not selected.
        has: Whether a path is selected; empty containers have no leaf that shows it.
        new: Whether to make new random generators. Otherwise only their state stands in their
            place, for `merge`.

    Raises:
        InvalidError: If a random generator is of an unknown class.
        LookupError, TypeError, ValueError, AttributeError: If nodes and names do not fit together.
    """
    if not nodes:
        (leaf,) = objects
        return leaf
    trunk = _Trunk()
    waiting = iter(nodes)
    node = next(waiting, None)
    last_path, children, int_keys = None, None, None
    for at, name in enumerate(names):
        while node is not None and node.at <= at:
            trunk.add(node)
            node = next(waiting, None)
        path, _, part = name.rpartition("/")
        if path != last_path:
            children, int_keys, last_path = trunk.made[path], trunk.int_keys.get(path), path
        if type(children) is list:
            children.append(objects[at])
        else:
            key = part if int_keys is None and "~" not in part else _key(part, int_keys)
            children[key] = objects[at]  # type: ignore[index]
    while node is not None:
        trunk.add(node)
        node = next(waiting, None)
    return trunk.finish(nodes, has, new)


class _Trunk:
    """Containers while they are being filled: tuples as lists, generators as dicts."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}
        self.int_keys: dict[str, Any] = {}

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
            self.int_keys[node.path] = True if node.detail is True else frozenset(node.detail)
        self.made[node.path] = new
        if node.path:
            path, _, part = node.path.rpartition("/")
            above = self.made[path]
            if type(above) is list:
                above.append(new)
            else:
                above[_key(part, self.int_keys.get(path))] = new

    def finish(self, nodes: list[Node], has: Callable[[str], bool], new: bool) -> Any:
        """Makes tuples and generators of their placeholders, the inner ones first."""
        for node in reversed(nodes):
            contents = self.made[node.path]
            if not contents and not has(node.path):
                done: Any = ABSENT
            elif node.kind == TUPLE:
                done = tuple(contents)
            elif node.kind in RANDOMS:
                done = _Random(node.kind, str(node.detail), contents)
                if new:
                    done = done.make()
            else:
                continue
            if not node.path:
                return done
            path, _, part = node.path.rpartition("/")
            above = self.made[path]
            key = int(part) if type(above) is list else _key(part, self.int_keys.get(path))
            above[key] = done
        return self.made[""]


def _key(part: str, int_keys: Any) -> Any:
    if int_keys is not None and (int_keys is True or part in int_keys):
        return int(part)
    return unescape(part)


class _Random:
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


def merge(old: Any, new: Any) -> Any:
    """Merges the values of `new` into `old`; returns `old` unless that cannot be changed."""
    if new is ABSENT or new is old:
        return old
    kind = type(new)
    if kind is Opaque:
        return merge(old, new.value) if new.is_tree else new.value
    if kind is _Random:
        return new.give(old)
    if kind is dict or kind is OrderedDict:
        if _PLAIN.issuperset(map(type, new.values())):
            old.update(new)
            return old
        for key, value in new.items():
            was = old.get(key, ABSENT)
            if was is ABSENT:
                found = without_absent(value)
                if found is not ABSENT:
                    old[key] = found
            elif type(value) in _PLAIN:
                old[key] = value
            elif value is not was:
                merged = merge(was, value)
                if merged is not was:
                    old[key] = merged
        return old
    if kind is list and type(old) is list:
        if _PLAIN.issuperset(map(type, new)):
            old[:] = new
            return old
        # The lengths differ only for a list of values, which is replaced as a whole, or for one of
        # which little or nothing is selected.
        partial = len(old) != len(new) and any(value is ABSENT for value in new)
        same_length = partial or len(old) == len(new)
        old[:] = _merge_entries(old, new) if same_length else map(without_absent, new)
        return old
    if kind is tuple and type(old) is tuple:
        merged_all = tuple(_merge_entries(old, new))
        unchanged = all(a is b for a, b in zip(old, merged_all, strict=True))
        return old if unchanged else merged_all
    if kind is bytearray and type(old) is bytearray:
        old[:] = new
        return old
    return new


def without_absent(tree: Any) -> Any:
    """Returns the selected part of a tree; `ABSENT` if nothing is selected.

    Keys that are not selected are left out; such entries of lists become None.
    """
    kind = type(tree)
    if kind is Opaque:
        return tree.value
    if kind is _Random:
        return tree.make()
    if kind in (dict, OrderedDict) and tree:
        found = {key: without_absent(value) for key, value in tree.items()}
        kept = {key: value for key, value in found.items() if value is not ABSENT}
        new = kind(kept)
        if kind is OrderedDict:
            vars(new).update(vars(tree))
        return new if kept else ABSENT
    if kind in (list, tuple) and tree:
        entries = [without_absent(value) for value in tree]
        if all(entry is ABSENT for entry in entries):
            return ABSENT
        return kind([None if entry is ABSENT else entry for entry in entries])
    return tree


def _merge_entries(old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    return [*map(merge, old, new), *old[len(new) :]]


_PLAIN = frozenset((int, float, str, bool, bytes, complex, type(None)))
