"""The metadata of a distributed checkpoint as JSON: nothing of it is pickled.

The exception is data of a planner of the program's own that JSON cannot hold.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import pickle
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from outlive._errors import InvalidError

_VERSION = 1
# The version of PyTorch's own format, which tools of PyTorch may look at.
_TORCH_VERSION = "1.0.0"
_PROPERTIES = frozenset(field.name for field in dataclasses.fields(TensorProperties))


class Place(NamedTuple):
    """The place of an item in a checkpoint.

    Attributes:
        region: Number of the tree with its tensor, 0 for the first; None if it is bytes.
        offset: Of bytes, the place of the first one in the region of bytes.
        length: Of bytes, their number.
    """

    region: int | None
    offset: int = 0
    length: int = 0


Places = dict[MetadataIndex, Place]


def encode(metadata: Metadata, places: Places) -> bytes:
    """Returns metadata and the places of its items as JSON."""
    whole = {
        "outlive.dcp": _VERSION,
        "torch": torch.__version__,
        "state": [[name, _entry(each)] for name, each in metadata.state_dict_metadata.items()],
        "planner": _tagged(metadata.planner_data),
        # A tensor lies in the first tree unless this says otherwise.
        "places": [
            [index.fqn, None if index.offset is None else list(index.offset), *place]
            for index, place in places.items()
            if place.region != 0
        ],
    }
    return json.dumps(whole, separators=(",", ":")).encode()


def decode(text: bytes, *, epoch: int, allow_pickle: bool) -> tuple[Metadata, Places]:
    """Returns metadata and the places of items that are not in the first tree.

    Raises:
        InvalidError: If a newer build has written it, or it holds pickled data.
    """
    whole = json.loads(text)
    version = whole["outlive.dcp"]
    if version > _VERSION:
        raise InvalidError(
            f"a newer outlive has saved checkpoint {epoch} (its metadata have version {version}, "
            f"this build reads up to {_VERSION}): load it with that"
        )
    state = {name: _read_entry(entry) for name, entry in whole["state"]}
    planner_data = _untagged(whole["planner"], epoch, allow_pickle)
    places = {
        MetadataIndex(name, offset): Place(region, first, length)
        for name, offset, region, first, length in whole["places"]
    }
    metadata = Metadata(state, planner_data=planner_data, storage_data=places)
    complete(metadata, None, epoch)
    return metadata, places


def complete(metadata: Metadata, checkpoint_id: Any, epoch: int) -> None:
    """Adds to metadata what the storage knows, in the versions of PyTorch that have room for it."""
    metadata.storage_meta = StorageMeta(checkpoint_id, save_id=str(epoch))
    if hasattr(metadata, "version"):
        metadata.version = _TORCH_VERSION


def _entry(entry: Any) -> Any:
    if isinstance(entry, BytesStorageMetadata):
        return None
    properties = entry.properties
    strides = getattr(properties, "strides", None)
    return {
        "size": list(entry.size),
        "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in entry.chunks],
        "dtype": _name(properties.dtype),
        "layout": _name(properties.layout),
        "memory_format": _name(properties.memory_format),
        "requires_grad": properties.requires_grad,
        "pin_memory": properties.pin_memory,
        "strides": None if strides is None else [int(step) for step in strides],
    }


def _read_entry(entry: Any) -> Any:
    if entry is None:
        return BytesStorageMetadata()
    given = {
        "dtype": getattr(torch, entry["dtype"]),
        "layout": getattr(torch, entry["layout"]),
        "memory_format": getattr(torch, entry["memory_format"]),
        "requires_grad": entry["requires_grad"],
        "pin_memory": entry["pin_memory"],
    }
    if "strides" in _PROPERTIES and entry["strides"] is not None:
        given["strides"] = tuple(entry["strides"])
    chunks = [
        ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        for offsets, sizes in entry["chunks"]
    ]
    return TensorStorageMetadata(TensorProperties(**given), torch.Size(entry["size"]), chunks)


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _tagged(value: Any) -> Any:
    """Returns data of a planner as JSON: containers are lists that begin with their kind."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is dict:
        return ["dict", *([_tagged(key), _tagged(entry)] for key, entry in value.items())]
    if type(value) in (list, tuple, torch.Size):
        return [type(value).__name__, *map(_tagged, value)]
    return ["pickle", base64.b64encode(pickle.dumps(value)).decode()]


def _untagged(value: Any, epoch: int, allow_pickle: bool) -> Any:
    if not isinstance(value, list):
        return value
    kind, *entries = value
    if kind == "pickle":
        if not allow_pickle:
            raise InvalidError(
                f"checkpoint {epoch} holds pickled data of a planner. Unpickling runs code: if you "
                "trust every user that can write to the pool, give `allow_pickle=True` to the "
                "reader"
            )
        return pickle.loads(base64.b64decode(entries[0]))
    if kind == "dict":
        return {
            _untagged(key, epoch, allow_pickle): _untagged(entry, epoch, allow_pickle)
            for key, entry in entries
        }
    found = [_untagged(entry, epoch, allow_pickle) for entry in entries]
    return found if kind == "list" else torch.Size(found) if kind == "Size" else tuple(found)
