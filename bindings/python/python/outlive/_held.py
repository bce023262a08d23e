"""The state that a restore fills, flat: its leaves, its whole objects, its trees of values."""

from typing import Any

from outlive._errors import InvalidError
from outlive._flat import TREE, Flat
from outlive._tree import flatten
from outlive._trees import path_of
from outlive._wholes import Wholes


class Held:
    """The program's state; empty for a restore that makes a new one.

    Attributes:
        flat: The state, flat.
        wholes: Its whole objects.
        trees: Paths of the containers that are one leaf each.
        numbers: Numbers of the leaves by name.
    """

    def __init__(self, into: Any, *, is_fresh: bool, allow_pickle: bool) -> None:
        """Flattens the state.

        Raises:
            InvalidError: If it cannot be a state.
        """
        self.into, self.is_fresh, self.allow_pickle = into, is_fresh, allow_pickle
        self.trees: frozenset[str] | None = None
        self.take(None, 0)

    def take(self, trees: frozenset[str] | None, epoch: int) -> None:
        """Flattens it again; the containers at these paths, or plain ones, are one leaf each."""
        if trees is not None and trees == self.trees:
            return
        self.flat = Flat()
        if not self.is_fresh:
            try:
                self.flat = flatten(
                    self.into, allow_pickle=self.allow_pickle, to_save=False, trees=trees
                )
            except InvalidError as error:
                if trees is None:
                    raise
                # It was one leaf before, a tree of values, which did not fit the checkpoint.
                what = f"`into` does not match checkpoint {epoch}; nothing was changed"
                raise InvalidError(f"{what}: {error}") from None
        self.wholes = Wholes(self.flat)
        self.trees = frozenset(path_of(self.flat, at) for at in self.trees_of_values())
        self.numbers = {name: at for at, name in enumerate(self.flat.names)}

    def trees_of_values(self) -> list[int]:
        """Returns numbers of the leaves that are trees."""
        inner = self.wholes.leaves
        return [
            at for at, dtype in enumerate(self.flat.dtypes) if dtype == TREE and at not in inner
        ]
