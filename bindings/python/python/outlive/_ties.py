"""Tensors of a state that share memory: it is saved once, and the others are views of it."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from outlive._layouts import Note

if TYPE_CHECKING:
    from outlive._flat import Flat


class _Span(NamedTuple):
    """The addresses of a leaf's elements."""

    begin: int
    end: int
    at: int


def tie(flat: Flat) -> None:
    """Makes tensors that share memory with another leaf views of it.

    The leaf that covers the memory of all others keeps its region. If none does, the first one gets
    a region of bytes, which has the memory of all. The regions of the others become empty.
    """
    spans = sorted(
        _span(array, at)
        for at, array in flat.tensors.items()
        if array.size > 0 and "device" not in flat.notes[at]
    )
    group, end = list[_Span](), 0
    for span in spans:
        if span.begin >= end:
            _tie_group(flat, group, end)
            group = []
        group.append(span)
        end = max(end, span.end)
    _tie_group(flat, group, end)


def _span(array: np.ndarray[Any, Any], at: int) -> _Span:
    begin = array.__array_interface__["data"][0]
    if array.flags.c_contiguous:
        return _Span(begin, begin + array.nbytes, at)
    last = sum((extent - 1) * step for extent, step in zip(array.shape, array.strides, strict=True))
    return _Span(begin, begin + last + array.itemsize, at)


def _tie_group(flat: Flat, group: list[_Span], end: int) -> None:
    """Ties leaves whose addresses from the first one's begin to the end leave no gap."""
    if len(group) < 2:
        return
    begin = group[0].begin
    arrays = [flat.tensors[span.at] for span in group]
    offsets = [span.begin - begin for span in group]
    if not all(map(_is_aligned, arrays, offsets)):
        return  # PyTorch could not make such views again
    group.sort(key=lambda span: span.at)
    covering = (
        span.at for span in group if (span.begin, span.end) == (begin, end) and _has(flat, span)
    )
    base = next(covering, None)
    if base is None:
        base = group[0].at
        memory = (ctypes.c_uint8 * (end - begin)).from_address(begin)
        _make_view(flat, base, base, begin)
        flat.leaves[base] = np.ctypeslib.as_array(memory)
        flat.shapes[base] = (end - begin,)
    for span in group:
        if span.at != base:
            _make_view(flat, span.at, base, begin)


def _is_aligned(array: np.ndarray[Any, Any], offset: int) -> bool:
    return all(step % array.itemsize == 0 for step in (offset, *array.strides))


def _has(flat: Flat, span: _Span) -> bool:
    """Whether the region of a leaf is all memory from its begin to its end, and no copy."""
    leaf = flat.leaves[span.at]
    is_there = leaf.__array_interface__["data"][0] == span.begin
    return bool(is_there and leaf.nbytes == span.end - span.begin)


_EMPTY = np.empty(0, np.uint8)


def _make_view(flat: Flat, at: int, base: int, begin: int) -> None:
    array, note = flat.tensors[at], flat.notes[at]
    for key in ("axes", "shape"):
        note.pop(key, None)
    if at in flat.fortran:
        flat.fortran.remove(at)
    made: Note = {
        "of": flat.names[base],
        "offset": array.__array_interface__["data"][0] - begin,
        "strides": list(array.strides),
        "shape": list(array.shape),
        "text": flat.dtypes[at],
    }
    if at != base and flat.originals[at] is flat.originals[base]:
        made["same"] = True
    note.update(made)
    flat.leaves[at], flat.dtypes[at], flat.shapes[at] = _EMPTY, "|u1", (0,)
