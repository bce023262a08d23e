"""NumPy dtypes as text and back.

The store keeps the text with a region. Nothing in it is ever executed. It is one of:

- NumPy's own notation (``<f8``, ``<M8[ns]``), for plain types;
- a list of fields that `ast.literal_eval` reads, for structured types;
- ``ext:NAME``, for types that other packages add (bfloat16);
- ``dlpack:CODE.BITS.LANES``, for those that no package adds to NumPy.
"""

import ast
import importlib
from typing import Any

import numpy as np
from numpy.lib import format as npy

_EXTENSION = "ext:"
_DLPACK = "dlpack:"

# Types that the package `ml_dtypes` adds, and that PyTorch and JAX have without it, with the bytes
# of an element. In NumPy's arrays an element of less than a byte takes one.
_ML_DTYPES = {
    "bfloat16": 2,
    **dict.fromkeys(
        [
            "float8_e3m4",
            "float8_e4m3",
            "float8_e4m3b11fnuz",
            "float8_e4m3fn",
            "float8_e4m3fnuz",
            "float8_e5m2",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
            "float6_e2m3fn",
            "float6_e3m2fn",
            "float4_e2m1fn",
            "int2",
            "int4",
            "uint2",
            "uint4",
        ],
        1,
    ),
}
# Codes of DLPack, by the names that `ml_dtypes` gives the same types.
_CODES = {
    4: "bfloat16",
    7: "float8_e3m4",
    8: "float8_e4m3",
    9: "float8_e4m3b11fnuz",
    10: "float8_e4m3fn",
    11: "float8_e4m3fnuz",
    12: "float8_e5m2",
    13: "float8_e5m2fnuz",
    14: "float8_e8m0fnu",
}


class MissingDtypeError(ValueError):
    """A dtype that NumPy could have, but does not."""


def text_of(dtype: "np.dtype[Any]") -> str | None:
    """Returns the text for a dtype; None for one whose elements are not plain bytes."""
    if dtype.hasobject:
        return None
    if dtype.isbuiltin == 2:
        return _EXTENSION + dtype.name
    try:
        text = dtype.str if dtype.names is None else repr(npy.dtype_to_descr(dtype))
        # Text that cannot be parsed again (overlapping fields, say) must not be written.
        return text if parse(text) == dtype else None
    except (TypeError, ValueError, SyntaxError):
        return None


def text_of_dlpack(code: int, bits: int, lanes: int) -> str:
    """Returns the text for a dtype that NumPy refuses to take from DLPack."""
    name = _CODES.get(code)
    if name is not None and lanes == 1 and bits == 8 * _ML_DTYPES[name]:
        return _EXTENSION + name
    return f"{_DLPACK}{code}.{bits}.{lanes}"


def memory(text: str) -> "np.dtype[Any]":
    """Returns a dtype of the same size: the same one, or plain bytes if NumPy lacks it.

    Raises:
        ValueError: If the text is none that `text_of` or `text_of_dlpack` writes.
    """
    try:
        return parse(text)
    except MissingDtypeError:
        if text.startswith(_DLPACK):
            _, bits, lanes = map(int, text.removeprefix(_DLPACK).split("."))
            return np.dtype(f"V{bits * lanes // 8}")
        return np.dtype(f"V{_ML_DTYPES[text.removeprefix(_EXTENSION)]}")


def parse(text: str) -> "np.dtype[Any]":
    """Returns the dtype for a text from `text_of`.

    Raises:
        MissingDtypeError: If NumPy has no such dtype, and `memory` knows its size.
        ValueError: If it is no dtype, or of a package that is not imported.
    """
    try:
        dtype: np.dtype[Any]
        if text.startswith(_EXTENSION):
            dtype = _extension(text.removeprefix(_EXTENSION))
        elif text.startswith(_DLPACK):
            raise _missing(text)
        elif text.startswith(("[", "(", "{")):
            dtype = npy.descr_to_dtype(ast.literal_eval(text))
        else:
            dtype = np.dtype(text)
    except (TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text[:200]!r} is not a dtype: {error}") from None
    if dtype.hasobject or dtype.kind in "OT":
        # Bytes from a store must never become addresses of objects.
        raise ValueError(f"{text[:200]!r} is a dtype of objects, which no checkpoint can hold")
    return dtype


def _extension(name: str) -> "np.dtype[Any]":
    try:
        return np.dtype(name)
    except TypeError:
        pass
    if name not in _ML_DTYPES:
        raise ValueError(f"the dtype {name} is of another package: import that first")
    try:
        found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
        return found
    except (ImportError, AttributeError):
        raise MissingDtypeError(
            f"NumPy has no dtype {name}: install the package ml_dtypes, or restore with `into` an "
            "array that has it, such as PyTorch's"
        ) from None


def _missing(text: str) -> ValueError:
    parts = text.removeprefix(_DLPACK).split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        return ValueError(f"{text[:200]!r} is not a dtype")
    code, bits, lanes = (int(part) for part in parts)
    if not (0 < bits * lanes < 1 << 20 and bits * lanes % 8 == 0):
        return ValueError(f"{text[:200]!r} is not a dtype")
    return MissingDtypeError(
        f"NumPy has no dtype for DLPack's code {code} with {bits} bits and {lanes} lanes: restore "
        "with `into` an array that has it"
    )
