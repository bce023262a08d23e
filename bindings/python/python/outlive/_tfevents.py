"""TensorBoard's event files: records with checksums, and the few messages that they hold.

An event file is a TFRecord file. Each record is the length of its data (8 bytes), a checksum of the
length, the data, and a checksum of the data. The data is a protobuf message `Event`, from the files
`event.proto` and `summary.proto` of TensorBoard. All numbers are little-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from outlive._core import crc32c

_MASK_DELTA = 0xA282EAD8

_DT_FLOAT, _DT_DOUBLE, _DT_STRING = 1, 2, 7


def _masked(data: bytes) -> bytes:
    """Returns the checksum of a record: rotated, so that a checksum of checksums is no problem."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    """Returns a record with this data."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _varint(value: int) -> bytes:
    # A negative number has ten bytes.
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes | str) -> bytes:
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _doubles(field: int, values: Iterable[float]) -> bytes:
    return _bytes(field, np.fromiter(values, "<f8").tobytes())


def event(wall_s: float, step: int, summary: bytes) -> bytes:
    """Returns the message of an event with a summary."""
    return _double(1, wall_s) + (_int(2, step) if step else b"") + _bytes(5, summary)


def version(wall_s: float) -> bytes:
    """Returns the message that begins a file."""
    return _double(1, wall_s) + _bytes(3, "brain.Event:2")


def _value(tag: str, content: bytes, plugin: str = "", plugin_content: bytes = b"") -> bytes:
    """Returns a summary with one value; a plugin of TensorBoard shows it."""
    metadata = b""
    if plugin:
        described = _bytes(1, plugin) + (_bytes(2, plugin_content) if plugin_content else b"")
        metadata = _bytes(9, _bytes(1, described))
    return _bytes(1, _bytes(1, tag) + metadata + content)


def scalar(tag: str, value: float) -> bytes:
    """Returns the summary of a number, as a float of 32 bits."""
    with np.errstate(over="ignore"):
        number = np.float32(value)
    return _value(tag, _varint(2 << 3 | 5) + struct.pack("<f", number))


def tensor_scalar(tag: str, value: float, *, is_double: bool) -> bytes:
    """Returns the summary of a number in the form of TensorFlow 2."""
    if is_double:
        tensor = _int(1, _DT_DOUBLE) + _doubles(6, [value])
    else:
        with np.errstate(over="ignore"):
            tensor = _int(1, _DT_FLOAT) + _bytes(5, np.float32(value).tobytes())
    return _value(tag, _bytes(8, tensor), "scalars")


def text(tag: str, value: str) -> bytes:
    """Returns the summary of a text."""
    shape = _bytes(2, _bytes(2, _int(1, 1)))
    tensor = _int(1, _DT_STRING) + shape + _bytes(8, value)
    return _value(f"{tag}/text_summary", _bytes(8, tensor), "text")


def default_bins() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns TensorFlow's limits of bins: from 1e-12 on, each 1.1 times the one before."""
    half = []
    limit = 1e-12
    while limit < 1e20:
        half.append(limit)
        limit *= 1.1
    return np.array([*(-limit for limit in reversed(half)), 0.0, *half])


def histogram(tag: str, values: Any, bins: Any, max_bins: int | None) -> bytes:
    """Returns the summary of a histogram.

    Args:
        tag: Its name.
        values: Numbers, at least one.
        bins: Limits of the bins, or anything else that `numpy.histogram` takes.
        max_bins: Largest number of bins; neighbours are joined until there are no more.
    """
    values = np.asarray(values, np.float64).reshape(-1)
    counts, limits = np.histogram(values, bins=bins)
    if max_bins is not None and len(counts) > max_bins:
        joined = -(-len(counts) // max_bins)
        starts = np.arange(0, len(counts), joined)
        counts = np.add.reduceat(counts, starts)
        limits = np.append(limits[starts], limits[-1])
    used = np.flatnonzero(counts)
    if len(used):
        first, last = int(used[0]), int(used[-1])
        # A bin has its right limit only, so an empty bin gives the left limit of the first.
        limits = limits[first : last + 2]
        counts = np.concatenate([[0], counts[first : last + 1]])
    else:
        limits, counts = limits[:1], np.zeros(1)
    sums = (values.min(), values.max(), len(values), values.sum(), values.dot(values))
    numbers = b"".join(_double(field, float(value)) for field, value in enumerate(sums, 1))
    return _value(tag, _bytes(5, numbers + _doubles(6, limits) + _doubles(7, counts)))


def image(tag: str, pixels: Any) -> bytes:
    """Returns the summary of an image.

    Args:
        tag: Its name.
        pixels: Array of uint8 with the shape (height, width, channels), of 3 or 4 channels.
    """
    height, width, channels = pixels.shape
    numbers = _int(1, height) + _int(2, width) + _int(3, channels)
    return _value(tag, _bytes(4, numbers + _bytes(4, _png(pixels))))


def _png(pixels: Any) -> bytes:
    """Returns an image as PNG."""
    height, width, channels = pixels.shape
    # Each row begins with the number of its filter, 0 for none.
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 1:] = pixels.reshape(height, -1)

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, {3: 2, 4: 6}[channels], 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows.tobytes()))
        + chunk(b"IEND", b"")
    )


# Kinds of hyperparameters.
_STRING, _BOOL, _FLOAT64 = 1, 2, 3


def _plain(value: bool | float | str) -> bytes:
    """Returns a message `google.protobuf.Value`."""
    if isinstance(value, bool):
        return _int(4, value)
    if isinstance(value, str):
        return _bytes(3, value)
    return _double(2, value)


def hparams(
    values: Mapping[str, bool | float | str],
    metrics: Iterable[str],
    domains: Mapping[str, Iterable[bool | float | str]],
) -> list[bytes]:
    """Returns the three summaries of a run with hyperparameters.

    Args:
        values: The hyperparameters.
        metrics: Tags of the metrics.
        domains: Values that a hyperparameter may have, of those for which they are known.
    """
    infos, given = b"", b""
    for name, value in values.items():
        kind = _STRING if isinstance(value, str) else _FLOAT64
        kind = _BOOL if isinstance(value, bool) else kind
        info = _bytes(1, name) + _int(4, kind)
        if name in domains:
            info += _bytes(5, b"".join(_bytes(1, _plain(item)) for item in domains[name]))
        infos += _bytes(4, info)
        given += _bytes(1, _bytes(1, name) + _bytes(2, _plain(value)))
    experiment = infos + b"".join(_bytes(5, _bytes(1, _bytes(2, tag))) for tag in metrics)
    # The status SUCCESS.
    parts = {"experiment": (2, experiment), "session_start_info": (3, given)}
    parts["session_end_info"] = (4, _int(1, 1))
    return [
        _value(f"_hparams_/{name}", _NO_TENSOR, "hparams", _bytes(field, content))
        for name, (field, content) in parts.items()
    ]


# TensorBoard's data server passes over values without a tensor: one zero.
_NO_TENSOR = _bytes(8, _int(1, _DT_FLOAT) + _bytes(2, _bytes(2, _int(1, 1))) + _bytes(5, bytes(4)))
