"""The training example: killed and continued, it ends like one left in peace."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

PROGRAM = Path(__file__).parents[3] / "examples" / "train_digits.py"
STEPS = ["--steps", "2500", "--every", "0.05"]


def test_a_killed_training_ends_like_one_left_in_peace(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), *STEPS]
    subprocess.run([*command, "--out", str(tmp_path / "peace.npz")], check=True, timeout=60)
    command += ["--dir", str(tmp_path / "checkpoints"), "--out", str(tmp_path / "fire.npz")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = iter(child.stdout)
        # It has learnt something by then, and saved more than once.
        assert any(line.startswith("step 600") for line in lines)
        time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    again = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert int(again.stdout.split()[2]) > 0, "it went on from a checkpoint"
    with np.load(tmp_path / "peace.npz") as peace, np.load(tmp_path / "fire.npz") as fire:
        assert sorted(peace.files) == sorted(fire.files)
        for name in peace.files:
            assert peace[name].tobytes() == fire[name].tobytes(), name
