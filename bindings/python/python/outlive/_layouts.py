"""The memory of a region and the array that it stands for: order of axes, and views of others.

A *note* says how one follows from the other, as JSON beside the containers of a state. Without any
of these keys, the memory is the array in C order, or in Fortran's if the skeleton says so:

- ``axes``: the memory is the array with its axes in this order, such as PyTorch's channels last;
- ``shape``: the array repeats its memory along axes of length 1, up to this shape;
- ``of``, ``offset``, ``strides``, ``shape``: the array is a view of the memory of the leaf with
  that name, in bytes. Its own region is empty, unless it is that leaf itself;
- ``text``: the dtype, if the region's is another.

The other keys are of `outlive.torch._tensors`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

Note = dict[str, Any]
# Keys of values that differ from those in memory by a sign.
SIGNS = ("conj", "neg")


def axes_of(array: "np.ndarray[Any, Any]") -> list[int] | None:
    """Returns the order of axes in which an array is contiguous; None if there is none."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return order if array.transpose(order).flags.c_contiguous else None


def ordered(array: "np.ndarray[Any, Any]", axes: Sequence[int] | None) -> Any:
    """Returns an array with its axes in the order of the memory; None is C order."""
    return array if axes is None else array.transpose(axes)


def unordered(memory: "np.ndarray[Any, Any]", axes: Sequence[int] | None) -> Any:
    """Returns the array whose axes `ordered` has put into another order."""
    return memory if axes is None else memory.transpose(np.argsort(axes))


def repeated(array: "np.ndarray[Any, Any]", shape: Sequence[int]) -> Any:
    """Returns an array that repeats the elements of another one, and shares its memory."""
    strides = [
        0 if there != wanted else step
        for there, wanted, step in zip(array.shape, shape, array.strides, strict=True)
    ]
    return np.lib.stride_tricks.as_strided(array, tuple(shape), strides, writeable=True)


def unrepeated(array: "np.ndarray[Any, Any]") -> Any:
    """Returns an array without those elements that are at the address of another one."""
    if array.size == 0 or all(map(_is_free, array.shape, array.strides)):
        return array
    return array[_once(array)]


def _once(array: "np.ndarray[Any, Any]") -> tuple[slice, ...]:
    """Returns the index of the elements of an array that differ in their addresses."""
    return tuple(
        slice(None) if _is_free(extent, step) else slice(1)
        for extent, step in zip(array.shape, array.strides, strict=True)
    )


def _is_free(extent: int, step: int) -> bool:
    return extent == 1 or step != 0


def is_view(note: Note) -> bool:
    """Whether the array is a view of the memory of a leaf."""
    return "of" in note


def viewed(memory: "np.ndarray[Any, Any]", dtype: "np.dtype[Any]", note: Note) -> Any:
    """Returns the view of a leaf's memory that a note describes."""
    flat = memory.reshape(-1).view(np.uint8)
    if 0 in note["shape"]:
        return np.empty(note["shape"], dtype)
    return np.ndarray(note["shape"], dtype, flat.data, note["offset"], note["strides"])


def signs(note: Note, own: Note) -> list[str]:
    """Returns the signs that a note has and another one lacks, or the other way round."""
    return [key for key in SIGNS if (key in note) != (key in own)]


def signed(array: Any, keys: Sequence[str]) -> Any:
    """Returns an array with the values that its memory has with these signs."""
    if "conj" in keys:
        array = np.conj(array)
    return np.negative(array) if "neg" in keys else array


def assign(target: "np.ndarray[Any, Any]", values: Any) -> None:
    """Fills an array, whose elements may share addresses."""
    once = _once(target)
    target[once] = values[once]


def only_values(note: Note) -> Note:
    """Returns the parts of a note that decide about values, and not about order or class."""
    return {key: note[key] for key in ("dtype", *SIGNS) if key in note}
