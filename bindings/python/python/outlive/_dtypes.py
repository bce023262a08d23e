"""NumPy dtypes as text and back.

The text is what the store keeps with a region: NumPy's own notation (``<f8``, ``<M8[ns]``) for
plain types, a list of fields that `ast.literal_eval` reads for structured ones, ``ext:NAME`` for
types that other packages add (bfloat16). Nothing in it is ever executed.
"""

import ast
from typing import Any

import numpy as np
from numpy.lib import format as npy

_EXTENSION = "ext:"


def text_of(dtype: "np.dtype[Any]") -> str | None:
    """The text for a dtype; None for one whose elements are not plain bytes."""
    if dtype.hasobject:
        return None
    if dtype.isbuiltin == 2:
        return _EXTENSION + dtype.name
    try:
        text = dtype.str if dtype.names is None else repr(npy.dtype_to_descr(dtype))
        # What cannot be read back (overlapping fields, say) must not be written.
        return text if parse(text) == dtype else None
    except (TypeError, ValueError, SyntaxError):
        return None


def parse(text: str) -> "np.dtype[Any]":
    """The dtype for a text that `text_of` gave.

    Raises:
        ValueError: If it is none, or of a package that is not imported.
    """
    try:
        dtype: np.dtype[Any]
        if text.startswith(_EXTENSION):
            dtype = _extension(text.removeprefix(_EXTENSION))
        elif text.startswith(("[", "(", "{")):
            dtype = npy.descr_to_dtype(ast.literal_eval(text))
        else:
            dtype = np.dtype(text)
    except (TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text[:200]!r} is no dtype: {error}") from None
    if dtype.hasobject or dtype.kind in "OT":
        # Bytes from a store must never become addresses of objects.
        raise ValueError(f"{text[:200]!r} is a dtype of objects, which no checkpoint can hold")
    return dtype


def _extension(name: str) -> "np.dtype[Any]":
    try:
        return np.dtype(name)
    except TypeError:
        raise ValueError(
            f"the dtype {name} is of another package: import that first (ml_dtypes, for example)"
        ) from None
