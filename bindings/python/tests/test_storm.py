"""A storm of real processes on one pool and its copy: nothing acknowledged is lost, no fenced
writer commits, everything is whole, and what the dead have left behind goes.

The processes are forks of storm.py; here its summary is judged. `make storm` runs it for longer.
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
"""More than the states of three jobs take."""
LEFT_FILES = 60
"""More than all logs, segments and packs of one checkpoint each are in."""


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
        timeout=900,  # for a machine that is busy with other things; it ends by its work
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    counts = json.loads(done.stdout)
    with capsys.disabled():
        print(f"\n  {counts}")
    assert counts["faults"] == [], f"seed {seed}: {done.stderr}"
    # Three states, their page trees and logs; nothing of all that was killed.
    # Of a striped pool there are three shards of each pack, half as large again, and three logs.
    assert counts["left_files"] < LEFT_FILES * (3 if striped else 1)
    assert counts["left_bytes"] < 2 * STATES_BYTES * (2 if striped else 1)
    assert counts["left_overs"] == 0
