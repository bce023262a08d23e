"""Reads TensorBoard's event files, independently of the code that writes them."""

import struct
from pathlib import Path
from typing import Any, NamedTuple

NAME = "events.out.tfevents.outlive"
VERSION = "brain.Event:2"
Fields = list[tuple[int, Any]]


class Event(NamedTuple):
    wall_s: float
    step: int
    version: str | None
    # The fields of each value of the summary.
    values: list[Fields]


def checksum(data: bytes) -> int:
    """Returns the masked CRC-32C, by division of polynomials bit by bit."""
    rest = 0xFFFFFFFF
    for byte in data:
        for at in range(8):
            bit = (byte >> at ^ rest) & 1
            rest = rest >> 1 ^ (0x82F63B78 if bit else 0)
    crc = rest ^ 0xFFFFFFFF
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


def records(data: bytes) -> list[bytes]:
    """Returns the data of all records, whose checksums must be right."""
    found, at = [], 0
    while at < len(data):
        length, of_length = struct.unpack_from("<QI", data, at)
        assert of_length == checksum(data[at : at + 8]), f"length at {at}"
        body = data[at + 12 : at + 12 + length]
        assert len(body) == length, f"the record at {at} is cut"
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == checksum(body), at
        found.append(body)
        at += 16 + length
    return found


def number(data: bytes, at: int) -> tuple[int, int]:
    """Returns a varint, and the position behind it."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at


def fields(data: bytes) -> Fields:
    """Returns the fields of a message, in order: numbers, floats, and bytes."""
    found: Fields = []
    at = 0
    while at < len(data):
        key, at = number(data, at)
        value: Any
        if key & 7 == 0:
            value, at = number(data, at)
        elif key & 7 == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif key & 7 == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            assert key & 7 == 2, key
            length, at = number(data, at)
            value, at = data[at : at + length], at + length
            assert len(value) == length
        found.append((key >> 3, value))
    return found


def get(message: Fields | bytes, *path: int) -> Any:
    """Returns the only value of a field, or of one in a field of it."""
    message = fields(message) if isinstance(message, bytes) else message
    values = [value for field, value in message if field == path[0]]
    assert len(values) == 1, (path, values)
    return get(values[0], *path[1:]) if path[1:] else values[0]


def read(path: Path) -> list[Event]:
    """Returns the events of a file."""
    events = []
    for data in records(path.read_bytes()):
        of = dict(fields(data))
        values = [fields(value) for field, value in fields(of.get(5, b"")) if field == 1]
        version = of[3].decode() if 3 in of else None
        events.append(Event(of[1], of.get(2, 0), version, values))
    return events
