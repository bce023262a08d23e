"""Objects that a restore replaces as a whole, in a checkpoint and in a state.

Their parts may differ between the two: a table has more rows, a set has other entries. So a
comparison sees each as one value. Of kinds that are no whole, the parts are entries of the state.
Two rules make such an object whole, too. The other side has a value in its place. Or the object is
in a list without arrays, which has another length on the other side.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outlive import _kinds
from outlive._flat import LIST, ROOT, Flat, Wrap, is_value, parent
from outlive._kinds import KindError

# The dtype of a whole object in a comparison.
OBJECT = "py:object"


@dataclass(slots=True)
class Whole:
    """A whole object: its path, its leaves from `begin` to before `end`, and what it is."""

    path: str
    begin: int
    end: int
    wraps: tuple[Wrap, ...]

    def is_like(self, other: "Whole | None") -> bool:
        """Whether another one is of the same kind, so that its arrays may serve for this one."""
        return other is not None and list(map(_same, self.wraps)) == list(map(_same, other.wraps))

    def differences(self, mine: "Whole | None") -> Iterator[str]:
        """Yields why one of the program's cannot take the content of this one."""
        if mine is None or not self.is_like(mine):
            return
        for (name, theirs), (_, own) in zip(self.wraps, mine.wraps, strict=True):
            kind = _kinds.by_name(name)
            why = None if kind.difference is None else kind.difference(own, theirs)
            if why is not None:
                yield why


def _same(wrap: Wrap) -> Any:
    name, detail = wrap
    return (name, detail) if name == "registered" else name


def is_whole(wraps: tuple[Wrap, ...]) -> bool:
    """Whether one of the objects that a container or leaf stands for is whole.

    An object of an unknown kind, or of a missing package, is left out as a whole, or refused.
    """
    return any(map(_is_whole, wraps))


def _is_whole(wrap: Wrap) -> bool:
    try:
        return _kinds.by_name(wrap[0]).is_whole
    except KindError:
        return True


class Wholes:
    """The outermost whole objects of a state.

    Attributes:
        all: The objects, in the order of the walk.
        leaves: By number of a leaf, the object that it is a part of.
        nodes: Paths of the containers that stand for such an object, or are in one.
    """

    def __init__(self, flat: Flat, also: Collection[str] = ()) -> None:
        """Finds them; `also` has paths of other objects that count as whole."""
        self.all: list[Whole] = []
        self.leaves: dict[int, Whole] = {}
        self.nodes: set[str] = set()
        self._by_path: dict[str, Whole] = {}
        if not flat.has_objects():
            return
        inside: str | None = None
        for node in flat.nodes:
            if inside is not None and node.path.startswith(inside):
                self.nodes.add(node.path)
            elif node.wraps and (node.path in also or is_whole(node.wraps)):
                self._add(Whole(node.path, node.at, flat.end_of(node), node.wraps))
                self.nodes.add(node.path)
                inside = f"{node.path}/" if node.path else ""
        for at, wraps in flat.wraps.items():
            if at not in self.leaves and is_whole(wraps):
                self._add(Whole(flat.names[at] if flat.nodes else "", at, at + 1, wraps))
        self.all.sort(key=lambda whole: whole.begin)

    def _add(self, whole: Whole) -> None:
        self.all.append(whole)
        self._by_path[whole.path] = whole
        self.leaves.update(dict.fromkeys(range(whole.begin, whole.end), whole))

    def at(self, path: str) -> Whole | None:
        """Returns the object at a path."""
        return self._by_path.get(path)

    def condensed(
        self, flat: Flat, chosen: Sequence[bool], has: Callable[[str], bool]
    ) -> tuple[Flat, list[bool]]:
        """Returns the state with one leaf for each object, and which leaves are chosen.

        Args:
            flat: The state.
            chosen: Whether each leaf of it is chosen.
            has: Whether a path is chosen, for objects without a leaf.
        """
        if not self.all:
            return flat, list(chosen)
        new, is_chosen, moved = Flat(), list[bool](), list[int]()
        waiting = iter(self.all)
        whole = next(waiting, None)
        for at in range(len(flat.names) + 1):
            moved.append(len(new.names))
            while whole is not None and whole.begin == at:
                new.names.append(whole.path or ROOT)
                new.dtypes.append(OBJECT)
                new.shapes.append(())
                new.leaves.append(None)
                is_empty = whole.begin == whole.end
                is_chosen.append(has(whole.path or ROOT) if is_empty else chosen[at])
                whole = next(waiting, None)
            if at == len(flat.names) or at in self.leaves:
                continue
            here = len(new.names)
            new.names.append(flat.names[at])
            new.dtypes.append(flat.dtypes[at])
            new.shapes.append(flat.shapes[at])
            new.leaves.append(flat.leaves[at] if flat.leaves else None)
            is_chosen.append(chosen[at])
            if at in flat.originals:
                new.originals[here] = flat.originals[at]
            if at in flat.parts:
                new.parts[here] = flat.parts[at]
        outside = (node for node in flat.nodes if node.path not in self.nodes)
        new.nodes = [node.moved(moved[node.at]) for node in outside]
        new.fixed = flat.fixed
        return new, is_chosen


def also_whole(there: Flat, here: Flat) -> tuple[set[str], set[str]]:
    """Returns the paths of objects that are whole by the two rules, there and here."""
    found: tuple[set[str], set[str]] = set(), set()
    objects = [
        {node.path for node in flat.nodes if node.wraps} if flat.has_objects() else set[str]()
        for flat in (there, here)
    ]
    for paths, own, other in ((found[0], objects[0], here), (found[1], objects[1], there)):
        if own:
            leaves = zip(other.names, other.dtypes, strict=True)
            paths.update(name for name, dtype in leaves if name in own and is_value(dtype))
    lists = {parent(path) for each in objects for path in each if path}
    if lists:
        sizes = _sizes(there, lists), _sizes(here, lists)
        other_size = {path for path, size in sizes[0].items() if sizes[1].get(path, size) != size}
        for paths, own in zip(found, objects, strict=True):
            paths.update(path for path in own if parent(path) in other_size)
    return found


def _sizes(flat: Flat, lists: set[str]) -> dict[str, int]:
    """Returns, by path, the lengths of those containers that are lists without arrays."""
    sizes = {
        node.path: 0
        for node in flat.nodes
        if node.kind == LIST
        and node.path in lists
        and all(map(is_value, flat.dtypes[node.at : flat.end_of(node)]))
    }
    for path in (*flat.names, *(node.path for node in flat.nodes if node.path)):
        above = parent(path)
        if above in sizes:
            sizes[above] += 1
    return sizes
