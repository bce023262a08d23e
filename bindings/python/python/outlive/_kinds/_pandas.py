"""Tables, series, indices and extension arrays of pandas: the arrays in them are arrays of a state.

A table becomes its index, the labels of its columns, and one array for each column. A restore never
writes to the arrays that a program holds: other tables may share them until one of them is changed
(copy-on-write). It gives the table new ones.
"""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from outlive._kinds._base import Detail, Finder, Kind, KindError, ref_of, said
from outlive._kinds._stored import drop, store, stored
from outlive._kinds._zones import zone_for, zone_of

pd: Any = importlib.import_module("pandas")
arrays: Any = pd.arrays

# --- Extension arrays -----------------------------------------------------------------------------


def _fixed(values: Any) -> Any:
    """Returns a view of an array that no restore fills."""
    view = np.asarray(values).view()
    view.flags.writeable = False
    return view


def _plain(values: Any) -> Any:
    """Returns the array of NumPy under one of pandas, or that one."""
    return _fixed(values.to_numpy()) if type(values) is arrays.NumpyExtensionArray else values


def _dtype(values: Any) -> Any:
    """Returns the dtype to demand of pandas, which would guess one for objects."""
    return object if type(values) is np.ndarray and values.dtype.kind == "O" else None


def _moments(values: Any) -> Any:
    """Returns the moments or durations of an array in its own unit, in UTC."""
    letter = "M" if isinstance(values, arrays.DatetimeArray) else "m"
    return _fixed(np.asarray(values.view("i8")).view(f"{letter}8[{values.unit}]"))


def _lower_datetimes(values: Any) -> tuple[Detail, Any]:
    return zone_of(values.tz), _moments(values)


def _datetimes(zone: Detail, tree: Any, find: Finder) -> Any:
    made = pd.array(tree, dtype=tree.dtype, copy=False)
    return made if zone is None else made.tz_localize("UTC").tz_convert(zone_for(zone))


def _lower_string(values: Any) -> tuple[Detail, Any]:
    dtype = values.dtype
    detail = (dtype.storage, "NA" if dtype.na_value is pd.NA else "nan")
    if dtype.storage == "pyarrow":
        return detail, values.__arrow_array__()
    missing = values.isna()
    entries = values.to_numpy(object)
    return detail, [None if gone else text for text, gone in zip(entries, missing, strict=True)]


def _string(detail: Detail, tree: Any, find: Finder) -> Any:
    storage, missing = detail
    dtype = pd.StringDtype(storage, pd.NA if missing == "NA" else np.nan)
    if storage == "pyarrow":
        return dtype.__from_arrow__(tree)
    return pd.array(tree, dtype)


def _lower_sparse(values: Any) -> tuple[Detail, Any]:
    index = values.sp_index
    tree = {
        "values": _fixed(values.sp_values),
        "indices": _fixed(index.to_int_index().indices),
        "fill_value": values.fill_value,
    }
    return (int(index.length), values.kind), tree


def _sparse(detail: Detail, tree: Any, find: Finder) -> Any:
    length, kind = detail
    values, indices, filler = tree["values"], tree["indices"], tree["fill_value"]
    if hasattr(arrays.SparseArray, "from_indices"):
        return arrays.SparseArray.from_indices(values, indices, length, filler, kind, values.dtype)
    # Before pandas 3.1.
    dtype = pd.SparseDtype(values.dtype, filler)
    index = type(arrays.SparseArray([0]).sp_index)(length, indices)
    made = arrays.SparseArray(values, sparse_index=index, fill_value=filler, dtype=dtype)
    return made if kind == "integer" else arrays.SparseArray(made, kind=kind)


def _masked(name: str) -> tuple[Any, Kind]:
    cls = getattr(arrays, name)

    def make(detail: Detail, tree: Any, find: Finder) -> Any:
        return cls(tree["values"], tree["mask"])

    def lower(values: Any) -> tuple[Detail, Any]:
        return None, {"values": _fixed(values._data), "mask": _fixed(values._mask)}

    return cls, Kind(f"pandas.{name}", lower, make)


def _categorical(ordered: Detail, tree: Any, find: Finder) -> Any:
    dtype = pd.CategoricalDtype(tree["categories"], ordered)
    return pd.Categorical.from_codes(tree["codes"], dtype=dtype)


_ARRAYS: dict[Any, Kind] = dict(
    [
        (
            arrays.NumpyExtensionArray,
            Kind(
                "pandas.NumpyExtensionArray",
                lambda values: (None, _fixed(values.to_numpy())),
                lambda detail, tree, find: arrays.NumpyExtensionArray(tree),
            ),
        ),
        (
            pd.Categorical,
            Kind(
                "pandas.Categorical",
                lambda values: (
                    values.ordered,
                    {"codes": _fixed(values.codes), "categories": values.categories},
                ),
                _categorical,
            ),
        ),
        (arrays.DatetimeArray, Kind("pandas.DatetimeArray", _lower_datetimes, _datetimes)),
        (
            arrays.TimedeltaArray,
            Kind(
                "pandas.TimedeltaArray",
                lambda values: (None, _moments(values)),
                lambda detail, tree, find: pd.array(tree, dtype=tree.dtype, copy=False),
            ),
        ),
        (
            arrays.PeriodArray,
            Kind(
                "pandas.PeriodArray",
                lambda values: (values.freqstr, _fixed(values.view("i8"))),
                lambda freq, tree, find: arrays.PeriodArray(tree, dtype=pd.PeriodDtype(freq)),
            ),
        ),
        (
            arrays.IntervalArray,
            Kind(
                "pandas.IntervalArray",
                lambda values: (values.closed, {"left": values.left, "right": values.right}),
                lambda closed, tree, find: arrays.IntervalArray.from_arrays(
                    tree["left"], tree["right"], closed
                ),
            ),
        ),
        (arrays.SparseArray, Kind("pandas.SparseArray", _lower_sparse, _sparse)),
        *map(_masked, ("IntegerArray", "FloatingArray", "BooleanArray")),
    ]
)
_STRING = Kind("pandas.StringArray", _lower_string, _string)
_ARROW = Kind(
    "pandas.ArrowExtensionArray",
    lambda values: (None, values.__arrow_array__()),
    lambda detail, tree, find: arrays.ArrowExtensionArray(tree),
)


# --- Indices --------------------------------------------------------------------------------------


def _freq_of(index: Any) -> Detail:
    """Returns the frequency of an index; None for one that no text describes."""
    freq = getattr(index, "freq", None)
    if freq is None or isinstance(index, pd.PeriodIndex):
        return None
    try:
        return freq.freqstr if pd.tseries.frequencies.to_offset(freq.freqstr) == freq else None
    except ValueError:
        return None


def _lower_index(index: Any) -> tuple[Detail, Any]:
    return _freq_of(index), {"values": _plain(index.array), "name": index.name}


def _index(freq: Detail, tree: Any, find: Finder) -> Any:
    values = tree["values"]
    made = pd.Index(values, dtype=_dtype(values), copy=False)
    made.name = tree["name"]
    if freq is not None:
        made.freq = freq
    return made


def _lower_range(index: Any) -> tuple[Detail, Any]:
    return None, {"range": (index.start, index.stop, index.step), "name": index.name}


def _lower_multi(index: Any) -> tuple[Detail, Any]:
    tree = {
        "levels": list(index.levels),
        "codes": list(map(_fixed, index.codes)),
        "names": list(index.names),
    }
    return None, tree


_INDICES: dict[Any, Kind] = {
    pd.RangeIndex: Kind(
        "pandas.RangeIndex",
        _lower_range,
        lambda detail, tree, find: pd.RangeIndex(*tree["range"], name=tree["name"]),
    ),
    pd.MultiIndex: Kind(
        "pandas.MultiIndex",
        _lower_multi,
        lambda detail, tree, find: pd.MultiIndex(
            tree["levels"], tree["codes"], names=tree["names"]
        ),
    ),
}
_INDEX = Kind("pandas.Index", _lower_index, _index)
_OF_INDEX = (
    pd.Index,
    pd.DatetimeIndex,
    pd.TimedeltaIndex,
    pd.PeriodIndex,
    pd.IntervalIndex,
    pd.CategoricalIndex,
)


# --- Tables and series ----------------------------------------------------------------------------


def _labelled(columns: Any, values: list[Any]) -> Any:
    """Returns columns by their labels, if these are texts that differ."""
    labels = list(columns)
    is_named = all(type(label) is str for label in labels) and len(set(labels)) == len(labels)
    return dict(zip(labels, values, strict=True)) if is_named else values


def _lower_table(table: Any) -> tuple[Detail, Any]:
    values = [_plain(table.iloc[:, at].array) for at in range(table.shape[1])]
    tree = {
        "index": table.index,
        "columns": table.columns,
        "data": _labelled(table.columns, values),
        "attrs": dict(table.attrs),
    }
    return bool(table.flags.allows_duplicate_labels), tree


def _table(has_twins: Detail, tree: Any, find: Finder) -> Any:
    data, index = tree["data"], tree["index"]
    values = list(data.values() if isinstance(data, dict) else data)
    columns = {
        at: pd.Series(each, index=index, dtype=_dtype(each), copy=False)
        for at, each in enumerate(values)
    }
    made = pd.DataFrame(columns, index=index, copy=False)
    made.columns = tree["columns"]
    made.attrs = tree["attrs"]
    return made if has_twins else made.set_flags(allows_duplicate_labels=False)


def _lower_series(series: Any) -> tuple[Detail, Any]:
    tree = {
        "index": series.index,
        "values": _plain(series.array),
        "name": series.name,
        "attrs": dict(series.attrs),
    }
    return bool(series.flags.allows_duplicate_labels), tree


def _series(has_twins: Detail, tree: Any, find: Finder) -> Any:
    values, index = tree["values"], tree["index"]
    made = pd.Series(values, index=index, dtype=_dtype(values), name=tree["name"], copy=False)
    made.attrs = tree["attrs"]
    return made if has_twins else made.set_flags(allows_duplicate_labels=False)


def _filling(
    make: Callable[[Detail, Any, Finder], Any],
) -> Callable[[Any, Detail, Any], bool]:
    """Returns a function that gives an object the data of a new one."""

    def fill(old: Any, detail: Detail, tree: Any) -> bool:
        if old.flags.allows_duplicate_labels != detail or not hasattr(old, "_update_inplace"):
            return False
        new = make(detail, tree, Finder())
        old._update_inplace(new)
        old.attrs = new.attrs
        if isinstance(old, pd.Series):
            old.name = new.name
        return True

    return fill


# --- Subclasses of tables and series --------------------------------------------------------------

# Attributes that pandas itself keeps in an object, and those that it caches.
_OF_PANDAS = frozenset({"_mgr", "_attrs", "_flags", "_item_cache", "_name", "_cache"})


def _own_attributes(value: Any) -> dict[str, Any]:
    return {name: entry for name, entry in stored(value).items() if name not in _OF_PANDAS}


def _lower_subclass(value: Any) -> tuple[Detail, Any]:
    name = "DataFrame" if isinstance(value, pd.DataFrame) else "Series"
    base, lower, _ = _BASES[name]
    plain = base(value, copy=False)
    plain.attrs = value.attrs
    _, tree = lower(plain)
    tree["own"] = _own_attributes(value)
    return (ref_of(type(value)), name, bool(value.flags.allows_duplicate_labels)), tree


def _subclass_of(detail: Detail, find: Finder) -> Any:
    ref, name, _ = detail
    cls, base = find.cls(ref), _BASES[name][0]
    if cls is base or not issubclass(cls, base):
        raise KindError(f"{said(ref)} is no subclass of {name} any more")
    return cls


def _subclass(detail: Detail, tree: Any, find: Finder) -> Any:
    cls = _subclass_of(detail, find)
    plain = _BASES[detail[1]][2](True, tree, find)
    # No method of the class runs.
    new = object.__new__(cls)
    pd.core.generic.NDFrame.__init__(new, plain._mgr)
    _give_own(new, plain, tree)
    object.__setattr__(new, "_flags", pd.Flags(new, allows_duplicate_labels=detail[2]))
    return new


def _give_own(new: Any, plain: Any, tree: Any) -> None:
    new.attrs = plain.attrs
    if isinstance(new, pd.Series):
        object.__setattr__(new, "_name", plain.name)
    store(new, tree["own"])


def _fill_subclass(old: Any, detail: Detail, tree: Any) -> bool:
    if old.flags.allows_duplicate_labels != detail[2] or not hasattr(old, "_update_inplace"):
        return False
    plain = _BASES[detail[1]][2](True, tree, Finder())
    pd.core.generic.NDFrame._update_inplace(old, plain)
    drop(old, _own_attributes(old).keys() - tree["own"].keys())
    _give_own(old, plain, tree)
    return True


_BASES: dict[str, tuple[Any, Any, Any]] = {
    "DataFrame": (pd.DataFrame, _lower_table, _table),
    "Series": (pd.Series, _lower_series, _series),
}
SUBCLASS = Kind("pandas.subclass", _lower_subclass, _subclass, _subclass_of, fill=_fill_subclass)


# --- Single values --------------------------------------------------------------------------------


def _timestamp(zone: Detail, tree: Any, find: Finder) -> Any:
    made = pd.Timestamp(tree)
    return made if zone is None else made.tz_localize("UTC").tz_convert(zone_for(zone))


def _lower_timestamp(value: Any) -> tuple[Detail, Any]:
    naive = value if value.tz is None else value.tz_convert(None)
    return zone_of(value.tz), naive.to_datetime64()


_VALUES: dict[Any, Kind] = {
    type(pd.NA): Kind("pandas.NA", lambda value: (None, None), lambda detail, tree, find: pd.NA),
    type(pd.NaT): Kind("pandas.NaT", lambda value: (None, None), lambda detail, tree, find: pd.NaT),
    pd.Timestamp: Kind("pandas.Timestamp", _lower_timestamp, _timestamp),
    pd.Timedelta: Kind(
        "pandas.Timedelta",
        lambda value: (None, value.to_timedelta64()),
        lambda detail, tree, find: pd.Timedelta(tree),
    ),
    pd.Period: Kind(
        "pandas.Period",
        lambda value: (value.freqstr, value.ordinal),
        lambda freq, tree, find: pd.Period(ordinal=tree, freq=freq),
    ),
    pd.Interval: Kind(
        "pandas.Interval",
        lambda value: (value.closed, (value.left, value.right)),
        lambda closed, tree, find: pd.Interval(*tree, closed=closed),
    ),
}

KINDS: dict[Any, Kind] = {
    pd.DataFrame: Kind("pandas.DataFrame", _lower_table, _table, fill=_filling(_table)),
    pd.Series: Kind("pandas.Series", _lower_series, _series, fill=_filling(_series)),
    **dict.fromkeys(_OF_INDEX, _INDEX),
    **_INDICES,
    **_ARRAYS,
    **_VALUES,
}
BY_NAME = {kind.name: kind for kind in (*KINDS.values(), _STRING, _ARROW, SUBCLASS)}


def kind_of(cls: Any) -> Kind | None:
    """Returns the kind of a class; None if it cannot become a tree."""
    found = KINDS.get(cls)
    if found is None and issubclass(cls, pd.api.extensions.ExtensionArray):
        # Their classes are not all public, and differ from version to version.
        if cls.__name__ in ("StringArray", "StringArrayNumpySemantics", "ArrowStringArray"):
            return _STRING
        return _ARROW if cls is arrays.ArrowExtensionArray else None
    if found is None and issubclass(cls, pd.DataFrame | pd.Series):
        return SUBCLASS
    return found
