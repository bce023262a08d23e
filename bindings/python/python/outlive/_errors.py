"""Exceptions, one for each thing that a program can do next."""

from collections.abc import Sequence


class Error(Exception):
    """Base of all that outlive raises itself."""


class RetryError(Error):
    """A passing fault: the same call may succeed later."""


class InvalidError(Error, ValueError):
    """The request cannot work as it stands: correct it. Nothing was changed.

    Attributes:
        differences: If a state and a checkpoint did not match, every difference, one a string.
    """

    differences: Sequence[str] = ()


class DamagedError(Error):
    """Stored bytes are missing or wrong: take an older checkpoint, or repair the store."""


class FullError(Error):
    """There is no room: free some, then save again. What was committed is safe."""


class FencedError(Error):
    """Another process has taken over this job, or has gone on with it: stop saving it here."""


class BugError(Error):
    """outlive contradicts itself: please report it."""
