"""Runs lives of a program that saves all the time, kills each by SIGKILL, and checks its successor.

test_kill.py starts it as a program of its own. It imports everything once, and each life is a fork
of it, so that hundreds of lives fit into a minute. It opens no pool itself. Prints a summary as
JSON; its last life ends by itself.

    kill_nursery.py FOLDER LIVES SEED TUNING
"""

import json
import os
import random
import select
import signal
import struct
import sys
import time
import warnings
from typing import Any

import numpy as np

import outlive

warnings.simplefilter("ignore")  # newer Pythons warn of forks
RECORD = struct.Struct("<cQQ")  # what, step, epoch
ROWS = 256


def fill(state: dict[str, Any], step: int) -> None:
    """Fills a state, restored or new, with the values of a step: a function of the step only."""
    rows = np.arange(ROWS)
    # Each step rewrites one row; a row shows the step in which that was last.
    last = np.where(rows <= step % ROWS, step - step % ROWS, step - step % ROWS - ROWS) + rows
    state["rows"][:] = last[:, None] * np.arange(1, 513)
    state["dense"][:] = np.arange(len(state["dense"])) * (step + 1)
    state["small"][:] = step
    state["step"] = step
    state["text"] = f"step {step}" * (step % 5)
    state["list"] = [step] * (step % 7)
    state["rng"].bit_generator.state = np.random.PCG64(step).state


def new() -> dict[str, Any]:
    state = {
        "rows": outlive.zeros((ROWS, 512), np.int64),
        "dense": np.zeros(20_000, np.int64),
        "small": np.zeros(10, np.float32),
        "step": 0,
        "text": "",
        "list": [],
        "rng": np.random.default_rng(0),
    }
    fill(state, 0)
    return state


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    arrays = all(np.array_equal(a[key], b[key]) for key in ("rows", "dense", "small"))
    values = all(a[key] == b[key] for key in ("step", "text", "list"))
    return arrays and values and a["rng"].bit_generator.state == b["rng"].bit_generator.state


def live(folder: str, tell: int, tuning: dict[str, int], steps: int | None, seed: int) -> None:
    """One life: restores, checks, then saves step after step, and reports each event at once."""
    luck = random.Random(seed)
    job = outlive.open(folder, **tuning).job("job")
    state = new()
    if luck.random() < 0.5:
        job.restore(into=state)
    else:
        state = job.restore() or state
    report = job.last_restore
    assert report is not None
    want = new()
    fill(want, state["step"])
    what = b"R" if same(state, want) and not report.skipped else b"X"
    os.write(tell, RECORD.pack(what, state["step"], report.epoch or 0))
    while steps is None or steps > 0:
        steps = None if steps is None else steps - 1
        fill(state, state["step"] + 1)
        os.write(tell, RECORD.pack(b"B", state["step"], 0))
        save = job.save(state)
        if luck.random() < 0.5:
            save.wait()
            os.write(tell, RECORD.pack(b"A", state["step"], save.epoch or 0))
        elif luck.random() < 0.05:
            job.close()
        time.sleep(luck.random() * 0.004)


def main() -> None:
    folder, lives, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    tuning = json.loads(sys.argv[4])
    luck = random.Random(seed)
    begun = {0}
    safe_step = safe_epoch = 0
    counts = {"kills": 0, "before_restore": 0, "acknowledged": 0, "steps": 0, "epoch": 0}
    faults = []
    for life in range(lives + 1):
        last = life == lives
        ear, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ear)
            live(folder, tell, tuning, 5 if last else None, luck.getrandbits(32))
            os._exit(0)
        os.close(tell)
        # A quarter dies while it opens and restores; for the others the clock starts later.
        early = luck.random() < 0.25
        delay_s = (0.06 if early else 0.3) * luck.random()
        deadline = time.monotonic() + delay_s if early else None
        heard = b""
        while True:
            if deadline is None and heard:
                deadline = time.monotonic() + delay_s
            left = None if last or deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            if select.select([ear], [], [], left)[0]:
                part = os.read(ear, 65536)
                if not part:
                    break
                heard += part
        if not last:
            os.kill(child, signal.SIGKILL)
            counts["kills"] += 1
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != (0 if last else -signal.SIGKILL):
            faults.append(f"life {life} ended with {os.waitstatus_to_exitcode(status)}")
        while part := os.read(ear, 65536):
            heard += part
        os.close(ear)
        counts["before_restore"] += not heard
        for what, step, epoch in RECORD.iter_unpack(
            heard[: len(heard) // RECORD.size * RECORD.size]
        ):
            if what == b"B":
                begun.add(step)
                counts["steps"] += 1
                continue
            if what == b"X":
                faults.append(f"life {life}: the restored state is not that of step {step}")
            if step not in begun:
                faults.append(f"life {life}: step {step} was never saved")
            if step < safe_step or epoch < safe_epoch:
                faults.append(
                    f"life {life}: step {step} (epoch {epoch}) after {safe_step} ({safe_epoch})"
                )
            # A restored checkpoint is safe as well: only newer ones can follow it.
            safe_step, safe_epoch = max(step, safe_step), max(epoch, safe_epoch)
            counts["acknowledged"] += what == b"A"
            counts["epoch"] = safe_epoch
    print(json.dumps({**counts, "faults": faults}))


if __name__ == "__main__":
    main()
