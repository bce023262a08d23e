"""Small files that name a checkpoint, where a framework expects its own files.

A framework lists, links, renames and deletes what it has saved. So a pointer lies there, and the
data lies in the pool. A pointer is written when the save begins. A crash may come before the
commit, and the next program may give another checkpoint the same epoch. So the pointer and the
checkpoint both have a stamp, and only equal stamps count.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outlive import _api, _notices
from outlive._adapters._source import absolute
from outlive._errors import DamagedError, InvalidError
from outlive._job import Job

# The key of the stamp in a state, beside the keys of the framework.
KEY = "outlive"
_FORMAT = "outlive checkpoint 1"


@dataclass(frozen=True)
class Pointer:
    """A checkpoint: its pool, job and epoch, and the stamp that it must have.

    Attributes:
        before: The pointer that this one has replaced, if it was in the same place.
    """

    location: str
    job: str
    epoch: int
    stamp: str
    before: Pointer | None = None


def new_stamp() -> str:
    """Returns a stamp that no other checkpoint has."""
    return uuid.uuid4().hex


def write(
    path: Path,
    job: Job,
    epoch: int | None,
    stamp: str,
    has_failed: Callable[[Pointer], bool] = lambda _: False,
) -> Pointer:
    """Writes a pointer, durable and at once whole. Keeps the one that it replaces, for one turn.

    Args:
        path: Place of the pointer.
        job: The job that has begun to save the checkpoint.
        epoch: Number of the checkpoint.
        stamp: Its stamp.
        has_failed: Whether the save of an older pointer is known to have failed.

    Raises:
        OSError: If it cannot be written.
    """
    assert epoch is not None
    old = read(path)
    # The save after one that has failed gets the same number.
    there = {each.epoch for each in job.epochs()} - {epoch}
    if old is not None and (old.epoch not in there or has_failed(old)):
        old = old.before
    location = absolute(job._location)
    if old is not None:
        old = Pointer(old.location, old.job, old.epoch, old.stamp)
    pointer = Pointer(location, job.name, epoch, stamp, old)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": _FORMAT, **asdict(pointer)}, indent=1)
    handle, temporary = tempfile.mkstemp(prefix=".outlive-", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return pointer


def read(path: Path) -> Pointer | None:
    """Returns the pointer in a file; None if the file is missing or no pointer."""
    try:
        with path.open("rb") as file:
            text = file.read(64 << 10)
        found = json.loads(text)
        if not isinstance(found, dict) or found.pop("format", None) != _FORMAT:
            return None
        return _pointer(found)
    except (OSError, ValueError, TypeError):
        return None


def _pointer(found: dict[str, Any]) -> Pointer:
    before = found.pop("before")
    return Pointer(**found, before=None if before is None else _pointer(before))


def is_of(pointer: Pointer, job: Job) -> bool:
    """Whether a pointer names a checkpoint of a job."""
    if job.name != pointer.job:
        return False
    here, there = job._location, pointer.location
    return here == there or os.path.realpath(here) == os.path.realpath(there)


def job_of(pointer: Pointer, mine: Job | None) -> Job:
    """Returns the job that a pointer names: the program's own, or one that is opened."""
    if mine is not None and is_of(pointer, mine):
        return mine
    return _api.open(pointer.location, create=False).job(pointer.job)


def epoch_of(pointer: Pointer, job: Job, place: str) -> int:
    """Returns the epoch of the checkpoint that a pointer names.

    If the program ended before the commit, that is the checkpoint which this place named before.

    Args:
        pointer: The pointer.
        job: Its job.
        place: The path of the pointer, for messages.

    Raises:
        InvalidError: If neither exists.
    """
    if has_stamp(job, pointer):
        return pointer.epoch
    before = pointer.before
    if before is not None and before.job == pointer.job and has_stamp(job, before):
        _notices.tell(
            logging.WARNING,
            "%s: checkpoint %s was never committed: the program ended or the save failed before; "
            "taken is %s, which was there before",
            place,
            pointer.epoch,
            before.epoch,
        )
        return before.epoch
    epochs = [epoch.epoch for epoch in job.epochs()]
    there = f"it has {', '.join(map(str, epochs[-10:]))}" if epochs else "it has none"
    raise InvalidError(
        f"{place} names checkpoint {pointer.epoch} of the job {job.name!r} in {pointer.location}, "
        "which is not there: it was never committed, or a rule or prune has dropped it. Take "
        f"another checkpoint of the job: {there}"
    )


def has_stamp(job: Job, pointer: Pointer) -> bool:
    """Whether the job has the checkpoint of a pointer, and not another one of the same number."""
    if all(epoch.epoch != pointer.epoch for epoch in job.epochs()):
        return False
    try:
        found = job.restore(epoch=pointer.epoch, only=KEY)
    except InvalidError:  # it has no stamp
        return False
    except DamagedError:
        return True  # the restore itself says what is damaged
    return isinstance(found, dict) and (found.get(KEY) or {}).get("stamp") == pointer.stamp
