"""Programs of several ranks: they save together, are killed, and go on with other numbers."""

import hashlib
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ranks

import outlive


def start(size: int, *arguments: object) -> list[subprocess.Popen[str]]:
    """Starts the ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = str(Path(__file__).with_name("ranks.py"))
    words = [str(argument) for argument in arguments]

    def of(rank: int) -> subprocess.Popen[str]:
        command = [sys.executable, program, str(rank), str(size), str(port), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return [of(rank) for rank in range(size)]


def finish(programs: list[subprocess.Popen[str]]) -> list[str]:
    """What they print; all must end well."""
    told = [program.communicate() for program in programs]
    for program, (out, err) in zip(programs, told, strict=True):
        assert program.returncode == 0, out + err
    return [out for out, _ in told]


def kill(programs: list[subprocess.Popen[str]]) -> None:
    """What is left of a program of which a rank was killed: mpirun would end it."""
    for program in programs:
        program.kill()
        program.communicate()


def digests(size: int, steps: int) -> list[str]:
    """Of an undisturbed program."""
    found = []
    for rank in range(size):
        cells = ranks.first(*ranks.cut(rank, size))
        for _ in range(steps):
            ranks.advance(cells)
        found.append(hashlib.blake2b(cells).hexdigest())
    return found


def check(out: list[str], steps: int) -> None:
    """Every rank has what an undisturbed program has."""
    for rank, (text, digest) in enumerate(zip(out, digests(len(out), steps), strict=True)):
        assert f"digest {digest}" in text, text
        assert f"table {np.arange(30000).sum() * 2.5} {rank} {len(out)}" in text, text


def test_ranks_go_on_where_they_were_and_on_other_numbers(tmp_path: Path) -> None:
    place = tmp_path / "a pool"
    check(finish(start(3, "run", place, 4, -1, -1)), 4)
    for steps, size in ((8, 3), (12, 2), (16, 4), (20, 1)):
        out = finish(start(size, "run", place, steps, -1, -1))
        assert all(f"step {steps - 4}" in text for text in out), out
        check(out, steps)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_costs_no_committed_checkpoint(tmp_path: Path, victim: int) -> None:
    programs = start(3, "run", tmp_path / "pool", 9, 6, victim)
    assert programs[victim].wait() == -9
    kill(programs)
    out = finish(start(2, "run", tmp_path / "pool", 9, -1, -1))
    steps = [int(text.split("step ")[1].split()[0]) for text in out]
    # The save of step 6 may still have been under way; the next one has waited for that of step 5.
    assert steps in ([5, 5], [6, 6]), out
    check(out, 9)


def test_what_one_rank_does_wrong_all_are_told(tmp_path: Path) -> None:
    out = finish(start(3, "wrong", tmp_path / "pool"))
    for rank, text in enumerate(out):
        lines = dict(line.split(" | ", 1) for line in text.splitlines() if " | " in line)
        assert "rank 1 has region" in lines["other names"], text
        assert "object" in lines["no state"], text
        assert "rank 1" in lines["no state"] or rank == 1, text
        assert "<f4" in lines["other dtype"], text
        assert "shape" in lines["other shape"], text
        assert f"whole 1 {20000.0 * rank} 1" in text, text
        assert "epoch 2" in text, text


def test_ranks_that_do_not_do_the_same_are_told(tmp_path: Path) -> None:
    out = finish(start(3, "apart", tmp_path / "pool"))
    for rank, text in enumerate(out):
        lines = dict(line.split(" | ", 1) for line in text.splitlines() if " | " in line)
        assert ("TypeError" if rank == 1 else "InvalidError rank 1: ") in lines["label"], text
        assert lines["fine"] == "done", text
        assert "InvalidError the ranks are out of step" in lines["epochs"], text
        assert "a restore of epoch 2" in lines["epochs"], text
        assert "InvalidError the ranks are out of step" in lines["jobs"], text
        assert "InvalidError the ranks are out of step" in lines["steps"], text


def test_a_group_is_asked_for_plainly(tmp_path: Path) -> None:
    pool = outlive.open(tmp_path / "pool")
    with pytest.raises(outlive.InvalidError, match="is no group of ranks"):
        pool.job("job", group="ranks")
    with pytest.raises(outlive.InvalidError, match="give `group` too"):
        pool.job("job", replicated="step")

    class Alone:
        rank, size = 0, 1

        def gather(self, data: bytes) -> list[bytes]:
            return [data]

        def broadcast(self, data: bytes) -> bytes:
            return data

    with pytest.raises(outlive.InvalidError, match="striped"):
        pool.job("job", group=Alone(), schedule="sometimes")
    with pytest.raises(outlive.InvalidError, match="pickled"):
        pool.job("job", group=Alone(), allow_pickle=True)
    with pytest.raises(outlive.InvalidError, match="begins at 3 along axis 0"):
        outlive.sharded(np.ones((2, 2)), (4, 2), (3, 0))
    part = outlive.sharded(np.ones((2, 2)), (4, 2), (2, 0))
    with pytest.raises(outlive.InvalidError, match="has no group"):
        pool.job("job").save({"a": part})
    job = pool.job("parts", group=Alone())
    job.save({"a": part, "b": 7}, wait=True)
    with pytest.raises(outlive.InvalidError, match="before they go on"):
        job.restore(into={"a": part, "b": 0}, lazy=True)
    # A group of one may ask for another part, if it was saved.
    other = outlive.sharded(np.zeros((1, 1)), (4, 2), (3, 1))
    state = {"a": other, "b": 0}
    assert job.restore(into=state)
    assert (state["b"], other.array.sum()) == (7, 1)
    beyond = {"a": outlive.sharded(np.zeros((2, 2)), (4, 2), (1, 0)), "b": 0}
    with pytest.raises(outlive.InvalidError, match=r"no rank has saved the \[1, 2\] elements"):
        job.restore(into=beyond)
