"""The job of an adapter, in every process that uses the adapter."""

from __future__ import annotations

import os
from typing import Any

from outlive import _api
from outlive._errors import InvalidError
from outlive._job import Job
from outlive._pool import Pool

To = Pool | Job | str | os.PathLike[str]


def absolute(location: str) -> str:
    """Returns the location of a pool, which no change of the working folder changes."""
    if "://" in location:
        return location
    return os.path.abspath(location)  # noqa: PTH100 (the text stays as it was)


class Source:
    """Opens a job when it is first used, once in each process.

    Frameworks start processes of their own, by fork and by pickle. A process that gets a source
    opens the job again.

    Args:
        to: A pool or its location, with the name of a job; or a job.
        name: Name of the job.
        options: Options of `Pool.job`, such as `keep_last=3`.

    Raises:
        InvalidError: If the arguments do not fit.
    """

    def __init__(self, to: To, name: str | None, options: dict[str, Any]) -> None:
        """Checks the arguments. Opens nothing."""
        self._pool: Pool | None = None
        self._job: Job | None = None
        if isinstance(to, Job):
            if name is not None or options:
                raise InvalidError("a job has its name and options: give a pool with these")
            if to.ranks > 1:
                raise InvalidError(
                    f"the job {to.name!r} has a group, and this adapter saves from one process: "
                    "give a pool and a name"
                )
            self._job, name = to, to.name
            self.location = to._location
        elif not isinstance(name, str):
            raise InvalidError("a pool has many jobs: give the name of one after it")
        elif isinstance(to, Pool):
            self._pool, self.location = to, to.location
        else:
            self.location = os.fspath(to)
        if options.get("group") is not None:
            raise InvalidError("`group`: this adapter saves from one process, the first rank")
        self.name: str = name
        self._options = options
        self._process = os.getpid()

    @property
    def job(self) -> Job:
        """The job of this process."""
        if self._process != os.getpid():
            self._pool = self._job = None
            self._process = os.getpid()
        if self._job is None:
            if self._pool is None:
                self._pool = _api.open(self.location)
            self._job = self._pool.job(self.name, **self._options)
        return self._job

    def is_due(self) -> bool:
        """Returns whether a save is due; raises the failure of an earlier one."""
        job = self.job
        due = job._core.due(job._tick)
        job._tick()
        job._warn_of_failures()
        return due

    def settle(self) -> None:
        """Waits for a save that is under way. Raises its failure, or warns, by `on_failure`."""
        job = self.job
        job._core.wait(job._tick)
        job._warn_of_failures()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what belongs to this process."""
        return {**self.__dict__, "_pool": None, "_job": None}

    def __repr__(self) -> str:
        """Returns the place, for people."""
        return f"<job {self.name!r} at {self.location!r}>"
