"""The device itself: the same bytes written and read without further work.

O_DIRECT, several threads, each file preallocated and synced, then the directory: this does the work
of `outlive-bench`, written again so that it can take turns with the peers. The best of a few
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
    """A layout of the bytes, and how hard it drives the device.

    Attributes:
        file_bytes: Bytes of each file; 0 means one file.
        unit_bytes: Bytes of each write or read.
        depth: Writes or reads in flight.
    """

    file_bytes: int
    unit_bytes: int
    depth: int

    def __str__(self) -> str:
        """Returns the layout, for people."""
        files = f"{self.file_bytes // MIB} MiB files" if self.file_bytes else "one file"
        return f"{files}, {self.unit_bytes // MIB} MiB x {self.depth}"


LAYOUTS = (
    Layout(64 * MIB, 4 * MIB, 8),
    Layout(64 * MIB, 4 * MIB, 16),
    Layout(0, 4 * MIB, 16),
    Layout(0, 4 * MIB, 8),
)


class Raw:
    """Writes and reads `size_bytes` in `folder`."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        """Makes the data: random, so that no device can compress it."""
        self.folder = folder
        self.size_bytes = -(-size_bytes // (4 * MIB)) * 4 * MIB
        self._data = _buffer(16 * MIB)
        self._data[:] = np.random.default_rng(1).bytes(16 * MIB)

    def write_s(self, layout: Layout) -> float:
        """Returns the seconds of writing everything once, syncs included."""
        durable.empty(self.folder)
        # Sync first, so that earlier deletions cause no writes meanwhile.
        os.sync()
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
        """Returns the seconds of reading everything that `write_s` wrote."""
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
        """Returns the seconds of the fastest write and the fastest read among the layouts."""
        writes, reads = [], []
        for layout in layouts:
            writes.append(self.write_s(layout))
            reads.append(self.read_s(layout))
        durable.empty(self.folder)
        return {"write_s": min(writes), "read_s": min(reads)}

    def _each(
        self, layout: Layout, work: Callable[[int, int, int], None], *, writing: bool
    ) -> None:
        """Does `work` at every offset; a file's first call opens it, its last one syncs it."""
        file_bytes = layout.file_bytes or self.size_bytes
        files = [
            _File(self.folder / f"raw-{number}", min(file_bytes, self.size_bytes - begin), layout)
            for number, begin in enumerate(range(0, self.size_bytes, file_bytes))
        ]
        jobs = [(file, at) for file in files for at in range(0, file.length, layout.unit_bytes)]

        def do(number: int) -> None:
            file, at = jobs[number]
            work(file.opened(writing), number, at)
            file.done(writing)

        with ThreadPoolExecutor(layout.depth) as pool:
            for _ in pool.map(do, range(len(jobs))):
                pass


class _File:
    """A file while some of its writes or reads are missing."""

    def __init__(self, path: Path, length: int, layout: Layout) -> None:
        self.path, self.length = path, length
        self._left = -(-length // layout.unit_bytes)
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def opened(self, writing: bool) -> int:
        with self._lock:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_CREAT if writing else os.O_RDONLY
                self._descriptor = os.open(self.path, flags | os.O_DIRECT, 0o600)
                if writing:
                    os.posix_fallocate(self._descriptor, 0, self.length)
            return self._descriptor

    def done(self, writing: bool) -> None:
        with self._lock:
            self._left -= 1
            if self._left > 0 or self._descriptor is None:
                return
        if writing:
            os.fdatasync(self._descriptor)
        os.close(self._descriptor)


def _buffer(length: int) -> mmap.mmap:
    # Private, which allows huge pages: fewer pages to pin, and writes a quarter faster.
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory[:] = bytes(length)
    return memory
