"""Paths of the file system: a pool, a job, perhaps a checkpoint of it, and a path in its tree.

In ``/data/pool!/job/dir/file`` the pool is a directory, in ``s3://bucket/prefix!/job/file`` it is
in a bucket. A path without one, ``job/dir/file``, is in that of the storage option or environment
variable. ``job@12/dir/file`` is of checkpoint 12; ``@-1`` is the newest one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

PROTOCOL = "outlive"
# Ends the location of a pool.
MARK = "!"
_LOCATION = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
_EPOCH = re.compile(r"(.+)@(-?[0-9]+)", re.DOTALL)
# Characters of a job's name that mean something else in a path, or in patterns.
_SPECIAL = re.compile(r"[%/@!?*\[\]]")


@dataclass(frozen=True)
class Place:
    """A path of the file system, taken apart.

    Attributes:
        pool: Location of the pool; None for the one of the storage option.
        job: Name of the job; None for the pool itself.
        epoch: Number of a checkpoint as the path gives it; None for the newest tree.
        path: Path in the tree of the job; empty for the tree itself.
    """

    pool: str | None
    job: str | None
    epoch: str | None
    path: str

    @property
    def item(self) -> bytes:
        """The path as a listing has it."""
        return self.path.encode("utf-8", "surrogateescape") or b"."

    @property
    def is_root(self) -> bool:
        """Whether it is the pool itself."""
        return self.job is None


def split_pool(path: str) -> tuple[str | None, str]:
    """Returns the location of the pool, if the path names it, and the rest."""
    if _LOCATION.match(path):
        pool, mark, rest = path.partition(MARK + "/")
        if mark:
            return pool, rest
        if path.endswith(MARK):
            return path[: -len(MARK)], ""
    return None, path.lstrip("/")


def join_pool(pool: str | None, rest: str) -> str:
    """Returns the path of `rest` in a pool."""
    if pool is None:
        return rest
    return f"{pool}{MARK}/{rest}" if rest else pool + MARK


def stripped(path: str) -> str:
    """Returns a path without its protocol, in the form that the file system itself gives."""
    for start in (f"{PROTOCOL}://", f"{PROTOCOL}::"):
        path = path.removeprefix(start)
    pool, rest = split_pool(path)
    return join_pool(pool, "/".join(part for part in rest.split("/") if part not in ("", ".")))


def parent(path: str) -> str:
    """Returns the path of the directory above; of a pool itself that is the pool."""
    pool, rest = split_pool(stripped(path))
    return join_pool(pool, rest.rpartition("/")[0])


def place_of(path: str) -> Place:
    """Takes a stripped path apart."""
    pool, rest = split_pool(path)
    first, _, below = rest.partition("/")
    if not first:
        return Place(pool, None, None, "")
    if found := _EPOCH.fullmatch(first):
        return Place(pool, unquote(found[1]), found[2], below)
    return Place(pool, unquote(first), None, below)


def path_of(place: Place, path: str) -> str:
    """Returns the path of another item in the same tree."""
    first = name_of(place.job or "") + (f"@{place.epoch}" if place.epoch else "")
    return join_pool(place.pool, f"{first}/{path}" if path else first)


def name_of(job: str) -> str:
    """Returns the name of a job as a part of a path."""
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", job)
