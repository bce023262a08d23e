"""Runs the small programs of examples/programs, and kills them."""

import importlib.util
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import outlive

ROOT = Path(__file__).parents[3]
_SPEC = importlib.util.spec_from_file_location("lines", ROOT / "bench" / "lines.py")
assert _SPEC is not None
assert _SPEC.loader is not None
lines: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(lines)


def start(kind: str, name: str, folder: Path) -> "subprocess.Popen[str]":
    """Starts a program in a folder of its own."""
    code = lines.code_of(lines.PROGRAMS / kind / name)
    (folder / "program.py").write_text(code)
    return subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(child: "subprocess.Popen[str]") -> str:
    """Waits for the end, which must be good, and returns the line of the result."""
    out, err = child.communicate()
    assert child.returncode == 0, err
    return out.splitlines()[-1]


def progress(child: "subprocess.Popen[str]") -> int:
    """Returns the next number by which a program says how far it is; frameworks print more."""
    assert child.stdout is not None
    for line in child.stdout:
        if found := re.match(r"[a-z]+ (\d+)\b", line):
            return int(found[1])
    raise AssertionError(f"it has ended: {child.communicate()[1]}")


def check(name: str, folder: Path) -> None:
    """Kills a program once, and compares its result with that of the program without outlive."""
    want = result(start("before", name, folder))
    assert want.startswith("result ")
    pool = outlive.open(folder / "ckpt")
    child = start("after", name, folder)
    first, begun = progress(child), datetime.now(UTC)
    later = 0
    # A save may note its time a little after it took the state. The next one begins when it is
    # committed, so the second checkpoint has a later state than that of the first number.
    while later < 2:
        progress(child)
        epochs = [epoch for job in pool.jobs() for epoch in pool.job(job).epochs()]
        later = sum(epoch.frozen_at > begun for epoch in epochs)
    child.kill()
    assert not any(line.startswith("result") for line in child.communicate()[0].splitlines())
    again = start("after", name, folder)
    # It did not begin at the start again.
    assert (found := progress(again)) > first, (found, first)
    assert result(again) == want
