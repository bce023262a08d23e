"""Measures the speed that a program keeps while it is saved again and again.

Three programs compute without saves and with saves, in turn, in windows of some seconds. Without
saves they use memory that the last save has armed, if it was tracked. The programs are:

- Gray-Scott, which changes everything in every step, saved every second;
- a program that changes one per cent of its pages a second, saved every second;
- one that changes as much from save to save, saved five times a second.

It prints the ratio of steps a second with saves to those without, as the median over the rounds.

    .venv/bin/python bench/keep_speed.py --dir DIR --state 1GiB --json
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The programs compute on one core, as far as possible; the saver may have the others.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import outlive
from sizes import PAGE_BYTES, size

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import gray_scott  # (the path of its folder is set above)

State = dict[str, Any]
Step = Callable[[State], None]
WARM_UP_SAVES = 4


def simulation(state_bytes: int) -> tuple[State, Step]:
    """Makes Gray-Scott on a square; its two fields have `state_bytes` bytes, in whole rows."""
    side = int((state_bytes / 16) ** 0.5) // gray_scott.BLOCK_ROWS * gray_scott.BLOCK_ROWS
    state: State = {
        "u": outlive.empty((side, side)),
        "v": outlive.empty((side, side)),
        "rng": np.random.default_rng(1),
        "step": 0,
    }
    gray_scott.seed(state)
    # Fields of pure U would stay the same, and every cell must change in every step.
    state["u"] *= 0.9 + 0.1 * state["rng"].random((side, side))
    state["v"] += 0.01 * state["rng"].random((side, side))
    stepper = gray_scott.Stepper(side)

    def advance(state: State) -> None:
        stepper.advance(state)
        state["step"] += 1

    return state, advance


def sparse(state_bytes: int, pages_per_s: float) -> tuple[State, Step]:
    """Makes a program that multiplies matrices and writes `pages_per_s` random pages a second."""
    rng = np.random.default_rng(2)
    words = outlive.empty((state_bytes // 8,), dtype=np.uint64)
    words[:] = np.arange(len(words), dtype=np.uint64)
    left, right = rng.random((192, 192)), rng.random((192, 192))
    state: State = {"words": words, "step": 0}
    clock = {"last": time.monotonic(), "owed": 0.0}

    def advance(state: State) -> None:
        np.matmul(left, right)
        now = time.monotonic()
        clock["owed"] = min(clock["owed"] + (now - clock["last"]) * pages_per_s, pages_per_s)
        clock["last"] = now
        count = int(clock["owed"])
        clock["owed"] -= count
        words[rng.integers(0, len(words), count)] += 1
        state["step"] += 1

    return state, advance


def window(state: State, step: Step, seconds: float, save: Callable[[], None]) -> float:
    """Runs for at least `seconds` seconds; returns the steps a second."""
    steps, started = 0, time.monotonic()
    while True:
        step(state)
        save()
        steps += 1
        passed = time.monotonic() - started
        if passed >= seconds:
            return steps / passed


def measure(
    folder: Path, made: tuple[State, Step], every_s: float, seconds: float, rounds: int
) -> dict[str, Any]:
    """Runs a program with and without saves, in turn."""
    state, step = made
    state_bytes = sum(a.nbytes for a in state.values() if isinstance(a, np.ndarray))
    ratios = []
    saves: list[outlive.Save] = []
    with outlive.open(folder, freeze_bytes_max=state_bytes) as pool:
        job = pool.job("speed", every_s=every_s)

        def save() -> None:
            if made := job.save(state):  # (false between intervals)
                saves.append(made)

        # The first saves write everything, and show the tracker the cold memory.
        for _ in range(WARM_UP_SAVES):
            step(state)
            job.save(state, force=True).wait()
        for _ in range(rounds):
            alone = window(state, step, seconds, lambda: None)
            # Save the changes of the pause, so that the next save has those of one interval.
            job.save(state, force=True).wait()
            saved = window(state, step, seconds, save)
            saves[-1].wait()
            ratios.append(saved / alone)
        figures = saves[-1].wait()
        stalls = [done.stall_s for done in (save.wait() for save in saves) if done]
    return {
        "state_bytes": state_bytes,
        "every_s": every_s,
        "kept": statistics.median(ratios),
        "kept_worst": min(ratios),
        "kept_best": max(ratios),
        "saves": len(stalls),
        "stall_ms": statistics.median(stalls) * 1e3,
        "stall_ms_worst": max(stalls) * 1e3,
        "last_save": repr(figures),
    }


def draining(folder: Path, freeze: str, budget: int, state_bytes: int) -> dict[str, Any]:
    """Compares a program that changes everything while its save persists data, and alone."""
    state, step = simulation(state_bytes)
    ratios, report = [], ""
    with outlive.open(folder, freeze_bytes_max=budget, freeze=freeze) as pool:
        job = pool.job("drain")
        job.save(state).wait()
        for _ in range(6):
            alone = window(state, step, 1.5, lambda: None)
            save = job.save(state)
            steps, started = 0, time.monotonic()
            while not save.done():
                step(state)
                steps += 1
            ratios.append(steps / (time.monotonic() - started) / alone)
            report = repr(save.wait())
    return {"kept": statistics.median(ratios), "all": ratios, "last_save": report}


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", help="directory for the pool, which is removed [a temporary one]")
    parser.add_argument("--state", type=size, default=1 << 30, help="size of the state [1GiB]")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="length of a window, in seconds [10]"
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of windows of each kind [3]")
    parser.add_argument(
        "--draining", action="store_true", help="only Gray-Scott, and only while a save drains"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    options = parser.parse_args()
    if options.seconds <= 2 and not options.draining:
        parser.error("--seconds must be more than 2, so that a window has several saves")
    pages_per_s = options.state / PAGE_BYTES / 100
    programs: list[tuple[str, Callable[[], tuple[State, Step]], float]] = [
        ("Gray-Scott, every second", lambda: simulation(options.state), 1.0),
        ("1 % a second, every second", lambda: sparse(options.state, pages_per_s), 1.0),
        ("1 % a save, five a second", lambda: sparse(options.state, 5 * pages_per_s), 0.2),
    ]
    found: dict[str, dict[str, Any]] = {}
    if options.draining:
        for freeze, budget in [("copy", options.state), ("auto", 64 << 20)]:
            folder = Path(tempfile.mkdtemp(prefix="outlive-speed-", dir=options.dir))
            try:
                found[freeze] = draining(folder, freeze, budget, options.state)
            finally:
                shutil.rmtree(folder)
            if not options.json:
                print(f"while a save drains, freeze = {freeze}: {found[freeze]['kept']:.3f}")
        programs = []
    for name, make, every_s in programs:
        folder = Path(tempfile.mkdtemp(prefix="outlive-speed-", dir=options.dir))
        try:
            found[name] = measure(folder, make(), every_s, options.seconds, options.rounds)
        finally:
            shutil.rmtree(folder)
        if not options.json:
            one = found[name]
            kept = f"keeps {one['kept']:.3f} of its speed"
            print(f"{name:28} {kept}, {one['saves']} saves, stall {one['stall_ms']:.1f} ms")
            print(f"  {one['last_save']}")
    if options.json:
        print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
