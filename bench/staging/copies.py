"""Each process writes its own file over the network: the way that is compared with.

    python copies.py ADDRESS PORT FOLDER

serves a folder. A request is one line, "put NAME BYTES" or "get NAME BYTES", with the bytes behind
a put. The server writes past the page cache in units of 4 MiB, syncs, and replies with one byte.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import threading
from pathlib import Path

UNIT_BYTES = 4 << 20


def receive(stream: socket.socket, view: memoryview) -> None:
    """Fills the memory from a connection."""
    while len(view) > 0:
        count = stream.recv_into(view)
        if count == 0:
            raise ConnectionError("the connection ended early")
        view = view[count:]


def put(stream: socket.socket, path: Path, length: int) -> None:
    """Receives a file."""
    buffer = mmap.mmap(-1, UNIT_BYTES)
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_DIRECT)
    try:
        os.posix_fallocate(file, 0, length)
        for offset in range(0, length, UNIT_BYTES):
            unit = memoryview(buffer)[: min(UNIT_BYTES, length - offset)]
            receive(stream, unit)
            if os.pwrite(file, unit, offset) != len(unit):
                raise OSError("the file system took only a part of a write")
        os.fsync(file)
    finally:
        os.close(file)
    stream.sendall(b".")


def get(stream: socket.socket, path: Path, length: int) -> None:
    """Sends a file."""
    buffer = mmap.mmap(-1, UNIT_BYTES)
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for offset in range(0, length, UNIT_BYTES):
            unit = memoryview(buffer)[: min(UNIT_BYTES, length - offset)]
            if os.preadv(file, [unit], offset) != len(unit):
                raise OSError("the file is short")
            stream.sendall(unit)
    finally:
        os.close(file)


def answer(stream: socket.socket, folder: Path) -> None:
    """Serves one connection."""
    with stream, stream.makefile("rb", buffering=0) as lines:
        while line := lines.readline().split():
            way, name, length = line
            work = put if way == b"put" else get
            work(stream, folder / name.decode(), int(length))


def main() -> None:
    """Serves a folder until the process is killed."""
    address, port, folder = sys.argv[1:]
    with socket.create_server((address, int(port)), backlog=64) as server:
        print("ready", flush=True)
        while True:
            stream, _ = server.accept()
            threading.Thread(target=answer, args=(stream, Path(folder)), daemon=True).start()


if __name__ == "__main__":
    main()
