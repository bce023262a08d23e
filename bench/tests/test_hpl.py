"""Saves of a program by a preloaded library, and its figures."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpl
import track_programs

BLOCK_BYTES = 8 << 20
FREEZES_MIN = 6

# Two arrays. Of one, a page in 64 is written again and again; the other stays unchanged until the
# end. Then one page of that is written, by the program itself or in a way that leaves no fault.
PROGRAM = """
import pathlib, sys, time
gate, report = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
sizes = [int(sys.argv[3])] * 2
busy, still = [bytearray(b"\\1") * size for size in sizes]
gate.touch()
ends = time.monotonic() + float(sys.argv[4])
number = 0
while time.monotonic() < ends:
    for at in range(0, len(busy), 4096 * 64):
        busy[at] = number & 255
    number += 1
    time.sleep(0.001)
still[len(still) // 2] = 9
gate.unlink()
while not report.exists():
    time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def library() -> Path:
    # The profile in which the Rust tests have built it already.
    return hpl.build_library(release=False)


def saved(library: Path, folder: Path, tracker: str | None, **settings: object) -> dict[str, Any]:
    """Runs the program until there are enough freezes, which takes longer on a busy machine."""
    seconds = 0.6
    while True:
        told = run(library, folder, tracker, seconds, settings)
        if tracker is None or told["error"] is not None or len(told["freezes"]) >= FREEZES_MIN:
            return told
        seconds *= 2


def run(
    library: Path, folder: Path, tracker: str | None, seconds: float, more: dict[str, object]
) -> dict[str, Any]:
    gate, report = folder / "gate", folder / "report.json"
    report.unlink(missing_ok=True)
    settings: dict[str, Any] = {"while": gate, "interval_ms": 20, "from_bytes": BLOCK_BYTES}
    settings |= more
    if tracker is not None:
        settings["tracker"] = tracker
    # The real interpreter: the starter of a virtual environment would be saved instead.
    program = [os.path.realpath(sys.executable), "-I", "-c", PROGRAM]
    program += [str(gate), str(report), str(BLOCK_BYTES), str(seconds)]
    env = hpl.environment(library, report, **settings)
    subprocess.run(program, env=env, check=True)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


# Without the builds of the Rust tests, this takes a while.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tracker", track_programs.TRACKERS)
def test_a_program_is_saved_from_within(library: Path, tracker: str, tmp_path: Path) -> None:
    told = saved(library, tmp_path, tracker)
    assert told["error"] is None
    # An older kernel has no wp-async.
    expected = {"wp-async": ("wp-async:", "hash ("), "auto": ("wp-async:", "hash (")}
    assert told["tracker"].startswith(expected.get(tracker, (tracker,)))
    # A byte array has one byte more than its length.
    assert told["region_bytes"] == 2 * (BLOCK_BYTES + 1)
    first, *middle, last = told["freezes"]
    assert len(middle) > 1
    pages = BLOCK_BYTES // 4096 + 1
    assert first["changed_bytes"] == 2 * pages * 4096
    # A page in 64, and at most the next one: a page of the array spans two of the hardware.
    assert all(one["changed_bytes"] <= 2 * pages // 64 * 4096 for one in middle)
    # The page of the end; there may be a freeze between its write and the end.
    assert last["changed_bytes"] + middle[-1]["changed_bytes"] > middle[-2]["changed_bytes"]
    for one in told["freezes"]:
        assert 0 < one["stall_s"] < 10
        assert one["stall_cpu_s"] > 0
        assert one["copied_bytes"] <= one["changed_bytes"]
    assert told["checked_pages"] == 2 * pages * sum(one["checked"] for one in told["freezes"])
    assert last["checked"]
    assert told["wrong_pages"] == 0
    assert told["program_cpu_s"] > 0


def test_pages_that_a_tracker_missed_are_found(library: Path, tmp_path: Path) -> None:
    told = saved(library, tmp_path, "hash", spoil=1)
    assert told["wrong_pages"] >= sum(one["checked"] for one in told["freezes"])
    with pytest.raises(SystemExit, match=r"of .* pages are not what the images have"):
        hpl.figures("program", told)


def test_a_program_may_be_left_alone(library: Path, tmp_path: Path) -> None:
    told = saved(library, tmp_path, None)
    assert list(told) == ["program_cpu_s", "program_system_cpu_s"]
    assert told["program_cpu_s"] > 0


def test_hpl_must_have_passed() -> None:
    residual = "||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=        0.0027319 ...... "
    norms = "HPL_RnormI=1.39295e-11\nHPL_Xnorm1=6885.66\n"
    assert hpl.check_result("HPL", f"{residual}PASSED\n{norms}") == " ".join(norms.split())
    for output in (f"{residual}FAILED\n{norms}", norms):
        with pytest.raises(SystemExit, match="did not pass"):
            hpl.check_result("HPL", output)


def test_figures_are_medians_of_those_that_count() -> None:
    one = {"stop_s": 0, "stall_s": 9, "stall_cpu_s": 9, "drain_cpu_s": 9, "changed_bytes": 9}
    later = {name: value / 9 for name, value in one.items()}
    told = {"error": None, "wrong_pages": 0, "checked_pages": 1, "tracker": "hash"}
    told["freezes"] = [one] * hpl.WARM_UP_FREEZES + [later] * 3
    found = hpl.figures("HPL", told)
    assert (found["stall_s"], found["save_cpu_s"], found["changed_bytes"]) == (1, 2, 1)
    told["freezes"] = [one]
    with pytest.raises(SystemExit, match="ended before"):
        hpl.figures("HPL", told)


def test_a_missing_hpcc_is_told(tmp_path: Path) -> None:
    command = [sys.executable, track_programs.__file__, "--program", "HPL", "--dir", str(tmp_path)]
    env = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "apt-get install hpcc" in done.stderr
