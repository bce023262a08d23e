"""examples/train_torch.py: killed and started again, it ends like an undisturbed run."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import outlive

PROGRAM = Path(__file__).parents[4] / "examples" / "train_torch.py"


# Each start of the program takes many seconds on a busy machine.
@pytest.mark.timeout(600)
def test_a_killed_training_ends_like_one_left_in_peace(tmp_path: Path) -> None:
    train = [sys.executable, str(PROGRAM), "--steps", "160", "--every", "0.05", "--dir"]
    peace = subprocess.run(
        [*train, str(tmp_path / "peace")], check=True, capture_output=True, text=True
    )
    begun = []
    for killed_at in ("step 50 ", "step 100 "):
        command = [*train, str(tmp_path / "fire")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            lines = iter(child.stdout)
            begun.append(int(next(lines).split()[2]))
            assert any(line.startswith(killed_at) for line in lines)
            child.send_signal(signal.SIGKILL)
        assert child.returncode == -signal.SIGKILL
    fire = subprocess.run(
        [*train, str(tmp_path / "fire")], check=True, capture_output=True, text=True
    )
    begun.append(int(fire.stdout.split()[2]))
    assert begun[0] == 0 < begun[1] < begun[2], "it went on from checkpoints"
    assert fire.stdout.splitlines()[-1] == peace.stdout.splitlines()[-1]
    assert len(outlive.open(tmp_path / "fire", create=False).job("writer").epochs()) == 2


def test_the_example_needs_three_lines() -> None:
    text = PROGRAM.read_text()
    assert text.count("# outlive:") == 3
