"""The helper under failures: its own, of its workers, and of those that wait for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from helped import (
    FAILING,
    ONE_SAVE,
    end,
    killed,
    processes,
    restored,
    start,
    wait_for,
    worker,
)

import outlive

pytestmark = pytest.mark.usefixtures("own_helper")

# Opens the job, and prints what it finds. A shell that runs the tests in the background has them
# ignore Ctrl-C.
LOOK = """
    import logging, signal
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.basicConfig(level="INFO")
    print(outlive.open(sys.argv[1]).job("job").restore()["step"], flush=True)
"""


def stopped_worker(folder: Path) -> int:
    """Kills a program with a save in progress, and stops its worker. Returns the worker."""
    killed(ONE_SAVE, folder)
    found = worker(folder.parent)
    os.kill(found, signal.SIGSTOP)
    return found


def wait_for_line(child: subprocess.Popen[str], text: str) -> None:
    """Reads what a program prints on standard error until a line has a text."""
    assert child.stderr is not None
    assert any(text in line for line in child.stderr), text


def test_ctrl_c_ends_the_wait_for_a_helper(folder: Path) -> None:
    there = stopped_worker(folder)
    child = start(LOOK, folder)
    wait_for_line(child, "waits until a helper has completed")
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate()
    assert "KeyboardInterrupt" in errors
    os.kill(there, signal.SIGCONT)
    assert restored(folder)["step"] == 1


def test_a_helper_that_is_stopped_holds_no_program_up(folder: Path) -> None:
    killed(ONE_SAVE, folder)
    assert restored(folder)["step"] == 1
    (helper,) = processes(folder.parent, "outlive-helper")
    os.kill(helper, signal.SIGSTOP)
    child = start(LOOK, folder)
    out, errors = child.communicate()
    assert out == "1\n", errors
    assert "the helper of this user does not answer" in errors
    os.kill(helper, signal.SIGCONT)


def test_a_supervisor_that_waits_for_a_helper_hears_signals(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import os, signal, sys\nimport numpy as np\nimport outlive\n"
        + textwrap.dedent(ONE_SAVE.replace(', freeze="helper"', ""))
    )
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "outlive", "run", "--pool", folder, "--job", "job", "--"),
            *(sys.executable, script, folder),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    there = worker(folder.parent)
    os.kill(there, signal.SIGSTOP)
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate()
    assert child.returncode == 75, errors
    os.kill(there, signal.SIGCONT)
    assert restored(folder)["step"] == 1


def test_a_worker_that_is_killed_is_started_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "outlive")
    end(stopped_worker(folder))
    assert restored(folder)["step"] == 1
    assert "a helper has completed checkpoint 1" in caplog.text


def test_a_worker_waits_for_a_pool_that_is_away(folder: Path, tmp_path: Path) -> None:
    child = start(FAILING, folder)
    assert child.stdout is not None
    assert child.stdout.readline() == "failed\n"
    folder.rename(tmp_path / "away")
    child.kill()
    child.communicate()
    there = Path(f"/proc/{worker(tmp_path)}/wchan")
    wait_for(lambda: "nanosleep" in there.read_text())
    (tmp_path / "away").rename(folder)
    assert restored(folder)["step"] == 2


def test_a_program_that_loses_its_connection_is_not_taken_for_dead(folder: Path) -> None:
    child = start(
        FAILING.replace(
            "sys.stdin.readline()",
            """for name in os.listdir("/proc/self/fd"):
        if os.path.islink(f"/proc/self/fd/{name}") and (
            os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        ):
            os.close(int(name))
    print("closed", flush=True)
    sys.stdin.readline()""",
        ),
        folder,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "failed\n"
    assert child.stdout.readline() == "closed\n"
    look = start(LOOK, folder)
    assert look.communicate()[0] == "1\n"
    child.kill()
    child.communicate()
    assert restored(folder)["step"] == 2


def test_a_program_that_ignores_the_end_of_its_children_has_a_helper(folder: Path) -> None:
    killed("signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n" + textwrap.dedent(ONE_SAVE), folder)
    assert restored(folder)["step"] == 1
    wait_for(lambda: not processes(folder.parent, "outlive-helper"))


def test_without_its_helper_a_program_goes_on(folder: Path) -> None:
    child = start(
        """
        import logging
        logging.basicConfig(level="WARNING")
        job = outlive.open(sys.argv[1], freeze="helper").job("job")
        for step in range(3):
            save = job.save({"a": np.full(1000, step), "step": step})
            save.wait()
            print(save.stats.freeze, flush=True)
            sys.stdin.readline()
        job.close()
        """,
        folder,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert "; a helper holds it, too" in child.stdout.readline()
    (helper,) = processes(folder.parent, "outlive-helper")
    end(helper)
    child.stdin.write("\n\n\n")
    out, errors = child.communicate()
    assert child.returncode == 0, errors
    lines = out.splitlines()
    assert "; no helper holds it" in lines[0]
    assert "helper" not in lines[1]
    assert errors.count("no helper holds the image of checkpoint 2") == 1
    assert restored(folder)["step"] == 2


def test_a_helper_that_cannot_start_is_a_warning(folder: Path) -> None:
    child = start(
        """
        import logging
        logging.basicConfig(level="WARNING")
        job = outlive.open(sys.argv[1], freeze="helper").job("job")
        job.save({"step": 1}, wait=True)
        job.close()
        """,
        folder,
        executable="/nowhere",
    )
    _, errors = child.communicate()
    assert child.returncode == 0, errors
    assert "no helper could be started with `/nowhere -P -m outlive helper`: No such file" in errors


def test_a_failed_save_is_completed_once_there_is_room(folder: Path) -> None:
    child = start(FAILING, folder)
    assert child.stdout is not None
    assert child.stdout.readline() == "failed\n"
    child.kill()
    child.communicate()
    state = restored(folder)
    assert state["step"] == 2
    assert np.array_equal(state["a"], np.random.default_rng(1).random(20_000_000))


def test_a_job_that_has_gone_on_elsewhere_is_left_alone(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "outlive")
    child = start(FAILING, folder)
    assert child.stdout is not None
    assert child.stdout.readline() == "failed\n"
    other = outlive.open(folder).job("job")
    assert other.restore() == {"step": 1}
    for step in (5, 6):
        other.save({"step": step}, wait=True)
    other.close()
    child.kill()
    child.communicate()
    assert restored(folder) == {"step": 6}
    assert "helper" not in caplog.text


def test_a_program_with_a_session_is_not_fenced_by_the_helper_of_an_older_one(
    folder: Path,
) -> None:
    child = start(FAILING, folder)
    assert child.stdout is not None
    assert child.stdout.readline() == "failed\n"
    # The next program goes on from the first checkpoint. Its save fails, so it has a session and
    # no checkpoint.
    other = start(
        FAILING.replace(
            "sys.stdin.readline()",
            """
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    sys.stdin.readline()
    job.save({"step": 5}, wait=True)
    job.close()
    """,
        ).replace('job.save({"step": 1}, wait=True)', "assert job.restore() == {'step': 1}"),
        folder,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "failed\n"
    child.kill()
    child.communicate()
    # A third one waits for the helper, and finds nothing new.
    look = start('print(outlive.open(sys.argv[1]).job("job").restore())', folder)
    assert look.communicate()[0] == "{'step': 1}\n"
    _, errors = other.communicate("\n")
    assert other.returncode == 0, errors
    assert restored(folder) == {"step": 5}


def test_a_job_that_is_dropped_is_no_program_that_was_killed(folder: Path) -> None:
    child = start(
        FAILING.replace(
            "sys.stdin.readline()",
            """del job, save
    print(outlive.open(sys.argv[1]).job("job").restore())""",
        ),
        folder,
    )
    out, errors = child.communicate()
    assert out == "failed\n{'step': 1}\n", errors


def test_a_helper_ends_when_there_is_no_program(folder: Path) -> None:
    killed(ONE_SAVE, folder)
    assert restored(folder)["step"] == 1
    wait_for(lambda: not processes(folder.parent, "outlive-helper"))
