"""Whether the program can see the data that a restore puts into a state.

`into` fills arrays in place, and replaces values in the dict or list that holds them. If only
`into` holds such a container, the program never sees the change:
`restore(into={"opt": opt.state_dict()})` would put the learning rate into a dict that is then
discarded. The reference counts of CPython show that.
"""

import gc
import itertools
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from outlive import _foreign
from outlive._tree import DICT, LIST, ORDERED, PICKLE, RANDOMS, TREE, Flat, is_value, parent, shown

_MUTABLE = (DICT, ORDERED, LIST)
# References to an object that one list holds, as `sys.getrefcount` counts them.
_IN_A_LIST = next(map(sys.getrefcount, [object()]))
# Pickle stores these by name, so that another one in their place is no surprise.
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


def _count(into: object = None) -> int:
    return sys.getrefcount(into)


def _counts() -> tuple[int, int]:
    """Returns `_count` of an object that only the call holds, and of one that a variable holds."""
    kept: list[int] = []
    return _count(into=[]), _count(into=kept)


# From Python 3.14 on the two may be equal: then everything counts as referenced.
_TEMPORARY, _KEPT = _counts()


def is_referenced(references: int) -> bool:
    """Whether more than its call refers to an argument of a function.

    Args:
        references: `sys.getrefcount` of it, called in that function itself.
    """
    return references > _TEMPORARY or _TEMPORARY >= _KEPT


class Owners:
    """The parts of a state to fill that the program also holds elsewhere."""

    def __init__(self, here: Flat, is_referenced: bool, same: Callable[[str], bool]) -> None:
        """Looks at a state.

        Args:
            here: The state.
            is_referenced: Whether more than the call of `restore` refers to it.
            same: Whether the checkpoint has the same pickled object under a name.
        """
        self.here, self.is_referenced, self.same = here, is_referenced, same
        self.look()

    def look(self) -> None:
        """Counts the references to each part."""
        here, is_referenced = self.here, self.is_referenced
        self.others: list[int] | None = None
        # By path: whether the program reaches a container elsewhere, and whether it sees new
        # entries there.
        self.reached: dict[str, bool] = {}
        self.seen: dict[str, bool] = {}
        # Random generators take their state as a whole, from copies.
        self.generators = {node.path for node in here.nodes if node.kind in RANDOMS}
        for node, others in zip(here.nodes, _others(here.containers), strict=True):
            path, above = node.path, parent(node.path)
            if path and above in self.generators:
                self.generators.add(path)
            self.reached[path] = (self.reached[above] or others > 0) if path else is_referenced
            if node.kind in _MUTABLE:
                self.seen[path] = self.reached[path]
            else:
                # Another tuple replaces it, if a container holds it.
                self.seen[path] = bool(path) and self.seen[above]

    def unseen(self, pairs: Iterable[tuple[int, str]]) -> list[str]:
        """Lists the leaves whose new content the program would not see, with the reason.

        Args:
            pairs: Number of each leaf, and its dtype in the checkpoint.
        """
        if all(self.reached.values()) and all(self.seen.values()):
            # Then only pickled objects matter, and most states need no count.
            objects = {my for my, dtype in enumerate(self.here.dtypes) if dtype == PICKLE}
            pairs = [pair for pair in pairs if pair[0] in objects] if objects else []
        else:
            pairs = list(pairs)
        if not any(list(itertools.starmap(self._unseen, pairs))):
            return []
        # An exception of an earlier, refused restore may still hold objects.
        gc.collect()
        self.look()
        return [why for why in itertools.starmap(self._unseen, pairs) if why]

    def reaches_leaf(self, my: int) -> bool:
        """Whether the program reaches, without `into`, a container that is one leaf."""
        if not self.here.nodes:
            return self.is_referenced
        if self.others is None:
            self.others = _others(self.here.leaves)
        return self.reached[parent(self.here.names[my])] or self.others[my] > 0

    def unseen_lists(self, paths: Iterable[str]) -> list[str]:
        """Lists the lists of values whose new entries the program would not see."""
        return [
            f"{shown(path)} would change only in objects that nothing but `into` holds"
            for path in sorted(paths)
            if not self.seen.get(path, True)
        ]

    def _unseen(self, my: int, theirs: str) -> str | None:
        """Returns why the program would not see the new content of a leaf; None if it would."""
        here = self.here
        if self.others is None:
            self.others = _others(here.leaves)
        name, mine, others = here.names[my], here.leaves[my], self.others[my]
        above = parent(name)
        if above in self.generators or here.dtypes[my] == TREE:
            return None
        if here.dtypes[my] == PICKLE:
            return self._unseen_object(name, mine, others, theirs)
        lost = f"{shown(name)} would change only in objects that nothing but `into` holds"
        if is_value(theirs):
            in_place = type(mine) is bytearray and others > 0
            return None if in_place or self.seen.get(above, True) else lost
        if my in here.originals:
            replaced = not mine.flags.writeable
            return lost if replaced and not self.seen.get(above, False) else None
        alone = mine.flags.owndata and others == 0 and not self.reached.get(above, True)
        return lost if alone else None

    def _unseen_object(self, name: str, mine: Any, others: int, theirs: str) -> str | None:
        if _foreign.shows_memory(mine) and (others > 0 or not isinstance(mine, np.ndarray)):
            return (
                f"{shown(name)} is an array ({_named(mine)}) that cannot be saved as one, so that "
                "it was pickled: what was unpickled would not get into its memory"
            )
        if others > 0 and not _is_like_a_value(mine):
            if theirs == PICKLE and self.same(name):
                return None
            return (
                f"{shown(name)} is an object ({_named(mine)}) that the program holds elsewhere, "
                "too, and not as it is in the checkpoint: what was unpickled would take its place "
                "in `into` alone"
            )
        if not self.seen.get(parent(name), True):
            return f"{shown(name)} would change only in objects that nothing but `into` holds"
        return None


def _others(things: list[Any]) -> list[int]:
    """Counts the references to each object beside those of this list and of the tree."""
    counts = list(map(sys.getrefcount, things))
    # An object that is in the tree twice is in the list twice.
    times = Counter(map(id, things))
    return [
        count - _IN_A_LIST + 1 - 2 * times[id(thing)]
        for count, thing in zip(counts, things, strict=True)
    ]


def _is_like_a_value(thing: Any) -> bool:
    """Whether only its value counts, and not which of several equal objects it is."""
    hashed: Any = type(thing).__hash__
    by_value = hashed is not None and hashed is not object.__hash__
    return by_value or isinstance(thing, _NAMED)


def _named(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
