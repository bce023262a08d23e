"""The site and the tools that `make docs` gives to the tests here."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built site."""
    return Path(os.environ["OUTLIVE_DOCS"])


@pytest.fixture(scope="session")
def tools() -> Path:
    """The folder of the programs of .venv-docs."""
    return Path(os.environ["OUTLIVE_DOCS_TOOLS"])
