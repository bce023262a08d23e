"""pip takes the repository and its source archive, and wheels get the command.

`make release` builds them, and tries them in bare systems.
"""

import base64
import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import outlive

ROOT = Path(__file__).parents[3]
BACKEND = ROOT / "bindings" / "python" / "backend" / "outlive_backend.py"
# maturin is beside the interpreter.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
ENVIRONMENT = {**os.environ, "PATH": PATH, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def told_by_pip(source: Path, folder: Path) -> dict[str, Any]:
    """Returns the metadata that pip finds. It goes as far as possible without a build."""
    options = ["--dry-run", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
    report = folder / "report.json"
    command = [sys.executable, "-m", "pip", "install", *options, "--report", report, source]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (install,) = json.loads(report.read_text())["install"]
    found: dict[str, Any] = install["metadata"]
    return found


def test_pip_takes_the_repository(tmp_path: Path) -> None:
    told = told_by_pip(ROOT, tmp_path)
    assert (told["name"], told["version"]) == ("outlive", outlive.__version__)
    assert told["requires_python"] == ">=3.11"
    assert "numpy>=2" in told["requires_dist"]


def test_pip_takes_the_source_archive(tmp_path: Path) -> None:
    command = ["maturin", "sdist", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    assert told_by_pip(archive, tmp_path)["version"] == outlive.__version__
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    source = tmp_path / f"outlive-{outlive.__version__}"
    # The list of crates is whole. scripts/release cuts the lock file down to their packages.
    words = ["cargo", "metadata", "--locked", "--offline", "--format-version", "1", "--no-deps"]
    done = subprocess.run(words, cwd=source, capture_output=True, check=True)
    crates = {package["name"] for package in json.loads(done.stdout)["packages"]}
    assert {"outlive-python", "outlive-cli"} <= crates
    assert (source / BACKEND.relative_to(ROOT)).read_bytes() == BACKEND.read_bytes()
    assert (source / "LICENSE").exists()


def test_the_installed_package_states_its_version_and_license() -> None:
    assert outlive.__version__ == metadata.version("outlive")
    about = metadata.metadata("outlive")
    assert about["License-Expression"] == "Apache-2.0"
    assert about["License-File"] == "LICENSE"
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]


def test_a_wheel_gets_the_command(tmp_path: Path) -> None:
    wheel = tmp_path / "outlive-1.0-py3-none-any.whl"
    about = "outlive-1.0.dist-info"
    kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: outlive\nVersion: 1.0\n")
        files.writestr(f"{about}/WHEEL", kind)
        rows = [
            f"{name},sha256=,{len(files.read(name))}"
            for name in (f"{about}/METADATA", f"{about}/WHEEL")
        ]
        files.writestr(f"{about}/RECORD", "\n".join([*rows, f"{about}/RECORD,,", ""]))
    # Once more, with another command: it takes the place of the first.
    for program in ("false", "true", "true"):
        path = shutil.which(program)
        assert path
        subprocess.run([sys.executable, BACKEND, wheel, path], check=True)
        assert [row[0] for row in rows_of_command(wheel)] == ["outlive-1.0.data/scripts/outlive"]
    place = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--target", place, wheel]
    subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=True)
    assert subprocess.run([place / "bin" / "outlive"], check=False).returncode == 0


def rows_of_command(wheel: Path) -> list[list[str]]:
    with zipfile.ZipFile(wheel) as files:
        data = files.read("outlive-1.0.data/scripts/outlive")
        (record,) = [name for name in files.namelist() if name.endswith("/RECORD")]
        rows = [row for row in csv.reader(files.read(record).decode().splitlines()) if row[1:2]]
    want = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    found = [row for row in rows if row[0].endswith("/scripts/outlive")]
    assert [row[1:] for row in found] == [[f"sha256={want}", str(len(data))]]
    return found
