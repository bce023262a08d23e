"""Measures how long the first save of a large state holds its program up, run by run.

Each run is a process of its own. It fills arrays of `outlive.empty` or of `numpy.empty`, and saves
them once. It prints the share of them in huge pages, and the stall.

    .venv/bin/python bench/first_save.py DIR --gib 4 --runs 6
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import outlive


def run(kind: str, folder: str, gib: float) -> None:
    """One run, which prints its figures."""
    empty = outlive.empty if kind == "outlive" else np.empty
    arrays = [empty((int(gib * (1 << 26)),), dtype=np.uint64) for _ in range(2)]
    rng = np.random.default_rng(1)
    for array in arrays:
        array[:] = 7
        array[::8] = rng.integers(0, 1 << 63, len(array[::8]), dtype=np.uint64)
    lines = Path("/proc/self/smaps").read_text().splitlines()
    huge_kib = sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))
    with outlive.open(folder) as pool:
        job = pool.job("job")
        started = time.perf_counter()
        save = job.save({"arrays": arrays})
        stall_ms = (time.perf_counter() - started) * 1e3
        save.wait()
    print(f"{kind}.empty: {huge_kib / gib / (1 << 20):.0%} in huge pages, stall {stall_ms:.1f} ms")


def main() -> None:
    """Runs both kinds in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("dir", type=Path)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return run(args.one, str(args.dir), args.gib)
    for number in range(2 * args.runs):
        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            kind = ("outlive", "numpy")[number % 2]
            words = [__file__, folder, "--one", kind, "--gib", str(args.gib)]
            subprocess.run([sys.executable, *words], check=True)
    return None


if __name__ == "__main__":
    main()
