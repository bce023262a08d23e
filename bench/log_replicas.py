"""Measures a commit with the log in one directory, in three, and in five.

It saves a small unchanged array, from the call to the commit, in turn for each pool. It prints the
median times and their ratios to that of one directory. All is on the disk of DIR.

    .venv/bin/python bench/log_replicas.py --dir DIR --saves 60
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import outlive

REPLICAS = (1, 3, 5)


def make(folder: Path, replicas: int) -> Path:
    """Makes a pool whose log has that number of replicas."""
    pool = folder / f"pool {replicas}"
    words = [sys.executable, "-m", "outlive", "pool", "init", str(pool)]
    for number in range(replicas if replicas > 1 else 0):
        words += ["--log", str(folder / f"log {number} of {replicas}")]
    subprocess.run(words, check=True, capture_output=True)
    return pool


def measure(folder: Path, saves: int) -> dict[int, float]:
    """Returns the median seconds of a commit, by the number of replicas."""
    state = {"a": np.zeros(1000)}
    jobs = {
        replicas: outlive.open(str(make(folder, replicas))).job("commits") for replicas in REPLICAS
    }
    times: dict[int, list[float]] = {replicas: [] for replicas in REPLICAS}
    for job in jobs.values():
        job.save(state).wait()
    for _ in range(saves):
        for replicas, job in jobs.items():
            started = time.perf_counter()
            job.save(state).wait()
            times[replicas].append(time.perf_counter() - started)
    for job in jobs.values():
        job.close()
    return {replicas: statistics.median(taken) for replicas, taken in times.items()}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dir", type=Path, help="where the pools are made")
    parser.add_argument("--saves", type=int, default=60, help="number of saves of each pool")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        medians = measure(Path(folder), given.saves)
    for replicas, median in medians.items():
        ratio = median / medians[1]
        print(f"replicas: {replicas}, {median * 1e3:.2f} ms, {ratio:.2f} times one directory")


if __name__ == "__main__":
    main()
