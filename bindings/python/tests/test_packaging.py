"""`pip install .` accepts the repository as a package."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import outlive

ROOT = Path(__file__).parents[3]


def test_pip_takes_the_repository(tmp_path: Path) -> None:
    # This goes as far as possible without a build, with the installed tools.
    options = ["--dry-run", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", *options, "--report", str(report), str(ROOT)]
    # maturin is beside the interpreter.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (install,) = json.loads(report.read_text())["install"]
    told = install["metadata"]
    assert (told["name"], told["version"]) == ("outlive", outlive.__version__)
    assert told["requires_python"] == ">=3.11"
    assert "numpy>=2" in told["requires_dist"]


def test_the_installed_package_states_its_version_and_license() -> None:
    assert outlive.__version__ == metadata.version("outlive")
    about = metadata.metadata("outlive")
    assert about["License-Expression"] == "Apache-2.0"
    assert about["License-File"] == "LICENSE"
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]


def test_the_command_imports_no_numpy() -> None:
    code = (
        "import sys; sys.argv[1:] = ['--version']; from outlive_command import main; "
        "code = main(); print('numpy' in sys.modules, flush=True); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"outlive {outlive.__version__}\nFalse\n"
    (script,) = metadata.entry_points(group="console_scripts", name="outlive")
    assert script.value == "outlive_command:main"
