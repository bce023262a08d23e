"""The program that is killed: a state in memory, steps that compute and change some of its pages.

`bench/useful_work.py` starts it, as `program.py FOLDER SETTINGS`, where SETTINGS is a JSON object:

- `way`: "outlive", "whole" (all bytes to a new file, with fsync and rename) or "none";
- `state_bytes`, and `pages_per_step`, the number of pages that each step changes;
- `stride`: number of pages from one changed page to the next, modulo all;
- `lazy`: whether a restore returns at once, and memory comes while the program runs;
- `keep_last`: number of checkpoints to keep, or 0 for all;
- `freeze_bytes_max`: memory for copies of changed pages, or 0 for that of the pool;
- `every_s`: seconds between saves, unless `outlive run --every` says otherwise;
- `works_s`: seconds of work before each of the saves of a measurement; then the program kills
  itself;
- `window_s`: without `works_s`, the time from the first step of the first process until the program
  ends, after a last save.

It writes one JSON object a line to FOLDER/log, and the number of its step to FOLDER/step.
"""

import json
import mmap
import os
import signal
import struct
import sys
import time

STARTED = time.monotonic()

# The imports count as part of the start.
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

# The program computes on one core; the saver may have the other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402

import outlive  # noqa: E402

PAGE_BYTES = 4096
WORDS = PAGE_BYTES // 8
PART_WORDS = 1 << 24
MATRIX = 192
PRODUCTS = 8
# Steps that take longer count as this many usual ones: the process was not running.
LONG = 10.0
UNDISTURBED = 400


class Watch:
    """Times of steps beside saves, and of those without one."""

    def __init__(self) -> None:
        """Has seen no step."""
        self.alone: list[tuple[float, float]] = []
        self.beside: list[float] = []
        self.total = [0, 0.0, 0.0]

    def add(self, wall_s: float, cpu_s: float, is_beside: bool) -> None:
        """Adds a step: its time, and that of its thread on a processor."""
        if is_beside:
            self.beside.append(wall_s)
            return
        self.alone.append((wall_s, cpu_s))
        del self.alone[:-UNDISTURBED]
        self.total = [self.total[0] + 1, self.total[1] + wall_s, self.total[2] + cpu_s]

    def excess(self) -> tuple[float, int]:
        """Returns by how much the steps beside the save took longer, and forgets them."""
        steps, self.beside = self.beside, []
        if not self.alone:
            return 0.0, 0
        walls = sorted(wall for wall, _ in self.alone)
        most = walls[len(walls) // 2] * LONG
        usual = sum(min(wall, most) for wall in walls) / len(walls)
        return sum(min(step, most) - usual for step in steps), len(steps)

    def means(self) -> dict[str, float]:
        """Returns the mean times of the steps without a save."""
        count = max(self.total[0], 1)
        return {"steps": count, "step_s": self.total[1] / count, "cpu_s": self.total[2] / count}


class Program:
    """The state, and the way to save it."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """Opens the log."""
        self.folder, self.settings = folder, settings
        self._log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.note("start", at=STARTED, pid=os.getpid())
        path = folder / "step"
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(8)
            self._step = mmap.mmap(file.fileno(), 8)
        words = outlive.empty((settings["state_bytes"] // 8,), dtype=np.uint64)
        self.pages = words.reshape(-1, WORDS)
        self.state: dict[str, Any] = {"words": words, "step": 0}
        self.file = folder / "whole"
        self.job: outlive.Job | None = None
        self.filling: outlive.LazyRestored | None = None
        if settings["way"] == "outlive":
            freeze_bytes_max = settings["freeze_bytes_max"] or None
            pool = outlive.open(folder / "pool", freeze_bytes_max=freeze_bytes_max)
            keep_last = settings["keep_last"] or None
            self.job = pool.job("job", every_s=settings["every_s"], keep_last=keep_last)

    def note(self, event: str, **more: Any) -> None:
        """Appends a line to the log."""
        line = json.dumps({"event": event, **more}) + "\n"
        os.write(self._log, line.encode())

    def begin(self) -> None:
        """Restores the state, or makes a new one."""
        if not self.restore():
            rng = np.random.default_rng(1)
            words = self.state["words"]
            for part in np.array_split(words, max(1, len(words) // PART_WORDS)):
                part[:] = rng.integers(0, 1 << 63, len(part), dtype=np.uint64)
            self.pages[:, 0] = 0
        now = time.monotonic()
        self.note("restored", at=now, step=self.state["step"])
        # The first process sets the end for all.
        path = self.folder / "deadline"
        if not path.exists():
            path.write_text(str(now + self.settings.get("window_s", 0.0)))
        self.deadline = float(path.read_text())

    def restore(self) -> bool:
        """Restores the state, if it was saved."""
        if self.job is not None:
            if not self.settings["lazy"]:
                return bool(self.job.restore(into=self.state))
            self.filling = self.job.restore(into=self.state, lazy=True)
            return bool(self.filling)
        if self.settings["way"] == "none" or not self.file.exists():
            return False
        with self.file.open("rb", buffering=0) as file:
            self.state["step"] = struct.unpack("<q", file.read(8))[0]
            view, at = memoryview(self.state["words"]).cast("B"), 0
            while at < len(view):
                at += file.readinto(view[at : at + (1 << 30)]) or sys.exit("the file is short")
        return True

    def write(self) -> "Written":
        """Writes all bytes as `torch.save` does, and makes them durable."""
        began = time.monotonic()
        new = self.file.with_suffix(".new")
        with new.open("wb", buffering=0) as file:
            file.write(struct.pack("<q", self.state["step"]))
            view, at = memoryview(self.state["words"]).cast("B"), 0
            while at < len(view):
                at += file.write(view[at : at + (1 << 30)]) or 0
            os.fsync(file.fileno())
        new.rename(self.file)
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return Written(time.monotonic() - began, self.settings["state_bytes"])

    def step(self) -> None:
        """Computes, and changes some pages."""
        for _ in range(PRODUCTS):
            np.matmul(LEFT, RIGHT)
        count, step = self.settings["pages_per_step"], self.state["step"]
        order = np.arange(step * count, (step + 1) * count) % len(self.pages)
        self.pages[order * self.settings["stride"] % len(self.pages), 0] += np.uint64(1)
        self.state["step"] = step + 1
        self._step[:] = struct.pack("<q", step + 1)

    def check(self) -> None:
        """Ends with an error unless each page has changed as often as it should."""
        made = self.state["step"] * self.settings["pages_per_step"]
        times = self.pages[:, 0]
        if not self.pages[:, 1].all():
            sys.exit("the state is wrong: pages are empty")
        if int(times.sum()) != made or int(times.max()) - int(times.min()) > 1:
            sys.exit("the state is wrong: steps are missing, or were made twice")


LEFT = np.random.default_rng(2).random((MATRIX, MATRIX))
RIGHT = np.random.default_rng(3).random((MATRIX, MATRIX))


class Written:
    """A save by `Program.write`, which is over when the program goes on."""

    def __init__(self, took_s: float, state_bytes: int) -> None:
        """Takes its time."""
        self.total_s, self.changed_bytes, self.interval = took_s, state_bytes, None

    def done(self) -> bool:
        """Returns True."""
        return True

    def wait(self) -> "Written":
        """Returns its figures."""
        return self


class Run:
    """Makes steps and saves until the deadline, or until all saves of a measurement are over."""

    def __init__(self, program: Program) -> None:
        """Begins behind the restore."""
        self.program, self.watch = program, Watch()
        self.settings = program.settings
        self.works: list[float] | None = self.settings.get("works_s")
        self.last = time.monotonic()
        self.saving: Any = None
        self.facts: dict[str, Any] = {}
        self.wanted_s: float | None = None
        self.is_first = True
        self.filled = {"steps": 0, "seconds": 0.0}

    def is_over(self) -> bool:
        """Returns whether the program should end."""
        if self.works is not None:
            return not self.works and self.saving is None
        return self.last_step >= self.program.deadline

    def save(self, work_s: float) -> Any:
        """Saves if it is time; returns the save."""
        job, state = self.program.job, self.program.state
        if self.works is None and job is not None:
            return job.save(state) or None
        wanted_s = self.works[0] if self.works else self.settings["every_s"]
        if self.settings["way"] == "none" or self.saving is not None or work_s < wanted_s:
            return None
        if self.works is not None:
            if not self.works:
                return None
            del self.works[0]
            self.wanted_s = wanted_s
        return self.program.write() if job is None else job.save(state, force=True)

    def durable(self) -> None:
        """Notes a save that is over, and the steps beside it."""
        if self.saving is None:
            return
        stats = self.saving.wait()
        excess_s, steps = self.watch.excess()
        interval = stats.interval
        chosen = {} if interval is None else {"seconds": interval.seconds, "why": interval.reasons}
        made = {"latency_s": stats.total_s, "changed_bytes": stats.changed_bytes}
        beside = {"excess_s": excess_s, "beside": steps, "alone": self.watch.means()}
        self.program.note("save", **self.facts, **made, **beside, chosen=chosen)
        self.saving = None

    def fill(self, took_s: float) -> bool:
        """Notes a step during a lazy restore; returns False once all memory is there."""
        filling = self.program.filling
        if filling is None:
            return False
        self.filled["steps"] += 1
        self.filled["seconds"] += took_s
        if not filling.done:
            return True
        self.program.note("filled", **self.filled)
        self.program.filling = None
        if self.works is not None:
            self.last = time.monotonic()
        return False

    def run(self) -> None:
        """Runs to the end."""
        self.last_step = self.last
        while not self.is_over():
            wall, cpu = time.perf_counter(), time.thread_time()
            self.program.step()
            took = time.perf_counter() - wall
            if self.fill(took) and self.works is not None:
                continue
            self.watch.add(took, time.thread_time() - cpu, self.saving is not None)
            if self.saving is not None and self.saving.done():
                self.durable()
            now = self.last_step = time.monotonic()
            saved = self.save(now - self.last)
            if saved is not None:
                self.durable()  # the one before, if it ended during the call
                stall_s = time.monotonic() - now
                self.facts = {
                    "work_s": now - self.last,
                    "wanted_s": self.wanted_s,
                    "stall_s": stall_s,
                    "is_first": self.is_first,
                }
                self.is_first, self.saving, self.last = False, saved, now + stall_s


def end(program: Program, watch: Watch) -> None:
    """Saves for the last time, and notes the end."""
    if program.job is not None:
        program.job.save(program.state, force=True).wait()
        program.job.close()
    elif program.settings["way"] == "whole":
        program.write()
    program.note("end", at=time.monotonic(), step=program.state["step"], **watch.means())
    program.check()


def main() -> None:
    """Restores, and runs."""
    program = Program(Path(sys.argv[1]), json.loads(sys.argv[2]))
    program.begin()
    run = Run(program)
    run.run()
    if run.works is not None:
        program.note("alone", at=time.monotonic(), **run.watch.means())
        os.kill(os.getpid(), signal.SIGKILL)
    end(program, run.watch)


if __name__ == "__main__":
    main()
