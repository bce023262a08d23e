"""`kill -9` at any moment loses no checkpoint that was acknowledged, and never leaves half of one.

The program that is killed is kill_nursery.py; these tests check its summaries.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NURSERY = Path(__file__).with_name("kill_nursery.py")
LIVES = int(os.environ.get("OUTLIVE_KILLS", "55"))


@pytest.mark.parametrize(
    ("name", "tuning"),
    [
        ("as it comes", {}),
        ("everything live", {"freeze_bytes_max": 0}),
        ("one thread", {"threads": 1, "index_bytes_max": 0}),
        ("small buffers", {"staging_bytes": 16 << 20, "freeze_bytes_max": 1 << 20}),
    ],
)
def test_killed_again_and_again(
    folder: Path, name: str, tuning: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    done = subprocess.run(
        [sys.executable, NURSERY, folder, str(LIVES), str(seed), json.dumps(tuning)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    counts = json.loads(done.stdout)
    with capsys.disabled():
        print(
            f"\n  {name}: {counts['kills']} kills, {counts['before_restore']} of them before the "
            f"restore; {counts['steps']} saves begun, {counts['acknowledged']} acknowledged"
        )
    assert counts["faults"] == [], f"seed {seed}"
    assert counts["kills"] == LIVES
    # Without this the test would show nothing.
    assert counts["acknowledged"] > 0
    assert counts["before_restore"] < LIVES
