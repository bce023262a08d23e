"""`outlive run --gate`: each line of an unchanged program appears once, despite kills."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import outlive

NURSERY = Path(__file__).with_name("run_gate_nursery.py")
KILLS = int(os.environ.get("OUTLIVE_KILLS", "55"))

# A program whose part in the middle differs from test to test. It names its restored step.
PROGRAM = """
import os, pathlib, signal, sys, time
import numpy as np
import outlive

folder = pathlib.Path(sys.argv[1])

def starts():
    with (folder / "starts").open("a") as file:
        file.write("s")
    return (folder / "starts").stat().st_size

def kill():
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)

print("begin")
start = starts()
job = outlive.open(folder / "pool").job("job")
state = {"u": np.zeros(int(os.environ.get("ELEMENTS", "100"))), "step": 0}
job.restore(into=state)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def command(folder: Path, text: str) -> list[str]:
    """Writes a program, and returns the command that runs it."""
    path = folder / "program.py"
    path.write_text(PROGRAM + textwrap.dedent(text), "utf-8")
    return [sys.executable, str(path), str(folder)]


def words(folder: Path, *options: str) -> list[str]:
    run = [sys.executable, "-m", "outlive", "run", "--pool", str(folder / "pool"), "--job", "job"]
    return [*run, "--gate", *options, "--"]


def run(
    folder: Path, program: list[str] | str, *options: str, code: int = 0, **more: Any
) -> tuple[str, str]:
    """Runs a program to its end; returns what appears on both streams."""
    if isinstance(program, str):
        program = command(folder, program)
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    done = subprocess.run([*words(folder, *options), *program], check=False, **more)
    out, err = (text or b"" for text in (done.stdout, done.stderr))
    assert done.returncode == code, (done.returncode, out, err)
    return out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def program_lines(text: str) -> list[str]:
    """Returns the lines that are not messages of `outlive run`."""
    return [line for line in text.splitlines() if not line.startswith("outlive run: ")]


def messages(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith("outlive run: "))


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


def transcripts(folder: Path) -> list[Path]:
    return [*(folder / "pool/run").glob("job.transcripts/*/stdout*")]


@contextmanager
def running(program: list[str], **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    with subprocess.Popen(program, start_new_session=True, **more) as process:
        try:
            yield process
        finally:
            process.kill()


def nursery(folder: Path, way: str, kills: int) -> dict[str, Any]:
    seed = int.from_bytes(os.urandom(4), "little")
    words = [sys.executable, str(NURSERY), str(folder), str(kills), str(seed), way]
    done = subprocess.run(words, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["code"] == 0, f"seed {seed}: {done.stderr}"
    assert result["killed"] >= kills * 0.9, f"seed {seed}: {result}"
    return result


def test_each_line_appears_once_although_the_program_is_killed(folder: Path) -> None:
    result = nursery(folder, "gate", KILLS)
    assert result["faults"] == {"stdout": 0, "stderr": 0}, result
    # A run that has finished leaves nothing.
    assert result["left"] == [], result


def test_without_the_gate_the_same_program_repeats_lines(folder: Path) -> None:
    result = nursery(folder, "bare", 15)
    assert result["faults"]["stdout"] > 0, result
    assert result["faults"]["stderr"] > 0, result


def test_a_line_waits_for_the_commit_and_no_longer(folder: Path) -> None:
    text = """
    print("one")
    until = lambda name: [time.sleep(0.01) for _ in iter((folder / name).exists, True)]
    (folder / "printed").touch()
    until("save")
    job.save(state)
    print("two")
    sys.stdout.flush()
    until("end")
    """
    with running([*words(folder), *command(folder, text)]) as process:
        assert process.stdout is not None
        until((folder / "printed").exists)
        os.set_blocking(process.stdout.fileno(), False)
        assert process.stdout.read() is None
        (folder / "save").touch()
        got = b""
        while got.count(b"\n") < 2:
            got += process.stdout.read() or b""
            time.sleep(0.01)
        assert got == b"begin\none\n"
        (folder / "end").touch()
        assert process.wait() == 0
        assert process.stdout.read() == b"two\n"


def test_a_program_that_crashes_before_its_first_save_begins_anew(folder: Path) -> None:
    out, err = run(
        folder,
        """
        print("work")
        if start == 1:
            print("about to fail", file=sys.stderr)
            raise SystemExit("the reason")
        job.save(state)
        """,
    )
    assert out == "begin\nwork\n"
    # A user sees at once why the program has failed, and that it is no output.
    assert program_lines(err) == []
    for text in ("| about to fail", "| the reason", "which no checkpoint covers"):
        assert text in messages(err), err


def test_a_last_line_without_an_end_and_bytes_that_are_no_text(folder: Path) -> None:
    text = """
    sys.stdout.flush()
    os.write(1, bytes(range(256)))
    job.save(state)
    os.write(1, b"\\xff no end")
    """
    program = command(folder, text)
    done = subprocess.run([*words(folder), *program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"begin\n" + bytes(range(256)) + b"\xff no end"


def test_much_output_between_two_saves_comes_whole_and_its_room_is_given_back(
    folder: Path,
) -> None:
    text = """
    line = b"%063d\\n"
    block = b"".join(line % i for i in range(1 << 14))
    if state["step"] == 0:
        for _ in range(50):
            os.write(1, block)
        state["step"] = 1
        job.save(state, wait=True)
        os.write(1, block)
    else:
        os.write(1, block)
        job.save(state, wait=True)
        used = lambda: sum(p.stat().st_blocks * 512 for p in (folder / "pool/run").rglob("stdout"))
        while used() > 3 << 20:
            time.sleep(0.01)
    if start == 1:
        kill()
    """
    out, _ = run(folder, text)
    block = "".join(f"{i:063d}\n" for i in range(1 << 14))
    # The lines after the save are repeated, and appear once.
    assert out == "begin\n" + block * 51


def test_when_it_gives_up_all_that_no_checkpoint_covers_is_shown_and_marked(folder: Path) -> None:
    out, err = run(
        folder,
        """
        if start == 1:
            job.save(state, wait=True)
        for line in range(30):
            print("line", line)
        print("trouble", file=sys.stderr)
        sys.exit(3)
        """,
        "--give-up",
        "1",
        code=77,
    )
    assert out == "begin\n"
    assert program_lines(err) == []
    assert "all of its standard output, which no checkpoint covers" in err
    assert [f"| line {line}" in err for line in range(30)] == [True] * 30
    assert "| trouble" in err
    assert "gives up" in err


STEPS = """
while state["step"] < 12:
    if job.should_stop:
        job.save(state)
        print("stops")
        sys.exit(0)
    state["step"] += 1
    print("step", state["step"])
    print("error", state["step"], file=sys.stderr)
    job.save(state)
    (folder / f"step {state['step']}").touch()
    while state["step"] == 6 and start == 1 and not job.should_stop:
        time.sleep(0.01)
print("end")
"""


@pytest.mark.parametrize("way", ["outlive stop", "SIGTERM"])
def test_a_run_after_a_preemption_goes_on_without_a_gap(folder: Path, way: str) -> None:
    program = command(folder, STEPS)
    with running([*words(folder), *program]) as process:
        until((folder / "step 6").exists)
        if way == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            stop = [sys.executable, "-m", "outlive", "stop", str(folder / "pool"), "job"]
            subprocess.run(stop, check=True, capture_output=True)
        assert process.wait() == 76
        assert process.stdout is not None
        assert process.stderr is not None
        first = [process.stdout.read().decode(), process.stderr.read().decode()]
    assert first[0] == "begin\n" + "".join(f"step {step}\n" for step in range(1, 7))
    second = run(folder, program)
    out, err = (a + b for a, b in zip(first, second, strict=True))
    assert out == "begin\n" + "".join(f"step {step}\n" for step in range(1, 13)) + "end\n"
    assert program_lines(err) == [f"error {step}" for step in range(1, 13)]


def full_pipe() -> tuple[int, int]:
    """Returns a pipe that takes nothing, and that nothing reads: what is covered waits."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    os.set_blocking(write, True)
    return read, write


def test_what_a_killed_supervisor_has_left_is_shown_by_the_next_one(folder: Path) -> None:
    text = """
    print("work", state["step"])
    state["step"] += 1
    job.save(state, wait=True)
    (folder / "saved").touch()
    while start == 1:
        time.sleep(0.01)
    """
    read, write = full_pipe()
    program = command(folder, text)
    with running([*words(folder), *program], stdout=write) as process:
        os.close(write)
        until((folder / "saved").exists)
        process.kill()
        process.wait()
    os.close(read)
    out, _ = run(folder, program)
    assert out == "begin\nwork 0\nwork 1\n"


def test_lines_of_attempts_that_a_killed_supervisor_has_not_noted_are_shown(folder: Path) -> None:
    text = """
    while state["step"] < 3:
        state["step"] += 1
        print("step", state["step"])
        job.save(state, wait=True)
        if start == 1 and state["step"] == 2:
            kill()
    (folder / "saved").touch()
    while start == 2:
        time.sleep(0.01)
    """
    read, write = full_pipe()
    program = command(folder, text)
    with running([*words(folder), *program], stdout=write) as process:
        os.close(write)
        until((folder / "saved").exists)
        process.kill()
        process.wait()
    os.close(read)
    out, _ = run(folder, program)
    assert out == "begin\nstep 1\nstep 2\nstep 3\n"


def test_lines_of_a_command_that_uses_another_job_are_all_shown(folder: Path) -> None:
    text = """
    while state["step"] < 4:
        state["step"] += 1
        print("step", state["step"])
        job.save(state, wait=True)
        if start == 1 and state["step"] == 2:
            kill()
    """
    run = ["misspelt" if word == "job" else word for word in words(folder)]
    done = subprocess.run(
        [*run, *command(folder, text)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "begin\nstep 1\nstep 2\nbegin\nstep 3\nstep 4\n"
    assert (
        "the command has not opened the job, so all that its 2 attempts have printed" in done.stderr
    )


def test_a_file_gets_each_byte_once_although_the_supervisor_is_killed(folder: Path) -> None:
    text = """
    while state["step"] < 60:
        state["step"] += 1
        print("step", state["step"], "x" * 5000)
        job.save(state)
    """
    program, log = command(folder, text), folder / "log"
    length = 0
    for _ in range(4):
        with log.open("ab") as out, running([*words(folder), *program], stdout=out) as process:
            # Killed in the middle of its work, wherever that is.
            while log.stat().st_size <= length and process.poll() is None:
                time.sleep(0.01)
            process.kill()
            process.wait()
        length = log.stat().st_size
        # The program gets SIGTERM, and may still print to its transcript: that is no fault.
    with log.open("ab") as out:
        run(folder, program, stdout=out)
    want = ["begin"] + [f"step {step} {'x' * 5000}" for step in range(1, 61)]
    assert log.read_text().splitlines() == want


def test_a_closed_standard_output_ends_no_work_and_is_told(folder: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    _, err = run(folder, "job.save(state, wait=True)\nprint('end')", code=6, stdout=write)
    os.close(write)
    assert "standard output takes nothing" in err
    assert "10 bytes are not shown" in err
    # The text is there for the user.
    assert b"".join(path.read_bytes() for path in transcripts(folder)) == b"begin\nend\n"


def test_a_full_disk_is_told_with_its_kind(folder: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        _, err = run(folder, "job.save(state, wait=True)", code=4, stdout=full)
    assert "standard output takes nothing" in err
    assert "tried again" in err


def test_one_terminal_keeps_the_order_of_both_streams(folder: Path) -> None:
    text = """
    sys.stdout.flush()
    for number in range(4):
        os.write(1 + number % 2, b"line %d\\n" % number)
    job.save(state)
    """
    ours, theirs = pty.openpty()
    program = command(folder, text)
    with running([*words(folder), *program], stdout=theirs, stderr=theirs) as process:
        assert process.wait() == 0
    os.close(theirs)
    got = os.read(ours, 1 << 16).decode().split()
    os.close(ours)
    assert got == ["begin", *(word for n in range(4) for word in ("line", str(n)))]


def test_a_program_that_never_saves_appears_at_its_end(folder: Path) -> None:
    # As in a script: the command is no program of outlive's at all.
    out, err = run(folder, ["sh", "-c", "echo out; echo err >&2; printf end"])
    assert (out, err) == ("out\nend", "err\n")


def test_a_second_program_of_the_command_does_not_drop_what_the_first_has_printed(
    folder: Path,
) -> None:
    command(folder, "job.save(state)\nprint('one')\njob.close()\nprint('two')")
    second = folder / "second.py"
    second.write_text(
        "import outlive, sys\n"
        "print('three')\n"
        "job = outlive.open(sys.argv[1] + '/pool').job('job')\n"
        "tree = job.restore()\n"
        "print('four', tree['step'])\n"
    )
    script = f"{sys.executable} {folder}/program.py {folder} && {sys.executable} {second} {folder}"
    out, _ = run(folder, ["sh", "-c", script])
    assert out == "begin\none\ntwo\nthree\nfour 0\n"


def test_a_look_at_an_older_checkpoint_drops_nothing(folder: Path) -> None:
    out, _ = run(
        folder,
        """
        if start == 1:
            job.save(state, wait=True)
            state["step"] = 1
            print("one")
            job.save(state, wait=True)
            kill()
        print("two", state["step"])
        assert job.restore(epoch=1)["step"] == 0
        print("three")
        job.save(state, wait=True)
        """,
    )
    assert out == "begin\none\ntwo 1\nthree\n"


def test_lines_after_a_commit_that_was_never_reported_appear_after_the_restore(
    folder: Path,
) -> None:
    out, _ = run(
        folder,
        """
        if start == 1:
            print("one")
            job.save(state, wait=True)
            state["step"] = 1
            print("two")
            # The commit is not reported: as if the program were killed in between.
            (pathlib.Path(os.environ["OUTLIVE_RUN"]) / "reports").chmod(0)
            (pathlib.Path(os.environ["OUTLIVE_RUN"]) / "reports").rename(folder / "reports")
            job.save(state, wait=True)
            (folder / "reports").rename(pathlib.Path(os.environ["OUTLIVE_RUN"]) / "reports")
            print("dropped")
            kill()
        print("three", state["step"])
        """,
    )
    assert out == "begin\none\ntwo\nthree 1\n"


def test_a_child_that_only_looks_at_a_checkpoint_drops_nothing(folder: Path) -> None:
    text = """
    import subprocess
    job.save(state, wait=True)
    print("two")
    sys.stdout.flush()
    look = "import outlive, sys; job = outlive.open(sys.argv[1]).job('job'); "
    look += "print('child', job.restore()['step'])"
    subprocess.run([sys.executable, "-c", look, str(folder / "pool")], check=True)
    print("three")
    job.save(state, wait=True)
    """
    out, _ = run(folder, text)
    assert out == "begin\ntwo\nchild 0\nthree\n"


def test_transcripts_that_are_removed_cost_no_save(folder: Path) -> None:
    text = """
    import shutil
    print("one")
    job.save(state, wait=True)
    shutil.rmtree(folder / "pool/run/job.transcripts")
    print("two")
    state["step"] = 1
    job.save(state, wait=True)
    """
    run(folder, text)
    assert outlive.open(folder / "pool").job("job").restore()["step"] == 1


@pytest.mark.parametrize("end", ["raise ValueError(1)", "sys.exit(3)", "job.close(); sys.exit(3)"])
def test_a_program_that_fails_in_a_loop_of_a_script_repeats_no_line(folder: Path, end: str) -> None:
    text = f"""
    while state["step"] < 4:
        state["step"] += 1
        print("step", state["step"])
        if start == state["step"] - 1 < 3:
            {end}
        job.save(state, wait=True)
    """
    program = shlex.join(command(folder, text))
    out, _ = run(folder, ["sh", "-c", f"until {program}; do :; done"])
    assert out == "begin\n" + "".join(f"step {step}\n" for step in (1, 2, 3, 4))


# Saves by a fork, and is killed at once: a helper completes the save.
HELPED = """
def step():
    state["step"] += 1
    state["u"] += state["step"]
    print("step", state["step"])
    print("error", state["step"], file=sys.stderr)
    job.save(state)
    print("uncovered", file=sys.stderr, flush=True)
"""


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the program save 160 MB, with a helper of its own."""
    monkeypatch.setenv("OUTLIVE_HELPER", str(tmp_path))
    monkeypatch.setenv("ELEMENTS", str(20_000_000))


def helped_lines(steps: int) -> tuple[str, list[str]]:
    numbers = range(1, steps + 1)
    return (
        "begin\n" + "".join(f"step {step}\n" for step in numbers),
        [f"error {step}" for step in numbers],
    )


@pytest.mark.usefixtures("large")
def test_lines_of_a_save_that_a_helper_completes_appear_once(folder: Path) -> None:
    text = """
    while state["step"] < 4:
        step()
        if state["step"] < 4:
            kill()
    """
    out, err = run(folder, HELPED + textwrap.dedent(text))
    want, errors = helped_lines(4)
    assert out == want
    assert program_lines(err) == [*errors, "uncovered"]
    told = messages(err)
    assert told.count("a helper has completed checkpoint") == 3, err
    # A checkpoint covers them.
    assert told.count("| uncovered") == 3, err
    assert "| error" not in told, err


@pytest.mark.usefixtures("large")
def test_when_it_gives_up_lines_of_a_save_that_a_helper_has_completed_are_shown(
    folder: Path,
) -> None:
    program = shlex.join(command(folder, HELPED + "step()\nkill()\n"))
    script = f"if test -e {folder}/starts; then exit 3; fi; exec {program}"
    out, err = run(folder, ["sh", "-c", script], "--give-up", "1", code=77)
    assert (out, program_lines(err)) == ("begin\nstep 1\n", ["error 1"])
    assert "a helper has completed checkpoint" in err


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_run_that_ends_shows_the_lines_of_the_save_that_a_helper_completes(
    folder: Path, number: signal.Signals, code: int
) -> None:
    text = """
    if start == 1:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        step()
        (folder / "saved").touch()
        time.sleep(600)
    step()
    """
    program = command(folder, HELPED + textwrap.dedent(text))
    with running([*words(folder), *program]) as process:
        until((folder / "saved").exists)
        process.send_signal(number)
        while number == signal.SIGTERM and process.poll() is None:
            # One that comes a second later ends the command at once.
            time.sleep(0.05)
            process.send_signal(number)
        first, told = (text.decode() for text in process.communicate())
        assert process.returncode == code, told
    want, errors = helped_lines(1)
    assert (first, program_lines(told)) == (want, errors)
    assert "| uncovered" in told
    assert "| error" not in told
    out, err = run(folder, program)
    want, errors = helped_lines(2)
    assert (first + out, program_lines(told + err)) == (want, [*errors, "uncovered"])
