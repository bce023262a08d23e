"""Arrays of JAX that lie on several devices: all of one, the part of a process, and back again."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from outlive._group import Sharded

Box = tuple[tuple[int, ...], tuple[int, ...]]


class Part(Sharded):
    """The part of a global array that the devices of this process hold.

    Attributes:
        whole: The array of JAX.
    """

    __slots__ = ("whole",)

    def __init__(self, whole: Any, array: Any, offset: tuple[int, ...]) -> None:
        """Made by `part_of`."""
        # A part has an axis.
        super().__init__(array, tuple(whole.shape) or (1,), offset or (0,))
        self.whole = whole

    def __array_namespace__(self) -> Any:
        """Returns the module of such arrays: a restore makes another one, as for others of JAX."""
        return self.whole.__array_namespace__()


def is_divided(value: Any) -> bool:
    """Whether an array lies on several devices."""
    sharding = getattr(value, "sharding", None)
    return sharding is not None and len(sharding.device_set) > 1


def is_global(value: Any) -> bool:
    """Whether an array lies on devices of other processes, too."""
    return getattr(value, "is_fully_addressable", True) is False


def gathered(value: Any) -> np.ndarray[Any, Any]:
    """Returns all of an array whose devices are all of this process.

    JAX's own way would keep a copy on the host as long as the array exists.
    """
    box = (0,) * value.ndim, tuple(value.shape)
    return _assembled(value, box, _boxes(value))


def part_of(value: Any) -> Part | None:
    """Returns the part of a global array on the devices of this process; None if it is no box."""
    boxes = _boxes(value)
    axes = range(value.ndim)
    begin = tuple(min(first[axis] for first, _ in boxes) for axis in axes)
    end = tuple(max(first[axis] + shape[axis] for first, shape in boxes) for axis in axes)
    shape = tuple(last - first for first, last in zip(begin, end, strict=True))
    if sum(math.prod(lengths) for _, lengths in boxes) != math.prod(shape):
        return None
    array = _assembled(value, (begin, shape), boxes)
    return Part(value, array.reshape(array.shape or (1,)), begin)


def _boxes(value: Any) -> dict[Box, Any]:
    """Returns the data of the shards here by their places; equal ones once."""
    found: dict[Box, Any] = {}
    for shard in value.addressable_shards:
        spans = [
            each.indices(extent) for each, extent in zip(shard.index, value.shape, strict=True)
        ]
        begin = tuple(first for first, _, _ in spans)
        shape = tuple(last - first for first, last, _ in spans)
        found.setdefault((begin, shape), shard.data)
    return found


def _assembled(value: Any, box: Box, boxes: dict[Box, Any]) -> np.ndarray[Any, Any]:
    begin, shape = box
    if list(boxes) == [box]:
        return np.asarray(boxes[box])
    whole = np.empty(shape, value.dtype)
    for (first, lengths), data in boxes.items():
        place = tuple(
            slice(at - zero, at - zero + length)
            for at, zero, length in zip(first, begin, lengths, strict=True)
        )
        whole[place] = np.asarray(data)
    return whole


def like(original: Any, values: np.ndarray[Any, Any], offset: tuple[int, ...] = ()) -> Any:
    """Returns a new array with the devices of another one.

    Args:
        original: The array of JAX, or one of another package whose arrays cannot change.
        values: The values of the new one, or those of the part that this process holds.
        offset: Place of the first value in the whole array.
    """
    sharding = getattr(original, "sharding", None)
    if "jax" not in sys.modules or sharding is None:
        return original.__array_namespace__().asarray(values)
    import jax

    if original.ndim == 0:
        values = values.reshape(())
    if not is_divided(original):
        made = _weak(original, values) if getattr(original, "weak_type", False) else values
        # An array that no program has put on a device may go to any.
        is_fixed = getattr(original, "committed", True)
        return jax.device_put(made, sharding) if is_fixed else jax.numpy.asarray(made)
    offset = (offset or (0,) * original.ndim)[: original.ndim]
    pieces = []
    for shard in original.addressable_shards:
        spans = [
            each.indices(extent) for each, extent in zip(shard.index, original.shape, strict=True)
        ]
        place = tuple(
            slice(first - zero, last - zero)
            for (first, last, _), zero in zip(spans, offset, strict=True)
        )
        here = jax.sharding.SingleDeviceSharding(shard.device, memory_kind=sharding.memory_kind)
        pieces.append(jax.device_put(values[place], here))
    return jax.make_array_from_single_device_arrays(original.shape, sharding, pieces)


def _weak(original: Any, values: np.ndarray[Any, Any]) -> Any:
    """Returns a scalar that gives way to the dtypes of others, as one of Python does."""
    if values.ndim == 0:
        import jax

        made = jax.numpy.asarray(values.item())
        if made.dtype == original.dtype and made.weak_type:
            return made
    return values
