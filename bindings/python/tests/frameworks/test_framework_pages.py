"""The pages of `docs` that need PyTorch or JAX are true: all their Python and commands run."""

from pathlib import Path

import pytest
from pages import FRAMEWORK_PAGES, Reader

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore:torch.distributed is")


# Each start of a program imports PyTorch.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", FRAMEWORK_PAGES)
def test_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    Reader(page, folder, frameworks=True).read()
