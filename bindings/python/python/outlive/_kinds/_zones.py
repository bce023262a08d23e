"""Time zones: of the standard library, and of the packages `pytz` and `dateutil`.

The detail of a zone is a tuple that begins with its kind. No zone is pickled: each has a name, or
an offset.
"""

import datetime
import importlib
import zoneinfo
from collections.abc import Callable
from typing import Any

from outlive._kinds._base import Detail, KindError, UnsuitedError

_MICROSECOND = datetime.timedelta(microseconds=1)
_OFFSET, _ZONE, _PYTZ, _PYTZ_OFFSET = "offset", "zone", "pytz", "pytz offset"
_DATEUTIL, _DATEUTIL_OFFSET, _DATEUTIL_RULE = "dateutil", "dateutil offset", "dateutil rule"
_DATEUTIL_LOCAL = "dateutil local"


def zone_of(zone: datetime.tzinfo | None) -> Detail:
    """Returns the detail for a time zone.

    Raises:
        UnsuitedError: If no name or offset leads to it.
    """
    if zone is None:
        return None
    if type(zone) is datetime.timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return (_OFFSET, offset // _MICROSECOND, name[0] if name else None)
    if type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        return (_ZONE, zone.key)
    of_package = {"pytz": _of_pytz, "dateutil": _of_dateutil}.get(_package(type(zone)))
    found = None if of_package is None else of_package(zone)
    if found is None:
        raise UnsuitedError(
            f"its time zone is {zone!r} of type {type(zone).__module__}."
            f"{type(zone).__qualname__}: use a `zoneinfo.ZoneInfo` with a key, or a "
            "`datetime.timezone`"
        )
    return found


def is_foreign(cls: type) -> bool:
    """Whether a class is one of time zones of another package."""
    return issubclass(cls, datetime.tzinfo) and _package(cls) in ("pytz", "dateutil")


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _of_pytz(zone: Any) -> Detail:
    name = getattr(zone, "zone", None)
    if name is None:
        minutes = getattr(zone, "_minutes", None)
        return None if type(minutes) is not int else (_PYTZ_OFFSET, minutes)
    if name not in _pytz_module().all_timezones_set:
        return None
    if zone is _pytz_module().timezone(name):
        return (_PYTZ, name, None, None, None)
    # A zone has an object for each of its other offsets in the past and present.
    return (_PYTZ, name, zone._utcoffset // _MICROSECOND, zone._dst // _MICROSECOND, zone._tzname)


def _of_dateutil(zone: Any) -> Detail:
    kind = type(zone).__name__
    if kind == "tzutc":
        return (_DATEUTIL, "UTC")
    if kind == "tzlocal":
        offsets = zone._std_offset // _MICROSECOND, zone._dst_offset // _MICROSECOND
        return (_DATEUTIL_LOCAL, *offsets, *zone._tznames)
    if kind == "tzoffset":
        return (_DATEUTIL_OFFSET, zone._offset // _MICROSECOND, zone._name)
    if kind == "tzstr":
        is_posix = _tz().tzstr(zone._s) != zone
        return (_DATEUTIL_RULE, zone._s, True) if is_posix else (_DATEUTIL_RULE, zone._s)
    name = getattr(zone, "_filename", None)
    if type(name) is not str:
        return None
    # The path of a file of this machine may have the name of a zone in it.
    name = name.rpartition("/zoneinfo/")[2]
    is_known = not name.startswith("/") and _tz().gettz(name) == zone
    return (_DATEUTIL, name) if is_known else None


def _pytz_module() -> Any:
    return importlib.import_module("pytz")


def _tz() -> Any:
    return importlib.import_module("dateutil.tz")


def zone_for(detail: Detail) -> datetime.tzinfo | None:
    """Returns the time zone for a detail.

    Raises:
        KindError: If this machine lacks it, or its package.
    """
    if detail is None:
        return None
    kind, *rest = detail
    try:
        return _MAKERS[kind](*rest)
    except ImportError as error:
        raise KindError(f"its time zone needs a package that is missing ({error})") from None
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise KindError(f"this machine has no time zone {rest[:1]} ({error!r})") from None


def _offset(microseconds: int, name: str | None) -> datetime.tzinfo:
    offset = microseconds * _MICROSECOND
    return datetime.timezone(offset) if name is None else datetime.timezone(offset, name)


def _pytz(name: str, offset: int | None, saving: int | None, text: str | None) -> datetime.tzinfo:
    whole: Any = _pytz_module().timezone(name)
    if offset is None or saving is None:
        return whole  # type: ignore[no-any-return]
    key = (offset * _MICROSECOND, saving * _MICROSECOND, text)
    if isinstance(known := getattr(whole, "_tzinfos", None), dict):
        # The data of another version may lack the offset. The time must stay the same even so.
        return known[key] if key in known else type(whole)(key, known)  # type: ignore[no-any-return]
    if whole._utcoffset != key[0]:
        raise LookupError(f"it is at {whole._utcoffset} from UTC, and not at {key[0]}")
    return whole  # type: ignore[no-any-return]


def _pytz_offset(minutes: int) -> datetime.tzinfo:
    return _pytz_module().FixedOffset(minutes)  # type: ignore[no-any-return]


def _dateutil(name: str) -> datetime.tzinfo:
    tz = _tz()
    found = tz.UTC if name == "UTC" else tz.gettz(name) if name else tz.tzlocal()
    if found is None:
        raise LookupError(name)
    return found  # type: ignore[no-any-return]


def _dateutil_offset(microseconds: int, name: str | None) -> datetime.tzinfo:
    return _tz().tzoffset(name, microseconds * _MICROSECOND)  # type: ignore[no-any-return]


def _dateutil_rule(text: str, is_posix: bool = False) -> datetime.tzinfo:
    return _tz().tzstr(text, is_posix)  # type: ignore[no-any-return]


def _dateutil_local(standard: int, saving: int, *names: str) -> datetime.tzinfo:
    found: Any = _tz().tzlocal()
    here = (found._std_offset // _MICROSECOND, found._dst_offset // _MICROSECOND)
    if here != (standard, saving):
        hours = " and ".join(str(each * _MICROSECOND) for each in dict.fromkeys((standard, saving)))
        raise KindError(
            f"its time zone is the local one of another machine, {'/'.join(dict.fromkeys(names))} "
            f"at {hours} from UTC: set the environment variable TZ to that zone"
        )
    return found  # type: ignore[no-any-return]


_MAKERS: dict[str, Callable[..., datetime.tzinfo]] = {
    _OFFSET: _offset,
    _ZONE: zoneinfo.ZoneInfo,
    _PYTZ: _pytz,
    _PYTZ_OFFSET: _pytz_offset,
    _DATEUTIL: _dateutil,
    _DATEUTIL_OFFSET: _dateutil_offset,
    _DATEUTIL_RULE: _dateutil_rule,
    _DATEUTIL_LOCAL: _dateutil_local,
}
