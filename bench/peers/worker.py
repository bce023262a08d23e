"""One measurement of one peer in an interpreter of its own; started by `measure.py`.

    python -m peers.worker '{"task": "save", "peer": "outlive", "root": ..., ...}'

It prints one JSON value a line. Output of libraries goes to stderr.
"""

import gc
import json
import os
import resource
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from peers import durable, state
from peers.adapters import PEERS, Peer

Task = Mapping[str, Any]
Say = Callable[[Any], None]
MIB = 1 << 20


def main() -> None:
    """Does the task given as JSON."""
    with _own_stdout() as out:

        def say(what: Any) -> None:
            print(json.dumps(what), file=out, flush=True)

        task = json.loads(sys.argv[1])
        TASKS[task["task"]](task, say)


def _own_stdout() -> TextIO:
    """Keeps standard output for the results; prints of libraries go to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def _peer(task: Task, root: Path | None = None, *, keep: bool = True) -> Peer:
    return PEERS[task["peer"]](root or Path(task["root"]), keep=keep)


def _state(task: Task, peer: Peer, seed: int) -> tuple[state.Arrays, Any]:
    arrays = state.make(task["bytes"], seed, task["kind"], peer.allocate)
    return arrays, peer.adopt(arrays)


def _warm_up(task: Task) -> None:
    """Saves and restores a small state elsewhere, so that imports and first calls are not timed."""
    folder = durable.empty(Path(task["root"]).with_suffix(".warm-up"))
    peer = _peer(task, folder)
    held = peer.adopt(state.make(MIB, 0, "random", peer.allocate))
    peer.save(held)()
    peer.restore()
    if peer.in_place:
        peer.restore(held)
    peer.close()
    shutil.rmtree(folder)


def _cpu_s() -> float:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _memory_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


def _timed_save(peer: Peer, held: Any, root: Path) -> dict[str, float]:
    """Runs one save until it is durable, and returns its figures."""
    gc.collect()
    os.sync()
    before_bytes = durable.size_bytes(root)
    # Counts the peak from now on.
    Path("/proc/self/clear_refs").write_text("5")
    memory = _memory_bytes("VmRSS")
    cpu, began = _cpu_s(), time.perf_counter()
    wait = peer.save(held)
    goes_on = time.perf_counter()
    wait()
    if not peer.syncs:
        durable.sync(root)
    done = time.perf_counter()
    return {
        # Without a background thread, the program itself has to call fsync.
        "blocked_s": (goes_on if peer.background else done) - began,
        "durable_s": done - began,
        "cpu_s": _cpu_s() - cpu,
        "memory_bytes": max(0, _memory_bytes("VmHWM") - memory),
        "bytes": durable.size_bytes(root) - before_bytes,
    }


def save(task: Task, say: Say) -> None:
    """Runs a first save; one with 14 of 16 arrays unchanged; one with all of them changed."""
    _warm_up(task)
    root = Path(task["root"])
    peer = _peer(task)
    arrays, held = _state(task, peer, task["seed"])
    found = {"first": _timed_save(peer, held, root)}
    for name, count in (("part", 2), ("all", state.ARRAYS)):
        state.change(arrays, count)
        held = peer.changed(held, arrays, list(arrays)[-count:])
        found[name] = _timed_save(peer, held, root)
    peer.close()
    say({**found, "state_bytes": state.total_bytes(arrays)})


def _expected(task: Task, seed: int) -> state.Arrays:
    """Returns the state of the newest checkpoint of `save`."""
    arrays = state.make(task["bytes"], seed, task["kind"])
    state.change(arrays, 2)
    state.change(arrays)
    return arrays


def restore(task: Task, say: Say) -> None:
    """Restores the newest checkpoint of `save`: from the device, from the cache, and in place."""
    _warm_up(task)
    root = Path(task["root"])
    peer = _peer(task)
    found: dict[str, float] = {}

    def timed(name: str, into: Any = None) -> state.Arrays:
        gc.collect()
        cpu, began = _cpu_s(), time.perf_counter()
        arrays = peer.restore(into)
        found[f"{name}_s"] = time.perf_counter() - began
        found[f"{name}_cpu_s"] = _cpu_s() - cpu
        return arrays

    want = _expected(task, task["seed"]) if task["compare"] else None

    def judge(got: state.Arrays) -> bool:
        return want is None or state.same(got, want)

    durable.make_cold(root)
    right = judge(timed("cold"))
    durable.make_warm(root)
    right = judge(timed("warm")) and right
    if peer.in_place:
        arrays = state.make(task["bytes"], 0, task["kind"], peer.allocate)
        held = peer.adopt(arrays)
        durable.make_warm(root)
        right = judge(timed("into", held)) and right
    peer.close()
    say({**found, "right": right if want is not None else None})


def keep_one(task: Task, say: Say) -> None:
    """Makes one durable checkpoint, for `flip`."""
    root = Path(task["root"])
    peer = _peer(task)
    arrays, held = _state(task, peer, task["seed"])
    peer.save(held)()
    durable.sync(root)
    peer.close()
    say({"state_bytes": state.total_bytes(arrays)})


def check(task: Task, say: Say) -> None:
    """Restores, and reports which of the states of `seeds` came back, or why none did."""
    try:
        peer = _peer(task, keep=task["keep"])
        got = peer.restore()
    except Exception as error:  # any exception of a peer is a result
        say({"refused": f"{type(error).__name__}: {str(error)[:300]}"})
        return
    for seed in task["seeds"]:
        if state.same(got, state.make(task["bytes"], seed, task["kind"])):
            say({"seed": seed})
            return
    say({"seed": None})


def overwrite(task: Task, say: Say) -> None:
    """Makes one checkpoint durable, then replaces it by another, and lives until it is killed."""
    root = Path(task["root"])
    peer = _peer(task, keep=False)
    old, new = task["seeds"]
    arrays, held = _state(task, peer, old)
    peer.save(held)()
    durable.sync(root)
    for number, array in enumerate(arrays.values()):
        state.fill(array, new * state.ARRAYS + number, task["kind"])
    held = peer.changed(held, arrays, list(arrays))
    say({"event": "begin"})
    began = time.perf_counter()
    peer.save(held)()
    if not peer.syncs:
        durable.sync(root)
    say({"event": "end", "took_s": time.perf_counter() - began})
    time.sleep(600)


def _in_cache() -> Callable[[], None]:
    """Computes in the cache of a core: 32 KiB of data."""
    values = np.linspace(0.1, 1.0, 8192, dtype=np.float32)
    scratch = np.empty_like(values)

    def step() -> None:
        for _ in range(40):
            np.multiply(values, values, out=scratch)
            np.sqrt(scratch, out=scratch)
            np.subtract(scratch, values, out=scratch)

    return step


def _in_memory() -> Callable[[], None]:
    """Sweeps through 64 MiB, as fast as memory allows."""
    values = np.ones(16 * MIB, np.float32)
    parts = np.split(values, 32)

    def step() -> None:
        np.add(parts[0], 1, out=parts[0])
        parts.append(parts.pop(0))

    return step


KERNELS = {"cache": _in_cache, "memory": _in_memory}


def _rate(step: Callable[[], None], until: Callable[[], bool], least_s: float) -> float:
    """Returns the steps a second until the condition holds, for at least this time."""
    began, steps = time.perf_counter(), 0
    while True:
        step()
        steps += 1
        took = time.perf_counter() - began
        if took >= least_s and until():
            return steps / took


def slowdown(task: Task, say: Say) -> None:
    """Measures how much slower a computing thread is while a save writes beside it."""
    _warm_up(task)
    peer = _peer(task, keep=False)
    arrays, held = _state(task, peer, task["seed"])
    # A first save is not like the others.
    peer.save(held)()
    found: dict[str, list[float]] = {}
    for name, kernel in KERNELS.items():
        step = kernel()
        for _ in range(task["repeats"]):
            state.change(arrays)
            held = peer.changed(held, arrays, list(arrays))
            os.sync()
            alone = _rate(step, lambda: True, task["alone_s"])
            beside, drain_s = _rate_beside(peer, held, step)
            again = _rate(step, lambda: True, task["alone_s"])
            found.setdefault(name, []).append(statistics.mean([alone, again]) / beside)
            found.setdefault(f"{name}_drain_s", []).append(drain_s)
    peer.close()
    say(found)


def _rate_beside(peer: Peer, held: Any, step: Callable[[], None]) -> tuple[float, float]:
    """Returns the steps a second from the return of `save` until all is durable, and that time."""
    over = threading.Event()
    wait = peer.save(held)
    began = time.perf_counter()

    def drain() -> None:
        wait()
        if not peer.syncs:
            durable.sync(peer.root)
        over.set()

    thread = threading.Thread(target=drain)
    thread.start()
    rate = _rate(step, over.is_set, 0.0)
    drain_s = time.perf_counter() - began
    thread.join()
    return rate, drain_s


def beside(task: Task, say: Say) -> None:
    """Measures how much slower the same thread is beside another program, as a baseline.

    The parent process starts and stops the other program; `go` on standard input tells when.
    """
    found: dict[str, list[float]] = {}
    for name, kernel in KERNELS.items():
        step = kernel()
        _rate(step, lambda: True, 0.2)
        for _ in range(task["repeats"]):
            alone = _rate(step, lambda: True, task["alone_s"])
            say({"event": "start"})
            sys.stdin.readline()
            together = _rate(step, lambda: True, task["alone_s"])
            say({"event": "stop"})
            sys.stdin.readline()
            again = _rate(step, lambda: True, task["alone_s"])
            found.setdefault(name, []).append(statistics.mean([alone, again]) / together)
    say(found)


def load(task: Task, say: Say) -> None:
    """Copies memory, writes to the device, or computes, until it is killed."""
    if task["load"] == "copy":
        source = np.ones(16 * MIB, np.float32)
        target = np.empty_like(source)
        np.copyto(target, source)
        say({"event": "ready"})
        while True:
            np.copyto(target, source)
    from peers.raw import LAYOUTS, Raw

    raw = Raw(Path(task["root"]), task["bytes"])
    say({"event": "ready"})
    while True:
        raw.write_s(LAYOUTS[0])


TASKS: dict[str, Callable[[Task, Say], None]] = {
    "save": save,
    "restore": restore,
    "keep_one": keep_one,
    "check": check,
    "overwrite": overwrite,
    "slowdown": slowdown,
    "beside": beside,
    "load": load,
}


if __name__ == "__main__":
    main()
