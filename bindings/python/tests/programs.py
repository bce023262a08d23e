"""Runs the small programs of examples/programs, and kills them."""

import importlib.util
import itertools
import re
import subprocess
import sys
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
    child = start("after", name, folder)
    job = None
    for count in itertools.count(1):
        progress(child)
        if count >= 4 and job is None and (folder / "ckpt").exists():
            pool = outlive.open(folder / "ckpt")
            job = next((pool.job(each) for each in pool.jobs()), None)
        if job is not None and job.latest is not None:
            break
    child.kill()
    assert not any(line.startswith("result") for line in child.communicate()[0].splitlines())
    again = start("after", name, folder)
    # It did not begin at the start again.
    assert progress(again) > 0
    assert result(again) == want
