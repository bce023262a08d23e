"""The part of `make demo` that deletes directories of a pool, and gives the pool new ones."""

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[3] / "examples" / "demo_pool.py"


@pytest.mark.timeout(600)
def test_two_of_six_directories_are_lost_and_replaced(tmp_path: Path) -> None:
    size = ["--size", "256", "--steps", "3000", "--every", "0.1"]
    command = [sys.executable, str(DEMO), *size, "--dir", str(tmp_path / "demo out")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every checkpoint is whole, and two directories may be lost again" in done.stdout
    assert "not one bit is different" in done.stdout
