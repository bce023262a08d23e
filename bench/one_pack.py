"""Counts the kept checkpoints that one damaged pack costs, in a pool without redundancy.

A program saves two arrays of 1 MiB, small values and a constant, and keeps the newest checkpoints.
Before each save it changes both arrays, one of them, or a few numbers. Then each pack in turn loses
all but its first pages, and each checkpoint is restored.
all but its first pages, and each checkpoint is restored.

    .venv/bin/python bench/one_pack.py DIR
"""

import argparse
import collections
import logging
import tempfile
from pathlib import Path

import numpy as np

import outlive

CHANGES = ("both arrays", "one array", "a few numbers")


def saved(location: Path, change: str, saves: int, keep: int) -> None:
    """Makes the pool."""
    rng = np.random.default_rng(1)
    state = {"u": rng.random(1 << 17), "v": rng.random(1 << 17), "step": 0, "name": "x"}
    state["constant"] = np.arange(1000.0)
    with outlive.open(location) as pool:
        job = pool.job("job", keep_last=keep)
        for step in range(saves):
            state["step"] = step
            if change == "a few numbers":
                state["u"][rng.integers(0, 1 << 17, 5)] = step
            else:
                state["u"] = rng.random(1 << 17)
            if change == "both arrays":
                state["v"] = rng.random(1 << 17)
            job.save(state, force=True, wait=True)


def lost(location: Path) -> int:
    """Returns the checkpoints that do not restore."""
    with outlive.open(location) as pool:
        job = pool.job("job")
        count = 0
        for epoch in job.epochs():
            try:
                job.restore(epoch=epoch)
            except outlive.DamagedError:
                count += 1
    return count


def main() -> None:
    """Damages each pack of each pool, and prints the lost checkpoints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("dir", type=Path)
    parser.add_argument("--saves", type=int, default=30)
    parser.add_argument("--keep", type=int, default=3)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    for change in CHANGES:
        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            location = Path(folder) / "pool"
            saved(location, change, args.saves, args.keep)
            costs: collections.Counter[int] = collections.Counter()
            for pack in sorted(location.glob("packs/*/*.shard")):
                whole = pack.read_bytes()
                pack.write_bytes(whole[:8192].ljust(len(whole), b"\0"))
                costs[lost(location)] += 1
                pack.write_bytes(whole)
            told = ", ".join(f"{packs} cost {count}" for count, packs in sorted(costs.items()))
            print(f"{change} changed; of {costs.total()} packs {told}")


if __name__ == "__main__":
    main()
