"""Merges a tree from a checkpoint into the tree of the program."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from outlive._build import ABSENT, Opaque, RandomState, Wrapped
from outlive._flat import Lowered
from outlive._objects import Objects


class Merge:
    """Merges values, arrays and objects into a state, and makes what is new."""

    def __init__(self, lowered: Mapping[int, Lowered], objects: Objects) -> None:
        """Takes the objects of the state with their trees, by id, and the maker of others."""
        self.lowered, self.objects = lowered, objects

    def merge(self, old: Any, new: Any) -> Any:
        """Merges the values of `new` into `old`; returns `old` unless that cannot be changed."""
        if new is ABSENT or new is old:
            return old
        kind = type(new)
        if kind is Wrapped:
            return self.object(old, new)
        if kind is Opaque:
            return self.merge(old, new.value) if new.is_tree else new.value
        if kind is RandomState:
            return new.give(old)
        if kind in (dict, OrderedDict, list, tuple) and not isinstance(old, _like(kind)):
            # Something else has its place, and stays there if nothing of it is selected.
            found = self.alone(new)
            return old if found is ABSENT else found
        if kind is dict or kind is OrderedDict:
            if _PLAIN.issuperset(map(type, new.values())):
                old.update(new)
                return old
            for key, value in new.items():
                was = old.get(key, ABSENT)
                if was is ABSENT:
                    found = self.alone(value)
                    if found is not ABSENT:
                        old[key] = found
                elif type(value) in _PLAIN:
                    old[key] = value
                elif value is not was:
                    merged = self.merge(was, value)
                    if merged is not was:
                        old[key] = merged
            return old
        if kind is list:
            if _PLAIN.issuperset(map(type, new)):
                old[:] = new
                return old
            # The lengths differ only for a list of values, which is replaced as a whole, or for one
            # of which little or nothing is selected.
            partial = len(old) != len(new) and any(value is ABSENT for value in new)
            same_length = partial or len(old) == len(new)
            old[:] = self.entries(old, new) if same_length else map(self.alone, new)
            return old
        if kind is tuple:
            merged_all = tuple(self.entries(old, new))
            return old if _all_same(old, merged_all) else merged_all
        if kind is bytearray and type(old) is bytearray:
            old[:] = new
            return old
        return new

    def entries(self, old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
        """Merges the entries of a list or tuple."""
        return [*map(self.merge, old, new), *old[len(new) :]]

    def object(self, old: Any, new: Wrapped) -> Any:
        """Merges an object: fills the old one, or makes one that replaces it."""
        outer, *rest = new.wraps
        inner = Wrapped(new.path, tuple(rest), new.tree) if rest else new.tree
        name, detail = outer
        mine = self.lowered.get(id(old))
        is_other = mine is not None and name == "registered" and mine.detail != detail
        if mine is None or mine.kind.name != name or is_other:
            found = self.alone(new)
            return old if found is ABSENT else found
        kind = mine.kind
        if kind.is_whole:
            tree = self.alone(inner)
            if tree is ABSENT:
                return old
            if self.objects.fill(new.path, kind, old, detail, tree):
                return old
            return self.objects.make(new.path, (outer,), tree)
        before = mine.tree
        was = list(before.values() if isinstance(before, dict) else before)
        after = self.merge(before, inner)
        if kind.fill is not None:
            self.objects.fill(new.path, kind, old, mine.detail, after)
            return old
        now = list(after.values() if isinstance(after, dict) else after)
        return old if _all_same(was, now) else kind.remake(old, after)

    def alone(self, tree: Any) -> Any:
        """Returns the selected part of a tree; `ABSENT` if nothing is selected.

        Keys that are not selected are left out; such entries of lists become None. An object of
        which a part is not selected stays the tree that stands for it.
        """
        kind = type(tree)
        if kind is Wrapped:
            found = self.alone(tree.tree)
            if found is ABSENT or _is_partial(tree.tree):
                return found
            return self.objects.make(tree.path, tree.wraps, found)
        if kind is Opaque:
            return tree.value
        if kind is RandomState:
            return tree.make()
        if kind in (dict, OrderedDict) and tree:
            entries = {key: self.alone(value) for key, value in tree.items()}
            kept = {key: value for key, value in entries.items() if value is not ABSENT}
            new = kind(kept)
            if kind is OrderedDict:
                vars(new).update(vars(tree))
            return new if kept else ABSENT
        if kind in (list, tuple) and tree:
            found = [self.alone(value) for value in tree]
            if all(entry is ABSENT for entry in found):
                return ABSENT
            return kind([None if entry is ABSENT else entry for entry in found])
        return tree


def _like(kind: type) -> type:
    return dict if kind is OrderedDict else kind


def _is_partial(tree: Any) -> bool:
    kind = type(tree)
    parts = tree.values() if kind in (dict, OrderedDict) else tree if kind in (list, tuple) else ()
    return any(map(_is_absent, parts))


def _is_absent(tree: Any) -> bool:
    """Whether nothing of a tree is selected."""
    kind = type(tree)
    if kind is Wrapped:
        return _is_absent(tree.tree)
    if kind is RandomState:
        return bool(tree.absent())
    if kind in (dict, OrderedDict, list, tuple) and tree:
        return all(map(_is_absent, tree.values() if kind in (dict, OrderedDict) else tree))
    return tree is ABSENT


def _all_same(one: Sequence[Any], two: Sequence[Any]) -> bool:
    return len(one) == len(two) and all(a is b for a, b in zip(one, two, strict=True))


_PLAIN = frozenset((int, float, str, bool, bytes, complex, type(None)))
