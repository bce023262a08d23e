"""Builds the package: maturin makes the wheel, and this puts the command `outlive` into it.

A script would start the interpreter each time; the native command starts at once. pip calls the
functions (PEP 517). OUTLIVE_COMMAND names a command that is built already. `scripts/build`, which
runs maturin itself, calls

    python bindings/python/backend/outlive_backend.py WHEEL COMMAND
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import maturin
from maturin import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, Any] | None


def build_wheel(folder: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Builds a wheel in a folder; returns its name."""
    return _with_command(folder, maturin.build_wheel(folder, settings, metadata))


def build_editable(folder: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Builds a wheel that leads to the sources; returns its name."""
    return _with_command(folder, maturin.build_editable(folder, settings, metadata))


def _with_command(folder: str, name: str) -> str:
    add_command(Path(folder) / name, build_command())
    return name


def build_command() -> Path:
    """Builds the command, unless it is given; returns its path."""
    if given := os.environ.get("OUTLIVE_COMMAND"):
        return Path(given)
    words = ["cargo", "build", "--release", "--package", "outlive-cli", "--bin", "outlive"]
    print("Running `{}`".format(" ".join(words)), flush=True)
    done = subprocess.run(
        [*words, "--message-format", "json-render-diagnostics"],
        stdout=subprocess.PIPE,
        check=True,
    )
    for line in done.stdout.splitlines():
        built = json.loads(line).get("executable")
        if built:
            return Path(built)
    raise RuntimeError("cargo has built no command: report this as an error of outlive")


def add_command(wheel: Path, command: Path) -> None:
    """Adds a command to a wheel, in one step. A command that it has already is replaced."""
    with tempfile.TemporaryDirectory(dir=wheel.parent) as work:
        stripped = Path(work) / "outlive"
        strip = shutil.which("strip")
        if strip:
            subprocess.run([strip, "-o", stripped, command], check=True)
        else:
            shutil.copyfile(command, stripped)
        changed = Path(work) / wheel.name
        _rewrite(wheel, changed, stripped.read_bytes())
        changed.chmod(wheel.stat().st_mode)
        changed.replace(wheel)


def _rewrite(wheel: Path, changed: Path, command: bytes) -> None:
    name = "-".join(wheel.name.split("-")[:2])
    place, record = f"{name}.data/scripts/outlive", f"{name}.dist-info/RECORD"
    digest = base64.urlsafe_b64encode(hashlib.sha256(command).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(changed, "w") as new:
        for entry in old.infolist():
            if entry.filename not in (place, record):
                new.writestr(entry, old.read(entry), zipfile.ZIP_DEFLATED)
        added = zipfile.ZipInfo(place)
        added.external_attr = 0o100755 << 16
        new.writestr(added, command, zipfile.ZIP_DEFLATED)
        lines = old.read(record).decode().splitlines()
        lines = [line for line in lines if not line.startswith((f"{place},", f"{record},"))]
        lines += [f"{place},sha256={digest},{len(command)}", f"{record},,"]
        new.writestr(old.getinfo(record), "\n".join(lines) + "\n", zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {Path(sys.argv[0]).name} WHEEL COMMAND")
    add_command(Path(sys.argv[1]), Path(sys.argv[2]))
