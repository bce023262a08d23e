"""Tensors of devices in host memory: mirrors that change only where the device's memory has.

A mirror is the copy of a storage. A save brings the storage over piece by piece, through two pinned
buffers on a stream of its own. While one buffer is being filled, the other one is compared with the
mirror, page by page, and only pages that differ are written there. So the tracker of a job finds
the changes of a device as it finds those of the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from outlive import _memory
from outlive._foreign import UnusableError
from outlive._group import Sharded
from outlive.torch._tensors import _part_of_distributed

_PIECE_BYTES = 32 << 20
_PAGE_BYTES = 4096


def is_away(tensor: torch.Tensor) -> bool:
    """Whether a dense tensor lies in the memory of a device."""
    return tensor.device.type not in ("cpu", "meta") and tensor.layout == torch.strided


class Lane:
    """Copies between a device and the host, on a stream of its own.

    It takes the parts that a test replaces.

    Args:
        device: The device.
        module: PyTorch's module for it, such as `torch.cuda`: it has `Stream`, `Event`, `stream`
            and `current_stream`. None finds it.
        copy: Begins the copy of a tensor into another one, in the current stream.
        pinned: Allocates host memory that the device reaches.
    """

    def __init__(
        self,
        device: torch.device,
        module: Any = None,
        *,
        copy: Callable[[torch.Tensor, torch.Tensor], Any] | None = None,
        pinned: Callable[[int], torch.Tensor] | None = None,
        piece_bytes: int = _PIECE_BYTES,
    ) -> None:
        """Makes the stream and both buffers."""
        self.device = device
        self.module = torch.get_device_module(device) if module is None else module
        self.copy = copy or (lambda target, source: target.copy_(source, non_blocking=True))
        self.stream = self.module.Stream(device=device)
        pinned = pinned or (lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True))
        self.buffers = [pinned(piece_bytes), pinned(piece_bytes)]
        self.piece_bytes = piece_bytes

    def begin(self) -> None:
        """Has the stream wait for all that the program has queued."""
        self.stream.wait_stream(self.module.current_stream(self.device))

    def end(self) -> None:
        """Has what the program queues from now on wait for the stream."""
        self.module.current_stream(self.device).wait_stream(self.stream)

    def start(self, target: torch.Tensor, source: torch.Tensor) -> Any:
        """Queues a copy; returns the event of its end."""
        with self.module.stream(self.stream):
            self.copy(target, source)
            event = self.module.Event()
            event.record(self.stream)
        return event

    def fetch(self, source: torch.Tensor, mirror: torch.Tensor, take: Taker) -> None:
        """Brings bytes from the device to the host; `take` puts a piece into the mirror."""
        pieces = _pieces(source.numel(), self.piece_bytes)
        waiting: list[tuple[Any, torch.Tensor, slice]] = []
        for number, piece in enumerate(pieces):
            buffer = self.buffers[number % 2][: piece.stop - piece.start]
            if len(waiting) == 2:
                _take(waiting.pop(0), mirror, take)
            waiting.append((self.start(buffer, source[piece]), buffer, piece))
        for each in waiting:
            _take(each, mirror, take)

    def send(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Brings bytes from the host to the device."""
        events: list[Any] = [None, None]
        for number, piece in enumerate(_pieces(source.numel(), self.piece_bytes)):
            event = events[number % 2]
            if event is not None:
                event.synchronize()
            buffer = self.buffers[number % 2][: piece.stop - piece.start]
            buffer.copy_(source[piece])
            events[number % 2] = self.start(target[piece], buffer)
        for event in filter(None, events):
            event.synchronize()


Taker = Callable[[torch.Tensor, torch.Tensor], None]


def _pieces(count: int, length: int) -> list[slice]:
    return [slice(begin, min(begin + length, count)) for begin in range(0, count, length)]


def _take(waiting: tuple[Any, torch.Tensor, slice], mirror: torch.Tensor, take: Taker) -> None:
    event, buffer, piece = waiting
    event.synchronize()
    take(mirror[piece], buffer)


def take_changed(mirror: torch.Tensor, fresh: torch.Tensor) -> None:
    """Writes those pages of a mirror that differ. Both have the same number of bytes."""
    whole = mirror.numel() // _PAGE_BYTES * _PAGE_BYTES
    if whole:
        old, new = (
            each[:whole].numpy().view(np.int64).reshape(-1, _PAGE_BYTES // 8)
            for each in (mirror, fresh)
        )
        changed = (old != new).any(axis=1)
        if changed.any():
            old[changed] = new[changed]
    if not torch.equal(mirror[whole:], fresh[whole:]):
        mirror[whole:] = fresh[whole:]


class _Span(NamedTuple):
    """The bytes of a storage that a state uses."""

    storage: torch.UntypedStorage
    begin: int
    end: int


class Stager:
    """Keeps mirrors of all device tensors of a state.

    Args:
        lane_of: Makes the lane of a device.
        away: Whether a tensor lies in the memory of a device.
    """

    def __init__(
        self,
        lane_of: Callable[[torch.device], Lane] = Lane,
        away: Callable[[torch.Tensor], bool] = is_away,
    ) -> None:
        """Begins without mirrors."""
        self._lane_of, self._away = lane_of, away
        self._lanes: dict[torch.device, Lane] = {}
        # By address and device of the first byte, with the number of bytes.
        self._mirrors: dict[tuple[str, int, int], torch.Tensor] = {}

    def staged(self, tree: Any, *, fetch: bool) -> Any:
        """Returns a tree in which mirrors stand in place of all device tensors.

        Args:
            tree: A tree of dict, list and tuple.
            fetch: Whether to bring the mirrors up to date.
        """
        found: list[torch.Tensor] = []
        self._find(tree, found)
        if not found:
            self._mirrors.clear()
            return tree
        spans = _spans(found)
        kept = {}
        for key, span in spans.items():
            place = (*key, span.end - span.begin)
            mirror = self._mirrors.get(place)
            if mirror is None:
                mirror = torch.from_numpy(_memory.empty(span.end - span.begin, np.uint8))
            kept[place] = mirror
        self._mirrors = kept
        if fetch:
            self._fetch(found, spans)
        return self._replace(tree, spans)

    def push(self, tree: Any, staged: Any) -> None:
        """Copies the mirrors to the devices, for the tree that `staged` had."""
        self._push(tree, staged)
        for lane in self._lanes.values():
            lane.end()

    def _lane(self, device: torch.device) -> Lane:
        if device not in self._lanes:
            self._lanes[device] = self._lane_of(device)
        return self._lanes[device]

    def _find(self, tree: Any, found: list[torch.Tensor]) -> None:
        for value in _children(tree):
            self._find(value, found)
        local = _local(tree)
        if local is not None and self._away(local):
            found.append(local)

    def _fetch(self, found: list[torch.Tensor], spans: dict[tuple[str, int], _Span]) -> None:
        lanes = {tensor.device for tensor in found}
        for device in lanes:
            self._lane(device).begin()
        done = set[tuple[str, int]]()
        for tensor in found:
            key = _key(tensor)
            if key in done:
                continue
            done.add(key)
            span = spans[key]
            mirror = self._mirrors[(*key, span.end - span.begin)]
            source = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            source.set_(span.storage, span.begin, (span.end - span.begin,))
            self._lane(tensor.device).fetch(source, mirror, take_changed)
        for device in lanes:
            self._lane(device).end()

    def _replace(self, tree: Any, spans: dict[tuple[str, int], _Span]) -> Any:
        if isinstance(tree, dict):
            new: Any = type(tree)()
            if hasattr(tree, "_metadata"):
                new._metadata = tree._metadata
            for key, value in tree.items():
                new[key] = self._replace(value, spans)
            return new
        if type(tree) in (list, tuple):
            return type(tree)(self._replace(value, spans) for value in tree)
        local = _local(tree)
        if local is None or not self._away(local):
            return tree
        mirrored = self._mirrored(local, spans[_key(local)])
        if isinstance(tree, Sharded):
            return Sharded(mirrored, tree.global_shape, tree.offset, tree.block, tree.stride)
        part = _part_of_distributed(tree)
        if part is not None:
            shape = tuple(part.array.shape)
            return Sharded(mirrored.reshape(shape), part.global_shape, part.offset)
        return mirrored

    def _mirrored(self, tensor: torch.Tensor, span: _Span) -> torch.Tensor:
        """Returns the tensor on the mirror that lies as one lies on its storage."""
        mirror = self._mirrors[(*_key(tensor), span.end - span.begin)]
        with torch.no_grad():
            plain = _unsigned(tensor.detach())
            offset = plain.storage_offset() - span.begin // plain.itemsize
            made = torch.empty(0, dtype=plain.dtype)
            made.set_(mirror.untyped_storage(), offset, plain.shape, plain.stride())
            if tensor.is_neg():
                made = torch._neg_view(made)
            return made.conj() if tensor.is_conj() else made

    def _push(self, tree: Any, staged: Any) -> None:
        if isinstance(tree, dict):
            for key, value in tree.items():
                self._push(value, staged[key])
        elif type(tree) in (list, tuple):
            for old, new in zip(tree, staged, strict=True):
                self._push(old, new)
        else:
            local = _local(tree)
            if local is None or not self._away(local):
                return
            with torch.no_grad():
                target, source = local.detach(), _local(staged)
                assert source is not None
                lane = self._lane(target.device)
                lane.begin()
                target, source = _unsigned(target), _unsigned(source.reshape(target.shape))
                if target.is_contiguous() and source.is_contiguous() and target.numel():
                    bits = [each.reshape(-1).view(torch.uint8) for each in (source, target)]
                    lane.send(*bits)
                else:
                    lane.start(target, source).synchronize()


def _children(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return list(tree.values())
    return list(tree) if type(tree) in (list, tuple) else []


def _local(value: Any) -> torch.Tensor | None:
    """Returns the dense tensor that this process has of a leaf; None if it is none."""
    if isinstance(value, Sharded):
        value = value.array
    if not isinstance(value, torch.Tensor):
        return None
    with contextlib.suppress(UnusableError):
        part = _part_of_distributed(value)
        if part is not None:
            found: torch.Tensor = part.array
            return found
    if value.layout != torch.strided or value.is_quantized or value.is_nested:
        return None
    return value


def _unsigned(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of a tensor's memory without its signs."""
    if tensor.is_conj():
        tensor = tensor.conj()
    return torch._neg_view(tensor) if tensor.is_neg() else tensor


def _key(tensor: torch.Tensor) -> tuple[str, int]:
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _spans(found: list[torch.Tensor]) -> dict[tuple[str, int], _Span]:
    """Returns, for each storage, the bytes that tensors use: from the first one to the last."""
    spans: dict[tuple[str, int], _Span] = {}
    for tensor in found:
        size = tensor.itemsize
        begin = tensor.storage_offset() * size
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        end = begin + (last + 1) * size if tensor.numel() else begin
        # So that a tensor of any dtype begins at a multiple of its size.
        begin = begin // 16 * 16
        key = _key(tensor)
        was = spans.get(key)
        if was is not None:
            begin, end = min(begin, was.begin), max(end, was.end)
        spans[key] = _Span(tensor.untyped_storage(), begin, end)
    return spans
