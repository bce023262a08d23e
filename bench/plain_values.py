"""A million small values in containers: outlive beside pickle, in time, bytes and memory.

Each figure comes from a process of its own. Times are seconds of processor time, since a save and
`pickle.dump` with `fsync` both wait for the disk. The stall is wall-clock time.

    .venv/bin/python bench/plain_values.py DIR --count 1000000
"""

import argparse
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20


def state_of(kind: str, count: int) -> dict[str, Any]:
    """Returns a state with one container of `count` entries."""
    if kind == "dict":
        return {"all": {f"key {i}": i if i % 2 else f"value {i}" for i in range(count)}}
    if kind == "floats":
        return {"all": [i * 0.5 for i in range(count)]}
    return {"all": [(i, i * 0.5, f"text {i}", None)[i % 4] for i in range(count)]}


def peak_mib() -> float:
    """Returns the peak memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Returns seconds of processor time, of the clock, and the result."""
    cpu, wall = time.process_time(), time.perf_counter()
    done = work()
    return time.process_time() - cpu, time.perf_counter() - wall, done


def pickled(place: Path, kind: str, count: int, step: str) -> dict[str, float]:
    """Runs one step of pickle."""
    file = place / "state.pickle"
    if step == "restore":
        before = peak_mib()
        cpu, wall, _ = timed(lambda: pickle.loads(file.read_bytes()))
        return {"cpu_s": cpu, "wall_s": wall, "memory_mib": peak_mib() - before}
    state = state_of(kind, count)
    before = peak_mib()

    def save() -> None:
        with file.open("wb") as to:
            pickle.dump(state, to, protocol=pickle.HIGHEST_PROTOCOL)
            to.flush()
            os.fsync(to.fileno())

    cpu, wall, _ = timed(save)
    figures = {"cpu_s": cpu, "wall_s": wall, "memory_mib": peak_mib() - before}
    return figures | {"mib": file.stat().st_size / MIB}


def outlived(place: Path, kind: str, count: int, step: str) -> dict[str, float]:
    """Runs one step of outlive."""
    import outlive

    pool = outlive.open(place / "pool")
    job = pool.job("job")
    if step == "restore":
        before = peak_mib()
        cpu, wall, _ = timed(job.restore)
        return {"cpu_s": cpu, "wall_s": wall, "memory_mib": peak_mib() - before}
    state = state_of(kind, count)
    before = peak_mib()
    cpu, wall, save = timed(lambda: job.save(state, force=True, wait=True))
    figures = {"cpu_s": cpu, "wall_s": wall, "stall_s": save.stall_ms / 1e3}
    figures["memory_mib"] = peak_mib() - before
    files = (place / "pool").rglob("*.shard")
    figures["mib"] = sum(file.stat().st_size for file in files) / MIB
    again = [timed(lambda: job.save(state, force=True, wait=True)) for _ in range(5)]
    best = min(again, key=lambda one: one[0])
    figures["again_cpu_s"], figures["again_stall_s"] = best[0], best[2].stall_ms / 1e3
    return figures


def main() -> None:
    """Runs each step in a process of its own, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("dir", type=Path)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        program, kind, step = args.step.split()
        run = pickled if program == "pickle" else outlived
        print(json.dumps(run(args.dir, kind, args.count, step)))
        return
    for kind in ("dict", "floats", "mixed"):
        place = Path(tempfile.mkdtemp(dir=args.dir))
        try:
            for program in ("pickle", "outlive"):
                for step in ("save", "restore"):
                    words = f"{program} {kind} {step}"
                    command = [sys.executable, __file__, str(place), "--step", words]
                    command += ["--count", str(args.count)]
                    done = subprocess.run(command, check=True, capture_output=True, text=True)
                    figures = json.loads(done.stdout)
                    told = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
                    print(f"{kind:7} {program:8} {step:8} {told}", flush=True)
        finally:
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
