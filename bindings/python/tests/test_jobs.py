"""Jobs that are deleted and renamed, by Python and by the command line."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import command

import outlive


def filled(location: Path, name: str = "run", count: int = 3) -> outlive.Pool:
    pool = outlive.open(location)
    with pool.job(name) as job:
        for number in range(1, count + 1):
            job.save(
                {"x": np.random.default_rng(number).random(100_000)}, wait=True, label=f"l{number}"
            )
    return pool


def stored_bytes(location: Path) -> int:
    return sum(path.stat().st_size for path in location.rglob("*.shard"))


def is_state(tree: dict[str, np.ndarray], number: int) -> bool:
    return bool(np.array_equal(tree["x"], np.random.default_rng(number).random(100_000)))


def test_a_deleted_job_is_gone_with_its_space(tmp_path: Path) -> None:
    pool = filled(tmp_path)
    filled(tmp_path, "other", 1)
    before = stored_bytes(tmp_path)
    assert pool.jobs() == ["other", "run"]
    done = pool.delete_job("run")
    assert done.dropped == [1, 2, 3]
    assert done.collected.freed_bytes > 1_000_000
    assert stored_bytes(tmp_path) < before / 2
    assert pool.jobs() == ["other"]
    assert [one["job"] for one in json.loads(command("ls", tmp_path, "--json"))["jobs"]] == [
        "other"
    ]
    assert not re.search(r"^run\b", command("du", tmp_path), re.M)
    with pytest.raises(outlive.InvalidError, match="no job run"):
        pool.delete_job("run")
    with pytest.raises(outlive.InvalidError, match="no job none"):
        pool.delete_job("none")
    # The name is free, and epochs go on.
    job = pool.job("run")
    assert job.restore() is None
    assert job.save({"x": 1}, wait=True).epoch == 4
    assert pool.jobs() == ["other", "run"]


def test_an_open_job_is_deleted_only_with_fence(tmp_path: Path) -> None:
    pool = outlive.open(tmp_path)
    job = pool.job("run")
    job.save({"x": 1}, wait=True)
    other = outlive.open(tmp_path)
    with pytest.raises(outlive.InvalidError, match=f"process {os.getpid()} .*fence=True"):
        other.delete_job("run")
    with pytest.raises(outlive.InvalidError, match="fence=True"):
        other.rename_job("run", "new")
    assert other.delete_job("run", fence=True, collect=False).dropped == [1]
    with pytest.raises(outlive.FencedError):
        job.save({"x": 2}, wait=True)


def test_a_program_that_runs_is_shut_out(tmp_path: Path) -> None:
    program = """
import sys, outlive
job = outlive.open(sys.argv[1]).job("run")
job.save({"step": 1}, wait=True)
print("saved", flush=True)
sys.stdin.readline()
try:
    job.save({"step": 2}, wait=True)
except outlive.FencedError:
    print("fenced", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        assert running.stdout.readline() == "saved\n"
        refused = command("job", "rename", tmp_path, "run", "new", code=2)
        assert f"process {running.pid} " in refused
        assert "--fence" in refused
        assert "Job run is called new now, with 1 checkpoint." in command(
            "job", "rename", tmp_path, "run", "new", "--fence"
        )
        running.stdin.write("go\n")
        running.stdin.flush()
        assert running.stdout.readline() == "fenced\n"
    assert outlive.open(tmp_path).jobs() == ["new"]


def test_a_renamed_job_keeps_everything(tmp_path: Path) -> None:
    pool = filled(tmp_path)
    before = stored_bytes(tmp_path)
    assert pool.rename_job("run", "new") == [1, 2, 3]
    assert stored_bytes(tmp_path) < before * 1.1
    assert pool.jobs() == ["new"]
    job = pool.job("new")
    assert [(epoch.epoch, epoch.label) for epoch in job.epochs()] == [
        (1, "l1"),
        (2, "l2"),
        (3, "l3"),
    ]
    assert is_state(job.restore(), 3)
    assert is_state(job.restore(epoch=1), 1)
    pool.gc(max_unused=0.0)
    assert is_state(job.restore(epoch=2), 2)
    command("verify", tmp_path)
    job.close()
    for old, new, why in [
        ("run", "other", "no job run"),
        ("new", "new", "called new already"),
        ("new", "a\nb", "control character"),
        ("new", "run", "only go forward"),
    ]:
        with pytest.raises(outlive.InvalidError, match=why):
            pool.rename_job(old, new)
    assert "names a checkpoint" in command("job", "rename", tmp_path, "new", "old@3", code=2)
    assert pool.jobs() == ["new"]


def test_the_history_goes_with_the_name(tmp_path: Path) -> None:
    program = "import sys, outlive; outlive.open(sys.argv[1]).job('run').save({'x': 1}, wait=True)"
    command(
        "run", "--pool", tmp_path, "--job", "run", "--", sys.executable, "-c", program, tmp_path
    )
    command("job", "rename", tmp_path, "run", "new")
    attempts = json.loads(command("history", tmp_path, "new", "--json"))["attempts"]
    assert [one["commits"] for one in attempts] == [1]
    assert "has no history" in command("history", tmp_path, "run", code=2)
    command("job", "delete", tmp_path, "new", "--yes")
    assert "has no history" in command("history", tmp_path, "new", code=2)


def test_the_histories_of_both_names_become_one(tmp_path: Path) -> None:
    """The new name has had an attempt that saved nothing."""

    def run(job: str, program: str, code: int = 0) -> None:
        words = ["run", "--pool", tmp_path, "--job", job, "--give-up", "1", "--"]
        command(*words, sys.executable, "-c", program, tmp_path, code=code)

    run("new", "pass")
    save = "outlive.open(sys.argv[1]).job('run').save({'x': 1}, wait=True)"
    run("run", f"import sys, outlive; {save}")
    command("job", "rename", tmp_path, "run", "new")
    attempts = json.loads(command("history", tmp_path, "new", "--json"))["attempts"]
    assert [one["commits"] for one in attempts] == [0, 1]


def test_a_job_that_has_released_outputs_keeps_its_name(tmp_path: Path) -> None:
    pool = outlive.open(tmp_path / "pool")
    lines = tmp_path / "lines.txt"

    def write(number: int) -> None:
        with pool.job("run") as job:
            gate = job.gate()
            with gate.open(lines, "a") as out:
                out.write(f"line {number}\n")
                job.save({"x": number}, wait=True)
            gate.flush()

    write(1)
    with pytest.raises(outlive.InvalidError, match="keeps its name"):
        pool.rename_job("run", "new")
    assert pool.jobs() == ["run"]
    pool.delete_job("run")
    # A new job of that name knows nothing of the former one's outputs.
    write(2)
    assert lines.read_text().splitlines()[-1] == "line 2"
    with pytest.raises(outlive.InvalidError, match="keeps its name"):
        pool.rename_job("run", "new")


def test_a_supervised_job_is_left_alone(tmp_path: Path) -> None:
    outlive.open(tmp_path)
    program = """
import sys, outlive
job = outlive.open(sys.argv[1]).job("run")
job.save({"x": 1}, wait=True)
job.close()
print("saved", flush=True)
sys.stdin.readline()
"""
    words = [
        "run",
        "--pool",
        tmp_path,
        "--job",
        "run",
        "--",
        sys.executable,
        "-c",
        program,
        tmp_path,
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "outlive", *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        assert running.stdout.readline() == "saved\n"
        for change in (["delete", tmp_path, "run", "--yes"], ["rename", tmp_path, "run", "new"]):
            assert "supervises job run" in command("job", *change, "--fence", code=2)
        running.stdin.close()
    command("job", "delete", tmp_path, "run", "--yes")


def test_a_deletion_asks_and_says_what_it_frees(tmp_path: Path) -> None:
    filled(tmp_path)
    told = command("job", "delete", tmp_path, "run", "--dry-run")
    assert "Would delete job run with 3 checkpoints (1-3), and free about" in told
    assert "MiB" in told
    assert json.loads(command("job", "delete", tmp_path, "run", "--dry-run", "--json"))[
        "deleted"
    ] == [1, 2, 3]
    assert "give --yes" in command("job", "delete", tmp_path, "run", code=2)
    words = [sys.executable, "-m", "outlive", "job", "delete", str(tmp_path), "run"]
    for answer, code in ((b"n\n", 2), (b"\n", 2), (b"y\n", 0)):
        terminal, end = pty.openpty()
        with subprocess.Popen(words, stdin=end, stdout=end, stderr=end) as asking:
            os.close(end)
            shown = b""
            while b"[y/N]" not in shown:
                shown += os.read(terminal, 1024)
            os.write(terminal, answer)
            # A terminal has an end once the program has ended.
            try:
                while part := os.read(terminal, 1024):
                    shown += part
            except OSError:
                pass
            assert asking.wait() == code, shown
        os.close(terminal)
    assert outlive.open(tmp_path).jobs() == []
    assert "there is no job run" in command("job", "delete", tmp_path, "run", "--yes", code=2)


@pytest.mark.parametrize("what", ["delete", "rename"])
def test_killed_at_any_moment_and_given_again(tmp_path: Path, what: str) -> None:
    words = {"delete": ["delete", "run", "--yes"], "rename": ["rename", "run", "new"]}[what]
    word, *rest = words
    for moment in range(12):
        place = tmp_path / str(moment)
        filled(place).close()
        running = subprocess.Popen(
            [sys.executable, "-m", "outlive", "job", word, str(place), *rest],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            # Another moment each time; any is right.
            running.wait(timeout=0.05 + moment * 0.01)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
        pool = outlive.open(place)
        jobs = pool.jobs()
        there = {epoch.epoch for job in jobs for epoch in pool.job(job).epochs()}
        assert there in ({1, 2, 3}, set()), (moment, jobs, there)
        if what == "rename":
            assert there == {1, 2, 3}, moment
        if "run" in jobs:
            command("job", word, place, *rest)
        assert outlive.open(place).jobs() == (["new"] if what == "rename" else [])
        if what == "rename":
            job = outlive.open(place).job("new")
            assert all(is_state(job.restore(epoch=epoch), epoch) for epoch in (1, 2, 3))
        command("gc", place)
        command("verify", place)
