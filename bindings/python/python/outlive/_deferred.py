"""States that are made only when a save is due."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class Deferred(ABC):
    """An object that `Job.save` takes in place of a state."""

    # Whether a job without a group may save parts of global arrays.
    _takes_parts = False

    @abstractmethod
    def _outlive_state(self) -> Any:
        """Returns the state to save, which may be deferred again.

        The state may be changed once `Job.save` has returned.
        """


class Late(Deferred):
    """The state that a function returns."""

    def __init__(self, make: Callable[[], Any]) -> None:
        """Takes the function."""
        self._make = make

    def _outlive_state(self) -> Any:
        return self._make()
