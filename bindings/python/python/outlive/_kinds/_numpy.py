"""Arrays of NumPy with more than plain memory: masked, of objects, records, strings, matrices."""

import ast
from typing import Any

import numpy as np
from numpy.lib import format as npy

from outlive._kinds._base import Detail, Finder, Kind, UnsuitedError

# --- Arrays of objects ----------------------------------------------------------------------------

# The tree is a list, with one list in it for each further axis; details are the shape, and whether
# memory is in Fortran's order.


def _lower_objects(value: Any) -> tuple[Detail, Any]:
    is_fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    tree = [value.item()] if value.ndim == 0 else value.tolist()
    return (tuple(value.shape), bool(is_fortran)), tree


def _make_objects(detail: Detail, tree: Any, find: Finder) -> Any:
    shape, is_fortran = detail
    entries = [*tree]
    for _ in shape[1:]:
        entries = [entry for row in entries for entry in row]
    # `fromiter` takes a list or array as one object.
    made = np.fromiter(entries, object, len(entries)).reshape(shape)
    return np.asfortranarray(made) if is_fortran else made


def _fill_array(old: Any, new: Any) -> bool:
    if old.shape != new.shape or not old.flags.writeable:
        return False
    old[...] = new
    return True


def _fill_objects(old: Any, detail: Detail, tree: Any) -> bool:
    return _fill_array(old, _make_objects(detail, tree, Finder()))


OBJECTS = Kind("numpy.objects", _lower_objects, _make_objects, fill=_fill_objects)


# --- Records with objects among the fields --------------------------------------------------------


def _lower_fields(value: Any) -> tuple[Detail, Any]:
    dtype = value.dtype
    if any(
        dtype.fields[name][0].kind == "V" and dtype.fields[name][0].hasobject
        for name in dtype.names
    ):
        raise UnsuitedError("one of its fields is a record of objects, or several objects")
    if npy.descr_to_dtype(npy.dtype_to_descr(dtype)) != dtype:
        raise UnsuitedError("its fields overlap")
    descr = repr(npy.dtype_to_descr(dtype))
    tree = {name: value[name].view(np.ndarray) for name in dtype.names}
    return (tuple(value.shape), descr, type(value) is np.recarray), tree


def _make_fields(detail: Detail, tree: Any, find: Finder) -> Any:
    shape, descr, is_recarray = detail
    dtype = npy.descr_to_dtype(ast.literal_eval(descr))
    made = np.zeros(shape, dtype)
    for name in dtype.names or ():
        made[name] = tree[name]
    return made.view(np.recarray) if is_recarray else made


def _fill_fields(old: Any, detail: Detail, tree: Any) -> bool:
    new = _make_fields(detail, tree, Finder())
    return bool(old.dtype == new.dtype) and _fill_array(old, new)


FIELDS = Kind("numpy.fields", _lower_fields, _make_fields, fill=_fill_fields)


# --- Strings of any length ------------------------------------------------------------------------

_MISSING = {"none": None, "nan": float("nan"), "text": ""}


def _lower_strings(value: Any) -> tuple[Detail, Any]:
    dtype = value.dtype
    missing = getattr(dtype, "na_object", _MISSING)
    if missing is _MISSING:
        what = None
    elif missing is None:
        what = "none"
    elif type(missing) is float and missing != missing:
        what = "nan"
    elif missing == "" and type(missing) is str:
        what = "text"
    else:
        raise UnsuitedError(f"its missing values are {missing!r}: use None or `math.nan`")
    (shape, _), tree = _lower_objects(value.astype(object))
    return (shape, bool(dtype.coerce), what), tree


def _make_strings(detail: Detail, tree: Any, find: Finder) -> Any:
    shape, coerce, what = detail
    missing = {} if what is None else {"na_object": _MISSING[what]}
    dtype: Any = np.dtypes.StringDType(coerce=coerce, **missing)
    return _make_objects((shape, False), tree, find).astype(dtype)


def _fill_strings(old: Any, detail: Detail, tree: Any) -> bool:
    new = _make_strings(detail, tree, Finder())
    return bool(old.dtype == new.dtype) and _fill_array(old, new)


STRINGS = Kind("numpy.strings", _lower_strings, _make_strings, fill=_fill_strings)


# --- Masked arrays --------------------------------------------------------------------------------


def _lower_masked(value: Any) -> tuple[Detail, Any]:
    if type(value.data) is not np.ndarray:
        raise UnsuitedError("its data is no plain array: save its `data` and its `mask`")
    mask = np.ma.getmask(value)
    filler = value._fill_value
    tree = {
        "data": value.data,
        "mask": None if mask is np.ma.nomask else mask,
        "fill_value": None if filler is None else np.array(filler, value.dtype),
    }
    return bool(value.hardmask), tree


def _make_masked(detail: Detail, tree: Any, find: Finder) -> Any:
    data, mask, filler = tree["data"], tree["mask"], tree["fill_value"]
    made: Any = np.ma.MaskedArray(
        data,
        mask=np.ma.nomask if mask is None else mask,
        hard_mask=detail,
        fill_value=None if filler is None else filler[()],
        copy=False,
    )
    return made


def _fill_masked(old: Any, detail: Detail, tree: Any) -> bool:
    data, mask = tree["data"], tree["mask"]
    # The memory is filled already, unless it had another form.
    if not _is_memory(data, old.data):
        return False
    mine = np.ma.getmask(old)
    if mask is None:
        old._mask = np.ma.nomask
    elif not _is_memory(mask, mine):
        old._mask = mask
    filler = tree["fill_value"]
    old._fill_value = None if filler is None else np.array(filler, old.dtype)
    old._hardmask = detail
    return True


def _is_memory(one: Any, two: Any) -> bool:
    return isinstance(two, np.ndarray) and (
        one.__array_interface__ == two.__array_interface__ and one.size > 0
    )


MASKED = Kind("numpy.masked", _lower_masked, _make_masked, fill=_fill_masked)


# --- Views of plain arrays ------------------------------------------------------------------------


def _view(name: str, cls: Any) -> Kind:
    def make(detail: Detail, tree: Any, find: Finder) -> Any:
        return tree.view(cls)

    return Kind(name, lambda value: (None, value.view(np.ndarray)), make, is_whole=False)


VIEWS: dict[type, Kind] = {
    np.recarray: _view("numpy.recarray", np.recarray),
    np.matrix: _view("numpy.matrix", np.matrix),
}

BY_NAME = {kind.name: kind for kind in (OBJECTS, FIELDS, STRINGS, MASKED, *VIEWS.values())}


def kind_of(cls: Any) -> Kind | None:
    """Returns the kind of a class; arrays are a matter of their dtype: see `kind_of_array`."""
    return MASKED if cls is np.ma.MaskedArray else None


def kind_of_array(value: Any) -> Kind | None:
    """Returns the kind of an array whose elements are no plain memory; None if there is none."""
    if type(value) not in (np.ndarray, np.recarray):
        return None
    if value.dtype.kind == "O":
        return OBJECTS if type(value) is np.ndarray else None
    if value.dtype.kind == "T":
        return STRINGS
    return FIELDS if value.dtype.names else None
