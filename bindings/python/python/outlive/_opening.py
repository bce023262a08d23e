"""Trees of values in a checkpoint: those that fit `into` are leaves, and others are opened."""

from typing import Any

from outlive._compare import classes, is_changeable, mutable_containers
from outlive._errors import InvalidError
from outlive._flat import ROOT, TREE, Flat
from outlive._forms import Form
from outlive._held import Held
from outlive._match import Match
from outlive._select import Selection
from outlive._trees import fits, inside, is_nameable, opened, path_of
from outlive._wholes import Wholes, also_whole


class Opening:
    """A checkpoint that gets a form to compare with `into`.

    Attributes:
        there: Its leaves and containers.
        order: By number of a leaf, the number of its region; None if the checkpoint has none.
        known: By number of a leaf, its content if it was read already.
    """

    def __init__(
        self,
        held: Held,
        there: Flat,
        order: list[int | None],
        *,
        selection: Selection,
        match: Match,
        epoch: int,
    ) -> None:
        """Takes both states and the options."""
        self.held, self.there, self.order = held, there, order
        self.selection, self.match, self.epoch = selection, match, epoch
        self.known: dict[int, Any] = {}

    def _take(self, trees: frozenset[str]) -> None:
        self.held.take(trees, self.epoch)

    def open_trees(self, looked: dict[str, Any], *, has_containers: bool) -> None:
        """Opens those trees that are not taken as a whole.

        If the options allow differences, it gets the form of `into`.
        """
        there = self.there
        trees = {
            at: looked[there.names[at]]
            for at, dtype in enumerate(there.dtypes)
            if dtype == TREE and there.names[at] in looked
        }
        if self.match.renames:
            trees = self._rename(trees, has_containers)
            there = self.there
        # Patterns with `*` and the like skip entries that no path can name.
        closed = {at for at, tree in trees.items() if self._is_closed(path_of(there, at), tree)}
        whole = {
            at for at in closed if self.held.is_fresh or not self.selection.has(there.names[at])
        }
        if not self.held.is_fresh:
            whole |= self._trees_that_fit(trees, closed)
        self.known.update({at: trees[at] for at in whole})
        self._open({at: tree for at, tree in trees.items() if at not in whole})
        if self.match.conforms:
            self._conform(has_containers)

    def _open(self, trees: dict[int, Any]) -> list[int]:
        """Replaces trees by their leaves; returns for each leaf the number that it had before."""
        if not trees:
            return list(range(len(self.there.names)))
        try:
            self.there, was, values = opened(self.there, trees, self.epoch)
        except InvalidError as error:
            if self.held.is_fresh:
                raise
            what = f"`into` does not match checkpoint {self.epoch}; nothing was changed"
            raise InvalidError(f"{what}: {error}") from None
        known = {at: self.known[old] for at, old in enumerate(was) if old in self.known}
        self.known = known | values
        self.order = [None if at in values else self.order[old] for at, old in enumerate(was)]
        return was

    def _rename(self, trees: dict[int, Any], has_containers: bool) -> dict[int, Any]:
        """Renames the leaves, also those in trees; returns the trees that no rule concerns."""
        touches = self.match.renames.touches
        touched = {
            at: tree
            for at, tree in trees.items()
            if touches(path_of(self.there, at)) and is_nameable(tree)
        }
        was = self._open(touched)
        here = self.held.flat
        mine = {path_of(here, at): here.leaves[at] for at in self.held.trees_of_values()}
        self._take(
            frozenset(
                path for path, tree in mine.items() if not (touches(path) and is_nameable(tree))
            )
        )
        form = Form(self.there, Wholes(self.there))
        own = Form(self.held.flat, self.held.wholes)
        renamed = self.match.rename(
            form.flat, own.flat, self.selection, self.epoch, has_containers=has_containers
        )
        self.there, _ = form.filled(renamed, range(len(renamed.names)))
        return {at: trees[old] for at, old in enumerate(was) if old in trees.keys() - touched}

    def _conform(self, has_containers: bool) -> None:
        """Brings the checkpoint into the form of `into`."""
        there, here = also_whole(self.there, self.held.flat)
        form = Form(self.there, Wholes(self.there, there))
        mine = Form(self.held.flat, Wholes(self.held.flat, here))
        done = self.match.conform(
            form.flat, mine.flat, self.selection, self.epoch, has_containers=has_containers
        )
        self.there, sources = form.filled(done.flat, done.sources)
        was = {at: old for at, old in enumerate(sources) if old is not None}
        self.known = {at: self.known[old] for at, old in was.items() if old in self.known}
        self.order = [self.order[was[at]] if at in was else None for at in range(len(sources))]

    def _is_closed(self, path: str, tree: Any) -> bool:
        """Whether a tree stays one leaf: no path can name its entries, and no pattern does."""
        selection = self.selection
        return (
            not selection.has_whole(path or ROOT)
            and not selection.names_part(inside(path))
            and not is_nameable(tree)
        )

    def _trees_that_fit(self, trees: dict[int, Any], closed: set[int]) -> set[int]:
        """Returns numbers of trees that fit a container of the same form that the program holds."""
        theirs = {path_of(self.there, at): at for at in trees}
        selection, mine = (
            self.selection,
            {path_of(self.held.flat, at): at for at in self.held.trees_of_values()},
        )
        aside = {
            path
            for path, at in mine.items()
            if not (selection.has_whole(path or ROOT) or selection.may_have_part(inside(path)))
            or self._is_closed(path, self.held.flat.leaves[at])
            or (
                self.match.conforms
                and path not in theirs
                and not is_nameable(self.held.flat.leaves[at])
            )
        }
        self._take(frozenset(aside | ((self.held.trees or frozenset()) & theirs.keys())))
        fitting = self._fitting(trees, theirs, closed)
        self._take(frozenset(aside | {path_of(self.there, at) for at in fitting}))
        return fitting

    def _fitting(self, trees: dict[int, Any], theirs: dict[str, int], closed: set[int]) -> set[int]:
        """Works as above, given the trees by path."""
        here, mutable = self.held.flat, mutable_containers(self.held.flat)
        containers = {
            node.path: thing for node, thing in zip(here.nodes, here.containers, strict=True)
        }
        wraps = {node.path: node.wraps for node in here.nodes if node.wraps}
        leaves = {path_of(here, at): at for at in self.held.trees_of_values()}
        fitting = set[int]()
        for path, at in theirs.items():
            my = leaves.get(path)
            mine = containers.get(path) if my is None else here.leaves[my]
            is_whole = self.selection.has_whole(path or ROOT)
            is_chosen = is_whole or (at in closed and self.selection.has(path or ROOT))
            if mine is None or not is_chosen:
                continue
            is_fixed = type(mine) is tuple or path in here.fixed
            is_fixed = is_fixed and not is_changeable(path, mutable)
            own = wraps.get(path, ()) if my is None else here.wraps.get(my, ())
            is_same = classes(own) == classes(self.there.wraps.get(at, ()))
            if is_same and not is_fixed and fits(mine, trees[at]):
                fitting.add(at)
        return fitting
