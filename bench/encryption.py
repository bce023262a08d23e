"""Measures the cost of encryption at rest: saves and restores of a state, plain and encrypted.

Each round saves the state to a new job of either pool, in turns, and restores it. The state has
random bytes, which no compression and no deduplication shortens. Rates are in GB/s of the state.
The ratio of a round is the rate of the encrypted pool by that of the plain one; the table has the
medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import outlive

KINDS = ("plain", "encrypted")


def make_pools(folder: Path) -> dict[str, outlive.Pool]:
    """Makes one pool of each kind, whose key is in the environment from then on."""
    key = folder / "key"
    os.environ["OUTLIVE_KEY_FILE"] = str(key)
    for words in (
        ["key", "new", key],
        ["pool", "init", folder / "plain"],
        ["pool", "init", folder / "encrypted", "--encrypt"],
    ):
        subprocess.run(["outlive", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    # A program would make an encrypted pool of either, since there is a key.
    for kind in KINDS:
        is_encrypted = "[encryption]" in (folder / kind / "pool.toml").read_text("utf-8")
        assert is_encrypted == (kind == "encrypted")
    return {kind: outlive.open(folder / kind) for kind in KINDS}


def one_round(
    pool: outlive.Pool, name: str, state: dict[str, Any], into: dict[str, Any]
) -> tuple[float, float]:
    """Saves and restores a state; returns the seconds of both."""
    with pool.job(name) as job:
        began = time.perf_counter()
        job.save(state, wait=True)
        saved = time.perf_counter() - began
        into["a"][:] = 0
        began = time.perf_counter()
        job.restore(into=into)
        restored = time.perf_counter() - began
    # Some of the random bytes are no number.
    assert np.array_equal(into["a"].view(np.uint64), state["a"].view(np.uint64))
    pool.delete_job(name)
    return saved, restored


def measure(folder: Path, mib: int, rounds: int) -> dict[str, Any]:
    """Measures both kinds in turns."""
    pools = make_pools(folder)
    rng = np.random.default_rng(1)
    state = {"a": outlive.zeros(mib << 17)}
    state["a"].view(np.uint64)[:] = rng.integers(0, 2**64, mib << 17, dtype=np.uint64)
    into = {"a": outlive.zeros(mib << 17)}
    into["a"][:] = 1
    seconds: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):
        # The first round warms up; then each kind comes first as often as the other.
        for kind in KINDS if number % 2 else reversed(KINDS):
            taken = one_round(pools[kind], f"job{number}", state, into)
            if number:
                seconds[kind].append(taken)
    found: dict[str, Any] = {"mib": mib, "rounds": rounds}
    for place, what in enumerate(("save", "restore")):
        rates = {kind: [mib * 2**20 / 1e9 / it[place] for it in seconds[kind]] for kind in KINDS}
        ratios = [two / one for one, two in zip(rates["plain"], rates["encrypted"], strict=True)]
        found[what] = {kind: statistics.median(rates[kind]) for kind in KINDS}
        found[what]["ratio"] = statistics.median(ratios)
        found[what]["ratios"] = sorted(ratios)
    return found


def main() -> None:
    """Reads the arguments, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dir", type=Path, help="directory for the pools, on the medium to measure")
    parser.add_argument("--mib", type=int, default=1024, help="size of the state")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=args.dir))
    try:
        found = measure(folder, args.mib, args.rounds)
    finally:
        shutil.rmtree(folder)
    if args.json:
        print(json.dumps(found))
        return
    print(f"{'':8} {'plain GB/s':>12} {'encrypted':>12} {'ratio':>8}   lowest to highest")
    for what in ("save", "restore"):
        row = found[what]
        print(
            f"{what:8} {row['plain']:12.2f} {row['encrypted']:12.2f} {row['ratio']:8.3f}   "
            f"{row['ratios'][0]:.3f} to {row['ratios'][-1]:.3f}"
        )


if __name__ == "__main__":
    main()
