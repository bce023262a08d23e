"""Arrays of a state that share memory."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def tied(arrays: Mapping[int, Any]) -> tuple[dict[int, int], dict[int, int]]:
    """Finds arrays that share memory with others.

    Args:
        arrays: Arrays by number.

    Returns:
        Two dicts by number of an array. The first has each array whose elements are all those of
        one with a lower number, and that number. The second has each array that shares memory in
        another way, and the number of one that it shares it with.
    """
    same, mixed = dict[int, int](), dict[int, int]()
    # Arrays that own their memory share it only with views.
    if len({id(array) for array in arrays.values() if array.flags.owndata}) == len(arrays):
        return same, mixed
    spans = []
    for at, array in arrays.items():
        if array.flags.c_contiguous:
            begin = array.__array_interface__["data"][0]
            spans.append((begin, begin + array.nbytes, at))
        elif array.size > 0:
            spans.append((*np.lib.array_utils.byte_bounds(array), at))
    spans.sort()
    near: list[tuple[int, int]] = []
    for begin, until, at in spans:
        near = [(end, other) for end, other in near if end > begin]
        for _, other in near if begin < until else ():
            first, second = sorted((other, at))
            one, two = arrays[first], arrays[second]
            if _is_same(one, two):
                same.setdefault(second, first)
            elif _share(one, two):
                mixed[first], mixed[second] = second, first
        near.append((until, at))
    return same, mixed


def _is_same(one: Any, two: Any) -> bool:
    """Whether two arrays have each element at the same address."""
    first, second = one.__array_interface__["data"][0], two.__array_interface__["data"][0]
    return bool(
        first == second
        and one.shape == two.shape
        and one.strides == two.strides
        and one.dtype == two.dtype
    )


def _share(one: Any, two: Any) -> bool:
    """Whether two arrays have a byte in common; true if the check would take long."""
    try:
        return bool(np.shares_memory(one, two, max_work=10_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
