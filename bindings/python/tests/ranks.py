"""A program of several ranks, for the tests of groups: each rank is a process of its own.

    python ranks.py RANK SIZE WHERE COMMAND [ARGUMENT...]

Rank 0 listens on the port WHERE, and the others connect to it. If WHERE is no number, it is the
name of the run, and the ranks meet in the pool. The commands are at the end.
"""

import hashlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import numpy as np

import outlive

ROWS, COLUMNS = 96, 5000


class Hub:
    """A `Group` over sockets."""

    def __init__(self, rank: int, size: int, port: int) -> None:
        """Connects the ranks."""
        self.rank, self.size = rank, size
        self.calls = 0
        self.others: list[Connection] = []
        if rank == 0:
            with Listener(("127.0.0.1", port), backlog=size) as listener:
                found = {}
                while len(found) < size - 1:
                    connection = listener.accept()
                    found[connection.recv()] = connection
            self.others = [found[rank] for rank in range(1, size)]
            return
        while True:
            try:
                self.others = [Client(("127.0.0.1", port))]
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        self.others[0].send(rank)

    def gather(self, data: bytes, /) -> list[bytes] | None:
        """See `outlive.Group`."""
        self.calls += 1
        if self.rank:
            self.others[0].send_bytes(data)
            return None
        return [data, *(other.recv_bytes() for other in self.others)]

    def broadcast(self, data: bytes, /) -> bytes:
        """See `outlive.Group`."""
        self.calls += 1
        if self.rank:
            return self.others[0].recv_bytes()
        for other in self.others:
            other.send_bytes(data)
        return data


def cut(rank: int, size: int) -> tuple[int, int]:
    """Returns the rows of a rank."""
    return ROWS * rank // size, ROWS * (rank + 1) // size


def advance(whole: "np.ndarray") -> None:
    """Advances every cell from its own value alone, so that every decomposition gives the same."""
    whole[:, ::3] = np.sqrt(whole[:, ::3] * 1.25 + 0.5)


def first(begin: int, end: int) -> "np.ndarray":
    """Returns the rows at the beginning."""
    cells = np.arange(begin * COLUMNS, end * COLUMNS, dtype=float)
    return cells.reshape(end - begin, COLUMNS)


def state_of(hub: Hub | outlive.Ranks) -> dict:
    """Returns the state of a rank."""
    begin, end = cut(hub.rank, hub.size)
    cells = outlive.array(first(begin, end))
    return {
        "cells": outlive.sharded(cells, (ROWS, COLUMNS), (begin, 0)),
        "table": np.arange(30000) * 2.5,
        "step": 0,
        "note": "same",
    }


def run(hub: Hub | outlive.Ranks, place: str, steps: int, kill_at: int, victim: int) -> None:
    """Continues up to `steps` steps; a rank may be killed before one of them."""
    job = outlive.open(place).job(
        "cells", group=hub, replicated=("step", "table", "no*"), patience_s=30
    )
    state = state_of(hub)
    report = job.restore(into=state)
    print("restored", report.epoch, "step", state["step"], flush=True)
    cells = state["cells"].array
    while state["step"] < steps:
        if state["step"] == kill_at and hub.rank == victim:
            os.kill(os.getpid(), 9)
        advance(cells)
        state["step"] += 1
        job.save(state)
    job.close()
    print("digest", hashlib.blake2b(cells).hexdigest(), flush=True)
    print("table", float(state["table"].sum()), job.rank, job.ranks, flush=True)


class Refuses:
    """A sink that cannot prepare its outputs."""

    def prepare(self) -> None:
        """Fails."""
        raise OSError("no room for outputs")

    def commit(self, tokens: list[bytes]) -> None:
        """Is not called."""


def lines(hub: Hub | outlive.Ranks, place: str, folder: str, steps: int, *mine: int) -> None:
    """Appends numbered lines to files behind a gate, those of this rank and of ranks that are gone.

    With `steps` 0 it never ends. At the end, a sink of rank 1 refuses a save.
    """
    job = outlive.open(place).job("lines", group=hub, patience_s=30)
    state = {"step": 0}
    job.restore(into=state)
    gate = job.gate()
    files = [gate.open(f"{folder}/{rank}") for rank in (hub.rank, *mine)]
    while not steps or state["step"] < steps:
        state["step"] += 1
        for file in files:
            print(state["step"], file=file)
        job.save(state)
    gate.flush()
    if hub.rank == 1:
        gate.sink("refuses", Refuses())
    try:
        job.save(state, wait=True)
        print("saved", flush=True)
    except outlive.Error as error:
        print(error, flush=True)
    job.close()


def wrong(hub: Hub | outlive.Ranks, place: str) -> None:
    """Makes each mistake on one rank: all get the error, and the next save must succeed."""
    job = outlive.open(place).job("wrong", group=hub, replicated="step")
    array = np.ones(20000) * hub.rank
    job.save({"a": array, "step": 1}, wait=True)
    states = {
        "other names": {"b" if hub.rank == 1 else "a": array, "step": 2},
        "no state": {"a": object() if hub.rank == 1 else array, "step": 2},
        "other dtype": {"a": array.astype(np.float32) if hub.rank == 0 else array, "step": 2},
    }
    for what, state in states.items():
        try:
            job.save(state, wait=True)
            print(what, "was saved", flush=True)
        except outlive.InvalidError as error:
            print(what, "|", str(error).replace("\n", " "), flush=True)
    into = {"a": np.zeros(20000 + (hub.rank == 1)), "step": 0}
    try:
        job.restore(into=into)
        print("restored", flush=True)
    except outlive.InvalidError as error:
        print("other shape |", str(error).replace("\n", " "), flush=True)
    into = {"a": np.zeros(20000), "step": 0}
    print("whole", job.restore(into=into).epoch, into["a"].sum(), into["step"], flush=True)
    print("epoch", job.save({"a": array, "step": 3}, wait=True).epoch, flush=True)
    job.close()


def told(what: str, call: Callable[[], object]) -> None:
    """Prints what a call raises."""
    try:
        call()
        print(what, "| done", flush=True)
    except Exception as error:
        print(what, "|", type(error).__name__, str(error).replace("\n", " "), flush=True)


def apart(hub: Hub | outlive.Ranks, place: str) -> None:
    """Ranks that make different calls: all get an error, and none waits for another."""
    pool = outlive.open(place)
    table = np.arange(24000.0).reshape(200, 120)
    job = pool.job("apart", group=hub, replicated="table")
    # Rank 0 has the table in another order of memory.
    own = np.full(20000, float(hub.rank))
    state = {"table": np.asfortranarray(table) if hub.rank == 0 else table.copy(), "own": own}
    job.save(state, wait=True)
    for into in (np.zeros((200, 120)), np.zeros((200, 120), order="F")):
        found = {"table": into, "own": np.zeros(20000)}
        assert job.restore(into=found)
        assert np.array_equal(found["table"], table)
        assert np.array_equal(found["own"], own)
    fresh = job.restore()
    assert np.array_equal(fresh["table"], table)
    label: Any = b"no text" if hub.rank == 1 else ""
    told("label", lambda: job.save(state, label=label, wait=True))
    told("fine", lambda: job.save(state, wait=True))
    told("epochs", lambda: job.restore(into=found, epoch=1 + hub.rank % 2))
    mixed = pool.job("other" if hub.rank == 1 else "apart", group=hub, replicated="table")
    told("jobs", lambda: mixed.restore(into=found))
    steps = pool.job("steps", group=hub)
    told("steps", lambda: steps.restore(into=found) if hub.rank == 1 else steps.save(state))


def more(hub: Hub | outlive.Ranks, place: str) -> None:
    """Saves, or restores with one more rank, which has saved nothing there."""
    job = outlive.open(place).job("more", group=hub, replicated="step")
    own, seeds = np.full(20000, float(hub.rank)), [1, hub.rank]
    if hub.size == 2:
        job.save({"own": own, "few": {"seeds": seeds}, "step": 7}, wait=True)
        return
    into = {"own": own, "few": {"seeds": [0, 0]}, "step": 0}
    told("all", lambda: job.restore(into=into))
    told("own", lambda: job.restore(into=into, only=["own", "step"]))
    assert job.restore(into=into, only="step")
    assert into == {"own": own, "few": {"seeds": [0, 0]}, "step": 7}
    assert job.restore(only="st*") == {"step": 7}


def fresh(hub: Hub | outlive.Ranks, place: str) -> None:
    """Restores without `into` a checkpoint of another number of ranks."""
    with outlive.open(place).job("cells", group=hub) as job:
        told("fresh", job.restore)


def huge(hub: Hub | outlive.Ranks, place: str) -> None:
    """Saves two elements of an array that fits into no memory."""
    with outlive.open(place).job("huge", group=hub) as job:
        part = outlive.sharded(np.ones(1), (1 << 50,), (hub.rank,))
        job.save({"few": part, "own": hub.rank}, wait=True)


def cyclic(hub: Hub | outlive.Ranks, place: str, blocks: str, step: int) -> None:
    """Restores step `step` - 1, if there is one, and saves `step`: a matrix divided by `blocks`.

    `blocks` is one block for both dimensions and the number of rows in the grid of ranks, such as
    "8x3", "rows" (dealt out one by one), or "box".
    """
    shape = (300, 200)
    whole = np.arange(300 * 200, dtype=float).reshape(shape)
    if blocks == "box":
        begin, end = (shape[0] * at // hub.size for at in (hub.rank, hub.rank + 1))
        mine = np.s_[begin:end, :]
        part = outlive.sharded(np.zeros((end - begin, shape[1])), shape, (begin, 0))
    elif blocks == "rows":
        mine = np.s_[hub.rank :: hub.size, :]
        part = outlive.sharded(
            np.zeros_like(whole[mine]), shape, (hub.rank, 0), stride=(hub.size, 1)
        )
    else:
        size, high = map(int, blocks.split("x"))
        grid = (high, hub.size // high)
        place_in_grid = divmod(hub.rank, grid[1])
        rows, columns = (
            [at for at in range(extent) if at // size % count == own]
            for extent, count, own in zip(shape, grid, place_in_grid, strict=True)
        )
        mine = np.ix_(rows, columns)
        array = np.zeros((len(rows), len(columns)))
        part = outlive.block_cyclic(array, shape, (size, size), grid, place_in_grid)
    with outlive.open(place).job("cyclic", group=hub, replicated="step") as job:
        state = {"matrix": part, "step": 0}
        report = job.restore(into=state)
        assert bool(report) == (step > 1)
        assert state["step"] == step - 1
        if step > 1:
            assert np.array_equal(part.array, whole[mine] * (step - 1))
            assert state["matrix"] is part
        part.array[...] = whole[mine] * step
        state["step"] = step
        job.save(state, wait=True)
        part.array[...] = -1
        job.restore(into=state)
        assert np.array_equal(part.array, whole[mine] * step)
    print("saved", repr(part), flush=True)


def meet(hub: Hub | outlive.Ranks, place: str, patience_s: float) -> None:
    """Saves once."""
    job = outlive.open(place).job("meet", group=hub, patience_s=patience_s)
    # The parent of the tests may ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("begins", flush=True)
    try:
        job.save({"a": np.arange(20000) + hub.rank}, wait=True)
        print("saved", flush=True)
    except (outlive.Error, KeyboardInterrupt) as error:
        print(type(error).__name__, str(error).replace("\n", " "), flush=True)


def leave(hub: Hub | outlive.Ranks, place: str, leaver: int, how: str) -> None:
    """One rank closes the job, or ends, while the others save."""
    job = outlive.open(place).job("leave", group=hub, patience_s=3600)
    job.save({"step": 1}, wait=True)
    if hub.rank != leaver:
        told("save", lambda: job.save({"step": 2}, wait=True))
    elif how == "close":
        told("close", job.close)
    elif how == "raise":
        try:
            with job:
                raise KeyError("of the program")
        except KeyError:
            print("raised | done", flush=True)
    else:
        return
    # A close does not wait for ranks that make other calls.
    told("then", job.close)


def stop(hub: Hub | outlive.Ranks, place: str, asked: int, every_s: float) -> None:
    """One rank is asked to stop at step 5; all save the same step, and end."""
    outlive.on_preempt(grace_s=60)
    job = outlive.open(place).job("cells", every_s=every_s, group=hub, replicated="step")
    state = {"step": 0}
    job.restore(into=state)
    while not job.should_stop:
        state["step"] += 1
        if state["step"] == 5 and hub.rank == asked:
            os.kill(os.getpid(), signal.SIGUSR1)
        job.save(state)
    print("stopped at", state["step"], flush=True)
    os._exit(0)  # completes nothing more


def marked(hub: Hub | outlive.Ranks, place: str) -> None:
    """Continues from the newest checkpoint that is not bad."""
    job = outlive.open(place).job("cells", group=hub, replicated="step")
    state = {"step": 0}
    report = job.restore(into=state)
    print("restored", report.epoch, "step", state["step"], flush=True)
    job.close()


def main() -> None:
    """Runs the command of the command line."""
    rank, size = map(int, sys.argv[1:3])
    where, command, *arguments = sys.argv[3:]
    socket.setdefaulttimeout(120)
    hub = Hub(rank, size, int(where)) if where.isdigit() else outlive.ranks(rank, size, run=where)
    if command == "run":
        place, steps, kill_at, victim = arguments
        run(hub, place, int(steps), int(kill_at), int(victim))
    elif command == "apart":
        apart(hub, *arguments)
    elif command == "stop":
        place, asked, every_s = arguments
        stop(hub, place, int(asked), float(every_s))
    elif command == "lines":
        place, folder, *numbers = arguments
        lines(hub, place, folder, *map(int, numbers))
    elif command == "marked":
        marked(hub, *arguments)
    elif command == "more":
        more(hub, *arguments)
    elif command == "fresh":
        fresh(hub, *arguments)
    elif command == "huge":
        huge(hub, *arguments)
    elif command == "cyclic":
        place, blocks, step = arguments
        cyclic(hub, place, blocks, int(step))
    elif command == "leave":
        place, leaver, how = arguments
        leave(hub, place, int(leaver), how)
    elif command == "meet":
        place, patience_s = arguments
        meet(hub, place, float(patience_s))
    else:
        wrong(hub, *arguments)


if __name__ == "__main__":
    main()
