"""Savers and collectors of one pool, all stopped and killed at random moments: nothing acknowledged
is lost, everything is whole, and what they have left behind goes. `OUTLIVE_CROWD_S=600` makes it a
storm of ten minutes.

The programs that are killed are forks of kill_crowd.py; here its summary is judged.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CROWD = Path(__file__).with_name("kill_crowd.py")
SECONDS = float(os.environ.get("OUTLIVE_CROWD_S", "7"))
STATE_BYTES = 2 * (1 << 20)
"""More than either job's state takes."""


def test_savers_and_collectors_are_killed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    done = subprocess.run(
        [sys.executable, CROWD, folder, str(SECONDS), str(seed)],
        capture_output=True,
        text=True,
        timeout=SECONDS + 100,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    counts = json.loads(done.stdout)
    with capsys.disabled():
        print(
            f"\n  {counts['savers_killed']} savers and {counts['collectors_killed']} collectors "
            f"killed, {counts['stopped']} stopped, {counts['collectors_done']} collections done, "
            f"{counts['collectors_told']} gave way; {counts['acknowledged']} saves acknowledged, "
            f"{counts['restored']} restores; at most {counts['peak_bytes'] >> 20} MiB, "
            f"{counts['left_bytes'] >> 10} KiB in {counts['left_files']} files at the end"
        )
    assert counts["faults"] == [], f"seed {seed}"
    # Else nothing would have been shown.
    for what in (
        "savers_killed",
        "collectors_killed",
        "collectors_done",
        "acknowledged",
        "stopped",
    ):
        assert counts[what] > 0, what
    # Two states, their page trees and logs; nothing of all that was killed.
    assert counts["left_bytes"] < 4 * STATE_BYTES
    assert counts["left_files"] < 40
    assert counts["left_overs"] == 0
