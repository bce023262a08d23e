"""Arrays whose memory begins on a page boundary, so that changes are found page by page."""

import logging
import math
import mmap
from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from outlive import _core

_log = logging.getLogger("outlive")

Shape = SupportsIndex | Sequence[SupportsIndex]
Order = Literal["C", "F"]

# Smaller arrays are packed together when they are saved, so their own address does not matter.
_MAPPED_FROM_BYTES = 64 * 1024
_HUGE_BYTES = 2 * 1024 * 1024


class _Mapping(mmap.mmap):
    """Memory of an array."""

    offered: object  # goes before the memory does: attributes are cleared before it is unmapped


def empty(shape: Shape, dtype: npt.DTypeLike = float, order: Order = "C") -> npt.NDArray[Any]:
    """Returns an array like that of `numpy.empty`, page-aligned if it has 64 KiB or more.

    Its memory is a private mapping that lives as long as the array or any view of it. From 2 MiB
    on, it asks the kernel for huge pages. If their first touch costs more than twice as much, as in
    some virtual machines, it asks for pages of 4 KiB. Large arrays (64 MiB) measure that on their
    first blocks, and the log names the choice. The elements happen to be zero; do not rely on that.
    """
    return zeros(shape, dtype, order)


def empty_of(shape: tuple[int, ...], dtype: "np.dtype[Any]", order: Order) -> "npt.NDArray[Any]":
    """Works as `empty`, but faster: a restore may make a million small arrays."""
    length = dtype.itemsize
    for size in shape:
        length *= size
    if length < _MAPPED_FROM_BYTES:
        return np.empty(shape, dtype, order)
    return empty(shape, dtype, order)


def zeros(shape: Shape, dtype: npt.DTypeLike = float, order: Order = "C") -> npt.NDArray[Any]:
    """Returns an array like that of `numpy.zeros`, page-aligned from 64 KiB on (see `empty`)."""
    dtype = np.dtype(dtype)
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    length = dtype.itemsize * math.prod(int(size) for size in sizes)
    if length < _MAPPED_FROM_BYTES or dtype.hasobject:
        return np.zeros(shape, dtype, order)
    try:
        memory = _Mapping(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"cannot allocate {length} bytes of memory: {error}") from None
    if length >= _HUGE_BYTES:
        memory.offered, chosen = _core.offer(memory)
        if chosen is not None:
            _log.info("large arrays are made of %s", chosen)
    return np.ndarray(sizes, dtype, buffer=memory, order=order)


def array(
    values: npt.ArrayLike, dtype: npt.DTypeLike | None = None, order: Order = "C"
) -> npt.NDArray[Any]:
    """Returns a copy of `values`, like `numpy.array`, page-aligned if it has 64 KiB or more."""
    source = np.asarray(values, dtype)
    made = empty(source.shape, source.dtype, order)
    made[...] = source
    return made
