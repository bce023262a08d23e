"""Measures the peers that save memory: each in a process of its own, in turn, round by round."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from peers import durable, machine
from peers.adapters import PEERS, Peer
from peers.raw import Raw

Result = dict[str, Any]
MIB = 1 << 20
_PACKAGE = Path(__file__).parent


class WorkerError(Exception):
    """A measurement failed; the text is the output of the worker."""


@dataclass(frozen=True)
class Plan:
    """A plan of measurements.

    Attributes:
        only: Names of the peers.
        folder: A directory of the bench's own, on the device to be measured.
        size_bytes: Bytes of the state for timed saves and restores.
        small_bytes: Bytes of the state for flipped bits and killed saves.
        kind: Kind of state: one of `state.KINDS`.
        rounds: Number of repetitions of each timed part.
        flips: Number of bits to flip, one at a time.
        kills: Number of saves to kill.
        seed: Seed of the moments of the kills, and of the state.
    """

    only: tuple[str, ...]
    folder: Path
    size_bytes: int
    small_bytes: int
    kind: str
    rounds: int
    flips: int
    kills: int
    seed: int = 1

    def peers(self) -> list[type[Peer]]:
        """Returns the peers that are wanted and installed."""
        return [peer for name, peer in PEERS.items() if name in self.only and peer.version()]

    def on_disk(self) -> list[type[Peer]]:
        """Returns one peer for each format on disk."""
        return [peer for peer in self.peers() if peer.like not in self.only]


class Worker:
    """A worker process, as a context manager that always ends it."""

    def __init__(self, plan: Plan, **task: Any) -> None:
        """Starts it; its answers are read with `line`."""
        self.task = {"bytes": plan.size_bytes, "kind": plan.kind, "seed": plan.seed, **task}
        self._log = plan.folder / "worker.log"
        environment = dict(os.environ)
        # The package that is measured stays the one that this process has.
        paths = [str(_PACKAGE.parent), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environment["JAX_PLATFORMS"] = "cpu"
        with self._log.open("wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "peers.worker", json.dumps(self.task, default=str)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def line(self) -> Result:
        """Returns its next answer."""
        out = _pipe(self.child.stdout)
        text = out.readline()
        if not text:
            code = self.child.wait()
            raise WorkerError(
                f"{self.task.get('peer', 'the baseline')}, {self.task['task']}: ended with "
                f"{code}: {self._log.read_text(errors='replace')[-2000:]}"
            )
        answer: Result = json.loads(text)
        return answer

    def go(self) -> None:
        """Tells it to continue."""
        into = _pipe(self.child.stdin)
        into.write("\n")
        into.flush()

    def kill(self) -> None:
        """`kill -9`."""
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def __enter__(self) -> "Worker":
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it, if it still runs."""
        if self.child.poll() is None:
            self.kill()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def ask(plan: Plan, **task: Any) -> Result:
    """Runs one task, and returns its one answer."""
    with Worker(plan, **task) as worker:
        answer = worker.line()
        worker.child.wait()
        return answer


def say(what: str) -> None:
    """Prints the current step for people who wait."""
    print(f"   {what}", file=sys.stderr, flush=True)


def save_and_restore(plan: Plan, keep: Callable[[Result], None]) -> Result:
    """Times saves and restores, and the raw device in the same rounds.

    Args:
        plan: The plan of measurements.
        keep: Gets the results after each round, in case a later one is interrupted.
    """
    raw = Raw(plan.folder / "raw", plan.size_bytes)
    rows: list[Result] = []
    # The first gigabytes after a pause are not like the others.
    raw.best_s()
    with machine.others() as load:
        for number in range(plan.rounds):
            say(f"round {number + 1} of {plan.rounds}: the raw device")
            device = {**raw.best_s(), "bytes": raw.size_bytes}
            peers = plan.peers()
            # Shuffled, so that no peer always runs after the same one.
            random.Random(number).shuffle(peers)
            for peer in peers:
                say(f"round {number + 1} of {plan.rounds}: {peer.name}")
                root = durable.empty(plan.folder / "checkpoints")
                row: Result = {"peer": peer.name, "round": number, "raw": device}
                try:
                    row["save"] = ask(plan, task="save", peer=peer.name, root=root)
                    durable.sync(root)
                    row["restore"] = ask(
                        plan, task="restore", peer=peer.name, root=root, compare=number == 0
                    )
                except WorkerError as error:
                    row["error"] = str(error)
                    say(str(error))
                rows.append(row)
                shutil.rmtree(root)
            keep({"rows": rows, "rounds": number + 1})
    return {"rows": rows, **load}


def flips(plan: Plan) -> Result:
    """Flips one bit at a time in the middle of the largest file, and restores."""
    rows: list[Result] = []
    small = {"bytes": plan.small_bytes}
    for peer in plan.on_disk():
        say(f"one flipped bit: {peer.name}")
        root = durable.empty(plan.folder / "checkpoints")
        try:
            ask(plan, task="keep_one", peer=peer.name, root=root, **small)
            where = random.Random(plan.seed)
            for _ in range(plan.flips):
                file = durable.largest(root)
                at = int(file.stat().st_size * where.uniform(0.25, 0.75))
                durable.flip_bit(file, at)
                row: Result = {"peer": peer.name}
                rows.append(row)
                task = {"task": "check", "peer": peer.name, "root": root, "keep": True, **small}
                try:
                    row |= ask(plan, seeds=[plan.seed], **task)
                except WorkerError as error:
                    row["crash"] = str(error)
                durable.flip_bit(file, at)
        except WorkerError as error:
            rows.append({"peer": peer.name, "failed": str(error)})
            say(str(error))
        shutil.rmtree(root)
    return {"rows": rows}


def kills(plan: Plan) -> Result:
    """Kills a program at random moments while it replaces its checkpoint, and restores."""
    rows: list[Result] = []
    for peer in plan.on_disk():
        say(f"kill -9 while overwriting: {peer.name}")
        moments = random.Random(plan.seed)
        try:
            took_s = _killed(plan, peer, None)["took_s"]
            hit = 0
            for _ in range(3 * plan.kills):
                row = _killed(plan, peer, moments.uniform(0.02, 0.98) * took_s)
                # A kill after the end shows nothing.
                if not row["ended"]:
                    rows.append(row)
                    hit += 1
                if hit == plan.kills:
                    break
        except WorkerError as error:
            rows.append({"peer": peer.name, "failed": str(error)})
            say(str(error))
    shutil.rmtree(plan.folder / "checkpoints", ignore_errors=True)
    return {"rows": rows}


def _killed(plan: Plan, peer: type[Peer], after_s: float | None) -> Result:
    """Kills once, this long after the beginning; without a time, only times the save."""
    root = durable.empty(plan.folder / "checkpoints")
    task = {"peer": peer.name, "root": root, "bytes": plan.small_bytes, "seeds": [1, 2]}
    with Worker(plan, task="overwrite", **task) as worker:
        worker.line()
        if after_s is None:
            return worker.line()
        time.sleep(after_s)
        worker.kill()
        ended = '"end"' in _pipe(worker.child.stdout).read()
    row: Result = {"peer": peer.name, "after_s": after_s, "ended": ended}
    try:
        row |= ask(plan, task="check", keep=False, **task)
    except WorkerError as error:
        row["crash"] = str(error)
    return row


def slowdowns(plan: Plan) -> Result:
    """Slows a computing thread by a save in the background, and by the least work of any save."""
    rows: list[Result] = []
    task = {"repeats": 1, "alone_s": 0.5 if plan.rounds > 1 else 0.1}
    # Enough data for a save of some seconds.
    size = {"bytes": plan.size_bytes // 2}
    with machine.others() as load:
        for number in range(plan.rounds):
            for kind in ("idle", "copy", "write"):
                say(f"round {number + 1} of {plan.rounds}: computing beside: {kind}")
                rows.append({"beside": kind, **_beside(plan, kind, task)})
            for peer in plan.peers():
                if not peer.background:
                    continue
                say(f"round {number + 1} of {plan.rounds}: computing beside a drain: {peer.name}")
                root = durable.empty(plan.folder / "checkpoints")
                row: Result = {"peer": peer.name}
                try:
                    row |= ask(plan, task="slowdown", peer=peer.name, root=root, **task, **size)
                except WorkerError as error:
                    row["failed"] = str(error)
                    say(str(error))
                rows.append(row)
                shutil.rmtree(root)
    return {"rows": rows, **load}


def _beside(plan: Plan, kind: str, task: Result) -> Result:
    """Times the thread beside a process that does one thing; signals stop and continue it."""
    with contextlib.ExitStack() as stack:
        load = None
        if kind != "idle":
            root = durable.empty(plan.folder / "raw")
            load = stack.enter_context(Worker(plan, task="load", load=kind, root=root))
            load.line()
            load.child.send_signal(signal.SIGSTOP)
        worker = stack.enter_context(Worker(plan, task="beside", **task))
        while True:
            answer = worker.line()
            if "event" not in answer:
                break
            if load is not None:
                start = answer["event"] == "start"
                load.child.send_signal(signal.SIGCONT if start else signal.SIGSTOP)
            worker.go()
    shutil.rmtree(plan.folder / "raw", ignore_errors=True)
    return answer
