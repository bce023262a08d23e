"""Tensors of PyTorch as leaves of a state: their memory, and tensors again.

A dense tensor is a leaf: its own memory, and a note of what the memory does not show. `_layouts`
has the keys for its order; these are the others:

- ``dtype``: PyTorch's name, if the text of the dtype does not determine it;
- ``parameter``, ``buffer``, ``grad``: its class, and whether it requires a gradient;
- ``conj``, ``neg``: the values differ from those in memory by such a sign;
- ``device``: where it was, if that is not the memory of the host;
- ``same``: it is the very object that another leaf is.

`_parts` takes other tensors apart.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from outlive import _dtypes
from outlive._foreign import UnusableError
from outlive._group import Sharded
from outlive._layouts import Note

# Integers of the same size, as which memory goes from PyTorch to NumPy and back.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Classes whose objects are only memory with a shape.
PLAIN = (torch.Tensor, torch.nn.Parameter)
# Texts of dtypes that NumPy lacks, as DLPack has them.
_OF_DLPACK = {"float4_e2m1fn_x2": "dlpack:17.4.2", "complex32": "dlpack:5.32.1"}


class Dense(NamedTuple):
    """The memory of a tensor."""

    array: "np.ndarray[Any, Any]"
    text: str
    note: Note


class _Kind(NamedTuple):
    """A dtype of PyTorch: its text, that of the memory, and the name if the text lacks it."""

    text: str
    memory: "np.dtype[Any]"
    name: str | None


_kinds: dict[torch.dtype, _Kind] = {}
_by_text: dict[str, torch.dtype] = {}


def kind_of(dtype: torch.dtype) -> _Kind:
    """Returns how arrays of a dtype are saved."""
    found = _kinds.get(dtype)
    if found is None:
        found = _kinds[dtype] = _kind(dtype)
    return found


def _kind(dtype: torch.dtype) -> _Kind:
    name = str(dtype).removeprefix("torch.")
    if name in _OF_DLPACK:
        return _Kind(_OF_DLPACK[name], np.dtype(f"V{dtype.itemsize}"), None)
    if name[-1:].isdigit() and name.rstrip("0123456789") in ("int", "uint") and dtype.itemsize == 1:
        # Integers below a byte take one each.
        text = "|u1" if name.startswith("u") else "|i1"
        return _Kind(text, np.dtype(text), None if name.endswith("8") else name)
    try:
        known = np.dtype(name)
        if known.isbuiltin == 1:
            return _Kind(known.str, known, None)
    except TypeError:
        pass
    text = f"ext:{name}"
    try:
        return _Kind(text, _dtypes.memory(text), None)
    except ValueError:
        # Quantized, of bits, and types to come: plain bytes.
        return _Kind(f"|V{dtype.itemsize}", np.dtype(f"V{dtype.itemsize}"), name)


def dtype_of(text: str, name: str | None) -> torch.dtype:
    """Returns the dtype for the text of an array, or for a name.

    Raises:
        ValueError: If this PyTorch has none.
    """
    if name is None:
        found = _by_text.get(text)
        if found is not None:
            return found
        name = next((key for key, known in _OF_DLPACK.items() if known == text), None)
        if name is None:
            name = text.removeprefix("ext:") if text.startswith("ext:") else np.dtype(text).name
        _by_text[text] = found = _named(name)
        return found
    return _named(name)


def _named(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"PyTorch {torch.__version__} has no dtype {name}")
    return found


def dense(value: torch.Tensor, *, fetch: bool) -> Dense | Sharded:
    """Returns the memory of a tensor, or the part of a distributed one that this rank has.

    Args:
        value: The tensor.
        fetch: Whether to copy the values of a tensor on a device. Otherwise its memory is new.

    Raises:
        UnusableError: If it has no memory that can be saved.
    """
    # Most tensors are of these classes, and a state may have thousands.
    if type(value) not in PLAIN:
        part = _part_of_distributed(value)
        if part is not None:
            return part
        if torch.nn.parameter.is_lazy(value):
            raise UnusableError("it has no shape before the first run of its module")
        if hasattr(value, "__tensor_flatten__"):
            raise UnusableError("it wraps other tensors")
    if value.is_nested or value.layout != torch.strided:
        raise UnusableError(f"its layout is {value.layout}")
    note = _class_of(value)
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        tensor = value.detach()
        if tensor.device.type != "cpu":
            note["device"] = str(tensor.device)
            tensor = tensor.cpu() if fetch else torch.empty(tensor.shape, dtype=tensor.dtype)
        return _memory(tensor, note)


def _memory(tensor: torch.Tensor, note: Note) -> Dense:
    # Both make a view of the same memory, with the sign taken off.
    if tensor.is_conj():
        note["conj"] = True
        tensor = tensor.conj()
    if tensor.is_neg():
        note["neg"] = True
        tensor = torch._neg_view(tensor)
    text, memory, name = kind_of(tensor.dtype)
    if name is not None:
        note["dtype"] = name
    try:
        return Dense(_to_numpy(tensor, memory), text, note)
    except (RuntimeError, TypeError) as error:
        raise UnusableError(str(error)) from error


def _to_numpy(tensor: torch.Tensor, memory: "np.dtype[Any]") -> "np.ndarray[Any, Any]":
    if memory.isbuiltin == 1 and memory.kind != "V" and memory.itemsize == tensor.itemsize:
        try:
            array: np.ndarray[Any, Any] = tensor.numpy()
            return array
        except TypeError:
            pass  # integers below a byte
    array = tensor.view(_INTEGERS[tensor.itemsize]).numpy()
    return array.view(memory)


def _class_of(value: torch.Tensor) -> Note:
    note: Note = {}
    if isinstance(value, torch.nn.Parameter):
        note["parameter"] = True
    elif getattr(value, "_is_buffer", False):
        note["buffer"] = bool(getattr(value, "persistent", True))
    if value.requires_grad:
        note["grad"] = True
    return note


def _part_of_distributed(value: torch.Tensor) -> Sharded | None:
    """Returns this rank's part of a `DTensor`; None for other tensors."""
    if not hasattr(value, "to_local") or not hasattr(value, "placements"):
        return None
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not isinstance(value, DTensor):
        return None
    if any(placement.is_partial() for placement in value.placements):
        raise UnusableError("its values are partial sums: `redistribute` it")
    with torch.no_grad():
        local = value.to_local()
    shape, offset = compute_local_shape_and_global_offset(
        value.shape, value.device_mesh, value.placements
    )
    if tuple(shape) != tuple(local.shape):
        raise UnusableError("its placements deal out no boxes of the whole tensor")
    if not shape:
        # A part has an axis.
        return Sharded(local.reshape(1), (1,), (0,))
    return Sharded(local, tuple(value.shape), tuple(offset))


def revive(
    array: "np.ndarray[Any, Any]",
    text: str,
    note: Note,
    memory: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns a tensor on an array's memory.

    Args:
        array: The array, of the dtype `text` or of plain bytes.
        text: Text of the dtype.
        note: Its note.
        memory: Tensor of the bytes of a leaf's memory, if the array is a view of it: then the
            tensors share a storage.

    Raises:
        ValueError: If this PyTorch has no such dtype.
    """
    dtype = dtype_of(text, note.get("dtype"))
    if memory is None:
        if array.dtype.isbuiltin != 1 or array.dtype.kind == "V":
            array = array.view(f"i{array.itemsize}" if array.itemsize > 1 else "u1")
        tensor = torch.from_numpy(array)
        if tensor.dtype != dtype:
            tensor = tensor.view(dtype)
    else:
        strides = [step // dtype.itemsize for step in note["strides"]]
        offset = note["offset"] // dtype.itemsize
        tensor = torch.empty(0, dtype=dtype)
        tensor.set_(memory.untyped_storage(), offset, note["shape"], strides)
    if "neg" in note:
        tensor = torch._neg_view(tensor)
    if "conj" in note:
        tensor = tensor.conj()
    return of_class(tensor, note)


def of_class(tensor: torch.Tensor, note: Note) -> torch.Tensor:
    """Returns a tensor as a parameter or buffer, if the note says so."""
    grad = "grad" in note
    if "parameter" in note:
        return torch.nn.Parameter(tensor, requires_grad=grad)
    if "buffer" in note and hasattr(torch.nn, "Buffer"):
        tensor = torch.nn.Buffer(tensor, persistent=note["buffer"])
    return tensor.requires_grad_() if grad else tensor


def copy(target: Any, source: torch.Tensor, index: Any = ...) -> None:
    """Copies values into the program's tensor, on any device, as under `no_grad`.

    Args:
        target: The tensor, or the part of a global one.
        source: The values.
        index: The elements of the tensor that take them; all by default.
    """
    with torch.no_grad():
        if isinstance(target, Sharded):
            target = target.array
        if index is not ...:
            target = target.detach()[index]
        if hasattr(target, "to_local") and _part_of_distributed(target) is not None:
            target = target.to_local().view(source.shape)
        if target.dtype == source.dtype and target.dtype.itemsize in _INTEGERS:
            try:
                target.copy_(source)
            except (RuntimeError, NotImplementedError):
                # Types for which PyTorch has no copy.
                bits = _INTEGERS[target.dtype.itemsize]
                target.view(bits).copy_(source.view(bits))
            return
        target.copy_(source)
