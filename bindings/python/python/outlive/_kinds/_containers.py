"""Containers of the standard library beside dict, list and tuple."""

import collections
from types import FunctionType
from typing import Any

from outlive._kinds._base import Detail, Finder, Kind, UnsuitedError, ref_of

# Sets of one of these are sorted, so that the same set is the same bytes in each run.
_SORTED = ({int}, {str}, {bytes})


def in_order(entries: list[Any]) -> list[Any]:
    """Returns the entries of a set in an order that is the same in each run, if they have one."""
    return sorted(entries) if set(map(type, entries)) in _SORTED else entries


def _entries(value: Any) -> tuple[Detail, list[Any]]:
    return None, in_order(list(value))


def _fill_set(old: Any, detail: Detail, tree: Any) -> bool:
    new = set(tree)
    old.clear()
    old.update(new)
    return True


def _fill_deque(old: Any, detail: Detail, tree: Any) -> bool:
    if old.maxlen != detail:
        return False
    old.clear()
    old.extend(tree)
    return True


def fill_dict(old: Any, detail: Detail, tree: Any) -> bool:
    """Gives a dict, whatever its class is, the entries of another one."""
    old.clear()
    dict.update(old, tree)
    return True


def _counter(detail: Detail, tree: Any, find: Finder) -> Any:
    made: Any = collections.Counter()
    dict.update(made, tree)
    return made


def factory_of(factory: Any) -> Detail:
    """Returns the detail for a `default_factory`.

    Raises:
        UnsuitedError: If no name leads to it.
    """
    if factory is None:
        return None
    if isinstance(factory, type) and "<locals>" not in factory.__qualname__:
        return ("class", ref_of(factory))
    if type(factory) is FunctionType and factory.__qualname__.isidentifier():
        return ("function", ref_of(factory))
    raise UnsuitedError(
        f"its `default_factory` is {factory!r}, which no name leads to: use a class such as "
        "`list`, or a function of a module"
    )


def factory(detail: Detail, find: Finder) -> Any:
    """Returns the `default_factory` for a detail of `factory_of`."""
    if detail is None:
        return None
    what, ref = detail
    return find.cls(ref) if what == "class" else find.function(ref)


SET = Kind("set", _entries, lambda detail, tree, find: set(tree), fill=_fill_set)

KINDS: dict[type, Kind] = {
    set: SET,
    frozenset: Kind("frozenset", _entries, lambda detail, tree, find: frozenset(tree)),
    collections.deque: Kind(
        "deque",
        lambda value: (value.maxlen, list(value)),
        lambda detail, tree, find: collections.deque(tree, detail),
        fill=_fill_deque,
    ),
    collections.Counter: Kind(
        "counter", lambda value: (None, dict(value)), _counter, fill=fill_dict
    ),
    collections.defaultdict: Kind(
        "defaultdict",
        lambda value: (factory_of(value.default_factory), dict(value)),
        lambda detail, tree, find: collections.defaultdict(factory(detail, find), tree),
        factory,
        fill=fill_dict,
    ),
}
