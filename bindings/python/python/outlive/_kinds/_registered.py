"""Classes for which a program has said how they become a tree, and a tree becomes one of them."""

from collections.abc import Callable
from typing import Any

from outlive._errors import InvalidError
from outlive._kinds._base import Detail, Finder, Kind, KindError, ref_of, said

_kinds: dict[type, Kind] = {}
_by_ref: dict[str, Callable[[Any], Any]] = {}


def register(
    cls: type,
    to_tree: Callable[[Any], Any],
    from_tree: Callable[[Any], Any],
    fill: Callable[[Any, Any], object] | None = None,
) -> None:
    """Sets how objects of exactly this class are saved; see `outlive.register`."""
    ref = ref_of(cls)

    def lower(value: Any) -> tuple[Detail, Any]:
        return ref, to_tree(value)

    def fill_old(old: Any, detail: Detail, tree: Any) -> bool:
        if fill is not None:
            fill(old, tree)
        return fill is not None

    filled = None if fill is None else fill_old
    _by_ref[ref] = from_tree
    _kinds[cls] = Kind(REGISTERED.name, lower, _make, _check, filled)


def kind_of(cls: type) -> Kind | None:
    """Returns the kind of a class; None if it was not registered."""
    return _kinds.get(cls)


def _check(ref: Detail, find: Finder) -> Any:
    if ref not in _by_ref:
        # Its module may register it.
        find.cls(ref)
    if ref not in _by_ref:
        raise KindError(
            f"{said(ref)} is not registered: call `outlive.register` before the restore"
        )
    return _by_ref[ref]


def _make(ref: Detail, tree: Any, find: Finder) -> Any:
    return _check(ref, find)(tree)


def _nothing(value: Any) -> tuple[Detail, Any]:
    raise InvalidError(f"{type(value)} is not registered")  # pragma: no cover


REGISTERED = Kind("registered", _nothing, _make, _check)
