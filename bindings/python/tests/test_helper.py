"""The helper: a save that has returned survives the program."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import command
from helped import KILL, ONE_SAVE, killed, processes, restored, start, told, wait_for

import outlive

pytestmark = pytest.mark.usefixtures("own_helper")

# Saves a state of MIB mebibytes, and prints the number of each save once it has returned.
SAVER = """
folder, mib, freeze = sys.argv[1], int(sys.argv[2]), sys.argv[3]
job = outlive.open(folder, freeze=freeze).job("job", keep_last=3)

def work(state):
    state["step"] += 1
    a, step = state["a"], state["step"]
    if mib > 64:
        a += step
    else:
        a[step * 7919 % a.size :: 5003] = step
    state["text"] = f"step {step}" * 10_000

want = {"a": np.zeros(mib << 17), "step": 0, "text": "", "none": np.zeros(0)}
state = {"a": np.zeros(mib << 17), "step": 0, "text": "", "none": np.zeros(0)}
job.restore(into=state)
while want["step"] < state["step"]:
    work(want)
assert want["text"] == state["text"]
assert np.array_equal(want["a"], state["a"])
del want
print("restored", state["step"], flush=True)
save = None
for line in sys.stdin:
    for _ in range(int(line)):
        work(state)
        save = job.save(state)
        print("saved", state["step"], flush=True)
job.close()
print("freeze", save.stats.freeze if save else "none", flush=True)
"""

Program = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def saver(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    script = tmp_path / "saver.py"
    script.write_text("import sys\nimport numpy as np\nimport outlive\n" + SAVER)

    def start(*arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    return start


def ask(child: subprocess.Popen[str], saves: int) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{saves}\n")
    child.stdin.flush()


def lost_saves(saver: Program, pool: Path, mib: int, freeze: str, kills: int, seed: int) -> int:
    """Kills a program after saves that have returned; counts those that are lost."""
    chance = random.Random(seed)
    lost, last = 0, 0
    for _ in range(kills):
        child = saver(pool, mib, freeze)
        restored = told(child, "restored")
        lost += restored < last
        saves = chance.randint(1, 4)
        ask(child, saves)
        for _ in range(saves):
            last = told(child, "saved")
        child.send_signal(signal.SIGKILL)
        child.communicate()
    child = saver(pool, mib, freeze)
    lost += told(child, "restored") < last
    child.communicate("")
    assert child.returncode == 0
    return lost


@pytest.mark.parametrize(("mib", "kills"), [(8, 12), (100, 8)])
def test_every_save_that_returned_survives_the_kill(
    saver: Program, folder: Path, mib: int, kills: int
) -> None:
    assert lost_saves(saver, folder, mib, "helper", kills, seed=mib) == 0
    assert "Everything is whole" in command("verify", folder)
    wait_for(lambda: not processes(folder.parent, "outlive-frozen"))


def test_without_a_helper_saves_are_lost(saver: Program, folder: Path) -> None:
    assert lost_saves(saver, folder, 100, "auto", 4, seed=1) > 0


def test_the_next_program_waits_for_the_helper(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "outlive")
    for _ in range(5):
        killed(ONE_SAVE, folder)
        assert restored(folder)["step"] == 1
    assert "a helper has completed checkpoint" in caplog.text
    # A completed checkpoint is an ordinary one.
    assert "Everything is whole" in command("verify", folder)


def test_a_program_that_ends_or_becomes_another_one_leaves_its_save(folder: Path) -> None:
    for step, end in enumerate(["os._exit(3)", 'os.execvp("true", ["true"])'], 1):
        child = start(
            f"""
            job = outlive.open(sys.argv[1], freeze="helper").job("job")
            state = {{"a": np.zeros(20_000_000), "step": 0}}
            job.restore(into=state)
            state["a"] += 1
            state["step"] += 1
            job.save(state)
            {end}
            """,
            folder,
        )
        _, errors = child.communicate()
        assert "Traceback" not in errors, errors
        state = restored(folder)
        assert state["step"] == step
        assert np.array_equal(state["a"], np.full(20_000_000, float(step)))


def test_a_child_of_the_program_does_not_keep_the_helper_from_work(folder: Path) -> None:
    child = start(
        f"""
        job = outlive.open(sys.argv[1], freeze="helper").job("job")
        if os.fork() == 0:
            sys.stdin.read()
            os._exit(0)
        job.save({{"a": np.arange(20_000_000.0), "step": 7}})
        {KILL}
        """,
        folder,
    )
    child.wait()
    assert restored(folder)["step"] == 7
    child.communicate("")


def test_what_cannot_be_shared_is_committed_before_the_save_returns(folder: Path) -> None:
    job = outlive.open(folder, freeze="helper", freeze_bytes_max="1MiB").job("job")
    # Shared memory is not frozen by a fork, and exceeds the budget.
    memory = np.frombuffer(mmap.mmap(-1, 8 << 20), dtype=np.uint8)
    memory[:] = 7
    save = job.save({"a": memory, "b": bytes(3 << 20)})
    assert save.done()
    assert save.stats is not None
    assert "; the save waits for its commit, since some bytes are in" in save.stats.freeze
    job.close()


def test_bytes_that_never_change_are_held_too(folder: Path) -> None:
    for size in (100_000, 100_000_000):
        killed(
            f"""
            job = outlive.open(sys.argv[1], freeze="helper").job("job")
            job.save({{"a": os.urandom(16) + bytes(range(250)) * ({size} // 250), "none": b""}})
            {KILL}
            """,
            folder,
        )
        state = restored(folder)
        assert state["none"] == b""
        assert isinstance(state["a"], bytes)
        assert state["a"][16:] == bytes(range(250)) * (size // 250)


def test_the_outputs_of_a_completed_save_are_released(folder: Path) -> None:
    killed(
        f"""
        job = outlive.open(sys.argv[1], freeze="helper").job("job")
        gate = job.gate()
        print("a line", file=gate.open(sys.argv[2]))
        job.save({{"a": np.arange(20_000_000.0), "step": 1}})
        {KILL}
        """,
        folder,
        folder.parent / "lines",
    )
    with outlive.open(folder).job("job") as job:
        gate = job.gate()
        gate.open(folder.parent / "lines")
        assert job.restore() is not None
        gate.flush()
    assert (folder.parent / "lines").read_text() == "a line\n"


def free_port() -> int:
    """Returns a port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_group_survives_as_a_whole(
    folder: Path, hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, name = Path(__file__).parent, os.environ["OUTLIVE_HELPER"]

    def helper(rank: int) -> str:
        """Returns the name of a rank's helper: each host has one."""
        return f"{name}-{rank % hosts}"

    for step in range(1, 5):
        with contextlib.ExitStack() as stack:
            port = free_port()
            ranks = [
                stack.enter_context(
                    start(
                        """
                        os.environ["OUTLIVE_HELPER"] = sys.argv[5]
                        sys.path.insert(0, sys.argv[4])
                        from ranks import Hub
                        hub = Hub(int(sys.argv[1]), 3, int(sys.argv[2]))
                        job = outlive.open(sys.argv[3], freeze="helper").job(
                            "job", group=hub, replicated=("step",), patience_s=30)
                        state = {"a": np.zeros(12_000_000), "step": 0}
                        job.restore(into=state)
                        state["a"] += hub.rank + 1
                        state["step"] += 1
                        job.save(state)
                        print("saved", state["step"], flush=True)
                        sys.stdin.readline()
                        """,
                        rank,
                        port,
                        folder,
                        here,
                        helper(rank),
                    )
                )
                for rank in range(3)
            ]
            assert [told(rank, "saved") for rank in ranks] == [step] * 3
            for rank in ranks:
                rank.kill()
    # That of rank 0 has the commit.
    monkeypatch.setenv("OUTLIVE_HELPER", helper(0))
    child = start(
        """
        job = outlive.open(sys.argv[1]).job("job")
        print("step", job.restore()["step"])
        """,
        folder,
    )
    out, errors = child.communicate()
    assert out == "step 4\n", errors
    assert "Everything is whole" in command("verify", folder)


def test_a_save_whose_images_are_not_all_held_is_lost_and_the_next_program_says_so(
    folder: Path,
) -> None:
    here, port = Path(__file__).parent, free_port()
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                start(
                    """
                    sys.path.insert(0, sys.argv[4])
                    from ranks import Hub
                    hub = Hub(int(sys.argv[1]), 2, int(sys.argv[2]))
                    job = outlive.open(sys.argv[3], freeze=sys.argv[5]).job(
                        "job", group=hub, replicated=("step",), patience_s=5)
                    state = {"a": np.zeros(12_000_000), "step": 0}
                    job.save(state, wait=True)
                    state["a"] += 1
                    state["step"] += 1
                    job.save(state)
                    print("saved", 1, flush=True)
                    sys.stdin.readline()
                    """,
                    rank,
                    port,
                    folder,
                    here,
                    # The other rank is on a host without a helper.
                    ("helper", "fork")[rank],
                )
            )
            for rank in range(2)
        ]
        assert [told(rank, "saved") for rank in ranks] == [1, 1]
        for rank in ranks:
            rank.kill()
    child = start(
        """
        import logging
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        job = outlive.open(sys.argv[1]).job("job")
        print("step", job.restore()["step"])
        """,
        folder,
    )
    out, errors = child.communicate()
    # The commit may have been faster than the kill.
    assert "could not complete the save of a program" in errors or out == "step 1\n", errors
    assert out in ("step 0\n", "step 1\n"), errors
    assert "Everything is whole" in command("verify", folder)


@pytest.mark.parametrize("options", [[], ["--no-helper"]])
def test_the_supervisor_starts_again_from_the_save_that_had_returned(
    folder: Path, tmp_path: Path, options: list[str]
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys
            import numpy as np
            import outlive
            job = outlive.open(sys.argv[1]).job("job")
            state = {{"a": np.zeros(20_000_000), "step": 0}}
            job.restore(into=state)
            print("from", state["step"], flush=True)
            if state["step"] < 3:
                state["a"] += 1
                state["step"] += 1
                job.save(state)
                {KILL}
            job.close()
            """
        )
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "outlive", "run", "--pool", folder, "--job", "job"),
            *("--give-up", "2", *options, "--", sys.executable, script, folder),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    steps = [int(line.split()[1]) for line in done.stdout.splitlines()]
    if options:
        assert steps != [0, 1, 2, 3]
        return
    assert done.returncode == 0, done.stderr
    assert steps == [0, 1, 2, 3], done.stderr
    assert done.stderr.count("a helper has completed checkpoint") == 3, done.stderr
    wait_for(lambda: not processes(tmp_path, "outlive-frozen"))
