"""fsspec's own tests for file systems, with a pool of this one."""

from pathlib import Path
from typing import Any

import pytest
from fsspec.tests import abstract

from outlive.fsspec import OutliveFileSystem


class Pool(abstract.AbstractFixtures):  # type: ignore[misc]
    """A pool for each test, by its storage option."""

    @pytest.fixture
    def fs(self, folder: Path) -> OutliveFileSystem:
        return OutliveFileSystem(pool=folder)

    @pytest.fixture
    def fs_path(self, fs: OutliveFileSystem) -> str:
        return "job/dir"

    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: (
            "/".join(str(part).rstrip("/") for part in parts[:-1]) + f"/{parts[-1]}"
        )


class Named(Pool):
    """The same, named in each path."""

    @pytest.fixture
    def fs(self, folder: Path) -> OutliveFileSystem:
        return OutliveFileSystem(skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, fs: OutliveFileSystem, folder: Path) -> str:
        return f"{folder}!/job"


class TestCopy(abstract.AbstractCopyTests, Pool):  # type: ignore[misc]
    """Copies within the pool."""


class TestGet(abstract.AbstractGetTests, Pool):  # type: ignore[misc]
    """Copies to local files."""


class TestPut(abstract.AbstractPutTests, Pool):  # type: ignore[misc]
    """Copies of local files."""


class TestOpen(abstract.AbstractOpenTests, Pool):  # type: ignore[misc]
    """Files that are opened."""


class TestPipe(abstract.AbstractPipeTests, Pool):  # type: ignore[misc]
    """Files that are written whole."""


class TestCopyNamed(abstract.AbstractCopyTests, Named):  # type: ignore[misc]
    """Copies within the pool, by paths that name it."""


class TestGetNamed(abstract.AbstractGetTests, Named):  # type: ignore[misc]
    """Copies to local files, by paths that name the pool."""


class TestPutNamed(abstract.AbstractPutTests, Named):  # type: ignore[misc]
    """Copies of local files, by paths that name the pool."""
