"""Measures how long `Job.save` holds up a program that has changed a few pages at random.

Two arrays are saved in turn. One of `outlive.empty` begins at a page boundary; one of `numpy.empty`
mostly does not. Each is saved whole once, then again and again with some of its pages changed.
Beside each save NumPy copies the same pages. It prints the median time of a save, and its ratio to
such a copy. The first saves after the whole one are printed separately: they copy into new memory,
and detect cold memory.

    .venv/bin/python bench/stall.py --dir DIR --state 4GiB
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import outlive
from sizes import PAGE_BYTES, size

WARM_UP_SAVES = 3


def timed_ms(work: Callable[[], Any]) -> tuple[float, Any]:
    """Returns the milliseconds that a call takes, and its result."""
    started = time.perf_counter()
    result = work()
    return (time.perf_counter() - started) * 1e3, result


def measure(
    folder: str, words: np.ndarray, options: argparse.Namespace, freeze: str | None
) -> dict[str, Any]:
    """Saves an array of words (uint64) each time after a share of its pages have changed."""
    rng = np.random.default_rng(1)
    page_words = PAGE_BYTES // words.itemsize
    pages = words.reshape(-1, page_words)
    for part in np.array_split(words, max(1, words.nbytes >> 27)):
        part[:] = rng.integers(0, 1 << 63, len(part), dtype=np.uint64)
    stalls, engine, copies = [], [], []
    with outlive.open(folder, freeze=freeze) as pool:
        job = pool.job("stall")
        state = {f"leaf {n}": np.full(3, n) for n in range(options.leaves)} | {"words": words}
        job.save(state, wait=True)
        for _ in range(WARM_UP_SAVES + options.saves):
            count = max(1, int(len(pages) * options.share))
            changed = rng.choice(len(pages), count, replace=False)
            pages[changed, 0] += np.uint64(1)
            stall_ms, save = timed_ms(lambda: job.save(state))
            stalls.append(stall_ms)
            engine.append(save.wait().stall_s * 1e3)
            copies.append(timed_ms(partial(pages.take, np.sort(changed), axis=0))[0])
    steady = stalls[WARM_UP_SAVES:]
    median_ms = statistics.median(steady)
    return {
        "off_page_bytes": words.ctypes.data % PAGE_BYTES,
        "first_ms": stalls[:WARM_UP_SAVES],
        "median_ms": median_ms,
        "least_ms": min(steady),
        "most_ms": max(steady),
        "engine_ms": statistics.median(engine[WARM_UP_SAVES:]),
        "copy_ms": statistics.median(copies[WARM_UP_SAVES:]),
    }


def main() -> None:
    """Reads the arguments, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", default=None, help="directory for the pools, which are deleted")
    parser.add_argument("--state", type=size, default=4 << 30, help="size of the state [4GiB]")
    parser.add_argument(
        "--share", type=float, default=0.01, help="share of the pages to change [0.01]"
    )
    parser.add_argument("--saves", type=int, default=9, help="number of saves that count [9]")
    parser.add_argument(
        "--leaves", type=int, default=0, help="number of small arrays beside the large one [0]"
    )
    parser.add_argument(
        "--freeze",
        action="append",
        help="way to freeze; repeat it to compare [the pool's]",
    )
    options = parser.parse_args()
    length = max(1, options.state // PAGE_BYTES) * PAGE_BYTES // 8
    kinds = (("outlive.empty", outlive.empty), ("numpy.empty", np.empty))
    for (name, make), freeze in itertools.product(kinds, options.freeze or [None]):
        with tempfile.TemporaryDirectory(prefix="outlive-stall-", dir=options.dir) as folder:
            words = make(length, dtype=np.uint64)
            found = measure(folder, words, options, freeze)
            del words
        first = ", ".join(f"{ms:.1f}" for ms in found["first_ms"])
        way = f", freeze={freeze!r}" if freeze else ""
        print(
            f"{name}{way}: begins {found['off_page_bytes']} B off a page; save returns after "
            f"{found['median_ms']:.1f} ms ({found['least_ms']:.1f} to {found['most_ms']:.1f}), "
            f"{found['median_ms'] / found['copy_ms']:.2f} of NumPy's copy of the same pages; "
            f"the engine says {found['engine_ms']:.1f}; the first ones {first}",
            flush=True,
        )


if __name__ == "__main__":
    main()
