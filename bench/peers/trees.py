"""The tree of files to back up: packages as installed, and large files; then an upgrade."""

import filecmp
import os
import shutil
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from peers import state

# Installed packages that make up most of the tree.
PACKAGES = ("numpy", "scipy")
# The package that is upgraded; `scripts/setup-bench` downloads two releases of it.
UPGRADED = "transformers"


def wheels(folder: Path) -> list[Path]:
    """Returns two releases of the upgraded package, older first; none if they are missing."""
    found = sorted(folder.glob(f"{UPGRADED}-*.whl"))
    return found[:2] if len(found) >= 2 else []


def build(tree: Path, releases: list[Path], large_bytes: int, *, small: bool) -> None:
    """Makes the first version of the tree."""
    tree.mkdir(parents=True)
    site = Path(sysconfig.get_path("purelib"))
    for package in PACKAGES[: 1 if small else None]:
        if (site / package).is_dir():
            shutil.copytree(site / package, tree / "site" / package, symlinks=True)
    shutil.copytree(
        Path(sysconfig.get_path("stdlib")),
        tree / "stdlib",
        symlinks=True,
        ignore=shutil.ignore_patterns("site-packages", "__pycache__", "test"),
    )
    if releases:
        _unpack(releases[0], tree / UPGRADED)
    (tree / "data").mkdir()
    rng = np.random.default_rng(1)
    (tree / "data" / "random.bin").write_bytes(rng.bytes(large_bytes))
    field = state.plain(large_bytes // 8)
    state.fill(field, 1, "smooth")
    np.save(tree / "data" / "field.npy", field)
    for number in range(40):
        (tree / "data" / f"note-{number}.txt").write_bytes(rng.bytes(100 * number))


def change(tree: Path, releases: list[Path]) -> None:
    """Changes it in place: a package upgraded, pages of a large file rewritten, bytes inserted."""
    rng = np.random.default_rng(2)
    if releases:
        shutil.rmtree(tree / UPGRADED)
        _unpack(releases[1], tree / UPGRADED)
    large = tree / "data" / "random.bin"
    content = bytearray(large.read_bytes())
    for at in rng.integers(0, len(content) // 4096, 20):
        content[at * 4096 : (at + 1) * 4096] = rng.bytes(4096)
    middle = len(content) // 2 + 321
    content[middle:middle] = rng.bytes(12345)
    large.write_bytes(content)
    for number in range(20):
        (tree / "data" / f"note-{number}.txt").unlink()
        (tree / "data" / f"new-{number}.txt").write_bytes(rng.bytes(1000))


def _unpack(wheel: Path, into: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)
    # The metadata directory has the version in its name, which would make new paths each time.
    for folder in into.glob("*.dist-info"):
        folder.rename(into / "dist-info")


def measure(tree: Path) -> tuple[int, int]:
    """Returns the number of files in the tree, and their bytes."""
    sizes = [path.lstat().st_size for path in _entries(tree) if not path.is_dir()]
    return len(sizes), sum(sizes)


def same(one: Path, other: Path) -> bool:
    """Whether both trees have the same names, contents, permissions and times of files."""
    names = [path.relative_to(one) for path in _entries(one)]
    if sorted(names) != sorted(path.relative_to(other) for path in _entries(other)):
        return False
    for name in names:
        a, b = one / name, other / name
        if a.is_symlink() or b.is_symlink():
            if not (a.is_symlink() and b.is_symlink() and a.readlink() == b.readlink()):
                return False
        elif a.is_file():
            x, y = a.stat(), b.stat()
            # Borg and others keep times finer than microseconds, but some programs do not.
            if x.st_mode != y.st_mode or x.st_mtime_ns // 1000 != y.st_mtime_ns // 1000:
                return False
            if not filecmp.cmp(a, b, shallow=False):
                return False
    return True


def find(target: Path, name: str) -> Path | None:
    """Returns the directory `name` in `target`, at any depth."""
    for folder, names, _ in os.walk(target):
        if name in names:
            return Path(folder, name)
    return None


def _entries(tree: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(tree):
        for name in names + files:
            yield Path(folder, name)
