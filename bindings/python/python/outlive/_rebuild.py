"""One restore, seen from Python: its plan, and the tree that it makes or fills."""

from typing import Any

import numpy as np

from outlive import _build
from outlive._errors import InvalidError
from outlive._flat import PICKLE, ROOT, SCALAR, TREE, is_value
from outlive._kinds import KindError
from outlive._merge import Merge
from outlive._planning import FRESH, Planning
from outlive._trees import path_of

__all__ = ["FRESH", "Rebuild"]


class Rebuild(Planning):
    """Plans a restore with `plan`, and makes the tree with `finish`."""

    def finish(self, values: list[Any]) -> Any:
        """Puts the tree together: a new one, or the program's own with the values replaced."""
        there, objects = self.there, self.places.objects
        values = [None if at is None else values[at] for at in self.order]
        self.places.settle()
        special = {d for d in set(there.dtypes) if d.startswith(SCALAR)} | {
            PICKLE,
            "py:bytearray",
        }
        for at, dtype in enumerate(there.dtypes):
            if not self.chosen[at]:
                continue
            if at in self.known:
                objects[at] = self.known[at]
            elif dtype in special:
                objects[at] = self._special(at, dtype, values[at])
            elif dtype not in self.parsed:
                objects[at] = values[at]
        self.views.revive()
        is_new = self.fresh and self.selection.everything
        if not is_new:
            for at, dtype in enumerate(there.dtypes):
                if dtype in (PICKLE, TREE) and objects[at] is not _build.ABSENT:
                    objects[at] = _build.Opaque(objects[at], dtype == TREE)
        self._wrap_leaves(is_new)
        if self.flat_dict:
            named = zip(there.names, objects, strict=True)
            return {name: found for name, found in named if found is not _build.ABSENT}
        if not there.nodes and there.names != [ROOT]:
            raise self._damaged("it has no containers")
        try:
            tree = _build.build(
                there.nodes,
                there.names,
                objects,
                has=self._has,
                new=self.fresh,
                find=None if self.as_plain else self.makes.find,
                make=self.makes.make if is_new else None,
            )
        except (LookupError, ValueError, TypeError, AttributeError, KindError) as error:
            if isinstance(error, InvalidError):
                raise
            raise self._damaged(repr(error)) from error
        merge = Merge(self.held.flat.lowered, self.makes)
        if self.fresh:
            return tree if is_new else merge.alone(tree)
        if merge.merge(self.into, tree) is not self.into:
            raise InvalidError(
                f"checkpoint {self.epoch} is not in `into`, which cannot be changed: give a dict "
                "that holds it"
            )
        return self.into

    def _wrap_leaves(self, is_new: bool) -> None:
        """Makes the objects for which leaves stand, or notes them for later."""
        objects, there = self.places.objects, self.there
        for at, wraps in there.wraps.items():
            if objects[at] is _build.ABSENT:
                continue
            path = path_of(there, at)
            if is_new:
                objects[at] = self.makes.make(path, wraps, objects[at])
            elif self.fresh or at in self.wholes.leaves or is_value(there.dtypes[at]):
                objects[at] = _build.Wrapped(path, wraps, objects[at])

    def _special(self, at: int, dtype: str, value: bytes) -> Any:
        if dtype == "py:bytearray":
            return bytearray(value)
        if dtype == PICKLE and self.as_plain:
            return value
        if dtype != PICKLE:
            if not value:  # of a dtype without bytes
                return np.ndarray((), self.parsed[dtype], buffer=b"")[()]
            return np.frombuffer(value, self.parsed[dtype])[0]
        return self._unpickled(at, value)
