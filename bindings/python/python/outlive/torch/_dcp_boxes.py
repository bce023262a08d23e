"""The boxes of global arrays that a plan of `torch.distributed.checkpoint` reads."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import ReadItem

from outlive._flat import escape
from outlive.torch import _tensors
from outlive.torch._dcp_metadata import Place
from outlive.torch._dcp_write import tree_name


class Box(NamedTuple):
    """A box of a global array, and where its elements go."""

    region: str
    offset: tuple[int, ...]
    lengths: tuple[int, ...]
    target: torch.Tensor


def memory_of(target: torch.Tensor, dtype: str) -> Any:
    """Returns the memory of a tensor that can be filled where it is, or None."""
    if target.device.type != "cpu" or not target.is_contiguous() or target.numel() == 0:
        return None
    if target.is_conj() or target.is_neg() or type(target) is not torch.Tensor:
        return None
    if target.layout != torch.strided or target.is_quantized:
        return None
    found = _tensors.dense(target, fetch=False)
    if not isinstance(found, _tensors.Dense) or found.text != dtype:
        return None
    return found.array


def merged(items: list[tuple[ReadItem, torch.Tensor, Place]]) -> list[Box]:
    """Returns the boxes to read; those that make up one box of a tensor are read as that."""
    groups: dict[tuple[str, MetadataIndex], list[tuple[ReadItem, torch.Tensor]]] = {}
    for item, target, place in items:
        if target.numel() or not item.lengths:
            assert place.region is not None
            region = f"{tree_name(place.region)}/{escape(item.storage_index.fqn)}"
            groups.setdefault((region, item.dest_index), []).append((item, target))
    boxes: list[Box] = []
    for (region, _), group in groups.items():
        whole = _whole_of(group) if len(group) > 1 else None
        if whole is not None:
            boxes.append(Box(region, *whole))
            continue
        boxes += [
            Box(region, _offset_of(item), tuple(item.lengths), target) for item, target in group
        ]
    return boxes


def _offset_of(item: ReadItem) -> tuple[int, ...]:
    """Returns where an item begins in the whole tensor."""
    chunk = item.storage_index.offset or (0,) * len(item.lengths)
    return tuple(map(sum, zip(chunk, item.storage_offsets, strict=True)))


def _whole_of(group: list[tuple[ReadItem, torch.Tensor]]) -> Any:
    """Returns the box that all items make up, with the tensor that they are parts of; or None."""
    first, target = group[0]
    axes = range(len(first.lengths))
    low = [min(item.dest_offsets[axis] for item, _ in group) for axis in axes]
    high = [max(item.dest_offsets[axis] + item.lengths[axis] for item, _ in group) for axis in axes]
    lengths = [end - begin for begin, end in zip(low, high, strict=True)]
    if sum(math.prod(item.lengths) for item, _ in group) != math.prod(lengths):
        return None
    shift = [
        there - here for there, here in zip(_offset_of(first), first.dest_offsets, strict=True)
    ]
    for item, each in group:
        if [a - b for a, b in zip(_offset_of(item), item.dest_offsets, strict=True)] != shift:
            return None
        if each.untyped_storage().data_ptr() != target.untyped_storage().data_ptr():
            return None
        steps = zip(item.dest_offsets, first.dest_offsets, target.stride(), strict=True)
        moved = target.storage_offset() + sum((mine - its) * step for mine, its, step in steps)
        if each.stride() != target.stride() or each.storage_offset() != moved:
            return None
    steps = zip(low, first.dest_offsets, target.stride(), strict=True)
    begin = target.storage_offset() + sum((mine - its) * step for mine, its, step in steps)
    whole = target.as_strided(lengths, target.stride(), begin)
    return tuple(map(sum, zip(low, shift, strict=True))), tuple(lengths), whole
