"""Tools that only .venv-docs has accept the Python and the examples of the documents."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from test_documents import write_checked

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "examples"


def pyright(tools: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT / "bindings" / "python" / "python")],
        # The stubs of PyTorch and JAX, which say nothing; `outlive` has no compiled part there.
        "reportIncompleteStub": False,
        "reportMissingModuleSource": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [tools / "basedpyright", "--project", folder, "--pythonpath", sys.executable]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.timeout(600)
def test_pyright_has_no_complaints(tools: Path, tmp_path: Path) -> None:
    write_checked(tmp_path)
    done = pyright(tools, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    # It would say so if it could not see the types.
    (tmp_path / "wrong.py").write_text('import outlive\noutlive.open("ckpt").job("a").save()\n')
    done = pyright(tools, tmp_path)
    assert done.returncode == 1
    assert 'Argument missing for parameter "state"' in done.stdout


def test_the_job_of_kubernetes_is_one(tools: Path, tmp_path: Path) -> None:
    text = (EXAMPLES / "kubernetes.yaml").read_text("utf-8")
    checked = tmp_path / "job.yaml"
    command = [tools / "kubernetes-validate", "--strict", checked]
    for change, code in [(("", ""), 0), (("operator: In", "operator: 1"), 1), (("kind", "knd"), 1)]:
        checked.write_text(text.replace(*change))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == (code != 0), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["outlive-heat.service", "outlive-node.service"])
def test_systemd_takes_the_unit(tmp_path: Path, name: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("this machine has no systemd-analyze")
    text = (EXAMPLES / name).read_text("utf-8")
    command = shutil.which("outlive")
    assert command
    unit = tmp_path / name
    unit.write_text(re.sub("/usr/local/bin/outlive", command, text))
    words = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("[Install]", "KilMode=mixed\n[Install]"))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "KilMode" in done.stderr
