"""Arrays of other packages: their memory, as NumPy's arrays."""

import sys
from types import ModuleType
from typing import Any

import numpy as np

from outlive import _core, _dtypes, _jax_arrays
from outlive._errors import InvalidError

# Packages whose arrays may be written, even if an array cannot say so.
_MUTABLE = ("torch",)


class UnusableError(Exception):
    """An object shows no memory that can be saved; the text gives the reason."""


def view(value: Any) -> "tuple[np.ndarray[Any, Any], str] | None":
    """Returns an array on the memory of `value`, and the text of its dtype.

    NumPy lacks some dtypes (bfloat16, say, unless `ml_dtypes` is imported). For these the array has
    elements of bytes, and only the text names the type.

    Returns:
        None if it shows no memory at all.

    Raises:
        UnusableError: If it has memory that cannot be used.
    """
    if hasattr(value, "__dlpack__"):
        return _by_dlpack(value)
    if isinstance(value, type):
        return None
    try:
        return _known(np.asarray(memoryview(value)))
    except TypeError:
        return None  # no buffer
    except Exception as error:
        # Other packages may raise any exception here; its text is passed on.
        raise UnusableError(str(error)) from error


def is_tensor(value: Any) -> bool:
    """Whether an object is a tensor of PyTorch, which the program has imported then."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def tensors() -> ModuleType:
    """Returns the module for tensors with memory of their own.

    Raises:
        InvalidError: If PyTorch cannot be imported.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise InvalidError(
            f"the checkpoint has tensors of PyTorch, and PyTorch cannot be imported ({error}): "
            "install it, restore `into` arrays of NumPy, or use `job.restore(as_plain=True)`"
        ) from error
    from outlive.torch import _tensors

    return _tensors


def is_constant(value: Any) -> bool:
    """Whether an array cannot change. JAX's cannot: its operations make new ones."""
    return _package(value) in ("jax", "jaxlib")


def way_out(value: Any) -> str:
    """Returns, as words for an error, what a program can save instead of `value`; or nothing."""
    if is_tensor(value):
        return _instead_of_tensor(value)
    if hasattr(value, "state_dict"):
        return "save its `state_dict()`, and give that to its `load_state_dict` after a restore"
    if hasattr(value, "dtypes") and hasattr(value, "columns"):
        return (
            "save its columns, `{name: column.to_numpy() for name, column in table.items()}`, "
            "and those that hold objects as lists, by `tolist()`"
        )
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            return "save its `data` and its `mask`, and make it of these after a restore"
        if not value.dtype.hasobject:
            return "save `numpy.asarray` of it, if that is all there is to it"
        return ""
    if hasattr(value, "__array__") and _is_plain_array(value):
        return "save `numpy.asarray` of it"
    return ""


def _instead_of_tensor(value: Any) -> str:
    if type(value).__name__ == "UninitializedParameter":
        return "run its module once before the first save or restore"
    if hasattr(value, "__tensor_flatten__"):
        return "save the tensors that it wraps, and wrap them again after a restore"
    if str(getattr(value, "layout", "")) != "torch.strided":
        return "save `to_dense()` of it"
    return "save a `clone()` of it, as a plain tensor"


def _is_plain_array(value: Any) -> bool:
    """Whether the array that an object converts itself to can be saved."""
    try:
        return not np.asarray(value).dtype.hasobject
    except Exception:
        # Other packages may raise any exception here.
        return False


def shows_memory(value: Any) -> bool:
    """Whether an object is an array, also one that cannot be saved as such."""
    signs = ("__dlpack__", "__array__", "__array_interface__", "__cuda_array_interface__")
    return any(hasattr(value, sign) for sign in signs)


def _by_dlpack(value: Any) -> "tuple[np.ndarray[Any, Any], str]":
    constant = is_constant(value)
    if constant and _jax_arrays.is_divided(value):
        whole = _jax_arrays.gathered(value)
        whole.flags.writeable = False
        return _known(whole)
    # PyTorch shows no memory that its gradients depend on. A restore fills it as a program does
    # under `no_grad`.
    if getattr(value, "requires_grad", False) is True:
        value = value.detach()
    try:
        array = np.from_dlpack(value)
    except Exception as error:
        try:
            # JAX's own way also returns arrays on a device, or with elements below a byte.
            return _known(np.asarray(value)) if constant else _memory(value)
        except Exception as again:
            reasons = dict.fromkeys((str(error), str(again)))
            raise UnusableError("; ".join(reasons)) from again
    if constant:
        array.flags.writeable = False
    elif not array.flags.writeable:
        # NumPy makes arrays of older exporters read-only, as these cannot say whether they may be
        # written.
        array = _memory(value, array.dtype)[0]
    return _known(array)


def _memory(value: Any, known: "np.dtype[Any] | None" = None) -> "tuple[np.ndarray[Any, Any], str]":
    """Returns an array that is writable if its exporter says so, or is known to permit it.

    Args:
        value: The exporter of DLPack's capsules.
        known: Its dtype if NumPy has it.
    """
    try:
        # Exporters can say so only from version 1 on.
        capsule = value.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = value.__dlpack__()
    found = _core.borrow_dlpack(capsule, _is_mutable(value))
    text = _dtypes.text_of_dlpack(**found.pop("dtype"))
    elements = _dtypes.memory(text) if known is None else known
    if 0 in found["shape"]:
        return np.empty(found["shape"], elements), text
    # The array refers to `lent`, which keeps the memory.
    return np.ndarray(dtype=elements, buffer=memoryview(found.pop("lent")), **found), text


def _is_mutable(value: Any) -> bool:
    """Whether memory may be written whose capsule does not say so.

    Arrow's buffers are immutable, shared, and often mapped files: a write changes data of other
    readers, or ends the process. So only known packages may be written.
    """
    try:
        with memoryview(value) as shown:
            return not shown.readonly
    except Exception:
        # It has no buffer, or one with elements that Python does not know.
        return any(cls.__module__.partition(".")[0] in _MUTABLE for cls in type(value).__mro__)


def _known(array: "np.ndarray[Any, Any]") -> "tuple[np.ndarray[Any, Any], str]":
    text = _dtypes.text_of(array.dtype)
    if text is None:
        raise UnusableError(f"elements of dtype {array.dtype} are not plain memory")
    return array, text


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]
