"""Encrypted pools in programs: each way to freeze, kills, lazy restores, the gate's files."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import command

import outlive

pytestmark = pytest.mark.usefixtures("own_helper")

PROGRAM = """
import sys
import numpy as np
import outlive
job = outlive.open(sys.argv[1], freeze=sys.argv[2]).job("job", keep_last=3)
state = {"a": np.zeros(3_000_000), "step": 0, "text": ""}
job.restore(into=state)
assert (state["a"][: state["step"] + 1] == np.arange(state["step"] + 1)).all()
print("restored", state["step"], flush=True)
for _ in range(4):
    state["step"] += 1
    state["a"][state["step"]] = state["step"]
    state["text"] = f"a telltale text {state['step']}" * 1000
    save = job.save(state)
    if sys.argv[2] != "helper":
        save.wait()
    print("saved", state["step"], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def encrypted(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    key = tmp_path / "key"
    command("key", "new", key)
    monkeypatch.setenv("OUTLIVE_KEY_FILE", str(key))
    command("pool", "init", folder, "--encrypt")
    return folder


@pytest.mark.parametrize("freeze", ["copy", "fork", "precopy", "helper"])
def test_a_killed_program_goes_on(encrypted: Path, freeze: str) -> None:
    script = [sys.executable, "-c", PROGRAM, str(encrypted), freeze]
    for round in range(3):
        with subprocess.Popen(
            script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == f"restored {4 * round}\n"
            for step in range(4):
                assert program.stdout.readline() == f"saved {4 * round + step + 1}\n"
            program.send_signal(signal.SIGKILL)
    state = outlive.open(encrypted).job("job").restore()
    assert state["step"] == 12
    assert "Everything is whole" in command("verify", encrypted)
    for path in encrypted.rglob("*"):
        if path.is_file():
            assert b"telltale" not in path.read_bytes(), path


def test_lazy_restores_decrypt_each_page(encrypted: Path) -> None:
    rng = np.random.default_rng(3)
    state = {"a": rng.standard_normal(4_000_000), "b": rng.standard_normal(100)}
    with outlive.open(encrypted).job("job") as job:
        job.save(state, wait=True)
    into = {"a": outlive.zeros(4_000_000), "b": np.zeros(100)}
    with outlive.open(encrypted).job("job") as job:
        job.restore(into=into, lazy=True)
        for at in rng.integers(0, 4_000_000, 300):
            assert into["a"][at] == state["a"][at]
        assert np.array_equal(into["a"], state["a"])
        assert np.array_equal(into["b"], state["b"])
        into["a"][7] = 0
        job.save(into, wait=True)
    assert outlive.open(encrypted).job("job").restore()["a"][7] == 0


def test_without_a_key_nothing_is_opened(encrypted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTLIVE_KEY_FILE")
    with pytest.raises(outlive.InvalidError, match="is encrypted, and nothing can be read"):
        outlive.open(encrypted)


def test_the_history_of_runs_is_encrypted(encrypted: Path) -> None:
    run = ["run", "--pool", encrypted, "--job", "job", "--", sys.executable, "-c", "import os"]
    command(*run)
    history = (encrypted / "run" / "job.history").read_bytes()
    assert history.startswith(b"OUTLVENC")
    assert "finished" in command("history", encrypted, "job")
