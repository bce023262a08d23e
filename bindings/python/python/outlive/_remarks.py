"""Remarks about the objects in a state, for the people who run the program; each is told once."""

import logging

from outlive import _notices
from outlive._flat import Flat, shown


class Remarks:
    """Tells of objects that are slow to save, or that a restore will lack."""

    def __init__(self, job: str) -> None:
        """Takes the name of the job."""
        self._job = job
        self._told: set[tuple[str, str]] = set()

    def tell(self, flat: Flat) -> None:
        """Tells of a state that is being saved, as far as that is new."""
        for name, length, seconds in flat.heavy:
            self._once(
                "heavy",
                name,
                "%s is pickled at every save, while the program waits: %.1f MiB, in %.2f s this "
                "time. Save the arrays in it as leaves of the state instead",
                shown(name),
                length / (1 << 20),
                seconds,
            )
        for name, attributes in flat.lost:
            self._once(
                "lost",
                name,
                "%s is an OrderedDict with attributes (%s), which are not saved: put what the "
                "program needs of them beside it, as values",
                shown(name),
                attributes,
            )
        for name, cls in flat.hidden:
            self._once(
                "hidden",
                cls,
                "%s is of the class %s, which is defined in a function. A restore finds it only in "
                "a state that is given as `into`: define the class in a module",
                shown(name),
                cls,
            )

    def _once(self, what: str, key: str, text: str, *values: object) -> None:
        if (what, key) not in self._told:
            self._told.add((what, key))
            _notices.tell(logging.WARNING, f"job %s: {text}", self._job, *values)
