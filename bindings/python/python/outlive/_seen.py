"""Whether anybody would see what a restore puts into a state.

`into` fills arrays where they are, and replaces values in the dict or list that holds them. What
nobody holds but `into` itself, nobody sees afterwards: `restore(into={"opt": opt.state_dict()})`
would put the learning rate into a dict that is then thrown away. CPython counts references, and
so tells.
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
# References to something that one list holds, as `sys.getrefcount` sees them.
_IN_A_LIST = next(map(sys.getrefcount, [object()]))
# These are what they are called, so that another one in their place is no surprise.
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


def _count(into: object = None) -> int:
    return sys.getrefcount(into)


def _counts() -> tuple[int, int]:
    """What `_count` gives for what only the call holds, and for what a variable holds, too."""
    kept: list[int] = []
    return _count(into=[]), _count(into=kept)


# From Python 3.14 on the two may be the same: then everything counts as referenced.
_TEMPORARY, _KEPT = _counts()


def is_referenced(references: int) -> bool:
    """Whether an argument of a function is referenced by more than its call.

    Args:
        references: `sys.getrefcount` of it, taken in that function itself.
    """
    return references > _TEMPORARY or _TEMPORARY >= _KEPT


class Owners:
    """Which parts of a state that is restored into the program holds otherwise."""

    def __init__(self, here: Flat, is_referenced: bool, same: Callable[[str], bool]) -> None:
        """Looks at a state.

        Args:
            here: The state.
            is_referenced: Whether something besides the call of `restore` holds it.
            same: Says of a pickled object whether the checkpoint has the same.
        """
        self.here, self.is_referenced, self.same = here, is_referenced, same
        self.look()

    def look(self) -> None:
        """Counts who holds what."""
        here, is_referenced = self.here, self.is_referenced
        self.others: list[int] | None = None
        # By path: whether somebody else reaches a container, and whether somebody sees what
        # replaces one of its entries.
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
                # Another tuple takes its place, if there is something that holds it.
                self.seen[path] = bool(path) and self.seen[above]

    def unseen(self, pairs: Iterable[tuple[int, str]]) -> list[str]:
        """Says of which leaves nobody would see what takes their place, and why.

        Args:
            pairs: Number of each leaf, and the dtype that it has in the checkpoint.
        """
        if all(self.reached.values()) and all(self.seen.values()):
            # Then only objects matter, and of most states nothing need be counted.
            objects = {my for my, dtype in enumerate(self.here.dtypes) if dtype == PICKLE}
            pairs = [pair for pair in pairs if pair[0] in objects] if objects else []
        else:
            pairs = list(pairs)
        if not any(list(itertools.starmap(self._unseen, pairs))):
            return []
        # An exception that has passed, of a restore that was refused, may still hold things.
        gc.collect()
        self.look()
        return [why for why in itertools.starmap(self._unseen, pairs) if why]

    def reaches_leaf(self, my: int) -> bool:
        """Whether the program reaches a container that is one leaf without `into`."""
        if not self.here.nodes:
            return self.is_referenced
        if self.others is None:
            self.others = _others(self.here.leaves)
        return self.reached[parent(self.here.names[my])] or self.others[my] > 0

    def unseen_lists(self, paths: Iterable[str]) -> list[str]:
        """Says of which lists of values nobody would see what comes into them."""
        return [
            f"{shown(path)} would change only in objects that nothing but `into` holds"
            for path in sorted(paths)
            if not self.seen.get(path, True)
        ]

    def _unseen(self, my: int, theirs: str) -> str | None:
        """Why nobody would see what takes the place of a leaf; None if somebody does."""
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
    """How many references there are to each beside those of this list and of the tree."""
    counts = list(map(sys.getrefcount, things))
    # What is in the tree twice is in the list twice.
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
