"""PyTorch's own tests with the storage of outlive: the program that runs them tells what it ran."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "torch_dcp_tests.py"


@pytest.mark.parametrize(
    "text",
    [
        "import pytest\n\n@pytest.mark.skip\ndef test_it() -> None:\n    pass\n",
        "def test_it() -> None:\n    assert False\n",
        "import a_module_that_is_missing\n",
        "",
    ],
    ids=["skipped", "failed", "not collected", "empty"],
)
def test_a_run_that_compares_nothing_fails(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "pytorch/test/distributed/checkpoint"
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(f"# dcp.save\n{text}")
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2, ran.stderr
    assert "nothing was compared" in ran.stderr
