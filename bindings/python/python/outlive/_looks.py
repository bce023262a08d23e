"""Data of a checkpoint that a plan needs: it is read before the restore itself."""

import contextlib
from collections.abc import Callable
from typing import Any

from outlive import _core
from outlive._errors import DamagedError

# Number of times that a checkpoint may seem damaged, and then whole.
_ATTEMPTS_MAX = 3


class UnsureError(Exception):
    """A part of a checkpoint must be read before a plan can be made."""


class Looks:
    """The data that was read for plans, and the restore that reads it.

    Attributes:
        wanted: Names of the regions that the plan needs.
        is_probe: Whether a plan only reads again what proved damaged before.
    """

    def __init__(self) -> None:
        """Begins without data."""
        # By epoch, contents by name: pickled objects and trees of plain values. None if the
        # checkpoint is damaged.
        self._found: dict[int, dict[str, Any] | None] = {}
        self._figures = {"restored_bytes": 0, "read_bytes": 0, "seconds": 0.0}
        self._epoch = 0
        self.wanted = set[str]()
        self.is_probe = False

    def at(self, epoch: int, wanted: set[str]) -> dict[str, Any] | None:
        """Returns the wanted data of a checkpoint; None if it is damaged.

        Raises:
            UnsureError: If it must be read first.
        """
        self._epoch, self.wanted = epoch, wanted
        if not wanted:
            return {}
        if epoch not in self._found:
            raise UnsureError
        return self._found[epoch]

    def run(
        self,
        core: _core.Job,
        plan: Callable[..., list[Any]],
        tick: Callable[[], None],
        *,
        epoch: int | None,
        user_only: bool | None,
    ) -> dict[str, Any] | None:
        """Restores by a plan. Reads first, once a checkpoint, the data that the plan needs.

        Raises:
            Error: Errors of the native restore and of the plan.
        """
        attempts = 0
        while True:
            try:
                done = core.restore(plan, tick, epoch=epoch, user_only=user_only)
            except UnsureError:
                self._read(core, tick)
                continue
            if not self.is_probe:
                break
            # The part that was damaged is whole again.
            del self._found[self._epoch]
            attempts += 1
            if attempts == _ATTEMPTS_MAX:
                raise DamagedError(f"checkpoint {self._epoch} cannot always be read: restore again")
        if done is not None:
            for figure, value in self._figures.items():
                done[figure] += value
        return done

    def _read(self, core: _core.Job, tick: Callable[[], None]) -> None:
        """Reads only the data that a plan needs."""
        wanted, all_names = self.wanted, list[str]()

        def plan(names: list[str], **_: object) -> list[Any]:
            all_names[:] = names
            return [True if name in wanted else None for name in names]

        self._found[self._epoch] = None
        # If it is damaged, the restore itself finds that, and takes an older checkpoint.
        with contextlib.suppress(DamagedError):
            done = core.restore(plan, tick, epoch=self._epoch, user_only=None)
            if done is not None:
                found = dict(zip(all_names, done["values"], strict=True))
                self._found[self._epoch] = {name: found[name] for name in wanted}
                self._figures = {figure: done[figure] for figure in self._figures}
