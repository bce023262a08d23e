"""The `outlive` command, for tests."""

import subprocess
import sys


def command(*words: object, code: int = 0) -> str:
    """Runs `outlive` with some words; returns all that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "outlive", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout + done.stderr
