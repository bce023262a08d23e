"""The device itself: the same bytes written and read with nothing around them.

O_DIRECT, several threads, each file preallocated and synced, then the directory: what
`outlive bench` does, written again so that it can take turns with the peers. The best of a few
layouts counts.
"""

import mmap
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from peers import durable

MIB = 1 << 20


@dataclass(frozen=True)
class Layout:
    """How the bytes lie, and how hard the device is driven.

    Attributes:
        file_bytes: Bytes of each file; 0 means one file.
        unit_bytes: Bytes of each write or read.
        depth: Writes or reads in flight.
    """

    file_bytes: int
    unit_bytes: int
    depth: int

    def __str__(self) -> str:
        """For people."""
        files = f"{self.file_bytes // MIB} MiB files" if self.file_bytes else "one file"
        return f"{files}, {self.unit_bytes // MIB} MiB x {self.depth}"


LAYOUTS = (
    Layout(64 * MIB, 4 * MIB, 8),
    Layout(64 * MIB, 4 * MIB, 16),
    Layout(64 * MIB, 1 * MIB, 16),
    Layout(0, 4 * MIB, 8),
)


class Raw:
    """Writes and reads `size_bytes` in `folder`."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        """Makes the data: random, so that no device can make it smaller."""
        self.folder = folder
        self.size_bytes = -(-size_bytes // (4 * MIB)) * 4 * MIB
        self._data = _buffer(16 * MIB)
        self._data[:] = np.random.default_rng(1).bytes(16 * MIB)

    def write_s(self, layout: Layout) -> float:
        """Seconds of writing everything once, syncs included."""
        durable.empty(self.folder)
        view, unit = memoryview(self._data), layout.unit_bytes
        steps = (len(view) - unit) // 4096 + 1

        def write(descriptor: int, number: int, at: int) -> None:
            begin = number * 7919 % steps * 4096
            if os.pwrite(descriptor, view[begin : begin + unit], at) != unit:
                raise OSError("the file system took only a part of a write")

        began = time.perf_counter()
        self._each(layout, write, writing=True)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
        return time.perf_counter() - began

    def read_s(self, layout: Layout) -> float:
        """Seconds of reading everything that `write_s` wrote."""
        own = threading.local()

        def read(descriptor: int, number: int, at: int) -> None:
            del number
            if not hasattr(own, "buffer"):
                own.buffer = _buffer(layout.unit_bytes)
            os.preadv(descriptor, [own.buffer], at)

        began = time.perf_counter()
        self._each(layout, read, writing=False)
        return time.perf_counter() - began

    def best_s(self, layouts: tuple[Layout, ...] = LAYOUTS) -> dict[str, float]:
        """Seconds of the fastest write and the fastest read among the layouts."""
        writes, reads = [], []
        for layout in layouts:
            writes.append(self.write_s(layout))
            reads.append(self.read_s(layout))
        durable.empty(self.folder)
        return {"write_s": min(writes), "read_s": min(reads)}

    def _each(
        self, layout: Layout, work: Callable[[int, int, int], None], *, writing: bool
    ) -> None:
        file_bytes = layout.file_bytes or self.size_bytes
        flags = os.O_DIRECT | (os.O_WRONLY | os.O_CREAT if writing else os.O_RDONLY)
        jobs: list[tuple[int, int, int]] = []
        left: dict[int, int] = {}
        lock = threading.Lock()
        descriptors = []
        for number, begin in enumerate(range(0, self.size_bytes, file_bytes)):
            length = min(file_bytes, self.size_bytes - begin)
            descriptor = os.open(self.folder / f"raw-{number}", flags, 0o600)
            descriptors.append(descriptor)
            if writing:
                os.posix_fallocate(descriptor, 0, length)
            for at in range(0, length, layout.unit_bytes):
                jobs.append((descriptor, len(jobs), at))
            left[descriptor] = -(-length // layout.unit_bytes)

        def do(job: tuple[int, int, int]) -> None:
            work(*job)
            with lock:
                left[job[0]] -= 1
                last = left[job[0]] == 0
            if writing and last:
                os.fdatasync(job[0])

        try:
            with ThreadPoolExecutor(layout.depth) as pool:
                for _ in pool.map(do, jobs):
                    pass
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _buffer(length: int) -> mmap.mmap:
    memory = mmap.mmap(-1, length)
    memory[:] = bytes(length)
    return memory
