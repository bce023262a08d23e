"""Files of a checkpoint: made durable, counted, put out of and into the page cache."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def files(root: Path) -> Iterator[Path]:
    """Yields all regular files below `root`, or `root` itself."""
    if root.is_file():
        yield root
        return
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path


def sync(root: Path) -> None:
    """Makes all files and directories below `root` durable, and its entry: fsync of each."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            _fsync(Path(folder, name), os.O_RDONLY)
        _fsync(Path(folder), os.O_RDONLY | os.O_DIRECTORY)
    _fsync(root.parent, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: Path, flags: int) -> None:
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_bytes(root: Path) -> int:
    """Returns the bytes that the file system has allotted to all files below `root`."""
    return sum(path.stat().st_blocks * 512 for path in files(root))


def largest(root: Path) -> Path:
    """Returns the largest file below `root`."""
    return max(files(root), key=lambda path: path.stat().st_size)


def make_cold(root: Path) -> None:
    """Drops the files below `root` from the kernel's cache; they must be durable."""
    for path in files(root):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def make_warm(root: Path) -> None:
    """Reads all files below `root`, so that they are in the page cache."""
    buffer = bytearray(4 << 20)
    for path in files(root):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def flip_bit(path: Path, at: int) -> None:
    """Flips the lowest bit of one byte, past every checksum."""
    with path.open("r+b", buffering=0) as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
        os.fsync(file.fileno())


def empty(folder: Path) -> Path:
    """Returns the folder, emptied."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
