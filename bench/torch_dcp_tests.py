"""Runs PyTorch's own tests of distributed checkpoints with the storage of outlive.

    python bench/torch_dcp_tests.py PYTORCH/test/distributed/checkpoint [--only NAME] [--json]

The folder is from PyTorch's sources, of about the version that is installed beside outlive; nothing
is downloaded. The tests need the package `expecttest`. Each test file that saves or loads runs
twice, with PyTorch's storage and with that of outlive. The program fails if a test passes with
PyTorch's alone, or if none passes with PyTorch's.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import asdict, dataclass
from pathlib import Path

# Files that neither save nor load are the same with any storage.
_STORAGE = re.compile(
    r"FileSystem(Writer|Reader)|checkpoint_id=|dcp\.(save|load)|\bsave_state_dict"
)
# These test PyTorch's own files, or storages of other formats.
_OTHERS = ("fsspec", "hf_", "huggingface", "safetensor", "cuobj", "_experimental", "pg_transport")
# Seconds for one test. PyTorch itself gives ranks that wait for each other five minutes.
_TEST_S = 150
_SIDES = ("torch", "outlive")
_SWAPPED = Path(__file__).with_name("torch_dcp")


@dataclass
class Outcome:
    """How a test ended with both storages: passed, failed, skipped, or missing after a timeout."""

    test: str
    torch: str = "missing"
    outlive: str = "missing"

    @property
    def is_worse(self) -> bool:
        """Whether it passes with PyTorch's storage alone."""
        return self.torch == "passed" and self.outlive != "passed"


def files_of(folder: Path) -> list[Path]:
    """Returns the test files that save or load through PyTorch's storage."""
    return sorted(
        path
        for path in folder.rglob("test_*.py")
        if not any(word in str(path.relative_to(folder)) for word in _OTHERS)
        and _STORAGE.search(path.read_text())
    )


def outcomes(file: Path, folder: Path, *, is_swapped: bool, timeout_s: int) -> dict[str, str]:
    """Runs a test file; returns the outcome of each test by its name."""
    env = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    paths = [str(folder.parents[2] / "test"), env.get("PYTHONPATH", "")]
    if is_swapped:
        paths.insert(0, str(_SWAPPED))
    env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryDirectory() as work:
        report = Path(work) / "report.xml"
        env["TMPDIR"] = work
        # Not the configuration of PyTorch, which asks for plugins.
        options = ["-c", os.devnull, "-q", "-p", "no:cacheprovider"]
        options += [f"--timeout={_TEST_S}", "--timeout-method=signal"]
        words = [sys.executable, "-m", "pytest", *options, f"--junit-xml={report}", str(file)]
        # A hang is an outcome: a session of its own can be ended with all of its ranks.
        program = subprocess.Popen(
            words,
            cwd=work,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            text, _ = program.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, 9)
            text, _ = program.communicate()
        if not report.exists():
            print(f"{file.name}: no report\n{text[-2000:]}", file=sys.stderr)
            return {}
        return _read(report, file)


def _read(report: Path, file: Path) -> dict[str, str]:
    found = {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{file.name}::{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        kinds = {child.tag for child in case}
        is_bad = kinds & {"failure", "error"}
        found[name] = "failed" if is_bad else "skipped" if "skipped" in kinds else "passed"
        for child in case:
            if child.tag in ("failure", "error"):
                found[f"{name}\n"] = (child.text or child.get("message") or "")[-3000:]
    return found


def _counts(rows: list[Outcome], side: str) -> str:
    ends = [getattr(row, side) for row in rows]
    return ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(ends)) or "no tests"


def main() -> int:
    """Runs all files, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="test/distributed/checkpoint of PyTorch's sources"
    )
    parser.add_argument("--only", default="", help="part of the names of the files to run")
    parser.add_argument("--timeout-s", type=int, default=600, help="seconds for each file")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    parser.add_argument(
        "--verbose", action="store_true", help="print why a test failed with outlive"
    )
    args = parser.parse_args()
    folder = args.folder.resolve()
    files = [file for file in files_of(folder) if args.only in file.name]
    if not files:
        parser.error(f"{folder} has no such test file: give test/distributed/checkpoint of PyTorch")
    found: dict[str, Outcome] = {}
    for file in files:
        for is_swapped in (False, True):
            ends = outcomes(file, folder, is_swapped=is_swapped, timeout_s=args.timeout_s)
            for name, end in ends.items():
                if name.endswith("\n"):
                    if args.verbose and is_swapped:
                        print(f"{name}{end}\n", file=sys.stderr)
                    continue
                setattr(
                    found.setdefault(name, Outcome(name)), "outlive" if is_swapped else "torch", end
                )
        here = [row for row in found.values() if row.test.startswith(f"{file.name}::")]
        told = "; ".join(f"{side}: {_counts(here, side)}" for side in _SIDES)
        print(f"{file.name}: {told}", file=sys.stderr, flush=True)
    rows = sorted(found.values(), key=lambda row: row.test)
    worse = [row for row in rows if row.is_worse]
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        for row in rows:
            if row.torch != row.outlive or row.torch == "failed":
                print(f"{row.torch:8} {row.outlive:8} {row.test}")
        for side in _SIDES:
            print(f"{side}: {_counts(rows, side)}")
    if not any(row.torch == "passed" for row in rows):
        print("no test has passed with PyTorch's storage: nothing was compared", file=sys.stderr)
        return 2
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
