"""Kills a program under `outlive run` at random moments, and compares what it has printed.

usage: run_gate_nursery.py FOLDER KILLS SEED gate|bare [LIVES]

The program knows nothing of a gate: in each step it prints a line to standard output and one to
standard error, and saves. The command starts it LIVES times (10) in a row, each as a fork of a
process without threads, and is killed itself then: `outlive run` starts it again. The last line is
a JSON object with the faults: lines that are missing, come twice, or are out of order.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import outlive

MORE = 20
TITLE = "step"


def program(folder: Path, last: int | None) -> None:
    """Prints and saves, until step `last` or forever."""
    print(TITLE)
    print(TITLE, file=sys.stderr)
    job = outlive.open(folder / "pool").job("lines", keep_last=3)
    state: dict[str, Any] = {"step": 0, "u": np.zeros(1 << 14)}
    job.restore(into=state)
    while last is None or state["step"] < last:
        state["step"] += 1
        state["u"][state["step"] % len(state["u"])] = state["step"]
        print(state["step"])
        print("error", state["step"], file=sys.stderr)
        save = job.save(state)
        if not (folder / "begun").exists():
            save.wait()
            (folder / "begun").touch()
    if last is not None:
        print("end", last)
        job.close()


def live(folder: Path, last: int | None) -> int:
    """Runs the program in a forked child; returns its id."""
    child = os.fork()
    if child:
        return child
    try:
        program(folder, last)
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        code = 1
    # Exit functions of this process are not the child's.
    os._exit(code)


def reached(folder: Path) -> int:
    """Returns the newest step that is saved."""
    child = os.fork()
    if child == 0:
        # Not under the supervisor: this is no restore of the program.
        os.environ["OUTLIVE_RUN_JOB"] = ""
        tree = outlive.open(folder / "pool").job("lines").restore() or {"step": 0}
        (folder / "reached").write_text(str(tree["step"]))
        os._exit(0)
    os.waitpid(child, 0)
    return int((folder / "reached").read_text())


def command(folder: Path, kills: int, seed: int, lives: int) -> None:
    """Starts the program, and kills it; lets it end once it was killed often enough."""
    done = folder / "killed"
    before = done.stat().st_size if done.exists() else 0
    chance = random.Random(seed + before)
    for life in range(before, min(before + lives, kills)):
        child = live(folder, None)
        # Without any checkpoint only `outlive run` can tell that the next life begins again.
        while not (folder / "begun").exists():
            time.sleep(0.01)
        time.sleep(chance.choice((0.02, 0.1, 0.2)) * chance.random())
        # A life that has ended by itself is a fault, and counts as none.
        is_alive = os.waitpid(child, os.WNOHANG) == (0, 0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with done.open("a") as file:
            file.write("k" if is_alive else "-")
        if life + 1 == before + lives and life + 1 < kills:
            os.kill(os.getpid(), signal.SIGKILL)
    last = reached(folder) + MORE
    (folder / "last").write_text(str(last))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(live(folder, last), 0)[1]))


def faults(got: str, want: list[str]) -> int:
    """Counts the lines that differ from those of an undisturbed run."""
    lines = [line for line in got.splitlines() if not line.startswith("outlive run: ")]
    wrong = sum(1 for a, b in zip(lines, want, strict=False) if a != b)
    return wrong + abs(len(lines) - len(want))


def main() -> None:
    """Runs the command under `outlive run`, and prints the faults."""
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    way, lives = sys.argv[4], int(sys.argv[5]) if len(sys.argv) > 5 else 10
    if way == "command":
        return command(folder, kills, seed, lives)
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "outlive", "run", "--pool", str(folder / "pool")]
    words += ["--job", "lines", "--give-up", "1000", *(["--gate"] if way == "gate" else [])]
    words += ["--", sys.executable, __file__, *sys.argv[1:4], "command", str(lives)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    killed = (folder / "killed").read_text()
    last = int((folder / "last").read_text())
    steps = range(1, last + 1)
    out = [TITLE, *(str(step) for step in steps), f"end {last}"]
    err = [TITLE, *(f"error {step}" for step in steps)]
    found = {"stdout": faults(done.stdout, out), "stderr": faults(done.stderr, err)}
    left = [entry.name for entry in (folder / "pool/run").glob("*transcripts*")]
    result = {"code": done.returncode, "killed": killed.count("k"), "last": last}
    print(done.stderr, file=sys.stderr)
    print(json.dumps({**result, "faults": found, "left": left}))


if __name__ == "__main__":
    main()
