"""Plain forms of tables, for programs that have neither pandas nor Arrow.

The tree that stands for an object is plain already. These make the trees of some kinds handier.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from outlive._kinds._base import Detail


def _entries(tree: Any) -> Any:
    """Returns the entries of an array of Arrow: an array, or a list with None for those missing."""
    form = tree["form"]
    if form == "extension":
        return _entries(tree["storage"])
    if form == "null":
        return [None] * tree["length"]
    if form == "dictionary":
        indices, values = _entries(tree["indices"]), _entries(tree["dictionary"])
        return [None if at is None else values[at] for at in indices]
    if form == "stream":
        return tree
    length, valid = tree["length"], tree["valid"]
    if form == "struct":
        found: Any = _rows(tree["children"], length)
    elif form == "values":
        found = tree["values"]
        if len(found) != length:  # decimals and the like
            size = len(found) // length
            found = [found[at : at + size].tobytes() for at in range(0, len(found), size)]
    elif form == "bits":
        found = _bits(tree["values"], length)
    else:
        found = _slices(tree, length)
    if valid is None:
        return found
    is_valid = _bits(valid, length)
    found = _as_list(found)
    return [entry if there else None for entry, there in zip(found, is_valid, strict=True)]


def _bits(octets: Any, length: int) -> Any:
    return np.unpackbits(octets, count=length, bitorder="little").astype(bool)


def _rows(children: Any, length: int) -> list[Any]:
    """Returns a dict for each row; a list if two fields have the same name."""
    if isinstance(children, dict):
        columns = {name: _as_list(_entries(child)) for name, child in children.items()}
        return [{name: column[at] for name, column in columns.items()} for at in range(length)]
    rows = [_as_list(_entries(child)) for child in children]
    return [[column[at] for column in rows] for at in range(length)]


def _as_list(found: Any) -> Any:
    if not isinstance(found, np.ndarray):
        return found
    # `tolist` makes integers of some moments.
    return list(found) if found.dtype.kind in "mM" else found.tolist()


def _slices(tree: Any, length: int) -> list[Any]:
    """Returns texts, byte strings or lists."""
    if "offsets" in tree:
        bounds = tree["offsets"].tolist()
        bounds = [0] * (length + 1) if len(bounds) <= length else bounds
    else:  # lists of a fixed size
        whole = tree["children"][0].get("length", 0)
        bounds = list(range(0, whole + 1, whole // length)) if length else [0]
    is_list = tree["form"] == "list"
    content = _entries(tree["children"][0]) if is_list else tree["values"].tobytes()
    found = [content[begin:end] for begin, end in itertools.pairwise(bounds)]
    return [text.decode() for text in found] if tree["form"] == "text" else found


def _chunks(chunks: list[Any]) -> Any:
    found = list(map(_entries, chunks))
    if found and all(isinstance(each, np.ndarray) for each in found):
        return np.concatenate(found) if len(found) > 1 else found[0]
    if any(isinstance(each, dict) for each in found):
        return found
    return [entry for each in found for entry in _as_list(each)]


def _table(detail: Detail, tree: Any) -> Any:
    columns = tree["columns"]
    if isinstance(columns, dict):
        return {name: _chunks(chunks) for name, chunks in columns.items()}
    return list(map(_chunks, columns))


def _batch(detail: Detail, tree: Any) -> Any:
    columns = tree["columns"]
    if isinstance(columns, dict):
        return {name: _entries(column) for name, column in columns.items()}
    return list(map(_entries, columns))


# Plain forms by the name of the kind.
PLAIN: dict[str, Callable[[Detail, Any], Any]] = {
    "pyarrow.Array": lambda detail, tree: _entries(tree["array"]),
    "pyarrow.Scalar": lambda detail, tree: _as_list(_entries(tree["array"]))[0],
    "pyarrow.ChunkedArray": lambda detail, tree: _chunks(tree["chunks"]),
    "pyarrow.Table": _table,
    "pyarrow.RecordBatch": _batch,
    "pandas.Index": lambda detail, tree: tree["values"],
    "pandas.RangeIndex": lambda detail, tree: np.arange(*tree["range"]),
}
