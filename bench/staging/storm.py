"""Storage nodes that are killed, cut off, stopped and slowed down while a program saves.

    .venv/bin/python bench/staging/storm.py DIR [--runs 30] [--seed 1]

Four machines are network namespaces: three nodes of a pool with `--erasure 2+1`, each on a loop
device, and one machine with a program. The program saves again and again, checks what it restores,
and writes down each commit before it goes on. Each run chooses a node, an event and what goes on
meanwhile (saves, a restore, a repair). Afterwards the newest commit that was written down must come
back, and no call may have taken longer than `LONGEST_S`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH))

from staging import hosts  # noqa: E402
from staging.main import PORT, set_limits  # noqa: E402
from striped import devices  # noqa: E402

NODES = 3
# The longest time-out of docs/node.md is 8 s; a call may meet it for each of two connections, and
# a save needs some calls one after the other.
LONGEST_S = 60
# The longest pause before a node comes back.
AWAY_S = 12
SLOW_BYTES_PER_S = 2 << 20

PROGRAM = """
import json, sys, time
import numpy as np
import outlive

pool, commits = sys.argv[1:]
job = outlive.open(pool).job("job", on_failure="warn")
state = {"step": 0, "a": outlive.zeros(2 << 20)}
began = time.monotonic()
job.restore(into=state)
taken = time.monotonic() - began
print(json.dumps({"restored": int(state["step"]), "s": taken}), flush=True)
words = state["a"].view(np.uint64)
assert (words == state["step"]).all(), "parts of two steps came back"
with open(commits, "a") as log:
    while True:
        state["step"] += 1
        words[:] = state["step"]
        began = time.monotonic()
        try:
            save = job.save(state, wait=True, metrics={"step": state["step"]})
        except outlive.RetryError as error:
            save = None
        taken = time.monotonic() - began
        if save and any(it.metrics.get("step") == state["step"] for it in job.epochs()):
            log.write(f"{state['step']}\\n")
            log.flush()
        print(json.dumps({"s": taken}), flush=True)
"""


class Storm:
    """Three nodes and a program."""

    def __init__(self, folder: Path, machines: list[hosts.Host], disks: list[Path], seed: int):
        """Starts the nodes, and makes the pool."""
        self.folder, self.machines, self.disks = folder, machines, disks
        self.chance = random.Random(seed)
        self.outlive = shutil.which(
            "outlive", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        )
        self.nodes: list[subprocess.Popen[str] | None] = [None] * NODES
        self.pool, self.commits = folder / "pool", folder / "commits"
        self.commits.touch()
        for number in range(NODES):
            self.start(number)
        words: list[object] = []
        for host in machines[:NODES]:
            words += ["--target", f"node://{host.address}:{PORT}/t"]
        self.run("pool", "init", self.pool, "--erasure", "2+1", *words)

    def run(self, *words: object, may_fail: bool = False) -> subprocess.CompletedProcess[str]:
        """Runs a command on the machine of the program."""
        command = self.machines[NODES].words(self.outlive, *words)
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        taken = time.monotonic() - began
        if done.returncode != 0 and not may_fail:
            raise SystemExit(f"{words}: {done.stderr}")
        if taken > LONGEST_S:
            raise SystemExit(f"{words} took {taken:.0f} s")
        return done

    def start(self, number: int) -> None:
        """Starts a node."""
        host, data = self.machines[number], self.disks[number] / "node"
        data.mkdir(exist_ok=True)
        words = ["node", "serve", "--data", data, "--insecure"]
        at = f"{host.address}:{PORT}"
        log = (self.folder / f"node{number}.log").open("a")
        node = subprocess.Popen(
            host.words(self.outlive, *words, "--listen", at),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert node.stdout is not None
        assert node.stdout.readline().startswith("The node")
        self.nodes[number] = node

    def end(self, number: int) -> None:
        """Kills a node."""
        node = self.nodes[number]
        if node is not None:
            node.kill()
            node.wait()
            self.nodes[number] = None

    @contextlib.contextmanager
    def kill(self, number: int) -> Iterator[None]:
        """Kills a node, and starts it again."""
        self.end(number)
        yield
        self.start(number)

    @contextlib.contextmanager
    def cut(self, number: int) -> Iterator[None]:
        """Takes the link of a node down, and up again."""
        self.machines[number].link("down")
        yield
        self.machines[number].link("up")

    @contextlib.contextmanager
    def stop(self, number: int) -> Iterator[None]:
        """Stops a node, and lets it go on."""
        node = self.nodes[number]
        assert node is not None
        node.send_signal(signal.SIGSTOP)
        yield
        node.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def slow(self, number: int) -> Iterator[None]:
        """Slows the disk of a node down."""
        set_limits([self.disks[number]], SLOW_BYTES_PER_S)
        yield
        set_limits([self.disks[number]], 0)

    def last_commit(self) -> int:
        """Returns the last step that was written down."""
        lines = self.commits.read_text("utf-8").split()
        return int(lines[-1]) if lines else 0

    def program(self) -> subprocess.Popen[str]:
        """Starts the program, and checks what it restores."""
        words = [sys.executable, "-c", PROGRAM, self.pool, self.commits]
        environment = ["env", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}"]
        committed = self.last_commit()
        program = self.machines[NODES].start(*environment, *words)
        reply = self.answer(program)
        if reply["restored"] < committed:
            raise SystemExit(f"step {committed} was committed, and {reply['restored']} came back")
        return program

    def answer(self, program: subprocess.Popen[str]) -> dict[str, Any]:
        """Waits for a line of the program."""
        assert program.stdout is not None
        line = program.stdout.readline()
        if not line:
            raise SystemExit("the program has ended; its error is above")
        reply: dict[str, Any] = json.loads(line)
        if reply["s"] > LONGEST_S:
            raise SystemExit(f"a call took {reply['s']:.0f} s")
        return reply

    def one(self) -> tuple[str, float]:
        """One run; returns its name and the longest call."""
        events: list[Callable[[int], contextlib.AbstractContextManager[None]]] = [
            self.kill,
            self.cut,
            self.stop,
            self.slow,
        ]
        event = self.chance.choice(events)
        work = self.chance.choice(["saves", "restore", "repair"])
        number = self.chance.randrange(NODES)
        longest = 0.0
        program = self.program()
        try:
            for _ in range(self.chance.randrange(1, 4)):
                longest = max(longest, self.answer(program)["s"])
            with event(number):
                if work == "restore":
                    program.kill()
                    program.communicate()
                    program = self.program()
                elif work == "repair":
                    self.run("pool", "repair", self.pool, may_fail=True)
                ends = time.monotonic() + self.chance.uniform(0, AWAY_S)
                for _ in range(50):
                    longest = max(longest, self.answer(program)["s"])
                    if time.monotonic() > ends:
                        break
            for _ in range(2):
                longest = max(longest, self.answer(program)["s"])
        finally:
            program.kill()
            program.communicate()
        program = self.program()
        program.kill()
        program.communicate()
        self.repair()
        return f"{event.__name__} node {number + 1} beside {work}", longest

    def repair(self) -> None:
        """Makes again what the lost node lacks: otherwise the next event would be a second loss."""
        for _ in range(20):
            if self.run("pool", "repair", self.pool, may_fail=True).returncode == 0:
                return
        raise SystemExit(self.run("pool", "repair", self.pool, may_fail=True).stderr)

    def whole(self) -> None:
        """Checks all of the pool."""
        self.run("prune", self.pool, "job", "--keep-last", "3", "--fence", "job")
        self.run("verify", self.pool)


def main() -> None:
    """Runs all, and prints each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    devices.check()
    with contextlib.ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="storm-", dir=args.dir))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        disks = undo.enter_context(devices.throttled(folder, NODES, 0))
        machines = undo.enter_context(hosts.network(NODES + 1))
        storm = Storm(folder, machines, disks, args.seed)
        for number in range(NODES):
            undo.callback(storm.end, number)
        for run in range(args.runs):
            name, longest = storm.one()
            print(f"{run + 1:3}  {name:30} longest call {longest:5.1f} s", flush=True)
            if (run + 1) % 10 == 0:
                storm.whole()
        storm.whole()
        if storm.last_commit() < args.runs:
            raise SystemExit(f"only {storm.last_commit()} steps were committed in all")
        print(f"{args.runs} runs, {storm.last_commit()} steps: nothing committed was lost")


if __name__ == "__main__":
    main()
