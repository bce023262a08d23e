"""Objects that consist of attributes: dataclasses, attrs classes, namespaces; and namedtuples.

No method of a class runs: a save reads the attributes that are stored, and a restore stores them
again, without a call of `__init__`.
"""

import dataclasses
import functools
import importlib
import sys
import types
from typing import Any

from outlive._kinds._base import (
    Detail,
    Finder,
    Kind,
    KindError,
    UnsuitedError,
    ref_of,
    remembered,
    said,
)
from outlive._kinds._stored import layout_of, per_class, store, stored

DATACLASS, ATTRS, NAMEDTUPLE, NAMESPACE = "dataclass", "attrs", "namedtuple", "namespace"

_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
_NAMESPACES = ("types:SimpleNamespace", "argparse:Namespace")


def is_namedtuple(cls: type) -> bool:
    """Whether a class is one of `namedtuple`, or of `typing.NamedTuple`."""
    fields = getattr(cls, "_fields", None)
    return (
        issubclass(cls, tuple)
        and isinstance(fields, tuple)
        and all(type(name) is str for name in fields)
    )


def is_attrs(cls: type) -> bool:
    """Whether a class is of the package `attrs`."""
    return isinstance(getattr(cls, "__attrs_attrs__", None), tuple)


# --- Code in classes of JAX -----------------------------------------------------------------------


def _is_pytree(value: Any) -> bool:
    """Whether JAX knows the class of an object, so that its functions are no part of the state."""
    if "jax" not in sys.modules:
        return False
    registry = sys.modules["jax"].tree_util.default_registry
    return registry.flatten_one_level(value) is not None


def _is_code(value: Any) -> bool:
    """Whether an object is a function of the program or of JAX, such as an activation."""
    if not callable(value) or _is_pytree(value):
        return False
    if isinstance(value, functools.partial):
        given = (*value.args, *value.keywords.values())
        return not any(hasattr(each, "__dlpack__") for each in given)
    is_of_jax = type(value).__module__.partition(".")[0] in ("jax", "jaxlib")
    return is_of_jax or isinstance(value, _CODE)


def _is_static(field: Any) -> bool:
    metadata = field.metadata
    return bool(metadata.get("static")) or metadata.get("pytree_node") is False


# --- The kinds ------------------------------------------------------------------------------------

# Details of attributes: the class, the names of its fields that are stored, of other attributes
# that are, and of fields that hold code and so are not saved.


@per_class
def _fields(cls: Any) -> dict[str, Any]:
    if is_attrs(cls):
        return {field.name: field for field in cls.__attrs_attrs__}
    return {field.name: field for field in dataclasses.fields(cls)}


@per_class
def _usual(cls: Any) -> tuple[Detail, list[str]]:
    """Returns the detail of an object with all fields and nothing else, and their names.

    Raises:
        UnsuitedError: If the class holds more than attributes.
    """
    base = layout_of(cls)
    if base is not object:
        raise UnsuitedError(f"its class is built on {base.__name__}, which holds more than fields")
    if hasattr(cls, "state_dict"):
        raise UnsuitedError(
            "it has a `state_dict()`: save that, and give it to its `load_state_dict`"
        )
    names = tuple(_fields(cls))
    return (ref_of(cls), names, (), (), names), list(names)


def _lower_fields(value: Any) -> tuple[Detail, dict[str, Any]]:
    cls = type(value)
    usual, names = _usual(cls)
    has = stored(value)
    is_pytree = _is_pytree(value)
    if not is_pytree and list(has) == names:
        return usual, has
    fields, code = _fields(cls), []
    if is_pytree:
        # The other import would make a circle.
        from outlive._kinds import is_saveable

        for name in [name for name in fields if name in has]:
            if _is_code(has[name]) or (_is_static(fields[name]) and not is_saveable(has[name])):
                code.append(name)
    of_fields = tuple(name for name in fields if name in has and name not in code)
    others = tuple(name for name in has if name not in fields)
    detail = (ref_of(cls), of_fields, others, tuple(code), tuple(fields))
    return detail, {name: has[name] for name in (*of_fields, *others)}


@remembered
def _class_with_fields(detail: Detail, find: Finder) -> Any:
    ref, _, _, code, names = detail
    cls = find.cls(ref)
    if not (is_attrs(cls) or dataclasses.is_dataclass(cls)):
        raise KindError(f"{said(ref)} is neither a dataclass nor a class of attrs any more")
    if layout_of(cls) is not object:
        raise KindError(f"{said(ref)} is built on {layout_of(cls).__name__} now")
    refuse_changes(ref, names, tuple(_fields(cls)))
    if code:
        raise KindError(
            f"its {'fields' if len(code) > 1 else 'field'} {', '.join(map(repr, code))} of "
            f"{said(ref)} held code, which is not saved: give a state with such an object as `into`"
        )
    return cls


def refuse_changes(ref: Any, were: Any, are: Any) -> None:
    """Refuses a class whose fields are others than in the checkpoint."""
    gone = [name for name in were if name not in are]
    new = [name for name in are if name not in were]
    if gone or new:
        lacks = f", lacks {', '.join(map(repr, gone))}" if gone else ""
        has = f", has in addition {', '.join(map(repr, new))}" if new else ""
        raise KindError(f"{said(ref)} has changed its fields since the save{lacks}{has}")


def _make_fields(detail: Detail, tree: Any, find: Finder) -> Any:
    cls = _class_with_fields(detail, find)
    new = object.__new__(cls)
    store(new, tree)
    return new


def _fill_fields(old: Any, detail: Detail, tree: Any) -> bool:
    store(old, tree)
    return True


def _remake_fields(old: Any, tree: Any) -> Any:
    new = object.__new__(type(old))
    store(new, {**stored(old), **tree})
    return new


def _lower_namedtuple(value: Any) -> tuple[Detail, dict[str, Any]]:
    if stored(value):
        raise UnsuitedError("it has attributes beside its fields")
    cls = type(value)
    return (ref_of(cls), cls._fields), dict(zip(cls._fields, value, strict=True))


@remembered
def _namedtuple_class(detail: Detail, find: Finder) -> Any:
    ref, fields = detail
    cls = find.cls(ref)
    if not is_namedtuple(cls):
        raise KindError(f"{said(ref)} is no namedtuple any more")
    refuse_changes(ref, fields, cls._fields)  # type: ignore[attr-defined]
    return cls


def _make_namedtuple(detail: Detail, tree: Any, find: Finder) -> Any:
    cls = _namedtuple_class(detail, find)
    return tuple.__new__(cls, [tree[name] for name in cls._fields])


def _remake_namedtuple(old: Any, tree: Any) -> Any:
    return tuple.__new__(type(old), [tree[name] for name in type(old)._fields])


def _lower_namespace(value: Any) -> tuple[Detail, dict[str, Any]]:
    return ref_of(type(value)), dict(vars(value))


def _make_namespace(detail: Detail, tree: Any, find: Finder) -> Any:
    if detail not in _NAMESPACES:
        raise KindError(f"{said(detail)} is no namespace")
    module, _, name = detail.partition(":")
    new = getattr(importlib.import_module(module), name)()
    vars(new).update(tree)
    return new


def _fill_namespace(old: Any, detail: Detail, tree: Any) -> bool:
    vars(old).update(tree)
    return True


def _fields_kind(name: str, is_frozen: bool) -> Kind:
    return Kind(
        name,
        _lower_fields,
        _make_fields,
        _class_with_fields,
        fill=None if is_frozen else _fill_fields,
        remake=_remake_fields,
        is_whole=False,
    )


# Frozen and other classes have the same form in checkpoints.
_MUTABLE = {name: _fields_kind(name, False) for name in (DATACLASS, ATTRS)}
_FROZEN = {name: _fields_kind(name, True) for name in (DATACLASS, ATTRS)}
_NAMEDTUPLE = Kind(
    NAMEDTUPLE,
    _lower_namedtuple,
    _make_namedtuple,
    _namedtuple_class,
    remake=_remake_namedtuple,
    is_whole=False,
)
_NAMESPACE = Kind(
    NAMESPACE, _lower_namespace, _make_namespace, fill=_fill_namespace, is_whole=False
)

BY_NAME = {NAMEDTUPLE: _NAMEDTUPLE, NAMESPACE: _NAMESPACE, **_MUTABLE}


def kind_of(cls: Any) -> Kind | None:
    """Returns the kind of a class; None if it does not consist of attributes."""
    if is_namedtuple(cls):
        return _NAMEDTUPLE
    if ref_of(cls) in _NAMESPACES:
        return _NAMESPACE
    if is_attrs(cls):
        is_frozen = getattr(cls.__setattr__, "__name__", "") == "_frozen_setattrs"
        return (_FROZEN if is_frozen else _MUTABLE)[ATTRS]
    if dataclasses.is_dataclass(cls):
        return (_FROZEN if _is_frozen(cls) else _MUTABLE)[DATACLASS]
    return None


def _is_frozen(cls: Any) -> bool:
    return bool(cls.__dataclass_params__.frozen)
