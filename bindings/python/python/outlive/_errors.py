"""Exceptions, one for each action that a program can take next."""

from collections.abc import Sequence


class Error(Exception):
    """Base class of all exceptions of outlive.

    Attributes:
        into_changed: Whether a restore had begun to fill `into` when it failed. Restore again, or
            discard that state.
    """

    into_changed: bool = False


class RetryError(Error):
    """A temporary failure: the same call may succeed later."""


class InvalidError(Error, ValueError):
    """The request is not possible: correct it. Nothing was changed, unless `into_changed` is set.

    Attributes:
        differences: Every difference, as a string, if a state and a checkpoint did not match.
    """

    differences: Sequence[str] = ()


class DamagedError(Error):
    """Stored bytes are missing or wrong: take an older checkpoint, or repair the store."""


class FullError(Error):
    """No space is left: free some, then save again. Committed checkpoints are safe."""


class FencedError(Error):
    """Another process has taken over this job, or has saved it since: stop saving it here."""


class BugError(Error):
    """outlive contradicts itself: please report it."""


class FailedSaveWarning(UserWarning):
    """A save has failed, and the program goes on: see `on_failure` of `Pool.job`."""


for _class in (
    Error,
    RetryError,
    InvalidError,
    DamagedError,
    FullError,
    FencedError,
    BugError,
    FailedSaveWarning,
):
    # Set the name that programs use, and that tracebacks show.
    _class.__module__ = "outlive"
del _class
