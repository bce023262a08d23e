"""A checkpoint in another form: with other names, or with the leaves and containers of `into`.

A whole object counts as one leaf there, as its parts may differ between two states.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from outlive._flat import ROOT, Flat
from outlive._wholes import Whole, Wholes


class Form:
    """A state, and its form in which each whole object is a leaf.

    Attributes:
        flat: That form.
    """

    def __init__(self, state: Flat, wholes: Wholes) -> None:
        """Takes a state and its whole objects."""
        self.state, self.wholes = state, wholes
        every = [True] * len(state.names)
        self.flat, _ = wholes.condensed(state, every, lambda _: True)
        # By number of a leaf of the form, the object or the number of the leaf of the state.
        self.origins: list[Whole | int] = list(self._origins())

    def _origins(self) -> Iterator[Whole | int]:
        waiting = iter(self.wholes.all)
        whole = next(waiting, None)
        for at in range(len(self.state.names) + 1):
            while whole is not None and whole.begin == at:
                yield whole
                whole = next(waiting, None)
            if at < len(self.state.names) and at not in self.wholes.leaves:
                yield at

    def filled(self, form: Flat, sources: Sequence[int | None]) -> tuple[Flat, list[int | None]]:
        """Returns a state of the same leaves in another form.

        Args:
            form: Its leaves and containers, where whole objects are leaves.
            sources: For each leaf, its number in `flat`; None if it has no content.

        Returns:
            The state; for each leaf, its number in the state that was given.
        """
        new, was = Flat(), list[int | None]()
        waiting = iter(form.nodes)
        node = next(waiting, None)
        for at, source in enumerate(sources):
            while node is not None and node.at <= at:
                new.nodes.append(replace(node, at=len(new.names)))
                node = next(waiting, None)
            origin = None if source is None else self.origins[source]
            if isinstance(origin, Whole):
                name = form.names[at]
                is_state = name == ROOT and not form.nodes
                self._add(origin, "" if is_state else name, new, was)
                continue
            new.names.append(form.names[at])
            new.dtypes.append(form.dtypes[at])
            new.shapes.append(form.shapes[at])
            was.append(origin)
        while node is not None:
            new.nodes.append(replace(node, at=len(new.names)))
            node = next(waiting, None)
        self._take_rest(new, was)
        return new, was

    def _add(self, whole: Whole, path: str, new: Flat, was: list[int | None]) -> None:
        """Adds an object at a path: its containers and leaves."""
        state, shift = self.state, len(new.names) - whole.begin
        inside = f"{whole.path}/" if whole.path else ""
        for node in state.nodes:
            if node.path == whole.path or node.path.startswith(inside):
                moved = path + node.path[len(whole.path) :]
                new.nodes.append(replace(node, at=node.at + shift, path=moved))
        for at in range(whole.begin, whole.end):
            name = state.names[at]
            is_leaf = name in (whole.path, ROOT)
            rest = "" if is_leaf else name[len(inside) :]
            new.names.append("/".join(filter(None, (path, rest))) or ROOT)
            new.dtypes.append(state.dtypes[at])
            new.shapes.append(state.shapes[at])
            was.append(at)

    def _take_rest(self, new: Flat, was: list[int | None]) -> None:
        """Gives the leaves what else the state knows of them."""
        state, fortran = self.state, frozenset(self.state.fortran)
        for at, old in enumerate(was):
            if old is None:
                continue
            if old in fortran:
                new.fortran.append(at)
            if old in state.parts:
                new.parts[at] = state.parts[old]
            if old in state.notes:
                new.notes[at] = state.notes[old]
            if old in state.wraps:
                new.wraps[at] = state.wraps[old]
