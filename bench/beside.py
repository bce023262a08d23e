"""Measures a short read alone, and beside long ones: the delay of a first touch.

Threads read a file in long pieces, past the page cache. Meanwhile another thread reads 64 KiB at
random offsets. It prints percentiles of these reads in milliseconds.

    .venv/bin/python bench/beside.py DIR --gib 2 --reads 1000
"""

import argparse
import contextlib
import mmap
import os
import pathlib
import random
import tempfile
import threading
import time
from collections.abc import Iterator

SHORT = 64 << 10
PAGE = 4096
# Number of threads that read long pieces, and the bytes of each piece.
BESIDE = ((0, 0), (1, 512 << 10), (1, 1 << 20), (1, 2 << 20), (8, 2 << 20))


@contextlib.contextmanager
def reading(fd: int, size: int, threads: int, piece: int) -> Iterator[None]:
    """Reads long pieces in order, each thread from an offset of its own."""
    stop = threading.Event()

    def work(number: int) -> None:
        buffer, at = mmap.mmap(-1, piece), number * (size // threads) // piece * piece
        while not stop.is_set():
            at = at if at + piece <= size else 0
            os.preadv(fd, [buffer], at)
            at += piece

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def short_reads_ms(fd: int, size: int, count: int) -> list[float]:
    """Returns the milliseconds of each short read, ascending."""
    buffer, took_ms = mmap.mmap(-1, SHORT), []
    for _ in range(count):
        at = random.randrange((size - SHORT) // PAGE) * PAGE
        started = time.perf_counter()
        os.preadv(fd, [buffer], at)
        took_ms.append((time.perf_counter() - started) * 1e3)
    return sorted(took_ms)


def main() -> None:
    """Writes the file, and measures beside each kind of long reads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("dir")
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--reads", type=int, default=1000)
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile(dir=args.dir) as file:
        block = random.randbytes(16 << 20)
        for _ in range(int(args.gib * 64)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        size = pathlib.Path(file.name).stat().st_size
        fd = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        for threads, piece in BESIDE:
            with reading(fd, size, threads, piece):
                took_ms = short_reads_ms(fd, size, args.reads)
            beside = f"beside {threads} x {piece >> 10} KiB" if threads else "alone"
            median, late = took_ms[len(took_ms) // 2], took_ms[len(took_ms) * 99 // 100]
            print(f"64 KiB {beside}: median {median:.2f} ms, 99 of 100 below {late:.2f} ms")
        os.close(fd)


if __name__ == "__main__":
    main()
