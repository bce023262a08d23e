"""Files: what `Job.put_files` and `Job.get_files` take and give back."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from outlive._errors import InvalidError

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True, slots=True)
class FileTrouble:
    """Something that could not be done as it should.

    Attributes:
        path: With what; names that are no text as `os.fsdecode` gives them.
        kind: "vanished" and "unreadable" (left out), "changed" (while it was read, each time),
            "incomplete" (an owner, an attribute or a device is missing), "damaged" (what is stored
            of it is; left out).
        why: The reason, in words.
    """

    path: str
    kind: str
    why: str


@dataclass(frozen=True, slots=True)
class Put:
    """What `Job.put_files` did.

    Attributes:
        epoch: The checkpoint.
        items: Everything in it that has a name.
        files: How many of them are files.
        state_bytes: Their bytes.
        read_files: Files that were read; the others had not changed since the put before.
        read_bytes: Their bytes.
        new_bytes: Bytes written to the pool.
        total_s: Seconds until the commit.
        troubles: The first thousand things that went wrong.
        troubles_total: How many there were.
        complete: Whether the checkpoint has all as it was. (What vanished was not there any more.)
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
    """What `Job.get_files` did. It is false if the job has no checkpoint of files yet.

    Attributes:
        epoch: The checkpoint; None without one.
        items: Everything made, or found there.
        files: Files made.
        bytes: Their bytes.
        read_bytes: Bytes read from the pool.
        troubles: The first thousand things that went wrong.
        troubles_total: How many there were.
        complete: Whether all is as it was.
    """

    epoch: int | None = None
    items: int = 0
    files: int = 0
    bytes: int = 0
    read_bytes: int = 0
    troubles: tuple[FileTrouble, ...] = ()
    troubles_total: int = 0
    complete: bool = True

    def __bool__(self) -> bool:
        """True unless there was nothing to get."""
        return self.epoch is not None


def one_or_more(paths: AnyPath | Iterable[AnyPath]) -> list[str]:
    """Paths as a list of text; names that are no text as `os.fsdecode` gives them.

    Raises:
        InvalidError: If something is no path.
    """
    several = [paths] if isinstance(paths, str | bytes | os.PathLike) else paths
    try:
        return [os.fsdecode(path) for path in several]
    except TypeError as error:
        raise InvalidError(f"{paths!r} are no paths: {error}") from None


def patterns(exclude: str | Iterable[str]) -> list[str]:
    """Ignore patterns as a list."""
    return [exclude] if isinstance(exclude, str) else list(exclude)


def told(values: dict[str, Any]) -> dict[str, Any]:
    """A native report, with its troubles as objects."""
    troubles = tuple(FileTrouble(**trouble) for trouble in values["troubles"])
    return {**values, "troubles": troubles}
