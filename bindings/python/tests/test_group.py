"""Programs of several ranks: they save together, are killed, and continue on other numbers."""

import hashlib
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def start_in_pool(
    run: str, size: int, *arguments: object, only: list[int] | None = None
) -> list[subprocess.Popen[str]]:
    """Starts ranks that share only the pool, or some of them."""
    program = str(Path(__file__).with_name("ranks.py"))
    words = [str(argument) for argument in arguments]

    def of(rank: int) -> subprocess.Popen[str]:
        command = [sys.executable, program, str(rank), str(size), run, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return [of(rank) for rank in (range(size) if only is None else only)]


def finish(programs: list[subprocess.Popen[str]]) -> list[str]:
    """Returns the output of all ranks; all must succeed."""
    told = [program.communicate() for program in programs]
    for program, (out, err) in zip(programs, told, strict=True):
        assert program.returncode == 0, out + err
    return [out for out, _ in told]


def kill(programs: list[subprocess.Popen[str]]) -> None:
    """Kills the other ranks of a program after one was killed, as mpirun does."""
    for program in programs:
        program.kill()
        program.communicate()


def digests(size: int, steps: int) -> list[str]:
    """Returns the results of an undisturbed program."""
    found = []
    for rank in range(size):
        cells = ranks.first(*ranks.cut(rank, size))
        for _ in range(steps):
            ranks.advance(cells)
        found.append(hashlib.blake2b(cells).hexdigest())
    return found


def check(out: list[str], steps: int) -> None:
    """Checks that every rank has the result of an undisturbed program."""
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
        # One process has the whole, also as a group of one.
        whole = ranks.first(0, ranks.ROWS)
        for _ in range(steps):
            ranks.advance(whole)
        for group in (None, outlive.ranks(0, 1, run=f"after {size}")):
            with outlive.open(place).job("cells", group=group) as alone:
                state = alone.restore()
                assert np.array_equal(state["cells"], whole)
                assert (state["step"], state["note"]) == (steps, "same")
                into = {"cells": np.zeros_like(whole)}
                assert alone.restore(into=into, only="cells")
                assert np.array_equal(into["cells"], whole)


@pytest.mark.parametrize("asked", [0, 2])
@pytest.mark.parametrize("every_s", [0.0, 1e6])
def test_all_ranks_stop_after_the_same_step(tmp_path: Path, asked: int, every_s: float) -> None:
    place = tmp_path / "pool"
    out = finish(start(3, "stop", place, asked, every_s))
    assert len(set(out)) == 1, out
    step = int(out[0].split()[-1])
    assert step >= 5
    job = outlive.open(place).job("cells")
    assert job.restore() == {"step": step}
    # The history of the marks holds for ranks, too.
    job.mark(-1, "bad")
    before = job.epochs()[-2].epoch
    step = job.restore(epoch=before)["step"]
    job.close()
    assert set(finish(start(3, "marked", place))) == {f"restored {before} step {step}\n"}


def test_outputs_of_each_rank_leave_once(tmp_path: Path) -> None:
    def numbers(rank: int) -> list[int]:
        return [int(line) for line in (tmp_path / str(rank)).read_text().split()]

    for _ in range(3):
        programs = start(3, "lines", tmp_path / "pool", tmp_path, 0)
        before = len(numbers(2)) if (tmp_path / "2").exists() else 0
        while not (tmp_path / "2").exists() or len(numbers(2)) < before + 3:
            assert programs[0].poll() is None, programs[0].communicate()
        kill(programs)
    reached = max(map(len, (numbers(rank) for rank in range(3)))) + 20
    told = finish(start(3, "lines", tmp_path / "pool", tmp_path, reached))
    # A sink that refuses on one rank is an error on all, and nothing was saved.
    for text in told:
        assert "no room for outputs" in text, told
    for rank in range(3):
        assert numbers(rank) == [*range(1, reached + 1)]
    # Another number of ranks goes on with the files of those that are gone.
    programs = start(3, "lines", tmp_path / "pool", tmp_path, 0)
    while len(numbers(2)) < reached + 3:
        assert programs[0].poll() is None, programs[0].communicate()
    kill(programs)
    further = max(map(len, (numbers(rank) for rank in range(3)))) + 20
    finish(start(1, "lines", tmp_path / "pool", tmp_path, further, 1, 2))
    for rank in range(3):
        assert numbers(rank) == [*range(1, further + 1)]


def test_one_process_looks_beside_ranks_that_save(tmp_path: Path) -> None:
    place = tmp_path / "pool"
    whole, step, looks = ranks.first(0, ranks.ROWS), 0, 0
    programs = start(3, "run", place, 30, -1, -1)
    while looks == 0 or any(program.poll() is None for program in programs):
        state = place.exists() and outlive.open(place).job("cells").restore(only=["cells", "step"])
        if not state:
            continue
        looks += 1
        for _ in range(step, state["step"]):
            ranks.advance(whole)
        step = state["step"]
        assert np.array_equal(state["cells"], whole)
    check(finish(programs), 30)


def test_more_than_there_is_memory_for_is_told(tmp_path: Path) -> None:
    finish(start(2, "huge", tmp_path / "pool"))
    job = outlive.open(tmp_path / "pool").job("huge")
    with pytest.raises(outlive.InvalidError, match=r"no memory for all of 'few' of checkpoint 1"):
        job.restore()
    assert job.restore(only="own") == {"own": 0}
    part = np.zeros(2)
    assert job.restore(into={"few": outlive.sharded(part, (1 << 50,), (0,))}, only="few")
    assert list(part) == [1, 1]


def test_ranks_of_another_number_say_which_part_they_have(tmp_path: Path) -> None:
    finish(start(3, "run", tmp_path / "pool", 1, -1, -1))
    with pytest.raises(outlive.InvalidError, match=r"3 ranks, .* restore it without `lazy`"):
        outlive.open(tmp_path / "pool").job("cells").restore(lazy=True)
    for text in finish(start(2, "fresh", tmp_path / "pool")):
        assert "checkpoint 1 was saved by 3 ranks, and this is one of 2: say which part of" in text


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


@pytest.mark.parametrize("victim", [0, 1])
def test_ranks_that_have_only_the_pool_are_killed_and_go_on(tmp_path: Path, victim: int) -> None:
    place = tmp_path / "a pool"
    check(finish(start_in_pool("start 0", 2, "run", place, 3, -1, -1)), 3)
    programs = start_in_pool("start 1", 3, "run", place, 9, 6, victim)
    assert programs[victim].wait() == -9
    kill(programs)
    # The same name again would be that of an earlier run.
    refused = start_in_pool("start 1", 3, "run", place, 9, -1, -1)
    for program in refused:
        _, err = program.communicate()
        assert program.returncode != 0
        assert 'of run "start 1" has come already' in err, err
    out = finish(start_in_pool("start 2", 3, "run", place, 9, -1, -1))
    steps = [int(text.split("step ")[1].split()[0]) for text in out]
    assert steps in ([5, 5, 5], [6, 6, 6]), out
    check(out, 9)
    for steps, size in ((12, 4), (15, 1), (18, 2)):
        out = finish(start_in_pool(f"start {steps}", size, "run", place, steps, -1, -1))
        assert all(f"step {steps - 3}" in text for text in out), out
        check(out, steps)


def test_a_rank_that_never_comes_to_the_pool_is_named(tmp_path: Path) -> None:
    out = finish(start_in_pool("run", 3, "meet", tmp_path / "pool", 2, only=[0, 1]))
    for text in out:
        assert "RetryError" in text, text
        assert 'rank 2 has not come of run "run"' in text, text


def test_a_wait_for_ranks_in_the_pool_ends_with_an_interrupt(tmp_path: Path) -> None:
    (program,) = start_in_pool("run", 2, "meet", tmp_path / "pool", 3600, only=[0])
    assert program.stdout is not None
    assert program.stdout.readline() == "begins\n"
    chain = "meet%00calls-0"
    while not list(tmp_path.glob(f"**/{chain}/*")):
        assert program.poll() is None
    program.send_signal(signal.SIGINT)
    out, err = program.communicate()
    assert "KeyboardInterrupt" in out, out + err


def test_of_two_processes_with_one_rank_in_the_pool_one_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "pool"
    outlive.open(place)
    out = finish(start_in_pool("run", 2, "meet", place, 30, only=[0, 1, 1]))
    refused = [text for text in out if "InvalidError" in text]
    assert len(refused) == 1, out
    assert 'rank 1 of run "run" has come already' in refused[0], out
    assert sum("saved" in text for text in out) == 2, out


def test_every_rank_in_a_pool_gets_an_error_for_a_mistake_of_one(tmp_path: Path) -> None:
    out = finish(start_in_pool("run", 3, "wrong", tmp_path / "pool"))
    for text in out:
        assert "other names | the ranks do not save the same" in text, text
        assert "epoch 2" in text, text


def test_every_rank_gets_an_error_for_a_mistake_of_one(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("leaver", [0, 1])
@pytest.mark.parametrize("how", ["close", "raise", "end"])
def test_a_rank_that_leaves_while_others_save_is_named(
    tmp_path: Path, leaver: int, how: str
) -> None:
    """The error comes at once, and not after the patience of an hour."""
    in_pool = finish(start_in_pool("run", 3, "leave", tmp_path / "pool", leaver, how))
    # A connection that cannot name the rank shows its end.
    by_socket = finish(start(3, "leave", tmp_path / "other", leaver, how))
    for out, has_means in ((in_pool, True), (by_socket, False)):
        for rank, text in enumerate(out):
            lines = dict(line.split(" | ", 1) for line in text.splitlines())
            if rank == leaver and how == "end":
                continue
            assert lines["then"] == "done", text
            if how == "close":
                line = lines["close" if rank == leaver else "save"]
                assert line.startswith("InvalidError the ranks are out of step: rank 1 "), text
                assert "the close of the job" in line, text
            elif rank == leaver:
                assert lines["raised"] == "done", text
            elif has_means:
                words = f"rank {leaver} has left its group: it has ended, or closed the job, after"
                assert lines["save"].startswith("InvalidError "), text
                assert words in lines["save"], text
            else:
                assert lines["save"].startswith("RetryError "), text


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


def test_a_new_rank_may_leave_out_regions_that_each_rank_has_for_itself(tmp_path: Path) -> None:
    finish(start(2, "more", tmp_path / "pool"))
    for rank, text in enumerate(finish(start(3, "more", tmp_path / "pool"))):
        lines = dict(line.split(" | ", 1) for line in text.splitlines() if " | " in line)
        who = "" if rank == 2 else "rank 2: "
        for what, missing in (
            ("all", '"own", "few/seeds/0", "few/seeds/1", which'),
            ("own", '"own", which'),
        ):
            told = lines[what].replace("'", '"')
            assert told.startswith(f"InvalidError {who}checkpoint 1 was saved by 2 ranks"), text
            assert missing in told, text
            assert "leave them out with `only`" in told, text


def test_a_group_is_asked_for_plainly(tmp_path: Path) -> None:
    pool = outlive.open(tmp_path / "pool")
    with pytest.raises(outlive.InvalidError, match="is no group of ranks"):
        pool.job("job", group="ranks")
    with pytest.raises(outlive.InvalidError, match="rank 2 of a group of 2"):
        outlive.ranks(2, 2, run="run")
    for run in ("", None):
        with pytest.raises(outlive.InvalidError, match="new for every start of the program"):
            outlive.ranks(0, 2, run=run)  # type: ignore[arg-type]
    with pytest.raises(outlive.InvalidError, match="1 to 200 bytes"):
        pool.job("job", group=outlive.ranks(0, 1, run="x" * 201))
    alone = pool.job("alone", group=outlive.ranks(0, 1, run="run"))
    assert alone.save({"a": 1}, wait=True).epoch == 1
    assert alone.restore() == {"a": 1}
    alone.close()
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
    # A group of one may ask for another part of a saved array.
    other = outlive.sharded(np.zeros((1, 1)), (4, 2), (3, 1))
    state = {"a": other, "b": 0}
    assert job.restore(into=state)
    assert (state["b"], other.array.sum()) == (7, 1)
    beyond = {"a": outlive.sharded(np.zeros((2, 2)), (4, 2), (1, 0)), "b": 0}
    with pytest.raises(outlive.InvalidError, match=r"no rank has saved the \[1, 2\] elements"):
        job.restore(into=beyond)


def test_blocks_that_are_dealt_out_are_restored_by_any_ranks(tmp_path: Path) -> None:
    place = tmp_path / "pool"
    runs = [(4, "8x2"), (6, "8x3"), (3, "rows"), (2, "box"), (4, "13x4"), (1, "box"), (5, "rows")]
    for step, (size, blocks) in enumerate(runs, 1):
        out = finish(start(size, "cyclic", place, blocks, step))
        assert all(text.startswith("saved") for text in out), out
        alone = outlive.open(place).job("cyclic").restore()
        assert np.array_equal(alone["matrix"], np.arange(60_000.0).reshape(300, 200) * step)
    assert out[3] == "saved <part of (300, 200) at (3, 0), blocks of (1, 1) every (5, 1)>\n"


def test_parts_that_cannot_be_are_refused() -> None:
    rows = np.zeros((5, 7))

    def refused(match: str, *arguments: Any, **keywords: Any) -> None:
        with pytest.raises(outlive.InvalidError, match=match):
            outlive.sharded(rows, *arguments, **keywords)

    refused("equally many dimensions", (14, 7), (0,))
    refused("equally many dimensions", (14, 7), (0, 0), stride=(2,))
    refused("begins at 10 along axis 0 and has 5 elements there; the global", (14, 7), (10, 0))
    refused("without a stride", (14, 7), (0, 0), block=(2, 7))
    refused(
        "blocks of 0 elements every 2 along axis 0", (14, 7), (0, 0), block=(0, 7), stride=(2, 7)
    )
    refused(
        "blocks of 3 elements every 2 along axis 0", (14, 7), (0, 0), block=(3, 7), stride=(2, 7)
    )
    refused("in blocks of 1 every 4; the global array has 14", (14, 7), (0, 0), stride=(4, 1))
    refused("begins at -1 along axis 0", (14, 7), (-1, 0), stride=(2, 1))
    # Elements 1, 2, 7, 8 and 13.
    part = outlive.sharded(rows, (14, 7), (1, 0), block=(2, 7), stride=(6, 7))
    assert (part.block, part.stride) == ((2, 7), (6, 7))
    assert outlive.sharded(rows, (14, 7), (1, 0)).block is None
    nothing = outlive.sharded(np.zeros((0, 7)), (3, 7), (4, 0), stride=(9, 1))
    assert nothing.offset == (4, 0)

    def refused_in_grid(match: str, *arguments: Any) -> None:
        with pytest.raises(outlive.InvalidError, match=match):
            outlive.block_cyclic(rows, *arguments)

    same = outlive.block_cyclic(rows, (13, 7), (2, 7), (3, 1), (0, 0))
    assert (same.offset, same.block, same.stride) == ((0, 0), (2, 7), (6, 7))
    of_second = "of 14 elements in blocks of 3, rank 1 of 3 has 5"
    assert outlive.block_cyclic(rows, (14, 7), (3, 7), (3, 1), (1, 0)).offset == (3, 0)
    refused_in_grid("has 4", (14, 7), (2, 7), (3, 1), (2, 0))
    refused_in_grid(
        of_second.replace("14", "13").replace("5", "4"), (13, 7), (3, 7), (3, 1), (1, 0)
    )
    refused_in_grid("rank 3 of 3 along axis 0", (14, 7), (2, 7), (3, 1), (3, 0))
    refused_in_grid("blocks of 0 elements", (14, 7), (0, 7), (3, 1), (0, 0))
    refused_in_grid("equally many dimensions", (14, 7), (2, 7), (3,), (0, 0))
