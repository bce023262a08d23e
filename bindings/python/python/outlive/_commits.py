"""The fate of each checkpoint: `Job.events`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlive._errors import Error

if TYPE_CHECKING:
    from outlive import _core


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """The fate of one checkpoint.

    Attributes:
        epoch: Epoch of the checkpoint. If the save failed, the next checkpoint may get the same
            epoch.
        job: Name of its job.
        error: Error of the save that failed: the checkpoint is not known to exist. None if the
            checkpoint is committed.
    """

    epoch: int
    job: str
    error: Error | None = None

    @property
    def committed(self) -> bool:
        """True if the checkpoint is committed, and so survives a crash."""
        return self.error is None


class CommitEvents(AbstractContextManager["CommitEvents"], Iterator[CommitEvent]):
    """The fate of each checkpoint of a job from now on, from `Job.events`.

    Each checkpoint that this process saves or puts gives one event, whichever `Job` object does it;
    but a `Job` without a group gets no events of a group's.
    The events come once each, in the order of the saves. `save.wait` returns after its event is
    there. A save that fails at once gives no event if the call raises its error; a put that
    fails raises, and may give an event as well. After a
    `FencedError`, subscribe again with the `Job` that goes on.

    A subscription keeps every event until the program takes it. An event takes about 100 bytes,
    plus the texts of the job's name and an error. So take the events, or close the subscription. A
    subscription that the program drops keeps nothing.

    Iterate, or call `next`. Both wait without the GIL. Ctrl-C during the wait, or an exception
    of another signal handler, ends it and takes no event. Any thread may take events: each goes to
    one thread. The iteration ends after `close`. It also ends once the `Job` object is closed and
    all earlier events are taken. Keep that object: the end of one that the program drops is not
    certain. Close one of the two before the end of the program if a thread that is not a daemon
    iterates.

    In a forked child, `next` raises `InvalidError`: the child opens its own pool and job.

    As a context manager, it closes itself at the end.
    """

    __slots__ = ("_core", "_name", "_tick")

    def __init__(self, core: _core.CommitEvents, name: str, tick: Callable[[], None]) -> None:
        """Made by `Job.events`, for the job of this name."""
        self._core = core
        self._name = name
        self._tick = tick

    def next(self, timeout: float | None = None) -> CommitEvent | None:
        """Takes the next event, and waits for it.

        Args:
            timeout: Longest time to wait, in seconds; None waits without limit.

        Returns:
            The event. None if it did not come in time, or if none will come: see `ended`.

        Raises:
            InvalidError: In a forked child, or if the timeout is NaN.
        """
        taken = self._core.next(timeout, self._tick)
        return None if taken is None else CommitEvent(*taken)

    @property
    def ended(self) -> bool:
        """True if all events are taken, and none will come."""
        return self._core.ended()

    def close(self) -> None:
        """Ends the subscription, and drops the events that were not taken.

        Threads that wait for an event get None. In a forked child it does nothing.
        """
        self._core.close()

    def __next__(self) -> CommitEvent:
        """Waits for the next event, and takes it."""
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        """Returns the name of the job, for people."""
        return f"<outlive.CommitEvents of job {self._name!r}>"
