"""Sparse matrices and arrays of SciPy: the arrays in them are arrays of the state."""

import importlib
from typing import Any

from outlive._kinds._base import Detail, Finder, Kind, UnsuitedError

sparse: Any = importlib.import_module("scipy.sparse")

_ROWS = ("csr", "csc", "bsr")
# Formats without arrays, and the format that they are saved in.
_OTHER = {"lil": "csr", "dok": "coo"}


def _lower(value: Any) -> tuple[Detail, Any]:
    if value.dtype.hasobject:
        raise UnsuitedError("its entries are objects")
    name = value.format
    value = value.asformat(_OTHER.get(name, name))
    shape = tuple(map(int, value.shape))
    tree: dict[str, Any] = {"data": value.data}
    if value.format in _ROWS:
        tree |= {"indices": value.indices, "indptr": value.indptr}
    elif value.format == "dia":
        tree["offsets"] = value.offsets
    else:
        tree["coords"] = tuple(value.coords)
    return shape, tree


def _kind(cls: Any, name: str) -> Kind:
    saved = _OTHER.get(name, name)
    # `csr_matrix` for `lil_matrix`, `coo_array` for `dok_array`.
    saved_cls = getattr(sparse, cls.__name__.replace(name, saved))

    def make(shape: Detail, tree: Any, find: Finder) -> Any:
        data = tree["data"]
        if saved in _ROWS:
            made = saved_cls((data, tree["indices"], tree["indptr"]), shape=shape, copy=False)
            # Indices from a store must never lead beyond the arrays.
            made.check_format(full_check=True)
        elif saved == "dia":
            made = saved_cls((data, tree["offsets"]), shape=shape, copy=False)
        else:
            made = saved_cls((data, tree["coords"]), shape=shape, copy=False)
        return made.asformat(name)

    def fill(old: Any, shape: Detail, tree: Any) -> bool:
        new = make(shape, tree, Finder())
        if vars(old).keys() - vars(new).keys():
            return False
        vars(old).update(vars(new))
        return True

    return Kind(f"scipy.{cls.__name__}", _lower, make, fill=fill)


KINDS: dict[type, Kind] = {
    cls: _kind(cls, name)
    for name in (*_ROWS, "coo", "dia", *_OTHER)
    for cls in (getattr(sparse, f"{name}_matrix"), getattr(sparse, f"{name}_array"))
}
BY_NAME = {kind.name: kind for kind in KINDS.values()}


def kind_of(cls: type) -> Kind | None:
    """Returns the kind of a class; None if it is not sparse."""
    return KINDS.get(cls)
