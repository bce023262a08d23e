"""The attributes that an object stores, read and written without a method of its class."""

import functools
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from outlive._kinds._base import KindError, ref_of, said

_T = TypeVar("_T")
_HEAP_TYPE = 1 << 9


def per_class(function: Callable[[Any], _T]) -> Callable[[Any], _T]:
    """Makes a function of a class remember its results as long as the class exists."""
    known: weakref.WeakKeyDictionary[type, _T] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def remembering(cls: Any) -> _T:
        try:
            return known[cls]
        except KeyError:
            found = known[cls] = function(cls)
            return found

    return remembering


def layout_of(cls: type) -> type:
    """Returns the class written in C on which a class is built: mostly `object`."""
    return next(
        base
        for base in cls.__mro__
        if not base.__flags__ & _HEAP_TYPE
        or isinstance(vars(base).get("__new__"), types.BuiltinFunctionType)
    )


@per_class
def _slots(cls: Any) -> dict[str, Any]:
    """Returns the descriptors of a class's slots by name."""
    return {
        name: member
        for base in reversed(cls.__mro__)
        if base.__flags__ & _HEAP_TYPE
        for name, member in vars(base).items()
        if type(member) is types.MemberDescriptorType
    }


@per_class
def _left_out(cls: Any) -> frozenset[str]:
    """Returns the names of attributes that are no part of a state."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        found.update(vars(base))
    caches = (name for name, it in found.items() if isinstance(it, functools.cached_property))
    # `typing` notes in the last one how a generic class was called.
    return frozenset((*caches, "__orig_class__"))


def stored(value: Any) -> dict[str, Any]:
    """Returns the attributes that an object stores, without those that a method has cached."""
    cls = type(value)
    found = {}
    for name, member in _slots(cls).items():
        try:
            found[name] = member.__get__(value, cls)
        except AttributeError:
            continue  # never set, or deleted
    found.update(getattr(value, "__dict__", ()))
    for name in _left_out(cls) & found.keys():
        del found[name]
    return found


def store(value: Any, attributes: dict[str, Any]) -> None:
    """Stores attributes in an object, and drops what its methods have cached."""
    cls = type(value)
    slots, beside = _slots(cls), getattr(value, "__dict__", None)
    for name, entry in attributes.items():
        if name in slots:
            slots[name].__set__(value, entry)
        elif beside is None:
            raise KindError(f"{said(ref_of(cls))} has no attribute {name!r} any more")
        else:
            beside[name] = entry
    if beside is not None:
        for name in _left_out(cls) & beside.keys():
            del beside[name]


def drop(value: Any, names: Iterable[str]) -> None:
    """Deletes attributes that an object stores."""
    slots = _slots(type(value))
    for name in names:
        if name in slots:
            slots[name].__delete__(value)
        else:
            del value.__dict__[name]
