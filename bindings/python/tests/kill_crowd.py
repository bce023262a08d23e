"""Runs savers and collectors of one pool side by side; stops and kills each at random moments.

A program of its own, started by test_kill_crowd.py, as kill_nursery.py is by test_kill.py: each
life is a fork of it. Two jobs save nearly the same state all the time, so that they borrow from
each other; `outlive gc`, `prune`, `scrub` and `copy` run beside them, four at a time. Any of them
is held up by SIGSTOP for up to STOPPED_S, and each is ended by SIGKILL. Prints a summary as JSON.

    kill_crowd.py FOLDER SECONDS SEED
"""

import contextlib
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kill_nursery import RECORD, live

from outlive.__main__ import main as command

JOBS = ("left", "right")
COLLECTORS = 4
STOPPED_S = 0.6
ROUNDS = 3
FENCED, RETRY = 5, 6


@dataclass
class Job:
    """What is known of a job's checkpoints."""

    begun: set[int] = field(default_factory=lambda: {0})
    safe_step: int = 0
    safe_epoch: int = 0


@dataclass
class Life:
    """A process: a saver of a job, or a collector."""

    child: int
    ear: int
    deadline: float
    what: str
    heard: bytes = b""
    stopped_until: float | None = None


class Crowd:
    def __init__(self, folder: str, seed: int) -> None:
        self.folder = folder
        self.copies = f"{folder}-copies"
        self.luck = random.Random(seed)
        self.jobs = {name: Job() for name in JOBS}
        self.faults: list[str] = []
        self.counts = {
            "savers_killed": 0,
            "collectors_killed": 0,
            "collectors_done": 0,
            "collectors_told": 0,
            "stopped": 0,
            "acknowledged": 0,
            "restored": 0,
            "peak_bytes": 0,
        }

    def saver(self, name: str, steps: int | None = None) -> Life:
        def work(tell: int) -> int:
            live(self.folder, tell, {}, steps, seed, name)
            return 0

        seed = self.luck.getrandbits(32)
        return self.fork(name, work, 0.7)

    def collector(self, *arguments: str) -> Life:
        def work(tell: int) -> int:
            os.dup2(tell, 1)
            os.dup2(tell, 2)
            sys.argv = ["outlive", *arguments]
            try:
                return int(command() or 0)
            except SystemExit as end:
                return int(end.code or 0)

        return self.fork(" ".join(arguments[:1]), work, 0.5)

    def any_collector(self) -> Life:
        job = self.luck.choice(JOBS)
        which = [
            ("gc", self.folder, "--max-unused", self.luck.choice(("0.001", "5", "50"))),
            ("prune", self.folder, job, "--keep-last", self.luck.choice(("1", "2", "5"))),
            ("scrub", self.folder),
            ("copy", self.folder, self.copies, "--same-history"),
            ("gc", self.copies),
            ("prune", self.copies, job, "--keep-last", "3"),
        ]
        return self.collector(*self.luck.choices(which, (4, 4, 2, 4, 1, 1))[0])

    def fork(self, what: str, work: Callable[[int], int], longest_s: float) -> Life:
        ear, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ear)
            code = 1
            try:
                code = work(tell)
                sys.stdout.flush()
            finally:
                os._exit(code)
        os.close(tell)
        return Life(child, ear, time.monotonic() + longest_s * self.luck.random(), what)

    def listen(self, lives: list[Life], until: float) -> list[Life]:
        """Hears them all until the first one is due or over; answers those that are over."""
        moments = [life.stopped_until or life.deadline for life in lives]
        left = max(0.0, min(until, *moments) - time.monotonic())
        ready = select.select([life.ear for life in lives], [], [], left)[0]
        over = []
        for life in lives:
            if life.ear in ready:
                part = os.read(life.ear, 65536)
                life.heard += part
                if not part:
                    over.append(life)
        return over

    def stop_and_go(self, lives: list[Life], now: float) -> None:
        """Lets those go on that have stood still for long enough, and now and then stops one."""
        for life in lives:
            if life.stopped_until is not None and life.stopped_until <= now:
                os.kill(life.child, signal.SIGCONT)
                life.stopped_until = None
        if self.luck.random() < 0.3:
            life = self.luck.choice(lives)
            if life.stopped_until is None:
                os.kill(life.child, signal.SIGSTOP)
                life.stopped_until = now + STOPPED_S * self.luck.random()
                life.deadline += STOPPED_S
                self.counts["stopped"] += 1

    def end(self, life: Life, kill: bool) -> None:
        if kill:
            os.kill(life.child, signal.SIGKILL)
        while part := os.read(life.ear, 65536):
            life.heard += part
        os.close(life.ear)
        code = os.waitstatus_to_exitcode(os.waitpid(life.child, 0)[1])
        is_saver = life.what in self.jobs
        if is_saver:
            self.judge(life)
        if code == -signal.SIGKILL:
            self.counts["savers_killed" if is_saver else "collectors_killed"] += 1
        elif code in (FENCED, RETRY) and not is_saver:
            self.counts["collectors_told"] += 1
        elif code != 0:
            text = "" if is_saver else life.heard.decode(errors="replace")
            self.faults.append(f"{life.what} ended with {code}: {text}")
        elif not is_saver:
            self.counts["collectors_done"] += 1

    def judge(self, life: Life) -> None:
        job = self.jobs[life.what]
        whole = life.heard[: len(life.heard) // RECORD.size * RECORD.size]
        for what, step, epoch in RECORD.iter_unpack(whole):
            if what == b"B":
                job.begun.add(step)
                continue
            if what == b"X":
                self.faults.append(f"{life.what}: the restored state is not that of step {step}")
            if step not in job.begun:
                self.faults.append(f"{life.what}: step {step} was never saved")
            if step < job.safe_step or epoch < job.safe_epoch:
                self.faults.append(
                    f"{life.what}: step {step} (epoch {epoch}) after {job.safe_step} "
                    f"({job.safe_epoch})"
                )
            job.safe_step = max(step, job.safe_step)
            job.safe_epoch = max(epoch, job.safe_epoch)
            self.counts["acknowledged"] += what == b"A"
            self.counts["restored"] += what == b"R"

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        lives = [self.saver(name) for name in JOBS]
        lives += [self.any_collector() for _ in range(COLLECTORS)]
        while time.monotonic() < until and not self.faults:
            over = self.listen(lives, until)
            now = time.monotonic()
            self.stop_and_go([life for life in lives if life not in over], now)
            for at, life in enumerate(lives):
                if life in over or life.deadline <= now:
                    self.end(life, life not in over)
                    is_saver = life.what in self.jobs
                    lives[at] = self.saver(life.what) if is_saver else self.any_collector()
            peak = max(self.counts["peak_bytes"], bytes_in(self.folder))
            self.counts["peak_bytes"] = peak
        for life in lives:
            self.end(life, True)

    def has_shown_something(self) -> bool:
        """Whether each thing that the test is about has happened at least once."""
        what = ("savers_killed", "collectors_killed", "collectors_done", "acknowledged", "stopped")
        return all(self.counts[name] > 0 for name in what)

    def to_its_end(self, life: Life) -> None:
        while life not in self.listen([life], time.monotonic() + 60):
            life.deadline = time.monotonic() + 60
        self.end(life, False)


def bytes_in(folder: str) -> int:
    total = 0
    for path in Path(folder).rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # it has just gone
            total += path.stat().st_blocks * 512
    return total


def main() -> None:
    folder, seconds, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    crowd = Crowd(folder, seed)
    # There must be pools before anybody can collect.
    for name in JOBS:
        crowd.to_its_end(crowd.saver(name, 2))
    crowd.to_its_end(crowd.collector("pool", "init", crowd.copies))
    crowd.to_its_end(crowd.collector("copy", folder, crowd.copies))
    rounds = 0
    # On a busy machine little happens in the time.
    while rounds < ROUNDS or not (crowd.has_shown_something() or crowd.faults):
        rounds += 1
        crowd.run(seconds / ROUNDS)
        # All are dead; what they have left is whole. (Beside a gc, verify might miss what moves.)
        for pool in (folder, crowd.copies):
            crowd.to_its_end(crowd.collector("verify", pool))
    # Left in peace, each job goes on, and everything is whole; then nothing but that is left.
    for name in JOBS:
        crowd.to_its_end(crowd.saver(name, 3))
    crowd.to_its_end(crowd.collector("verify", folder))
    for name in JOBS:
        crowd.to_its_end(crowd.collector("prune", folder, name, "--keep-last", "1"))
    fences = [argument for name in JOBS for argument in ("--fence", name)]
    for _ in range(2):
        crowd.to_its_end(crowd.collector("gc", folder, "--max-unused", "0.001", *fences))
    crowd.to_its_end(crowd.collector("verify", folder))
    for name in JOBS:
        crowd.to_its_end(crowd.saver(name, 0))
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    counts = {
        **crowd.counts,
        "left_bytes": bytes_in(folder),
        "left_files": len(files),
        "left_overs": sum(
            path.suffix == ".part" or path.name.startswith(".tmp-") for path in files
        ),
        "steps": {name: job.safe_step for name, job in crowd.jobs.items()},
        "faults": crowd.faults,
    }
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
