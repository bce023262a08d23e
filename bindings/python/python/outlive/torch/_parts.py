"""Objects of PyTorch that consist of parts: sparse, quantized and nested tensors, generators.

Each is a container of the state. Its detail says how the object is made of the parts, as JSON.
"""

from typing import Any

import torch

from outlive._kinds._base import KindError
from outlive._layouts import Note
from outlive.torch._tensors import PLAIN, dtype_of, of_class

# The parts of a sparse tensor, as its methods name them.
_SPARSE = {
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
_COO, _META, _GENERATOR = "sparse_coo", "meta", "generator"
_PER_TENSOR, _PER_CHANNEL = "per_tensor", "per_channel"
# Nested tensors: a list of tensors, or rows of one tensor.
_NESTED, _JAGGED = "nested", "jagged"


def is_apart(value: Any) -> bool:
    """Whether an object of PyTorch consists of parts."""
    if isinstance(value, torch.Generator):
        return True
    if value.is_nested:
        return bool(value.device.type != "meta")
    if type(value) not in PLAIN and (
        hasattr(value, "__tensor_flatten__") or torch.nn.parameter.is_lazy(value)
    ):
        return False
    if value.device.type == "meta":
        return bool(value.layout == torch.strided)
    if value.is_quantized:
        return bool(value.device.type == "cpu")
    return _layout(value) in (_COO, *_SPARSE)


def take_apart(value: Any) -> tuple[Note, dict[str, Any]]:
    """Returns the detail of an object and its parts by name."""
    if isinstance(value, torch.Generator):
        return {"is": _GENERATOR, "device": str(value.device)}, {"state": value.get_state()}
    detail: Note = {"dtype": str(value.dtype).removeprefix("torch.")}
    if not value.is_nested:
        detail["shape"] = list(value.shape)
    if isinstance(value, torch.nn.Parameter):
        detail["parameter"] = True
    if value.requires_grad:
        detail["grad"] = True
    tensor = value.detach()
    if tensor.is_nested:
        return _take_nested(tensor, detail)
    if tensor.device.type == "meta":
        return detail | {"is": _META, "strides": list(tensor.stride())}, {}
    if tensor.is_quantized:
        return _take_quantized(tensor, detail)
    layout = _layout(tensor)
    if layout == _COO:
        detail |= {"is": _COO, "coalesced": tensor.is_coalesced()}
        return detail, {"indices": tensor._indices(), "values": tensor._values()}
    detail["is"] = layout
    return detail, {name: getattr(tensor, name)() for name in _SPARSE[layout]}


def _layout(tensor: torch.Tensor) -> str:
    return str(tensor.layout).removeprefix("torch.")


def _take_quantized(tensor: torch.Tensor, detail: Note) -> tuple[Note, dict[str, Any]]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        detail |= {"is": _PER_TENSOR, "scale": tensor.q_scale(), "zero": tensor.q_zero_point()}
        return detail, {"data": _bytes(tensor)}
    detail |= {"is": _PER_CHANNEL, "axis": tensor.q_per_channel_axis()}
    scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return detail, {"data": _bytes(tensor), "scales": scales, "zeros": zeros}


def _take_nested(tensor: Any, detail: Note) -> tuple[Note, dict[str, Any]]:
    if tensor.layout != torch.jagged:
        detail["is"] = _NESTED
        return detail, {str(at): each for at, each in enumerate(tensor.unbind())}
    detail |= {"is": _JAGGED, "axis": int(tensor._ragged_idx)}
    parts = {"values": tensor.values(), "offsets": tensor.offsets()}
    if tensor.lengths() is not None:
        parts["lengths"] = tensor.lengths()
    return detail, parts


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory of a quantized tensor."""
    tensor = tensor.contiguous()
    if tensor.storage_offset() or _raw(tensor).numel() != _raw(tensor.clone()).numel():
        tensor = tensor.clone()
    return _raw(tensor)


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),))


def make(detail: Note, parts: dict[str, Any]) -> Any:
    """Makes an object of its parts.

    Raises:
        KindError: If it cannot be made here, or if an index leads out of the parts.
    """
    try:
        if detail["is"] == _GENERATOR:
            return give(torch.Generator(detail["device"]), detail, parts)
        with torch.no_grad():
            return of_class(_made(detail, parts), detail)
    except (RuntimeError, ValueError) as error:
        raise KindError(f"PyTorch cannot make an object ({detail['is']}) of it: {error}") from error


def _made(detail: Note, parts: dict[str, Any]) -> torch.Tensor:
    kind, dtype = detail["is"], dtype_of("", detail["dtype"])
    if kind == _NESTED:
        return torch.nested.nested_tensor(list(parts.values()), dtype=dtype)
    if kind == _JAGGED:
        _check_jagged(parts["values"], parts["offsets"], parts.get("lengths"), detail["axis"])
        return torch.nested.nested_tensor_from_jagged(
            parts["values"], parts["offsets"], parts.get("lengths"), jagged_dim=detail["axis"]
        )
    shape = detail["shape"]
    if kind == _META:
        return torch.empty_strided(shape, detail["strides"], dtype=dtype, device="meta")
    if kind == _COO:
        return torch.sparse_coo_tensor(
            parts["indices"],
            parts["values"],
            shape,
            is_coalesced=detail["coalesced"],
            check_invariants=True,
        )
    if kind in _SPARSE:
        first, second, values = (parts[name] for name in _SPARSE[kind])
        layout = getattr(torch, kind)
        return torch.sparse_compressed_tensor(
            first, second, values, shape, layout=layout, check_invariants=True
        )
    if kind == _PER_TENSOR:
        made = torch._empty_affine_quantized(
            shape, scale=detail["scale"], zero_point=detail["zero"], dtype=dtype
        )
    else:
        made = torch._empty_per_channel_affine_quantized(
            shape,
            scales=parts["scales"],
            zero_points=parts["zeros"],
            axis=detail["axis"],
            dtype=dtype,
        )
    _raw(made).copy_(parts["data"])
    return made


def _check_jagged(
    values: torch.Tensor, offsets: torch.Tensor, lengths: torch.Tensor | None, axis: int
) -> None:
    """Refuses rows that do not lie in the values. PyTorch would read other memory for them."""
    extent = values.shape[axis - 1] if 0 < axis <= values.dim() else -1
    begins, ends = offsets[:-1], offsets[1:]
    counts = ends - begins if lengths is None else lengths
    is_right = (
        offsets.dim() == 1
        and counts.shape == begins.shape
        and not offsets.is_floating_point()
        and not counts.is_floating_point()
    )
    # In this order no sum overflows.
    for each in (offsets, ends - begins, counts, extent - begins - counts):
        is_right = is_right and bool(((each >= 0) & (each <= extent)).all())
    if not is_right:
        raise ValueError(f"its offsets or lengths lead out of its {extent} rows")


def give(old: Any, detail: Note, parts: dict[str, Any]) -> Any:
    """Gives the program's object the content of the parts; returns it, or one to put in its place.

    Raises:
        KindError: If that is not possible.
    """
    if detail["is"] == _GENERATOR:
        old.set_state(parts["state"])
        return old
    if detail["is"] == _META:
        return old
    made = make(detail, parts)
    if detail["is"] in (_NESTED, _JAGGED):
        return _give_nested(old, made)
    try:
        with torch.no_grad():
            old.copy_(made)
    except RuntimeError:
        return made  # compressed, with another number of elements
    return old


def _give_nested(old: Any, made: Any) -> Any:
    """Fills rows of the same lengths. It never changes lengths, which other tensors may share."""
    with torch.no_grad():
        (own, mine), (theirs, its) = (take_apart(each.detach()) for each in (old, made))
        if own.get("axis") != theirs.get("axis") or mine.keys() != its.keys():
            return made
        if any(mine[key].shape != its[key].shape for key in mine):
            return made
        lengths = {key for key in mine if key in ("offsets", "lengths")}
        if any(mine[key].tolist() != its[key].tolist() for key in lengths):
            return made
        for key in mine.keys() - lengths:
            mine[key].copy_(its[key])
    return old


def difference(here: Note, there: Note) -> str | None:
    """Returns how two objects differ of which one is to take the content of the other, or None."""
    for key in ("is", "shape", "dtype"):
        if here.get(key) != there.get(key):
            return f"has {key} {here.get(key)} in `into`, {there.get(key)} in the checkpoint"
    return None
