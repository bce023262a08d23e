"""`outlive run`: real kills, hangs, signals and full memory, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive

CODES = {"finished": 0, "invalid": 2, "requeue": 75, "saved": 76, "gave up": 77}

# A program of steps, whose state shows that it ran each of them once, in order.
PROGRAM = """
import os, pathlib, signal, sys, time
import numpy as np
import outlive

folder = pathlib.Path(sys.argv[1])
trail = folder.with_name("trail")

def starts():
    return trail.read_text().count("start") if trail.exists() else 0

def note(text):
    with trail.open("a") as file:
        file.write(text + "\\n")

{hook}

job = outlive.open(folder).job("job", every_s={every_s})
state = {{"u": np.zeros(20_000), "step": 0}}
job.restore(into=state)
note(f"start {{state['step']}}")
{begin}
while state["step"] < {steps}:
    if job.should_stop:
        job.save(state)
        note(f"stop {{state['step']}}")
        sys.exit(0)
    state["u"] += state["step"]
    state["step"] += 1
    {hook_call}
    job.save(state)
job.save(state, force=True).wait()
note(f"done {{state['step']}}")
"""


def program(
    path: Path,
    hook: str = "",
    *,
    call: str = "pass",
    begin: str = "",
    every_s: float = 0.0,
    steps: int = 40,
) -> list[str]:
    """Writes the program, and returns the command that runs it."""
    hook = textwrap.dedent(hook)
    source = path.with_name("program.py")
    source.write_text(
        PROGRAM.format(hook=hook, hook_call=call, begin=begin, every_s=every_s, steps=steps),
        "utf-8",
    )
    return [sys.executable, str(source), str(path)]


def outlive_run(path: Path, *options: str, job: str = "job") -> list[str]:
    return [sys.executable, "-m", "outlive", "run", "--pool", str(path), "--job", job, *options]


def run(
    path: Path, command: list[str], *options: str, code: str = "finished", **more: Any
) -> subprocess.CompletedProcess[str]:
    words = [*outlive_run(path, *options), "--", *command]
    more = {"capture_output": True, "start_new_session": True} | more
    done = subprocess.run(words, text=True, check=False, **more)
    assert done.returncode == CODES[code], (done.returncode, done.stdout, done.stderr)
    return done


def trail(path: Path) -> list[str]:
    return path.with_name("trail").read_text("utf-8").splitlines()


def history(path: Path, job: str = "job") -> dict[str, Any]:
    words = [sys.executable, "-m", "outlive", "--json", "history", str(path), job]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def is_whole(path: Path, steps: int = 40) -> None:
    """Checks that the state is what an undisturbed run makes."""
    tree = outlive.open(path).job("job").restore()
    assert tree["step"] == steps
    assert (tree["u"] == np.full(20_000, sum(range(steps)), float)).all()


@contextmanager
def running(
    path: Path, command: list[str], *options: str, **more: Any
) -> Iterator[subprocess.Popen[str]]:
    words = [*outlive_run(path, *options), "--", *command]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    # A session of its own: a terminal of the tests would send signals, too.
    # Under nohup the tests ignore SIGHUP, and so would the supervisor.
    pipes["preexec_fn"] = lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with subprocess.Popen(words, text=True, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


def wrote(path: Path, text: str) -> Callable[[], bool]:
    file = path.with_name("trail")
    return lambda: file.exists() and text in file.read_text("utf-8")


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return tmp_path / "pool"


def test_a_program_that_is_killed_again_and_again_finishes(pool: Path) -> None:
    hook = """
    def hook(step):
        if step % 9 == 0 and starts() < 5:
            job.save(state).wait()
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run(pool, program(pool, hook, call="hook(state['step'])"))
    assert "was ended by SIGKILL" in done.stderr
    assert [line for line in trail(pool) if line.startswith("done")] == ["done 40"]
    is_whole(pool)
    found = history(pool)
    causes = [entry["cause"] for entry in found["attempts"]]
    assert causes == ["ended by SIGKILL"] * 4 + ["finished"]
    assert [entry["attempt"] for entry in found["attempts"]] == [1, 2, 3, 4, 5]
    restored = [entry["restored"] for entry in found["attempts"]]
    newest = [entry["newest"] for entry in found["attempts"]]
    assert restored[0] is None
    assert restored[1:] == newest[:-1]
    assert 0 < found["useful_share"] <= 1
    # A second command of the same run begins with the last state, and adds to the history.
    run(pool, program(pool))
    assert trail(pool)[-2:] == ["start 40", "done 40"]
    assert len(history(pool)["attempts"]) == 6


def test_exit_codes_other_than_0_are_failures_and_75_asks_for_a_later_start(pool: Path) -> None:
    script = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); "
    once = script + "sys.exit(0 if p.exists() else p.touch() or 3)"
    done = run(pool, [sys.executable, "-c", once, str(pool.with_name("once"))])
    assert "failed with exit code 3" in done.stderr
    run(pool, [sys.executable, "-c", "raise SystemExit(75)"], code="requeue")
    causes = [entry["cause"] for entry in history(pool)["attempts"]]
    assert causes == ["failed with exit code 3", "finished", "failed with exit code 75"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_before_a_preemption_the_program_saves_and_loses_nothing(
    pool: Path, number: signal.Signals
) -> None:
    hook = """
    def hook(step):
        if step == 20 and starts() == 1:
            note("ready")
            while not job.stop_request:
                time.sleep(0.01)
            note(job.stop_request.reason)
    """
    command = program(pool, hook, call="hook(state['step'])", every_s=1e6)
    with running(pool, command) as process:
        until(wrote(pool, "ready"))
        process.send_signal(number)
        _, told = process.communicate()
    assert process.returncode == CODES["saved"], told
    assert "has saved" in told
    # The signal comes within step 20, and the save of that step is the last one.
    assert trail(pool) == ["start 0", "ready", signal.Signals(number).name, "stop 20"]
    run(pool, command)
    assert trail(pool)[4:] == ["start 20", "done 40"]
    is_whole(pool)
    assert history(pool)["attempts"][0]["cause"] == "stopped"


def test_a_program_that_never_asks_is_saved_by_its_next_save(pool: Path) -> None:
    """The program calls only `save`, with an interval that is far away."""
    code = """
    import sys, time
    import outlive
    job = outlive.open(sys.argv[1]).job("job", every_s=1e6)
    state = {"step": 0}
    job.restore(into=state)
    job.save(state)
    print("ready", state["step"], flush=True)
    while True:
        state["step"] += 1
        job.save(state)
        time.sleep(0.001)
    """
    source = pool.with_name("simple.py")
    source.write_text(textwrap.dedent(code), "utf-8")
    with running(pool, [sys.executable, str(source), str(pool)]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready 0\n"
        process.terminate()
        _, told = process.communicate()
    assert process.returncode == CODES["saved"], told
    epochs = outlive.open(pool).job("job").epochs()
    assert [epoch.epoch for epoch in epochs] == [1, 2]
    assert outlive.open(pool).job("job").restore()["step"] > 0


def test_a_program_that_ignores_all_is_ended_when_its_time_is_over(pool: Path) -> None:
    code = """
    import signal, sys, time
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        time.sleep(1)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with running(pool, command, "--grace", "1s") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        _, told = process.communicate()
    assert process.returncode == CODES["requeue"], told
    assert "has committed no checkpoint for that" in told


def test_before_a_deadline_the_program_saves(pool: Path) -> None:
    hook = """
    def hook(step):
        if step == 20 and starts() == 1:
            while not job.stop_request:
                time.sleep(0.01)
            note(job.stop_request.reason)
    """
    command = program(pool, hook, call="hook(state['step'])", every_s=1e6)
    # The last quarter is for the save.
    run(pool, command, "--stop-by", "24s", "--grace", "23s", code="saved")
    assert trail(pool) == ["start 0", "--stop-by", "stop 20"]
    # Slurm tells it by a variable: test_slurm.py.
    late = os.environ | {"SLURM_JOB_END_TIME": "1000"}
    assert "is over already" in run(pool, command, code="invalid", env=late).stderr


def test_a_hung_program_is_started_again(pool: Path) -> None:
    hook = """
    def hook(step):
        if step == 20 and starts() == 1:
            job.save(state).wait()
            os.kill(os.getpid(), signal.SIGSTOP)
    """
    run(pool, program(pool, hook, call="hook(state['step'])"), "--hang", "5s")
    is_whole(pool)
    assert [entry["cause"] for entry in history(pool)["attempts"]] == ["hung", "finished"]
    assert trail(pool)[1:] == ["start 20", "done 40"]


def test_a_poisoned_state_is_marked_and_the_one_before_it_taken(pool: Path) -> None:
    """A program that goes on from step 20 fails at once; from step 10 it passes step 20."""
    hook = """
    def hook(step):
        if starts() == 1 and step in (10, 20):
            job.save(state, force=True).wait()
            if step == 20:
                sys.exit(9)
    """
    begin = "if state['step'] == 20: sys.exit(9)"
    call = "hook(state['step'])"
    command = program(pool, hook, call=call, begin=begin, every_s=1e6, steps=25)
    done = run(pool, command, "--give-up", "2")
    assert "it is marked as bad" in done.stderr
    assert "job@3 good" in done.stderr
    starts = [line for line in trail(pool) if line.startswith("start")]
    assert starts == ["start 0", "start 20", "start 20", "start 10"]
    is_whole(pool, 25)
    marks = {epoch.epoch: epoch.mark for epoch in outlive.open(pool).job("job").epochs()}
    assert [epoch for epoch, mark in marks.items() if mark != "none"] == [3]
    assert marks[3] == "bad"
    assert [entry["distrusted"] for entry in history(pool)["attempts"]] == [None, None, 3, None]


@pytest.mark.parametrize("give_up", ["1", "3"])
def test_a_step_that_always_fails_marks_one_checkpoint_and_ends(pool: Path, give_up: str) -> None:
    """Each attempt from an older checkpoint makes the same step again, and fails there."""
    call = "if state['step'] == 5: sys.exit(9)"
    done = run(pool, program(pool, call=call), "--give-up", give_up, code="gave up")
    assert done.stderr.count("it is marked as bad") == 1, done.stderr
    assert "which is not marked as bad any more" in done.stderr
    epochs = outlive.open(pool).job("job").epochs()
    assert all(epoch.mark == "none" for epoch in epochs)


def test_a_program_that_opens_another_job_is_told(pool: Path) -> None:
    outlive.open(pool).job("other").save({"x": 1}, wait=True)
    begin = "if starts() < 3: os.kill(os.getpid(), signal.SIGKILL)"
    words = program(pool, begin=begin)
    done = subprocess.run(
        [*outlive_run(pool, job="misspelt"), "--", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the command has not opened job misspelt of this pool") == 1
    assert "It is started again in 1 s" in done.stderr
    done = run(pool, program(pool, begin=begin.replace("< 3", "== 4"), steps=60))
    assert "It is started again" in done.stderr
    assert "has not opened" not in done.stderr


def test_a_crash_loop_ends_with_its_reason(pool: Path) -> None:
    done = run(
        pool, [sys.executable, "-c", "import os; os.abort()"], "--give-up", "2", code="gave up"
    )
    assert "it has failed 2 times without a restore, and made no newer checkpoint" in done.stderr
    assert "at last it was ended by SIGABRT" in done.stderr


def test_the_only_checkpoint_is_never_marked(pool: Path) -> None:
    """The disk is full, say, until a person makes room."""
    hook = """
    def step_fails():
        return state["step"] > 0 and not folder.with_name("room").exists()
    def hook(step):
        if starts() == 1 and step == 20:
            job.save(state, force=True).wait()
            sys.exit(4)
    """
    begin = "if step_fails(): sys.exit(4)"
    call = "hook(state['step'])"
    command = program(pool, hook, call=call, begin=begin, every_s=1e6)
    source = pool.with_name("program.py")
    text = source.read_text("utf-8")
    # Without the first save, which is always due, there is one checkpoint.
    text = text.replace("    job.save(state)\njob.save", "    pass\njob.save")
    source.write_text(text, "utf-8")
    done = run(pool, command, "--give-up", "2", code="gave up")
    assert "it has failed 2 times from checkpoint 1" in done.stderr
    assert [epoch.mark for epoch in outlive.open(pool).job("job").epochs()] == ["none"]
    pool.with_name("room").touch()
    run(pool, command)
    is_whole(pool)


def test_a_mark_is_taken_back_if_the_checkpoint_before_fails_in_the_same_way(pool: Path) -> None:
    job = outlive.open(pool).job("job")
    for step in (1, 2):
        job.save({"u": np.zeros(20_000), "step": step}, wait=True)
    job.close()
    command = program(pool, begin="sys.exit(9)")
    done = run(pool, command, "--give-up", "2", code="gave up")
    assert "it is marked as bad" in done.stderr
    assert "2 times from checkpoint 2 before, which is not marked as bad any more" in done.stderr
    assert {epoch.mark for epoch in outlive.open(pool).job("job").epochs()} == {"none"}


def test_bad_input_is_refused(pool: Path) -> None:
    done = run(pool, ["/no/such/command"], code="invalid")
    assert "there is no command" in done.stderr
    pool.with_name("text").write_text("no program", "utf-8")
    done = run(pool, [str(pool.with_name("text"))], code="invalid")
    assert "is no program that may be started" in done.stderr
    words = [*outlive_run(pool), "--give-up", "0", "--", "true"]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 2
    # A history that was damaged is not replaced.
    run(pool, ["true"])
    file = pool / "run" / "job.history"
    file.write_text("{", "utf-8")
    words = [*outlive_run(pool), "--", "true"]
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    assert (done.returncode, file.read_text("utf-8")) == (3, "{")


def test_a_job_has_one_supervisor(pool: Path) -> None:
    with running(pool, ["sh", "-c", "echo ready; exec sleep 1000"]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        done = run(pool, ["true"], code="invalid")
        assert "another `outlive run` supervises job job" in done.stderr
        # Another job of the pool is another matter.
        words = [*outlive_run(pool, job="other"), "--", "true"]
        assert subprocess.run(words, check=False).returncode == 0
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    # A supervisor that is killed leaves no lock and no command, and its attempt is ended in the
    # history.
    with running(pool, ["sh", "-c", "echo $$; exec sleep 1000"]) as process:
        assert process.stdout is not None
        command = int(process.stdout.readline())
        process.kill()
    until(lambda: not Path(f"/proc/{command}").exists())
    run(pool, ["true"])
    causes = [entry["cause"] for entry in history(pool)["attempts"]]
    assert causes == ["ended by SIGINT", "its supervisor was killed", "finished"]


def test_a_request_in_the_pool_ends_programs_that_run_and_no_later_one(pool: Path) -> None:
    command = program(pool, steps=10**9, every_s=1e6)
    ask = [sys.executable, "-m", "outlive", "stop", str(pool), "job", "--reason", "maintenance"]
    with running(pool, command) as process:
        until(wrote(pool, "start"))
        subprocess.run(ask, check=True, capture_output=True)
        _, told = process.communicate()
    assert process.returncode == CODES["saved"], told
    # Without a supervisor.
    with subprocess.Popen(command) as alone:
        until(lambda: len(trail(pool)) == 3)
        subprocess.run(ask, check=True, capture_output=True)
        assert alone.wait() == 0
    lines = trail(pool)
    assert [line.split()[0] for line in lines] == ["start", "stop"] * 2
    assert lines[1].split()[1] == lines[2].split()[1]


def test_a_request_for_a_job_that_nothing_runs_is_refused(pool: Path) -> None:
    outlive.open(pool)
    words = [sys.executable, "-m", "outlive", "stop", str(pool), "jbo"]
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    assert done.returncode == 2
    assert "the pool has no job jbo" in done.stderr


WAITS = """
def hook(step):
    if step == 20 and starts() == 1:
        note("ready")
        while not job.stop_request:
            time.sleep(0.01)
        note("asked")
        while not folder.with_name("go").exists():
            time.sleep(0.01)
"""


def test_a_later_request_does_not_end_the_command_at_once(pool: Path) -> None:
    command = program(pool, WAITS, call="hook(state['step'])", every_s=1e6)
    ask = [sys.executable, "-m", "outlive", "stop", str(pool), "job"]
    with running(pool, command) as process:
        until(wrote(pool, "ready"))
        subprocess.run(ask, check=True, capture_output=True)
        until(wrote(pool, "asked"))
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            process.send_signal(number)
        pool.with_name("go").touch()
        _, told = process.communicate()
    assert process.returncode == CODES["saved"], told
    assert trail(pool)[-1] == "stop 20"


def test_a_later_sigterm_ends_the_command_at_once(pool: Path) -> None:
    """SIGTERMs within a second are one: schedulers send several, and scripts pass them on."""
    command = program(pool, WAITS, call="hook(state['step'])", every_s=1e6)
    with running(pool, command, "--grace", "1000s") as process:
        until(wrote(pool, "ready"))
        sent = time.monotonic()
        process.terminate()
        until(wrote(pool, "asked"))
        while process.poll() is None:
            process.terminate()
            time.sleep(0.01)
        assert time.monotonic() - sent >= 1.0
        _, told = process.communicate()
    assert process.returncode == CODES["requeue"], told
    assert trail(pool)[-1] == "asked"


@pytest.mark.parametrize("finishes", [True, False])
def test_a_signal_to_the_program_alone_is_a_request_if_it_ends_by_itself(
    pool: Path, finishes: bool
) -> None:
    """The supervisor was not asked, but the program has saved and ended with 0, unfinished."""
    hook = f"""
    def hook(step):
        if step == 20 and starts() == 1:
            outlive.on_preempt()
            os.kill(os.getpid(), signal.SIGUSR1)
            while not job.stop_request:
                time.sleep(0.01)
            if not {finishes}:
                sys.exit(3)
    """
    command = program(pool, hook, call="hook(state['step'])", every_s=1e6)
    # A program that fails is started again all the same: the signal may be about a failed rank.
    run(pool, command, code="saved" if finishes else "finished")
    causes = [entry["cause"] for entry in history(pool)["attempts"]]
    assert causes == (["stopped"] if finishes else ["failed with exit code 3", "finished"])
    run(pool, command)
    assert trail(pool)[-1] == "done 40"
    is_whole(pool)


@pytest.fixture
def in_slurm(tmp_path: Path) -> dict[str, str]:
    """Variables of a job of Slurm, whose controller does not answer."""
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho no contact >&2\nexit 1\n", "utf-8")
    squeue.chmod(0o755)
    return os.environ | {"SLURM_JOB_ID": "17", "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_in_slurm_a_sigterm_to_all_processes_is_one_request(
    pool: Path, in_slurm: dict[str, str]
) -> None:
    hook = """
    def hook(step):
        if step == 20 and starts() == 1:
            note("ready")
            while not job.stop_request:
                time.sleep(0.01)
    """
    command = program(pool, hook, call="hook(state['step'])", every_s=1e6)
    with running(pool, command, env=in_slurm) as process:
        until(wrote(pool, "ready"))
        os.killpg(process.pid, signal.SIGTERM)
        os.killpg(process.pid, signal.SIGTERM)
        _, told = process.communicate()
    assert process.returncode == CODES["saved"], told
    assert trail(pool) == ["start 0", "ready", "stop 20"]
    reason = "squeue ended with exit status: 1: no contact"
    assert f"the end of the Slurm job is not known ({reason})" in told


@pytest.mark.parametrize("own", [False, True])
def test_in_slurm_a_sigterm_to_one_process_is_its_own_affair(
    pool: Path, in_slurm: dict[str, str], own: bool
) -> None:
    """So `srun` and `mpirun` end the other ranks when one has failed."""
    begin = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))" if own else ""
    hook = """
    def hook(step):
        if step == 20 and starts() == 1:
            job.save(state, force=True).wait()
            os.kill(os.getpid(), signal.SIGTERM)
    """
    command = program(pool, f"{begin}\n{textwrap.dedent(hook)}", call="hook(state['step'])")
    run(pool, command, env=in_slurm)
    cause = "failed with exit code 5" if own else "ended by SIGTERM"
    assert [entry["cause"] for entry in history(pool)["attempts"]] == [cause, "finished"]
    is_whole(pool)


def test_only_a_save_for_the_request_counts_as_one(pool: Path) -> None:
    """A program has saved before, and ends after the request without another save."""
    hook = (
        WAITS
        + """
    if step == 20:
        sys.exit(0)
"""
    )
    command = program(pool, hook, call="hook(state['step'])", every_s=1e6)
    with running(pool, command) as process:
        until(wrote(pool, "ready"))
        process.terminate()
        pool.with_name("go").touch()
        _, told = process.communicate()
    assert process.returncode == CODES["requeue"], told


def test_a_program_that_asks_late_still_saves_its_last_step(pool: Path) -> None:
    """The request is found in a save; some steps later the program asks whether to stop."""
    code = """
    import os, signal, sys
    import outlive
    outlive.on_preempt(grace_s=60)
    job = outlive.open(sys.argv[1]).job("job", every_s=1e6)
    state = {"step": 0}
    while True:
        state["step"] += 1
        if state["step"] == 5:
            os.kill(os.getpid(), signal.SIGUSR1)
        job.save(state)
        if state["step"] == 8 and job.should_stop:
            assert job.save(state)
            os._exit(0)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(pool)], check=True)
    job = outlive.open(pool).job("job")
    assert job.restore() == {"step": 8}
    assert len(job.epochs()) == 3, "the first, that of the signal, and the last one"


def test_a_signal_that_is_ignored_stays_so(pool: Path) -> None:
    command = ["sh", "-c", "echo ready; read line; echo $line"]
    words = ["nohup", *outlive_run(pool), "--", *command]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, text=True, start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        out, told = process.communicate("end\n")
    assert (process.returncode, out) == (0, "end\n"), told


def test_a_lost_folder_costs_no_program(pool: Path) -> None:
    hook = """
    import shutil
    def hook(step):
        if step == 20:
            shutil.rmtree(os.environ["OUTLIVE_RUN"], ignore_errors=True)
    """
    run(pool, program(pool, hook, call="hook(state['step'])"))
    is_whole(pool)
    # A request to stop is a SIGTERM then.
    code = "import os, shutil, time; shutil.rmtree(os.environ['OUTLIVE_RUN']); "
    code += "print('ready', flush=True); time.sleep(1000)"
    with running(pool, [sys.executable, "-c", code], "--grace", "1000s") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        _, told = process.communicate()
    assert process.returncode == CODES["requeue"], told
    assert "cannot be asked to save, so it is ended" in told


def test_a_history_that_cannot_be_written_ends_no_program(pool: Path) -> None:
    done = run(pool, ["sh", "-c", f"rm -r {pool}/run && touch {pool}/run"])
    assert "the history of the job is not written yet" in done.stderr


def test_a_pool_that_hangs_holds_up_neither_program_nor_supervisor(pool: Path) -> None:
    """A reader of a FIFO waits for a writer, as one of a server that is gone waits for that."""
    outlive.open(pool)
    (pool / "run").mkdir()
    os.mkfifo(pool / "run" / "job.stop")
    command = program(pool)
    subprocess.run(command, check=True)
    is_whole(pool)
    run(pool, command)
    # The supervisor does not learn which checkpoint is the newest; the command has finished.
    record = pool / "log" / "other" / f"{1:016x}.record"
    script = f"mkdir -p {record.parent} && mkfifo {record}"
    words = [*outlive_run(pool, job="other"), "--", "sh", "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the pool does not answer within 5s" in done.stderr


def test_a_terminal_and_a_shell_see_one_job(pool: Path) -> None:
    """Ctrl-C reaches the command once, and a normal end gives the shell its terminal back."""
    code = f"""
    import os, pty, sys
    words = {[*outlive_run(pool), "--"]!r}
    def run(command, keys):
        child, terminal = pty.fork()
        if child == 0:
            os.execvp(words[0], words + command)
        out = b""
        while True:
            try:
                read = os.read(terminal, 1000)
            except OSError:
                break
            if not read:
                break
            out += read
            if keys and b"ready" in out:
                os.write(terminal, keys)
                keys = b""
        status = os.waitpid(child, 0)[1]
        return os.waitstatus_to_exitcode(status), out
    code, out = run(["sh", "-c", "echo done"], b"")
    assert (code, b"done" in out) == (0, True), (code, out)
    caught = "import time\\ntry:\\n print('ready', flush=True); time.sleep(1000)"
    caught += "\\nexcept KeyboardInterrupt:\\n print('once'); time.sleep(0.5); raise"
    code, out = run([sys.executable, "-c", caught], b"\\x03")
    assert (code, out.count(b"once")) == (130, 1), (code, out)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_processes_that_a_command_leaves_behind_are_ended(pool: Path) -> None:
    """One stays in the group; one has a session of its own, and ignores SIGTERM."""
    deaf = "trap '' TERM; echo $$; while :; do sleep 1; done"
    script = 'setsid sh -c "$1" & sleep 1001 & echo $!; until [ -s "$2" ]; do :; done'
    told = pool.with_name("told")
    done = run(pool, ["sh", "-c", script, "sh", f"echo > {told}; {deaf}", str(told)])
    numbers = done.stdout.split()
    assert len(numbers) == 2
    assert not [number for number in numbers if Path(f"/proc/{number}").exists()]


def test_a_full_memory_cgroup_is_named(pool: Path, memory_cgroup: Path) -> None:
    code = """
    import os, pathlib, sys
    flag = pathlib.Path(sys.argv[1])
    if not flag.exists():
        flag.touch()
        waste = [bytearray(b"x" * (8 << 20)) for _ in range(1000)]
    """
    # The supervisor moves into the cgroup, and its command with it.
    enter = f'echo $$ > {memory_cgroup}/cgroup.procs && exec "$@"'
    command = [sys.executable, "-c", textwrap.dedent(code), str(pool.with_name("flag"))]
    words = ["sh", "-c", enter, "sh", *outlive_run(pool), "--", *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [entry["cause"] for entry in history(pool)["attempts"]] == ["out of memory", "finished"]


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A cgroup with 300 MiB of memory and no swap, below the root of either version."""
    for root, limits in (
        (Path("/sys/fs/cgroup"), {"memory.max": 300 << 20, "memory.swap.max": 0}),
        (Path("/sys/fs/cgroup/memory"), {"memory.limit_in_bytes": 300 << 20}),
    ):
        cgroup = root / f"outlive-test-{os.getpid()}"
        if not (root / "cgroup.procs").exists():
            continue
        if (root / "cgroup.controllers").exists():
            (root / "cgroup.subtree_control").write_text("+memory", "ascii")
        cgroup.mkdir()
        for name, limit in limits.items():
            file = cgroup / name
            if file.exists():
                file.write_text(str(limit), "ascii")
        yield cgroup
        _remove(cgroup)
        return
    pytest.fail("this machine has no memory cgroups, which the test needs")


def _remove(cgroup: Path) -> None:
    until(lambda: not (cgroup / "cgroup.procs").read_text("ascii"))
    cgroup.rmdir()


def test_signals_ask_a_program_without_a_supervisor(pool: Path) -> None:
    hook = """
    def hook(step):
        if step == 20:
            outlive.on_preempt(grace_s=60)
            note("ready")
            while not job.stop_request:
                time.sleep(0.01)
            assert 0 < job.stop_request.left_s <= 60
    """
    command = program(pool, hook, call="hook(state['step'])", every_s=1e6)
    with subprocess.Popen(command) as process:
        until(wrote(pool, "ready"))
        process.terminate()
        assert process.wait() == 0
    assert trail(pool) == ["start 0", "ready", "stop 20"]
    # A later one ends it at once.
    hook = """
    def hook(step):
        outlive.on_preempt()
        while not job.stop_request:
            note("ready")
            time.sleep(0.01)
        note("asked")
        time.sleep(1000)
    """
    pool.with_name("trail").unlink()
    with subprocess.Popen(program(pool, hook, call="hook(0)")) as process:
        until(wrote(pool, "ready"))
        sent = time.monotonic()
        process.terminate()
        until(wrote(pool, "asked"))
        while process.poll() is None:
            process.terminate()
            time.sleep(0.01)
        assert time.monotonic() - sent >= 1.0
        assert process.returncode == -signal.SIGTERM


def test_a_child_of_a_program_that_may_be_preempted_is_ended_by_its_first_signal(
    run: Callable[..., str],
) -> None:
    out = run(
        """
        outlive.on_preempt()
        child = os.fork()
        if child == 0:
            time.sleep(1000)
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status))
        """
    )
    assert out == str(int(signal.SIGTERM))


def test_too_little_time_is_told(pool: Path) -> None:
    code = """
    import logging, os, signal, sys
    import numpy as np
    import outlive
    logging.basicConfig()
    outlive.on_preempt(grace_s=0)
    job = outlive.open(sys.argv[1]).job("job")
    job.save({"a": np.zeros(100_000)}).wait()
    os.kill(os.getpid(), signal.SIGTERM)
    assert job.should_stop
    assert job.stop_request.left_s == 0
    job.save({"a": np.ones(100_000)})
    assert len(job.epochs()) == 2, "the save was awaited"
    """
    words = [sys.executable, "-c", textwrap.dedent(code), str(pool)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "the checkpoint may come too late" in done.stderr


def test_marks_decide_which_checkpoint_is_restored(folder: Path) -> None:
    job = outlive.open(folder).job("job")
    for step in range(3):
        job.save({"step": step}, wait=True)
    job.mark(-1, "bad")
    job.mark(1, "good")
    other = outlive.open(folder).job("job")
    assert other.restore() == {"step": 1}
    assert other.last_restore is not None
    assert other.last_restore.epoch == 2
    assert "marked as bad" in other.last_restore.skipped[0][1]
    assert other.restore(epoch=3) == {"step": 2}
    assert [epoch.mark for epoch in job.epochs()] == ["good", "none", "bad"]
    job.mark(2, "bad")
    job.mark(1, "bad")
    with pytest.raises(outlive.InvalidError, match="every checkpoint of job job is marked as bad"):
        other.restore()
    words = [sys.executable, "-m", "outlive", "mark", str(folder), "job@3", "none"]
    subprocess.run(words, check=True, capture_output=True)
    assert other.restore() == {"step": 2}
    with pytest.raises(outlive.InvalidError, match="give good, bad or none"):
        job.mark(1, "ugly")  # type: ignore[arg-type]
    with pytest.raises(outlive.InvalidError):
        job.mark(9, "bad")
    job.close()
