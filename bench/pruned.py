"""Measures a pool's size after saves of scattered pages and a prune, and the restore time.

A program saves a state, then changes a share of its pages at random before each further save. It
restores the first checkpoint, the newest one before the prune, and the newest one after a prune
that keeps only that. Each restore reads from the device. The figures are ratios: of times to that
of the first checkpoint, of bytes to the state.

    .venv/bin/python bench/pruned.py DIR --state-mib 1024 --saves 100 --share 0.01
"""

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

import outlive
from space import used_bytes

MIB = 1 << 20
PAGE = 4096


def written_bytes() -> int:
    """Returns the bytes that this process has sent to devices."""
    text = Path("/proc/self/io").read_text()
    return int(
        next(line for line in text.splitlines() if line.startswith("write_bytes")).split()[1]
    )


def restore_s(location: Path, epoch: int | None, into: np.ndarray, runs: int) -> float:
    """Returns the median seconds of an eager restore into an array, with cold caches."""
    times = []
    for _ in range(runs):
        subprocess.run(["sync"], check=True)
        # Without root it cannot drop caches, but reads bypass the page cache.
        with contextlib.suppress(OSError):
            Path("/proc/sys/vm/drop_caches").write_text("3")
        job = outlive.open(location).job("job")
        started = time.perf_counter()
        job.restore(into={"a": into}, epoch=epoch)
        times.append(time.perf_counter() - started)
        job.close()
    return statistics.median(times)


def main() -> None:
    """Saves, restores, prunes, restores, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("dir", type=Path)
    parser.add_argument("--state-mib", type=int, default=1024)
    parser.add_argument("--saves", type=int, default=100)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="outlive-pruned-", dir=args.dir))
    try:
        location = folder / "pool"
        rng = np.random.default_rng(0)
        state_bytes = args.state_mib * MIB
        array = outlive.zeros((state_bytes // PAGE, PAGE), dtype=np.uint8)
        array[:] = np.frombuffer(rng.bytes(state_bytes), np.uint8).reshape(array.shape)
        job = outlive.open(location).job("job")
        job.save({"a": array}, force=True).wait()
        before = written_bytes()
        changed = max(int(len(array) * args.share), 1)
        for _ in range(args.saves):
            pages = rng.choice(len(array), changed, replace=False)
            array[pages] = np.frombuffer(rng.bytes(changed * PAGE), np.uint8).reshape(changed, PAGE)
            job.save({"a": array}, force=True).wait()
        saves_bytes = written_bytes() - before
        job.close()
        into = np.zeros(array.shape, np.uint8)
        first_s = restore_s(location, 1, into, args.runs)
        newest_s = restore_s(location, None, into, args.runs)
        before_bytes = used_bytes(location)
        before = written_bytes()
        started = time.perf_counter()
        outlive.open(location).job("job").prune(keep_last=1)
        prune_s = time.perf_counter() - started
        prune_bytes = written_bytes() - before
        after_s = restore_s(location, None, into, args.runs)
        if not np.array_equal(into, array):
            raise SystemExit("the restored state is another one")
        after_bytes = used_bytes(location)
    finally:
        shutil.rmtree(folder)
    found = {
        "state_mib": args.state_mib,
        "first_restore_s": round(first_s, 3),
        "newest_before_prune": round(newest_s / first_s, 2),
        "newest_after_prune": round(after_s / first_s, 2),
        "pool_before_prune": round(before_bytes / state_bytes, 3),
        "pool_after_prune": round(after_bytes / state_bytes, 3),
        "saves_wrote": round(saves_bytes / state_bytes, 2),
        "prune_wrote": round(prune_bytes / state_bytes, 2),
        "prune_s": round(prune_s, 2),
    }
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:22} {value}")


if __name__ == "__main__":
    main()
