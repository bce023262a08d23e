"""Values of PyTorch beside dense tensors: sizes, dtypes and devices, and objects of several parts.

Those are sparse and quantized tensors, tensors on `meta`, and generators: `outlive.torch._parts`.
"""

import importlib
from typing import Any

from outlive._kinds._base import Detail, Finder, Kind, KindError

torch: Any = importlib.import_module("torch")
_parts: Any = importlib.import_module("outlive.torch._parts")


def _lower(value: Any) -> tuple[Detail, Any]:
    detail, parts = _parts.take_apart(value)
    return tuple((key, _frozen(entry)) for key, entry in detail.items()), parts


def _frozen(entry: Any) -> Any:
    return tuple(entry) if type(entry) is list else entry


def _thawed(detail: Detail) -> dict[str, Any]:
    return {key: list(entry) if type(entry) is tuple else entry for key, entry in detail}


def _make(detail: Detail, tree: Any, find: Finder) -> Any:
    return _parts.make(_thawed(detail), tree)


def _fill(old: Any, detail: Detail, tree: Any) -> bool:
    return bool(_parts.give(old, _thawed(detail), tree) is old)


def _check(detail: Detail, find: Finder) -> None:
    name = _thawed(detail).get("dtype")
    if name is not None:
        _dtype(None, name, find)


OBJECT = Kind(
    "torch.object",
    _lower,
    _make,
    _check,
    _fill,
    difference=lambda own, theirs: _parts.difference(_thawed(own), _thawed(theirs)),
    lends=False,
)


def _dtype(detail: Detail, tree: Any, find: Finder) -> Any:
    found = getattr(torch, str(tree).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise KindError(f"this PyTorch has no dtype {tree}")
    return found


KINDS: dict[type, Kind] = {
    torch.Size: Kind(
        "torch.Size",
        lambda value: (None, tuple(map(int, value))),
        lambda detail, tree, find: torch.Size(tree),
    ),
    torch.Generator: OBJECT,
    torch.dtype: Kind("torch.dtype", lambda value: (None, str(value)), _dtype),
    torch.device: Kind(
        "torch.device",
        lambda value: (None, str(value)),
        lambda detail, tree, find: torch.device(tree),
    ),
}
BY_NAME = {kind.name: kind for kind in KINDS.values()}


def kind_of(cls: type) -> Kind | None:
    """Returns the kind of a class; None for tensors, and all that cannot become a tree."""
    return KINDS.get(cls)


def kind_of_tensor(value: Any) -> Kind | None:
    """Returns the kind of a tensor that consists of several parts; None for others."""
    return OBJECT if _parts.is_apart(value) else None
