"""Whether two objects are the same to `pickle`: their types and all that it would store, not `==`.

Objects may be equal and still differ: `{1} == {True}`, `0.0 == -0.0`, and a class may define any
comparison. Pickles of objects that are the same may differ: those of a set follow its order, which
changes with each start of Python, and strings are shared by chance.
"""

import copyreg
import itertools
import pickle
import struct
from collections.abc import Collection, Iterable
from typing import Any

_FLOATS = {float: "<d", complex: "<dd"}


def same(a: object, b: object) -> bool:
    """Whether two objects are the same, with all objects that they refer to.

    Raises:
        Exception: Any exception of their classes.
    """
    return _Comparison().same(a, b)


class _Comparison:
    """One comparison: it knows which objects are paired, one to one."""

    def __init__(self) -> None:
        # By the id of one object, the pair itself. That keeps both alive, so that ids stay unique.
        self.pairs: dict[int, tuple[object, object]] = {}
        self.others: set[int] = set()
        self.trail: list[tuple[int, int]] = []

    def same(self, a: Any, b: Any) -> bool:
        kind = type(a)
        if kind is not type(b):
            return False
        if a is b:
            return True
        if kind in (int, str, bytes):
            return bool(a == b)
        if kind in _FLOATS:
            return _bits(a) == _bits(b)
        if kind is tuple:
            return self._all(a, b)
        if kind is frozenset:
            return self._unordered(a, b)
        # An object that is referred to twice here must be so there. That also ends cycles.
        if id(a) in self.pairs or id(b) in self.others:
            return id(a) in self.pairs and self.pairs[id(a)][1] is b
        self.pairs[id(a)] = (a, b)
        self.others.add(id(b))
        self.trail.append((id(a), id(b)))
        return self._contents(a, b)

    def _contents(self, a: Any, b: Any) -> bool:
        kind = type(a)
        if kind is list:
            return self._all(a, b)
        if kind is dict:
            return self._all(a, b) and self._all(a.values(), b.values())
        if kind is set:
            return self._unordered(a, b)
        if kind is bytearray:
            return bool(a == b)
        if kind is pickle.PickleBuffer:
            return bool(a.raw() == b.raw())
        if isinstance(a, type):
            return False  # pickle stores classes by name, and these are two
        mine, theirs = _reduced(a), _reduced(b)
        by: Any = kind.__reduce__
        if by in (set.__reduce__, frozenset.__reduce__):
            # The second part of `mine` is a list of the elements, in the set's order.
            return self._unordered(a, b) and self._all(mine[2:], theirs[2:])
        return self._all(mine, theirs)

    def _all(self, a: Collection[object], b: Collection[object]) -> bool:
        return len(a) == len(b) and all(map(self.same, a, b))

    def _unordered(self, a: Iterable[object], b: Iterable[object]) -> bool:
        left: dict[int, list[object]] = {}
        for theirs in b:
            left.setdefault(hash(theirs), []).append(theirs)
        for mine in a:
            # Mostly it has the same hash, but the hash of an object may be its address.
            likely = left.get(hash(mine), [])
            if not any(self._take(mine, some) for some in itertools.chain([likely], left.values())):
                return False
        return not any(left.values())

    def _take(self, mine: object, some: list[object]) -> bool:
        """Removes the one that is the same, and returns whether there is one."""
        for at, theirs in enumerate(some):
            before = len(self.trail)
            if self.same(mine, theirs):
                del some[at]
                return True
            for first, second in self.trail[before:]:
                del self.pairs[first]
                self.others.remove(second)
            del self.trail[before:]
        return False


def _bits(number: complex) -> bytes:
    parts = (number.real, number.imag) if type(number) is complex else (number,)
    return struct.pack(_FLOATS[type(number)], *parts)


def _reduced(thing: Any) -> tuple[object, ...]:
    """Returns what `pickle` stores of an object: how it is made, its state, its items."""
    registered = copyreg.dispatch_table.get(type(thing))
    found: Any = registered(thing) if registered else thing.__reduce_ex__(5)
    if isinstance(found, str):
        return (found,)
    missing = (None,) * (6 - len(found))
    make, arguments, state, items, pairs, put = tuple(found) + missing
    return make, arguments, state, list(items or ()), list(pairs or ()), put
