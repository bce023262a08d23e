"""Requests to stop: a program saves once more, and ends by itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlive import _core

if TYPE_CHECKING:
    from outlive._job import Job

# Ids of processes that have called `on_preempt`.
_asked: set[int] = set()


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request to save and to end.

    Attributes:
        reason: The cause, such as "SIGTERM".
        left_s: Seconds until the program must have ended; None if that is not known.
    """

    reason: str
    left_s: float | None


def on_preempt(job: Job | None = None, *, grace_s: float = 30.0) -> None:
    """Lets SIGTERM, SIGUSR1 and SIGUSR2 ask the program to save and to end.

    A handler only sets a flag. Then `Job.should_stop` is true for all jobs of this process, and the
    next `Job.save` of each waits for its commit. A SIGTERM that comes a second or more after the
    first one ends the process, and the first one ends a forked child. Handlers that were installed
    before are called, too. A handler that Python's `signal` module installs later replaces this
    one. A program under `outlive run` needs no signals.

    Args:
        job: Not needed; a call for a job reads better.
        grace_s: Seconds between the signal and the end, as the scheduler gives them. If the last
            save took longer, a warning says so when the signal comes.

    Raises:
        InvalidError: If `grace_s` is not a number of seconds, or the system refuses the handlers.
    """
    del job
    _core.on_preempt(grace_s)
    _asked.add(os.getpid())


def is_asked() -> bool:
    """Whether this process has called `on_preempt`: its handlers must stay."""
    return os.getpid() in _asked
