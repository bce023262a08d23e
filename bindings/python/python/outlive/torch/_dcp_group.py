"""The job of a distributed checkpoint, and the connection of its ranks."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from outlive._errors import Error, InvalidError
from outlive._job import Job
from outlive._pool import Pool

T = TypeVar("T")
R = TypeVar("R")

# Jobs that were opened for a pool and a name: a writer and a reader of one job are one program.
_opened: weakref.WeakValueDictionary[tuple[int, str, int | None], Job] = (
    weakref.WeakValueDictionary()
)


def job_of(to: Pool | Job, name: str | None, group: Any, options: dict[str, Any]) -> Job:
    """Returns the job of a writer or reader. Collective if it opens one with a group.

    Args:
        to: A pool or a job.
        name: Name of the job in the pool.
        group: Group of ranks. None is all of `torch.distributed`, if there are several, on a
            process group of their own; False is none.
        options: Options of `Pool.job`.

    Raises:
        InvalidError: If the arguments do not fit.
    """
    if isinstance(to, Job):
        if name is not None or group is not None or options:
            raise InvalidError("a job has its name, group and options: give a pool with these")
        return to
    if not isinstance(to, Pool):
        raise InvalidError(f"{to!r} is no pool and no job: give `outlive.open(...)`")
    if not isinstance(name, str):
        raise InvalidError("a pool has many jobs: give the name of one after it")
    if group is False:
        group = None
    elif group is None and _has_ranks():
        known = _opened.get((id(to._core), name, None))
        if known is not None and not options:
            return known
        # Messages of the job must not mix with those of the program in other threads.
        group = dist.new_group(backend="gloo")
        job = to.job(name, group=group, **options)
        _opened[id(to._core), name, None] = job
        return job
    key = id(to._core), name, None if group is None else id(group)
    known = _opened.get(key) if group is not None and not options else None
    if known is not None:
        return known
    job = to.job(name, group=group, **options)
    if group is not None:
        _opened[key] = job
    return job


def _has_ranks() -> bool:
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def can_exchange(job: Job) -> bool:
    """Whether the ranks of a job can plan together: those that meet in the pool cannot."""
    return job.ranks == 1 or hasattr(job._ranks, "gather")


def exchange(
    job: Job,
    give: Callable[[], T],
    merge: Callable[[list[T]], R],
    *,
    what: str = "the checkpoint is not saved",
) -> R:
    """Gathers something from all ranks, merges it on rank 0, and returns that on all.

    Args:
        job: The job with the ranks.
        give: Returns what this rank gives.
        merge: Makes one of what all ranks gave, in their order.
        what: Begins the error of a rank, if another one has failed.

    Raises:
        Error: The error of this rank, or that of the first other one that has failed.
    """
    own: BaseException | None = None
    given: Any = None
    try:
        given = give()
    except BaseException as error:
        own = error
    if job.ranks == 1:
        if own is not None:
            raise own
        return merge([given])
    ranks = job._ranks
    if not can_exchange(job):
        raise InvalidError(
            "ranks that meet in the pool cannot plan together: give the pool with the name of the "
            "job, so that they meet through torch.distributed"
        )
    told = ranks.gather(pickle.dumps((given, _told(own))))
    answer: Any = None
    if job.rank == 0:
        everything = [pickle.loads(each) for each in told]
        failures = [(rank, why) for rank, (_, why) in enumerate(everything) if why is not None]
        if failures:
            answer = None, f"rank {failures[0][0]}: {failures[0][1]}"
        else:
            try:
                answer = merge([each for each, _ in everything]), None
            except BaseException as error:
                own = error
                answer = None, f"rank 0: {_told(error)}"
    result, failure = pickle.loads(ranks.broadcast(pickle.dumps(answer)))
    if own is not None:
        raise own
    if failure is not None:
        raise Error(f"{what}, since another rank failed: {failure}")
    found: R = result
    return found


def _told(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"
