"""Storage nodes that fail, or are cut off or slow, beside saves, restores and repairs.

    .venv/bin/python bench/staging/storm.py DIR [--runs 48] [--seed 1] [--json]

Four machines are network namespaces: three nodes of a pool with `--erasure 2+1`, each on a loop
device of `DISK_BYTES_PER_S`, and one machine with a program. The program saves again and again,
checks what it restores, and writes down each commit before it goes on. Each run takes the next pair
of an event and a work, and a node by chance. The event comes at a random moment of a restore or a
repair; before a repair, half of the shards of a node are deleted, so that it has work. Afterwards
the newest commit that was written down must come back, and no call may have taken longer than
`LONGEST_S`: the storm ends a call that does, and fails.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
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
DISK_BYTES_PER_S = 40 << 20
SLOW_BYTES_PER_S = 2 << 20

WORKS = ("saves", "restore", "repair")

PROGRAM = """
import json, sys, time
import numpy as np
import outlive

pool, commits = sys.argv[1:]
job = outlive.open(pool).job("job", on_failure="warn")
state = {"step": 0, "a": outlive.zeros(4 << 20)}
print(json.dumps({"begins": True, "s": 0}), flush=True)
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


class Program:
    """The program that saves, and the lines that it writes."""

    def __init__(self, process: subprocess.Popen[str]):
        """Reads along."""
        self.process = process
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        """Takes each line as it comes; the last one is empty."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def answer(self) -> dict[str, Any]:
        """Waits for a line, no longer than a call may take."""
        try:
            line = self.lines.get(timeout=LONGEST_S)
        except queue.Empty:
            raise SystemExit(f"a call took more than {LONGEST_S} s") from None
        if not line:
            raise SystemExit("the program has ended; its error is above")
        reply: dict[str, Any] = json.loads(line)
        # It may have begun before this wait.
        if reply["s"] > LONGEST_S:
            raise SystemExit(f"a call took {reply['s']:.0f} s")
        return reply

    def end(self) -> None:
        """Kills it."""
        self.process.kill()
        self.process.wait()


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
        self.restore_s, self.repair_s = 0.5, 0.5
        self.events: dict[str, Callable[[int], contextlib.AbstractContextManager[None]]] = {
            "kill -9": self.kill,
            "link down": self.cut,
            "SIGSTOP": self.stop,
            "slow disk": self.slow,
        }
        for number in range(NODES):
            self.start(number)
        words: list[object] = []
        for host in machines[:NODES]:
            words += ["--target", f"node://{host.address}:{PORT}/t"]
        self.run("pool", "init", self.pool, "--erasure", "2+1", *words)

    def begin(self, *words: object) -> subprocess.Popen[str]:
        """Starts a command on the machine of the program."""
        command = self.machines[NODES].words(self.outlive, *words)
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)

    def finish(self, done: subprocess.Popen[str]) -> tuple[int, str]:
        """Waits for a command, no longer than a call may take."""
        try:
            _, err = done.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired as late:
            done.kill()
            raise SystemExit(str(late)) from None
        return done.returncode, err

    def run(self, *words: object) -> None:
        """Runs a command that must succeed."""
        code, err = self.finish(self.begin(*words))
        if code != 0:
            raise SystemExit(f"{words}: {err}")

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
        set_limits([self.disks[number]], DISK_BYTES_PER_S)

    def last_commit(self) -> int:
        """Returns the last step that was written down."""
        lines = self.commits.read_text("utf-8").split()
        return int(lines[-1]) if lines else 0

    def program(self) -> Program:
        """Starts the program, up to the moment before its restore."""
        words = [sys.executable, "-c", PROGRAM, self.pool, self.commits]
        environment = ["env", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}"]
        program = Program(self.machines[NODES].start(*environment, *words))
        program.answer()
        return program

    def restored(self, program: Program, committed: int) -> float:
        """Checks what a program restored; returns how long that took."""
        reply = program.answer()
        if reply["restored"] < committed:
            raise SystemExit(f"step {committed} was committed, and {reply['restored']} came back")
        return float(reply["s"])

    def lose(self, number: int) -> None:
        """Deletes half of the shards of a node."""
        self.end(number)
        shards = sorted((self.disks[number] / "node" / "t" / "packs").rglob("*"))
        for shard in [it for it in shards if it.is_file() and it.name[0] != "."][::2]:
            shard.unlink()
        self.start(number)

    def moment(self, seconds: float) -> None:
        """Waits for a random part of what something takes."""
        time.sleep(self.chance.uniform(0, seconds))

    def one(self, event: str, work: str) -> dict[str, Any]:
        """One run; returns what it was, and its longest call."""
        number = self.chance.randrange(NODES)
        committed, calls = self.last_commit(), []
        # Not known of saves: the program saves without a pause.
        is_during: bool | None = None
        program = self.program()
        try:
            calls.append(self.restored(program, committed))
            for _ in range(self.chance.randrange(1, 4)):
                calls.append(program.answer()["s"])
            if work == "saves":
                self.moment(calls[-1])
                with self.events[event](number):
                    self.away(program, calls)
            elif work == "restore":
                program.end()
                committed = self.last_commit()
                program = self.program()
                self.moment(self.restore_s)
                with self.events[event](number):
                    is_during = program.lines.empty()
                    calls.append(self.restored(program, committed))
                    self.away(program, calls)
            else:
                self.lose(self.chance.randrange(NODES))
                began = time.monotonic()
                repair = self.begin("pool", "repair", self.pool)
                self.moment(self.repair_s)
                with self.events[event](number):
                    is_during = repair.poll() is None
                    self.finish(repair)
                    calls.append(time.monotonic() - began)
                    self.away(program, calls)
            for _ in range(2):
                calls.append(program.answer()["s"])
        finally:
            program.end()
        committed = self.last_commit()
        program = self.program()
        try:
            self.restore_s = self.restored(program, committed)
        finally:
            program.end()
        began = time.monotonic()
        self.repair()
        if work == "repair":
            self.repair_s = max(time.monotonic() - began, 0.5)
        longest = max(calls)
        return {"event": event, "work": work, "during": is_during, "longest_s": longest}

    def away(self, program: Program, calls: list[float]) -> None:
        """Lets some time of an event pass, while the program saves."""
        ends = time.monotonic() + self.chance.uniform(0, AWAY_S)
        for _ in range(50):
            calls.append(program.answer()["s"])
            if time.monotonic() > ends:
                return

    def repair(self) -> None:
        """Makes again what the nodes lack: otherwise the next event would be a second loss."""
        for _ in range(20):
            code, err = self.finish(self.begin("pool", "repair", self.pool))
            if code == 0:
                return
        raise SystemExit(err)

    def whole(self) -> None:
        """Checks all of the pool."""
        self.run("prune", self.pool, "job", "--keep-last", "3", "--fence", "job")
        self.run("verify", self.pool)


def main() -> None:
    """Runs all, and prints each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("--runs", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    devices.check()
    with contextlib.ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="storm-", dir=args.dir))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        disks = undo.enter_context(devices.throttled(folder, NODES, DISK_BYTES_PER_S))
        machines = undo.enter_context(hosts.network(NODES + 1))
        storm = Storm(folder, machines, disks, args.seed)
        for number in range(NODES):
            undo.callback(storm.end, number)
        done, chances = [], list(itertools.product(storm.events, WORKS))
        for run in range(args.runs):
            one = storm.one(*chances[run % len(chances)])
            done.append(one)
            during = ", which had ended" if one["during"] is False else ""
            name = f"{one['event']} beside {one['work']}{during}"
            print(f"{run + 1:3}  {name:40} longest call {one['longest_s']:5.1f} s", file=sys.stderr)
            if (run + 1) % 10 == 0:
                storm.whole()
        storm.whole()
        if storm.last_commit() < args.runs:
            raise SystemExit(f"only {storm.last_commit()} steps were committed in all")
        if args.json:
            print(json.dumps({"runs": done, "commits": storm.last_commit()}))
        else:
            report(done, storm.last_commit())


def report(done: list[dict[str, Any]], commits: int) -> None:
    """Prints the longest call of each event beside each work, and how many runs met it."""
    for event, work in itertools.product(dict.fromkeys(it["event"] for it in done), WORKS):
        runs = [it for it in done if (it["event"], it["work"]) == (event, work)]
        if runs:
            longest = max(it["longest_s"] for it in runs)
            met = [it["during"] for it in runs if it["during"] is not None]
            during = f", {sum(met)} during it" if met else ""
            print(f"{event:10} {work:8} {len(runs)} runs{during}, longest call {longest:.1f} s")
    print(f"{len(done)} runs, {commits} steps: nothing committed was lost")


if __name__ == "__main__":
    main()
