"""A storm of real processes on one pool and its copy: no acknowledged save is lost, no fenced
writer commits, everything is whole, and leftovers of killed processes are deleted.

The processes are forks of storm.py; this test checks its summary. `make storm` runs it for longer.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STORM = Path(__file__).with_name("storm.py")
LIVES = 60
STATES_BYTES = 3 * (1 << 20)
"""Bytes that exceed the states of three jobs."""
LEFT_FILES = 60
"""Number of files that exceeds all logs, segments and packs of one checkpoint each."""


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("striped", [False, True], ids=["one directory", "striped"])
def test_nothing_is_lost_in_a_storm(
    tmp_path: Path, striped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    done = subprocess.run(
        [sys.executable, STORM, tmp_path, str(seed), "--lives", str(LIVES)]
        + ["--striped"] * striped,
        capture_output=True,
        text=True,
        timeout=900,  # for a busy machine; its end does not depend on time
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    counts = json.loads(done.stdout)
    with capsys.disabled():
        print(f"\n  {counts}")
    assert counts["faults"] == [], f"seed {seed}: {done.stderr}"
    # The rest is three states with their page trees and logs, and nothing of the killed processes.
    # A striped pool has three shards of each pack, half as large again, and three log replicas.
    assert counts["left_files"] < LEFT_FILES * (3 if striped else 1)
    assert counts["left_bytes"] < 2 * STATES_BYTES * (2 if striped else 1)
    assert counts["left_overs"] == 0
