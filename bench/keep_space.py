"""Measures the space of a job with `keep_last` while it saves, and at its end.

A program changes and saves all of its state as fast as it can. This prints, in MiB, the kept state,
the largest of 200 samples of the pool's size, and its size at the end.

    .venv/bin/python bench/keep_space.py DIR --saves 1000 --state-mib 8 --keep 3
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

import outlive
from space import used_bytes

LOOKS = 200
MIB = 1 << 20


def main() -> None:
    """Runs the saves and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("dir", type=Path)
    parser.add_argument("--saves", type=int, default=1000)
    parser.add_argument("--state-mib", type=int, default=8)
    parser.add_argument("--keep", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="outlive-keep-", dir=args.dir))
    try:
        job = outlive.open(folder / "pool").job("job", keep_last=args.keep)
        state = {"a": outlive.zeros((args.state_mib * MIB // 8,)), "step": 0}
        noise = np.random.default_rng(0).standard_normal(state["a"].shape)  # type: ignore[attr-defined]
        most = 0
        for step in range(args.saves):
            state["a"][:] = noise * (step + 1.5)  # type: ignore[index]
            state["step"] = step
            job.save(state, force=True)
            if step % max(args.saves // LOOKS, 1) == 0:
                most = max(most, used_bytes(folder))
        job.close()
        end = used_bytes(folder)
    finally:
        shutil.rmtree(folder)
    kept = args.keep * args.state_mib * MIB
    found = {
        "kept_mib": kept / MIB,
        "most_mib": most / MIB,
        "end_mib": end / MIB,
        "most_allowed_mib": 1.5 * kept / MIB + 64,
    }
    if args.json:
        print(json.dumps(found))
    else:
        print(", ".join(f"{name} {value:.0f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
