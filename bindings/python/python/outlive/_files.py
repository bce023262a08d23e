"""Files: arguments and results of `Job.put_files` and `Job.get_files`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from outlive._errors import InvalidError

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True, slots=True)
class FileTrouble:
    """A problem with one file.

    Attributes:
        path: Path of the file. A name that is not UTF-8 is as `os.fsdecode` returns it.
        kind: One of five words. "vanished" and "unreadable": the file is left out. "changed": it
            changed each time while it was read. "incomplete": an owner, an attribute or a device is
            missing. "damaged": its stored data is damaged, and it is left out.
        why: The reason, in words.
    """

    path: str
    kind: str
    why: str


@dataclass(frozen=True, slots=True)
class Put:
    """Report of `Job.put_files`.

    Attributes:
        epoch: Epoch of the checkpoint.
        items: Number of all entries in it: files, directories, links and others.
        files: Number of files among them.
        state_bytes: Bytes of these files.
        read_files: Number of files that were read. The others had not changed since the previous
            put.
        read_bytes: Bytes of the files that were read.
        new_bytes: Bytes written to the pool.
        total_s: Seconds until the commit.
        troubles: The first thousand troubles.
        troubles_total: Number of all troubles.
        complete: Whether the checkpoint has everything unchanged. Files that vanished do not count.
    """

    epoch: int
    items: int
    files: int
    state_bytes: int
    read_files: int
    read_bytes: int
    new_bytes: int
    total_s: float
    troubles: tuple[FileTrouble, ...]
    troubles_total: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Got:
    """Report of `Job.get_files`. It is false if the job has no checkpoint of files yet.

    Attributes:
        epoch: Epoch of the checkpoint; None if there is none.
        items: Number of entries that were made, or existed already.
        files: Number of files that were made, or existed already.
        bytes: Bytes of these files.
        kept_files: Number of files that were right already, and were not touched.
        kept_bytes: Bytes of these files.
        read_bytes: Bytes read from the pool.
        troubles: The first thousand troubles.
        troubles_total: Number of all troubles.
        complete: Whether everything is as it was when it was stored.
    """

    epoch: int | None = None
    items: int = 0
    files: int = 0
    bytes: int = 0
    kept_files: int = 0
    kept_bytes: int = 0
    read_bytes: int = 0
    troubles: tuple[FileTrouble, ...] = ()
    troubles_total: int = 0
    complete: bool = True

    def __bool__(self) -> bool:
        """True unless the job has no checkpoint of files."""
        return self.epoch is not None


def one_or_more(paths: AnyPath | Iterable[AnyPath]) -> list[str]:
    """Returns paths as a list of text. Names that are not UTF-8 are as `os.fsdecode` returns them.

    Raises:
        InvalidError: If an item is not a path.
    """
    several = [paths] if isinstance(paths, str | bytes | os.PathLike) else paths
    try:
        return [os.fsdecode(path) for path in several]
    except TypeError as error:
        raise InvalidError(f"{paths!r} is not a path or a list of paths: {error}") from None


def patterns(exclude: str | Iterable[str]) -> list[str]:
    """Returns ignore patterns as a list."""
    return [exclude] if isinstance(exclude, str) else list(exclude)


def told(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a native report, with its troubles as objects."""
    troubles = tuple(FileTrouble(**trouble) for trouble in values["troubles"])
    return {**values, "troubles": troubles}
