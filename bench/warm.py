"""Measures a restore with a cold cache, and with all packs in the system's page cache.

.venv/bin/python bench/warm.py DIR --gib 4 --rounds 3
"""

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

import outlive


def restore_s(location: Path, into: np.ndarray) -> float:
    """Returns the seconds of an eager restore into an array in use."""
    job = outlive.open(location).job("job")
    started = time.perf_counter()
    job.restore(into={"a": into})
    took_s = time.perf_counter() - started
    job.close()
    return took_s


def main() -> None:
    """Saves an array of random bytes, and restores it both ways; needs root to drop caches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("dir", type=Path)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        location = Path(folder) / "pool"
        array = np.random.default_rng(1).random(int(args.gib * (1 << 27)))
        with outlive.open(location) as pool:
            pool.job("job").save({"a": array}, wait=True)
        into = outlive.empty(array.shape)
        into[:] = 0
        for _ in range(args.rounds):
            subprocess.run(["sync"], check=True)
            Path("/proc/sys/vm/drop_caches").write_text("3")
            cold_s = restore_s(location, into)
            for pack in location.glob("packs/*/*.shard"):
                pack.read_bytes()
            warm_s = restore_s(location, into)
            if not np.array_equal(into, array):
                raise SystemExit("error: the restore gave other bytes")
            print(f"cold {cold_s / args.gib:.3f} s/GiB, warm {warm_s / args.gib:.3f} s/GiB")


if __name__ == "__main__":
    main()
