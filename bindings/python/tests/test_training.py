"""The training example: killed and continued, it ends like an undisturbed run."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import outlive

PROGRAM = Path(__file__).parents[3] / "examples" / "train_digits.py"


def test_a_killed_training_ends_like_one_left_in_peace(tmp_path: Path) -> None:
    train = [sys.executable, str(PROGRAM), "--every", "0.05"]
    under_fire = [*train, "--dir", str(tmp_path / "checkpoints")]
    # It would not end by itself.
    endless = [*under_fire, "--steps", str(10**12)]
    with subprocess.Popen(endless, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = iter(child.stdout)
        assert any(line.startswith("step 600") for line in lines)
        job = outlive.open(tmp_path / "checkpoints", create=False).job("digits")
        while len(job.epochs()) < 3:
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    reached = job.restore(only="step")["step"]
    assert reached > 0
    steps = ["--steps", str(reached + 500)]
    command = [*under_fire, *steps, "--out", str(tmp_path / "fire.npz")]
    again = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(again.stdout.split()[2]) == reached, "it went on from the checkpoint"
    subprocess.run([*train, *steps, "--out", str(tmp_path / "peace.npz")], check=True)
    with np.load(tmp_path / "peace.npz") as peace, np.load(tmp_path / "fire.npz") as fire:
        assert sorted(peace.files) == sorted(fire.files)
        for name in peace.files:
            assert peace[name].tobytes() == fire[name].tobytes(), name
