"""Single values of the standard library: each is a text or number with a class. And time zones."""

import datetime
import decimal
import enum
import fractions
import pathlib
import uuid
import zoneinfo
from collections.abc import Callable
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
from outlive._kinds._zones import is_foreign, zone_for, zone_of

_MICROSECOND = datetime.timedelta(microseconds=1)


def _simple(name: str, to: Callable[[Any], Any], back: Callable[[Any], Any]) -> Kind:
    return Kind(name, lambda value: (None, to(value)), lambda detail, tree, find: back(tree))


def _time_of(value: Any) -> tuple[Detail, str]:
    zone = zone_of(value.tzinfo)
    return (zone, value.fold) if zone or value.fold else None, value.isoformat()


def _time(cls: Any) -> Callable[[Detail, Any, Finder], Any]:
    def make(detail: Detail, text: Any, find: Finder) -> Any:
        zone, fold = detail or (None, 0)
        return cls.fromisoformat(text).replace(tzinfo=zone_for(zone), fold=fold)

    return make


def _is_zone(detail: Detail, find: Finder) -> None:
    zone_for(detail[0] if detail else None)


def _enum_of(value: Any) -> tuple[Detail, Any]:
    # The value of a flag says it all; a combination has no name.
    is_flag = isinstance(value, enum.Flag)
    return ref_of(type(value)), int(value._value_) if is_flag else value._name_


@remembered
def _enum_class(ref: Detail, find: Finder) -> Any:
    cls = find.cls(ref)
    if not issubclass(cls, enum.Enum):
        raise KindError(f"{said(ref)} is no Enum")
    return cls


def _enum(ref: Detail, tree: Any, find: Finder) -> Any:
    cls = _enum_class(ref, find)
    if issubclass(cls, enum.Flag) and type(tree) is int:
        try:
            return cls(tree)
        except ValueError as error:
            raise KindError(f"{said(ref)} has changed its members ({error})") from None
    if tree not in cls.__members__:
        raise KindError(f"{said(ref)} has no member {tree!r}: it has changed its members")
    return cls.__members__[tree]


_PATHS = {
    cls.__name__: cls for cls in (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
}


def _offset_text(zone: Any) -> tuple[Detail, str]:
    return zone_of(zone), str(zone)


ENUM = Kind("enum", _enum_of, _enum, _enum_class)
ZONE = Kind(
    "zone",
    _offset_text,
    lambda detail, tree, find: zone_for(detail),
    lambda detail, find: zone_for(detail),
)

KINDS: dict[type, Kind] = {
    decimal.Decimal: _simple("decimal", str, decimal.Decimal),
    fractions.Fraction: _simple(
        "fraction",
        lambda value: (value.numerator, value.denominator),
        lambda tree: fractions.Fraction(*tree),
    ),
    uuid.UUID: _simple("uuid", str, uuid.UUID),
    range: _simple(
        "range", lambda value: (value.start, value.stop, value.step), lambda tree: range(*tree)
    ),
    slice: _simple(
        "slice", lambda value: (value.start, value.stop, value.step), lambda tree: slice(*tree)
    ),
    datetime.date: _simple("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.datetime: Kind("datetime", _time_of, _time(datetime.datetime), _is_zone),
    datetime.time: Kind("time", _time_of, _time(datetime.time), _is_zone),
    datetime.timedelta: _simple(
        "timedelta", lambda value: value // _MICROSECOND, lambda tree: tree * _MICROSECOND
    ),
    datetime.timezone: Kind("timezone", _offset_text, lambda detail, tree, find: zone_for(detail)),
    zoneinfo.ZoneInfo: ZONE,
    **{
        cls: Kind(
            "path",
            lambda value: (type(value).__name__, str(value)),
            lambda detail, tree, find: _PATHS[detail](tree),
        )
        for cls in _PATHS.values()
    },
}
BY_NAME = {kind.name: kind for kind in (ENUM, *KINDS.values())}


def kind_of(cls: type) -> Kind | None:
    """Returns the kind of a class; None if it is no single value of the standard library."""
    found = KINDS.get(cls) or (ENUM if issubclass(cls, enum.Enum) else None)
    return found or (ZONE if is_foreign(cls) else None)
