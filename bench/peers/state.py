"""The state that every peer saves: 16 arrays of float32, the same bits for the same seed."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Arrays = dict[str, Array]
Allocate = Callable[[int], Array]

ARRAYS = 16
# `random`: bits that no compressor makes smaller. `smooth`: a field like that of a simulation.
KINDS = ("random", "smooth")
_PAGE_ITEMS = 1024


def plain(length: int) -> Array:
    """Returns memory as NumPy allocates it."""
    return np.empty(length, np.float32)


def length_of(total_bytes: int) -> int:
    """Returns the number of elements of each array: whole pages, at least one."""
    pages = max(1, round(total_bytes / ARRAYS / 4 / _PAGE_ITEMS))
    return pages * _PAGE_ITEMS


def total_bytes(arrays: Mapping[str, Array]) -> int:
    """Returns the bytes of all arrays."""
    return sum(array.nbytes for array in arrays.values())


def make(size_bytes: int, seed: int, kind: str = "random", allocate: Allocate = plain) -> Arrays:
    """Makes a state of about `size_bytes`. Other seeds give other bits everywhere."""
    arrays = {}
    for number in range(ARRAYS):
        array = allocate(length_of(size_bytes))
        fill(array, seed * ARRAYS + number, kind)
        arrays[f"layer{number:02}"] = array
    return arrays


def fill(array: Array, seed: int, kind: str) -> None:
    """Fills an array with the values of a seed."""
    rng = np.random.Generator(np.random.SFC64(seed))
    if kind == "random":
        # All bits are random, for compressors find others. NaNs are only copied.
        bits = array.view(np.uint32)
        for begin in range(0, bits.size, 1 << 20):
            some = bits[begin : begin + (1 << 20)]
            some[:] = rng.integers(0, 1 << 32, some.size, np.uint32)
        return
    phase, wave = rng.random(2)
    for begin in range(0, array.size, 1 << 20):
        part = array[begin : begin + (1 << 20)]
        at = np.arange(begin, begin + part.size, dtype=np.float32)
        np.sin(at * np.float32(1e-4 * (1 + wave)) + np.float32(phase * 6), out=part)
        # Steps of 2^-12, as in a field that hardly moves.
        np.multiply(np.rint(part * 4096), np.float32(1 / 4096), out=part)


def change(arrays: Mapping[str, Array], count: int = ARRAYS) -> None:
    """Changes every element of the last `count` arrays; changing twice gives new bits again."""
    for array in list(arrays.values())[len(arrays) - count :]:
        bits = array.view(np.uint32)
        np.add(bits, 3, out=bits)


def same(got: Mapping[str, npt.NDArray[np.generic]], want: Mapping[str, Array]) -> bool:
    """Whether both have the same names and shapes and every bit is the same."""
    if sorted(got) != sorted(want):
        return False
    for name, array in want.items():
        other = np.asarray(got[name])
        if other.dtype != array.dtype or other.shape != array.shape:
            return False
        if not np.array_equal(other.view(np.uint32), array.view(np.uint32)):
            return False
    return True
