"""Subclasses of dict, list and set, with their attributes. No method of theirs runs.

That includes `__reduce__` and `__getstate__`: a save reads what an object stores, as it does for
dataclasses.
"""

import collections
from typing import Any

from outlive._kinds._base import (
    Detail,
    Finder,
    Kind,
    KindError,
    ref_of,
    remembered,
    said,
)
from outlive._kinds._containers import factory, factory_of, in_order
from outlive._kinds._stored import drop, layout_of, store, stored

# The classes that a subclass may be built on, with the names that checkpoints use.
_BASES: dict[str, Any] = {
    "dict": dict,
    "ordered": collections.OrderedDict,
    "defaultdict": collections.defaultdict,
    "list": list,
}
_SETS: dict[str, Any] = {"set": set, "frozenset": frozenset}
# How the attributes are stored: there are none, beside the entries, or they are the entries
# (`self.__dict__ = self`).
_NONE, _BESIDE, _SELF = "none", "beside", "self"


def _base_of(cls: type) -> str | None:
    base = layout_of(cls)
    return next((name for name, known in _BASES.items() if known is base), None)


def _lower(value: Any) -> tuple[Detail, Any]:
    cls = type(value)
    base = _base_of(cls)
    made = factory_of(value.default_factory) if base == "defaultdict" else None
    content: Any = list.__getitem__(value, slice(None)) if base == "list" else _entries(value, base)
    attributes: dict[str, Any] = {}
    has = _SELF if getattr(value, "__dict__", None) is value else _NONE
    if has is _NONE and (attributes := stored(value)):
        has = _BESIDE
    detail = (ref_of(cls), base, has, made)
    if has is _BESIDE:
        return detail, {"entries": content, "attributes": attributes}
    return detail, content


def _entries(value: Any, base: str | None) -> dict[Any, Any]:
    # Not by methods of the class, which may be others.
    if base == "ordered":
        keys = collections.OrderedDict.__iter__(value)
        return {key: dict.__getitem__(value, key) for key in keys}
    return dict(dict.items(value))


@remembered
def _class(detail: Detail, find: Finder) -> Any:
    ref, base, _, made = detail
    cls = find.cls(ref)
    if base not in _BASES or layout_of(cls) is not _BASES[base] or cls is _BASES[base]:
        raise KindError(f"{said(ref)} is no subclass of {base} any more")
    factory(made, find)
    return cls


def _make(detail: Detail, tree: Any, find: Finder) -> Any:
    cls = _class(detail, find)
    _, base, has, made = detail
    new = _BASES[base].__new__(cls)
    if base == "defaultdict":
        collections.defaultdict.__init__(new, factory(made, find))
    if has == _SELF:
        object.__setattr__(new, "__dict__", new)
    _put(new, base, has, tree)
    return new


def _put(new: Any, base: str, has: str, tree: Any) -> None:
    attributes = {}
    if has == _BESIDE:
        tree, attributes = tree["entries"], tree["attributes"]
    if base == "list":
        list.__setitem__(new, slice(None), tree)
    elif base == "ordered":
        for key, entry in tree.items():
            collections.OrderedDict.__setitem__(new, key, entry)
    else:
        dict.update(new, tree)
    store(new, attributes) if has != _SELF else None


def _fill(old: Any, detail: Detail, tree: Any) -> bool:
    _, base, has, _ = detail
    _put(old, base, has, tree)
    return True


SUBCLASS = Kind("subclass", _lower, _make, _class, fill=_fill, is_whole=False)


# --- Sets -----------------------------------------------------------------------------------------


def _set_base_of(cls: type) -> str | None:
    base = layout_of(cls)
    return next((name for name, known in _SETS.items() if known is base), None)


def _lower_set(value: Any) -> tuple[Detail, Any]:
    cls = type(value)
    base = _set_base_of(cls)
    assert base is not None
    entries = in_order(list(_SETS[base].__iter__(value)))
    attributes = stored(value)
    if attributes:
        return (ref_of(cls), base, _BESIDE), {"entries": entries, "attributes": attributes}
    return (ref_of(cls), base, _NONE), entries


def _of_set(detail: Detail, tree: Any) -> tuple[list[Any], dict[str, Any]]:
    return (tree["entries"], tree["attributes"]) if detail[2] == _BESIDE else (tree, {})


@remembered
def _set_class(detail: Detail, find: Finder) -> Any:
    ref, base, _ = detail
    cls = find.cls(ref)
    if base not in _SETS or layout_of(cls) is not _SETS[base] or cls is _SETS[base]:
        raise KindError(f"{said(ref)} is no subclass of {base} any more")
    return cls


def _make_set(detail: Detail, tree: Any, find: Finder) -> Any:
    cls = _set_class(detail, find)
    entries, attributes = _of_set(detail, tree)
    if detail[1] == "frozenset":
        new = frozenset.__new__(cls, entries)
    else:
        new = set.__new__(cls)
        set.update(new, entries)
    store(new, attributes)
    return new


def _fill_set(old: Any, detail: Detail, tree: Any) -> bool:
    if detail[1] == "frozenset":
        return False
    entries, attributes = _of_set(detail, tree)
    new = set(entries)
    set.clear(old)
    set.update(old, new)
    drop(old, stored(old).keys() - attributes.keys())
    store(old, attributes)
    return True


SET_SUBCLASS = Kind("subclass.set", _lower_set, _make_set, _set_class, fill=_fill_set)


def kind_of(cls: type) -> Kind | None:
    """Returns the kind of a class; None if it is no such subclass."""
    if cls in _BASES.values() or cls in _SETS.values():
        return None
    if is_on_container(cls):
        return SUBCLASS
    return None if _set_base_of(cls) is None else SET_SUBCLASS


def is_on_container(cls: type) -> bool:
    """Whether a class is built on dict or list, and so holds entries."""
    return _base_of(cls) is not None
