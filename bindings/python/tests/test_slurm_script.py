"""The batch script for Slurm does the same in all shells; test_slurm.py runs it in Slurm itself."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm import until

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "examples" / "slurm.sh"

# In place of `outlive`: ends with a code, or is asked first.
OUTLIVE = """#!/bin/sh
echo "$*" >> words
[ -z "$UNTIL_ASKED" ] || {
    trap 'echo asked >> words; asked=yes' USR1
    touch ready
    while [ -z "$asked" ]; do sleep 0.01; done
}
[ "$CODE" != USR1 ] || kill -USR1 $$
exit "$CODE"
"""
SCONTROL = """#!/bin/sh
echo "$*" >> requeued
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=["dash", "bash", "bash --posix"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Starts the script in a shell, with variables of Slurm."""
    shell: list[str] = request.param.split()
    if shutil.which(shell[0]) is None:
        pytest.skip(f"this machine has no {shell[0]}")
    for name, text in {"outlive": OUTLIVE, "scontrol": SCONTROL}.items():
        (tmp_path / name).write_text(text, "utf-8")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"

    def begin(code: object, **variables: str) -> subprocess.Popen[str]:
        given = {"CODE": str(code), "SLURM_JOB_NAME": "heat", "SLURM_JOB_ID": "17", "PATH": path}
        words = [*shell, str(SCRIPT), "./heat", "two words"]
        return subprocess.Popen(words, cwd=tmp_path, env=os.environ | given | variables, text=True)

    return begin


def requeued(folder: Path) -> list[str]:
    file = folder / "requeued"
    return file.read_text("utf-8").splitlines() if file.exists() else []


@pytest.mark.parametrize("code", [0, 2, 75, 76, 77])
def test_only_a_command_that_is_to_go_on_is_requeued(
    start: Start, tmp_path: Path, code: int
) -> None:
    assert start(code, POOL="/pool").wait() == code
    said = (tmp_path / "words").read_text("utf-8")
    assert said == "run --pool /pool --job heat --grace 110s -- ./heat two words\n"
    assert requeued(tmp_path) == (["requeue 17"] if code in (75, 76) else [])


@pytest.mark.parametrize(
    ("number", "goes_on"), [(signal.SIGUSR1, ["requeue 17"]), (signal.SIGTERM, [])]
)
def test_a_signal_asks_once_and_the_end_of_the_job_is_no_requeue(
    start: Start, tmp_path: Path, number: signal.Signals, goes_on: list[str]
) -> None:
    process = start(76, UNTIL_ASKED="yes")
    until((tmp_path / "ready").exists)
    process.send_signal(number)
    assert process.wait() == 76
    assert (tmp_path / "words").read_text("utf-8").count("asked") == 1
    assert requeued(tmp_path) == goes_on


def test_a_task_of_an_array_has_a_job_of_its_own(start: Start, tmp_path: Path) -> None:
    array = {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "3"}
    assert start(76, POOL="/pool", **array).wait() == 76
    assert "--job heat_3 " in (tmp_path / "words").read_text("utf-8")
    # The number alone would be that of the whole array for one of its tasks.
    assert requeued(tmp_path) == ["requeue 9_3"]


def test_a_signal_before_the_supervisor_takes_it_costs_no_job(start: Start, tmp_path: Path) -> None:
    assert start("USR1").wait() == 128 + signal.SIGUSR1
    assert requeued(tmp_path) == ["requeue 17"]


def test_a_missing_command_is_an_error(start: Start, tmp_path: Path) -> None:
    (tmp_path / "outlive").unlink()
    assert start(0, PATH=f"{tmp_path}:/bin").wait() == 127
    assert requeued(tmp_path) == []


def test_the_documents_show_the_script() -> None:
    text = (ROOT / "docs" / "running.md").read_text("utf-8")
    assert SCRIPT.read_text("utf-8") in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
