"""Programs of several ranks on a pool whose targets are the disks of their hosts."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import command
from test_group import check, finish, kill, start

import outlive


class Host:
    """A host with a disk, on which `outlive node local` runs."""

    def __init__(self, pool: Path, disks: Path, name: str) -> None:
        """Starts the node."""
        self.name = name
        words = ["node", "local", "--pool", pool, "--data", disks / name, "--give-up", "1s"]
        self.process = subprocess.Popen(
            ["env", f"OUTLIVE_HOST={name}", "outlive", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.lines: list[str] = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        """Keeps the lines that the node prints."""
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self.changed:
                    self.lines.append(line)
                    self.changed.notify_all()

    def says(self, text: str) -> None:
        """Waits for a line with a text."""
        with self.changed:
            said = self.changed.wait_for(lambda: any(text in line for line in self.lines), 100)
        assert said, (self.name, text, self.lines)

    def kill(self) -> None:
        """Ends the node as a power cut does."""
        self.process.kill()
        self.ended()

    def ended(self) -> int:
        """Waits for the end of the node, and returns its exit status."""
        status = self.process.wait()
        self.reader.join()
        return status


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Returns a pool of four seats, of which one may be lost, with a slow tier."""
    pool = tmp_path / "pool"
    seats = ["--seats", 4, "--erasure", "2+1", "--slow", tmp_path / "slow"]
    command("pool", "init", pool, *seats, "--container-bytes", "256KiB", "--pack-bytes", "256KiB")
    return pool


@pytest.fixture
def hosts(tmp_path: Path, pool: Path) -> Iterator[dict[str, Host]]:
    """Returns four hosts, each with a seat."""
    there = {name: Host(pool, tmp_path, name) for name in "abcd"}
    for host in there.values():
        host.says("4 seats taken, 0 vacant")
    yield there
    for host in there.values():
        host.kill()


def whole_step(pool: Path) -> int:
    """Returns the step of the newest checkpoint."""
    with outlive.open(pool).job("cells") as job:
        return int(job.restore()["step"])


def test_ranks_go_on_while_a_host_is_lost_and_another_one_comes(
    tmp_path: Path, pool: Path, hosts: dict[str, Host]
) -> None:
    check(finish(start(3, "run", pool, 3, -1, -1)), 3)
    # A host and a rank are lost at the same time.
    running = start(3, "run", pool, 40, 20, 1)
    assert running[1].wait() == -9
    hosts.pop("b").kill()
    kill(running)
    step = whole_step(pool)
    assert 18 <= step <= 20
    out = finish(start(2, "run", pool, 24, -1, -1))
    assert all(f"step {step}" in text for text in out), out
    check(out, 24)
    # The seat is given up, and a spare host takes it.
    hosts["a"].says("3 seats taken, 1 vacant")
    hosts["e"] = Host(pool, tmp_path, "e")
    hosts["e"].says("4 seats taken, 0 vacant")
    check(finish(start(3, "run", pool, 27, -1, -1)), 27)
    for host in hosts.values():
        host.process.terminate()
    for host in hosts.values():
        assert host.ended() == 0, host.lines
        host.says("The slow tier has everything")
        assert not [folder for folder in (tmp_path / host.name).iterdir() if folder.is_dir()]
    assert whole_step(pool) == 27
    assert "vacant seat" in command("pool", "status", pool)


@pytest.mark.parametrize("seed", range(2))
def test_no_kill_of_ranks_and_hosts_loses_a_committed_step(
    tmp_path: Path, pool: Path, hosts: dict[str, Host], seed: int
) -> None:
    rng = random.Random(seed)
    committed, names = 0, iter(f"spare{number}" for number in range(10))
    for _ in range(3):
        size = rng.randint(1, 3)
        kill_at = committed + rng.randint(2, 12)
        victim = rng.randrange(size)
        running = start(size, "run", pool, 10_000, kill_at, victim)
        lost = rng.choice(sorted(hosts))
        killer = threading.Timer(rng.random() * 2, hosts[lost].kill)
        killer.start()
        assert running[victim].wait() == -9
        kill(running)
        killer.join()
        step = whole_step(pool)
        assert step >= committed, (seed, step, committed)
        assert step <= kill_at
        committed = step
        del hosts[lost]
        # The same host comes back, or another one.
        name = lost if rng.random() < 0.5 else next(names)
        hosts[name] = Host(pool, tmp_path, name)
        for host in hosts.values():
            host.lines.clear()
        hosts[name].says("4 seats taken, 0 vacant")
    command("verify", pool)


FAILS_ONCE = """
import os, signal, sys
from pathlib import Path
import numpy as np, outlive
pool, once = sys.argv[1], Path(sys.argv[2])
state = {"step": 0, "a": np.zeros(100_000)}
with outlive.open(pool).job("steps") as job:
    job.restore(into=state)
    print("begins at", state["step"], flush=True)
    while state["step"] < 10:
        state["step"] += 1
        state["a"] += 1
        job.save(state, force=True, wait=True)
        if state["step"] == 5 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
assert (state["a"] == 10).all()
"""


@pytest.mark.parametrize(
    "stays", [True, False], ids=["node of all attempts", "node of each attempt"]
)
def test_a_supervisor_starts_nodes_and_a_node_starts_a_supervisor(
    tmp_path: Path, stays: bool
) -> None:
    pool, data = tmp_path / "pool", tmp_path / "data"
    command("pool", "init", pool, "--seats", 1, "--slow", tmp_path / "slow")
    program = [sys.executable, "-c", FAILS_ONCE, pool, tmp_path / "once"]
    node = ["outlive", "node", "local", "--pool", pool, "--data", data, "--"]
    supervisor = ["outlive", "run", "--pool", pool, "--job", "steps", "--"]
    each = ["mpirun.openmpi", "--allow-run-as-root", "--map-by", "ppr:1:node"]
    words = [*node, *supervisor] if stays else [*supervisor, *each, *node]
    done = subprocess.run(
        [*map(str, words), *map(str, program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["begins at 0", "begins at 5"], done.stderr
    assert done.stderr.count("Seat ") == done.stderr.count("is given back") == (1 if stays else 2)
    # The node is gone, and its data; the slow tier has all.
    assert not [folder for folder in data.iterdir() if folder.is_dir()]
    with outlive.open(pool).job("steps") as job:
        assert job.restore()["step"] == 10
