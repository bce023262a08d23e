"""Runs the program of `useful.program`, kills it, and reads what it notes."""

import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers import machine
from useful.model import Costs

# Pause before a restart without `outlive run`, which makes the same one.
PAUSE_S = 0.1
LOOK_S = 0.01
# The history of a job has no more attempts.
ATTEMPTS_MAX = 1000
PROGRAM = Path(__file__).with_name("program.py")
Line = dict[str, Any]


@dataclass
class Killed:
    """A program that ran for a window while a killer killed it."""

    seconds: float
    steps: int
    kills: int
    lost_steps: list[int] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    restarts_s: list[float] = field(default_factory=list)
    saves: int = 0
    every_s: float | None = None
    others: float = 0.0


def command(folder: Path, settings: dict[str, Any], every: str | None) -> list[str]:
    """Returns the command of the program, supervised if `every` is given."""
    words = [sys.executable, str(PROGRAM), str(folder), json.dumps(settings)]
    if every is None:
        return words
    pool = ["--pool", str(folder / "pool"), "--job", "job"]
    # A helper would keep saves that have returned. The model counts those that are durable.
    options = ["--every", every, "--give-up", "100", "--no-helper"]
    return [sys.executable, "-m", "outlive", "run", *pool, *options, "--", *words]


def noted(folder: Path) -> list[Line]:
    """Returns the whole lines of the log."""
    path = folder / "log"
    text = path.read_text() if path.exists() else ""
    return [json.loads(entry) for entry in text.split("\n")[:-1]]


def write_history(folder: Path, failures: int, mean_s: float, chance: random.Random) -> None:
    """Writes a history of failures at exponential times, as if the job had run before."""
    host = Path("/proc/sys/kernel/hostname").read_text().strip()
    attempts = []
    for _ in range(min(failures, ATTEMPTS_MAX)):
        ran_s = chance.expovariate(1 / mean_s)
        attempts.append({
            "host": host, "supervisor": 1, "attempt": 1, "started_ns": 1, "ran_s": ran_s,
            "committed_s": ran_s / 2, "cause": {"killed": 9}, "restored": None, "newest": None,
            "commits": 1, "distrusted": None,
        })  # fmt: skip
    path = folder / "pool" / "run" / "job.history"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"attempts": attempts}))


def init_pool(folder: Path) -> None:
    """Makes an empty pool."""
    words = [sys.executable, "-m", "outlive", "pool", "init", str(folder / "pool")]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def reference(folder: Path, settings: dict[str, Any], seconds: float) -> Line:
    """Runs the program without saves and kills; returns its times for a step."""
    folder.mkdir()
    plain = settings | {"way": "none", "window_s": seconds}
    with machine.others() as found:
        subprocess.run(command(folder, plain, None), check=True)
    lines = noted(folder)
    shutil.rmtree(folder)
    ready = next(entry["at"] for entry in lines if entry["event"] == "restored")
    end = lines[-1]
    wall_s = (end["at"] - ready) / end["step"]
    return {"step_s": wall_s, "cpu_s": end["cpu_s"], "others": found["others_share"]}


def killed(
    folder: Path, settings: dict[str, Any], every: str | None, mean_s: float, window_s: float,
    chance: random.Random,
) -> Killed:  # fmt: skip
    """Runs the program for a window, kills it at exponential times, and lets it end."""
    kills: list[tuple[float, int]] = []
    log, seen, size_seen, pid = folder / "log", 0, 0, 0
    gap_s = chance.expovariate(1 / mean_s)
    kill_at: float | None = None
    deadline: float | None = None
    words = command(folder, settings | {"window_s": window_s}, every)
    with machine.others() as found:
        process = subprocess.Popen(words)
        try:
            while True:
                code = process.poll()
                if code == -signal.SIGKILL and every is None:
                    time.sleep(PAUSE_S)
                    process = subprocess.Popen(words)
                elif code is not None:
                    break
                size = log.stat().st_size if log.exists() else 0
                # The log is read only if it has grown: this process must not disturb the program.
                lines = noted(folder) if size > size_seen else []
                for entry in lines[seen:]:
                    if entry["event"] == "start":
                        pid, kill_at = entry["pid"], entry["at"] + gap_s
                    elif entry["event"] == "restored" and deadline is None:
                        # The first process makes the state, which does not count.
                        deadline, kill_at = entry["at"] + window_s, entry["at"] + gap_s
                seen, size_seen = max(seen, len(lines)), size
                now = time.monotonic()
                if deadline is not None and kill_at is not None and kill_at <= now < deadline:
                    step = struct.unpack("<q", (folder / "step").read_bytes())[0]
                    os.kill(pid, signal.SIGKILL)
                    kills.append((now, step))
                    kill_at, gap_s = None, chance.expovariate(1 / mean_s)
                time.sleep(LOOK_S)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if code != 0:
        raise RuntimeError(f"the program has ended with {code}")
    return told(noted(folder), kills, found["others_share"])


def told(lines: Sequence[Line], kills: Sequence[tuple[float, int]], busy: float) -> Killed:
    """Returns what the lines of a program tell that was killed at these times and steps."""
    starts = [entry["at"] for entry in lines if entry["event"] == "start"]
    restored = [entry for entry in lines if entry["event"] == "restored"]
    saves = [entry for entry in lines if entry["event"] == "save"]
    end = lines[-1]
    result = Killed(end["at"] - restored[0]["at"], end["step"], len(kills), others=busy)
    for at, step in kills:
        start = next(start for start in starts if start > at)
        result.pauses_s.append(start - at)
        # A kill may come before the restore is over. Then the next one counts.
        ready = next(entry for entry in restored if entry["at"] > start)
        result.restarts_s.append(ready["at"] - start)
        result.lost_steps.append(step - ready["step"])
    result.saves = len(saves)
    later = [entry["work_s"] for entry in saves if not entry["is_first"]]
    result.every_s = statistics.median(later) if later else None
    return result


def lives(folder: Path, settings: dict[str, Any], count: int) -> list[list[Line]]:
    """Runs measured lives, each of which kills itself; returns the lines of each."""
    (folder / "log").unlink(missing_ok=True)
    for _ in range(count):
        done = subprocess.run(command(folder, settings, None), check=False)
        if done.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the program has ended with {done.returncode}")
    each: list[list[Line]] = []
    for entry in noted(folder):
        if entry["event"] == "start":
            each.append([])
        each[-1].append(entry)
    return each


def costs_of(
    each: Sequence[Sequence[Line]], cpu_s: float, full_s: float, saves_first: bool
) -> tuple[Costs, dict[str, Any]]:
    """Returns the costs that lives have measured, and their medians by interval.

    The first life makes the state. Later ones restore it, so only they count.
    """

    def of(entry: Line) -> float:
        cost_s: float = entry["stall_s"] + entry["excess_s"]
        return cost_s

    restarts, fills, firsts, later, overheads = [], [], [], [], []
    for life in each[1:]:
        start, restored = life[0]["at"], life[1]["at"]
        fills += [
            entry["seconds"] - entry["steps"] * life[-1]["step_s"]
            for entry in life
            if entry["event"] == "filled"
        ]
        restarts.append(restored - start)
        saves = [entry for entry in life if entry["event"] == "save"]
        firsts += [entry for entry in saves if entry["is_first"]]
        later += [entry for entry in saves if not entry["is_first"]]
        alone = [entry["alone"] for entry in saves] + [life[-1]]
        steps = alone[-1]["steps"] - alone[0]["steps"]
        if steps > 0:
            used = [it["cpu_s"] * it["steps"] for it in (alone[0], alone[-1])]
            overheads.append((used[1] - used[0]) / steps / cpu_s - 1)
    classes: dict[float, list[Line]] = {}
    for entry in later:
        classes.setdefault(entry["wanted_s"], []).append(entry)
    rows = [
        {
            "work_s": statistics.median(entry["work_s"] for entry in some),
            "stall_s": statistics.median(entry["stall_s"] for entry in some),
            "slowdown_s": statistics.median(entry["excess_s"] for entry in some),
            "cost_s": statistics.median(map(of, some)),
            "latency_s": statistics.median(entry["latency_s"] for entry in some),
            "saves": len(some),
        }
        for _, some in sorted(classes.items())
    ]
    overhead = statistics.median(overheads) if overheads else 0.0
    first_s = max(statistics.median(map(of, firsts)), 0.0) if saves_first else 0.0
    fill_s = statistics.median(fills) if fills else 0.0
    costs = Costs(
        pause_s=PAUSE_S, restart_s=statistics.median(restarts) + fill_s, first_s=first_s,
        costs=[(row["work_s"], row["cost_s"]) for row in rows],
        latencies=[(row["work_s"], row["latency_s"]) for row in rows],
        full_s=full_s, overhead=max(overhead, 0.0),
    )  # fmt: skip
    measured = {"overhead_measured": overhead, "slowdown_of_fill_s": fill_s}
    return costs, {"by_interval": rows, **measured}


def chosen(folder: Path, settings: dict[str, Any], seconds: float) -> Line:
    """Runs the program under `outlive run --every auto`; returns its last choice."""
    for name in ("log", "deadline"):
        (folder / name).unlink(missing_ok=True)
    plain = settings | {"window_s": seconds}
    subprocess.run(command(folder, plain, "auto"), check=True)
    saves = [entry for entry in noted(folder) if entry["event"] == "save"]
    choice: Line = saves[-1]["chosen"]
    return choice
