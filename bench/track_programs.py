"""Measures what finding changed pages costs real programs, by tracker.

Four programs of different patterns are saved after every step:

- a sparse solver by conjugate gradients: dense sweeps of a few vectors, a constant matrix;
- counting in a hash table: random pages of one large array;
- training by Adam: everything changes but the data;
- a search through a graph: a few pages, then many, then none.

Each tracker runs in a process of its own, all of them in turn in each round, and one process runs
without saves. It prints medians over the rounds:

- the processor seconds of a step beside those without saves, which is the cost of tracking;
- the time for which a save held the program up;
- the processor seconds of the process for a save.

The fifth program is HPL, if Debian's package ``hpcc`` is installed. It computes a dense LU: it
sweeps the unfinished part of a matrix again and again. A preloaded library saves it every
``--interval-ms``; cargo must be there to build that (see ``hpl.py``). Its step is the whole run,
from the matrix' allocation to its end. A save finds, copies and hashes the changes, and writes
nothing.

    .venv/bin/python bench/track_programs.py --dir DIR --mib 256 --json
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The programs compute on one core, as far as possible; the saver may have the others.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import hpl
import outlive

State = dict[str, Any]
Step = Callable[[State], None]
# Steps before those that count: trackers that adapt have done so by then.
WARM_UP_STEPS = 6
ALONE = "no saves"
TRACKERS = ["hash", "wp-async", "auto"]


def sparse_solver(mib: int) -> tuple[State, Step]:
    """Conjugate gradients (Hestenes and Stiefel, 1952) on a random symmetric matrix, by rows.

    Two thirds of the state are the matrix, which does not change.
    """
    rng = np.random.default_rng(1)
    per_row = 8
    rows = (mib << 20) // (per_row * 16 + 4 * 8)
    columns = rng.integers(0, rows, (rows, per_row))
    values = rng.random((rows, per_row)) * (0.5 / per_row)
    b = rng.random(rows)
    state: State = {"columns": columns, "values": values, "x": np.zeros(rows), "r": b.copy()}
    state |= {"p": b.copy(), "q": np.zeros(rows)}

    def step(state: State) -> None:
        p, q, x, r = state["p"], state["q"], state["x"], state["r"]
        # I + A + A' is diagonally dominant enough to converge; only its product is computed.
        q[:] = p + np.einsum("ij,ij->i", state["values"], p[state["columns"]])
        old = r @ r
        alpha = old / (p @ q)
        x += alpha * p
        r -= alpha * q
        p *= (r @ r) / old
        p += r

    return state, step


def hash_table(mib: int) -> tuple[State, Step]:
    """Counts keys in a table of counters: 2,000 words anywhere, and 20,000 frequent ones."""
    slots = (mib << 20) // 8
    state: State = {"table": np.zeros(slots, dtype=np.int64), "seen": 0}
    state["table"][:] = 1
    rng = np.random.default_rng(2)

    def step(state: State) -> None:
        often = rng.zipf(1.2, 20_000).astype(np.uint64)
        keys = np.concatenate([rng.integers(0, 1 << 60, 2_000, dtype=np.uint64), often])
        # Multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4).
        with np.errstate(over="ignore"):
            places = (keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
        np.add.at(state["table"], places % np.uint64(slots), 1)
        state["seen"] += len(keys)

    return state, step


def adam(mib: int) -> tuple[State, Step]:
    """Steps of Adam (Kingma and Ba, 2015) on a linear model; a quarter of the state is data."""
    rng = np.random.default_rng(3)
    weights = (mib << 20) // 4 // 4
    rows = 64
    width = weights // rows
    data = rng.random((rows, width), dtype=np.float32)
    state: State = {"data": data, "w": np.zeros((rows, width), np.float32), "t": 0}
    state |= {name: np.zeros((rows, width), np.float32) for name in ("m", "v")}

    def step(state: State) -> None:
        m, v, w = state["m"], state["v"], state["w"]
        state["t"] += 1
        gradient = (w - state["data"]) / rows
        m *= 0.9
        m += 0.1 * gradient
        v *= 0.999
        v += 0.001 * gradient * gradient
        rate = 1e-3 * np.sqrt(1 - 0.999 ** state["t"]) / (1 - 0.9 ** state["t"])
        w -= np.float32(rate) * m / (np.sqrt(v) + 1e-8)

    return state, step


def graph_search(mib: int) -> tuple[State, Step]:
    """Breadth-first search, level by level, through a random graph; repeated when it is done.

    Nearly all of the state are the edges, which do not change. It reaches few vertices at first,
    then most.
    """
    rng = np.random.default_rng(4)
    degree = 4
    vertices = (mib << 20) // (degree * 8 + 8)
    state: State = {"edges": rng.integers(0, vertices, (vertices, degree)), "level": 0, "start": 0}
    state["distance"] = np.full(vertices, -1)
    state["distance"][0] = 0

    def step(state: State) -> None:
        distance = state["distance"]
        reached = np.flatnonzero(distance == state["level"])
        following = np.unique(state["edges"][reached])
        following = following[distance[following] < 0]
        state["level"] += 1
        distance[following] = state["level"]
        if following.size == 0:
            state["start"] += 1
            state["level"] = 0
            distance[:] = -1
            distance[state["start"]] = 0

    return state, step


PROGRAMS: dict[str, Callable[[int], tuple[State, Step]]] = {
    "sparse solver": sparse_solver,
    "hash table": hash_table,
    "Adam": adam,
    "graph search": graph_search,
}
HPL = "HPL"


def run(program: str, tracker: str, args: argparse.Namespace) -> dict[str, Any]:
    """Runs one program in this process; ``tracker`` may be :data:`ALONE`."""
    folder, mib, steps = args.dir, args.mib, args.steps
    if program == HPL:
        by = None if tracker == ALONE else tracker
        return hpl.run(by, hpl.build_library(), Path(folder), mib, args.interval_ms)
    state, step = PROGRAMS[program](mib)
    if tracker == ALONE:
        times = [timed(step, state) for _ in range(WARM_UP_STEPS + steps)]
        return {"step_s": statistics.median(times[WARM_UP_STEPS:])}
    step_s, stall_s, changed, cpu_s, how = [], [], [], [], ""
    with outlive.open(folder, tracker=tracker) as pool:
        job = pool.job("program")
        for number in range(WARM_UP_STEPS + steps):
            took_s = timed(step, state)
            before = time.process_time()
            figures = job.save(state).wait()
            assert figures is not None, "every save is asked for, none is skipped"
            if number >= WARM_UP_STEPS:
                step_s.append(took_s)
                cpu_s.append(time.process_time() - before)
                stall_s.append(figures.stall_s)
                changed.append(figures.changed_bytes)
                how = figures.tracker
        # The last image must be the program's content, or the figures mean nothing.
        back, _ = PROGRAMS[program](mib)
        job.restore(into=back)
        for name, value in state.items():
            if not np.array_equal(back[name], value):
                raise SystemExit(f"{program}, {tracker}: {name} came back as something else")
    return {
        "step_s": statistics.median(step_s),
        "stall_s": statistics.median(stall_s),
        "save_cpu_s": statistics.median(cpu_s),
        "changed_bytes": statistics.median(changed),
        "tracker": how,
    }


def timed(step: Step, state: State) -> float:
    """Returns processor seconds of this thread for a step, page faults included."""
    before = time.thread_time()
    step(state)
    return time.thread_time() - before


def in_turn(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs everything ``args.rounds`` times, each in a process of its own."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(args.rounds):
        for program in args.program:
            for tracker in [ALONE, *args.tracker]:
                folder = tempfile.mkdtemp(prefix="outlive-track-", dir=args.dir)
                command = [sys.executable, __file__, "--dir", folder, "--one", program, tracker]
                command += ["--mib", str(args.mib), "--steps", str(args.steps)]
                command += ["--interval-ms", str(args.interval_ms)]
                try:
                    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
                finally:
                    shutil.rmtree(folder)
                if done.returncode != 0:
                    raise SystemExit(f"{program}, {tracker}: it failed, as told above")
                found.setdefault((program, tracker), []).append(json.loads(done.stdout))
    results = {one["result"] for runs in found.values() for one in runs if "result" in one}
    if len(results) > 1:
        raise SystemExit(f"HPL computed different things: {results}")
    rows = []
    for (program, tracker), measured in found.items():
        row: dict[str, Any] = {"program": program, "tracker": tracker}
        for key in ("step_s", "step_system_s", "stall_s", "save_cpu_s", "changed_bytes"):
            if key in measured[0]:
                row[key] = statistics.median(one[key] for one in measured)
        # Their spread shows which differences mean something.
        row["steps_s"] = sorted(one["step_s"] for one in measured)
        row["how"] = measured[-1].get("tracker", "")
        row |= {key: measured[-1][key] for key in ("saves", "checked_pages") if key in measured[-1]}
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows for people."""
    alone = {row["program"]: row["step_s"] for row in rows if row["tracker"] == ALONE}
    lines = [
        "| program | tracker | step, ms | slower | stall, ms | CPU a save, ms | changed, MiB |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        slower = row["step_s"] / alone[row["program"]] - 1
        cells = [row["program"], row["tracker"], f"{row['step_s'] * 1e3:.1f}", f"{slower:+.0%}"]
        if "stall_s" in row:
            cells += [f"{row['stall_s'] * 1e3:.1f}", f"{row['save_cpu_s'] * 1e3:.1f}"]
            cells += [f"{row['changed_bytes'] / 2**20:.1f}"]
        else:
            cells += ["", "", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="directory for the pools")
    parser.add_argument("--mib", type=int, default=256, help="size of the states, in MiB")
    parser.add_argument("--steps", type=int, default=10, help="number of steps to measure")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
    parser.add_argument(
        "--program", nargs="+", choices=[*PROGRAMS, HPL], help="programs to run [all]"
    )
    parser.add_argument("--tracker", nargs="+", choices=TRACKERS, default=TRACKERS)
    parser.add_argument(
        "--interval-ms", type=int, default=250, help="milliseconds between saves of HPL"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.add_argument("--one", nargs=2, metavar=("PROGRAM", "TRACKER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        program, tracker = args.one
        print(json.dumps(run(program, tracker, args)))
        return
    if not hpl.is_here():
        if HPL in (args.program or []):
            parser.error(hpl.HOW_TO_GET_IT)
        if args.program is None:
            print(hpl.HOW_TO_GET_IT, file=sys.stderr)
    args.program = args.program or [*PROGRAMS, *([HPL] if hpl.is_here() else [])]
    if HPL in args.program:
        hpl.build_library()
    rows = in_turn(args)
    print(json.dumps(rows, indent=2) if args.json else table(rows))


if __name__ == "__main__":
    main()
