"""How far a checkpoint may differ from `into`, and how it did: options of `Job.restore`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from outlive._compare import value_lists
from outlive._errors import InvalidError
from outlive._flat import RANDOMS, TREE, Flat, Node, escape, parent, shown
from outlive._renames import Renames
from outlive._select import Selection

Shapes = Literal["exact", "grow", "overlap"]
_SHAPES = ("exact", "grow", "overlap")
# Names that an error lists.
_SOME = 5


@dataclass(slots=True)
class Conformed:
    """A checkpoint in the form of `into`.

    Attributes:
        flat: Its leaves, under the names of `into` and in its order, and the containers. It has
            nothing else of a state.
        sources: For each leaf, the number that it had in the checkpoint; None if that lacks it.
    """

    flat: Flat = field(default_factory=Flat)
    sources: list[int | None] = field(default_factory=list)


class Match:
    """The options of one restore, and what differed in the checkpoint that it took.

    Attributes:
        missing: Names of leaves of `into` that the checkpoint lacks.
        left_over: Names of leaves of the checkpoint, after `rename`, that `into` lacks.
        partly: Names of arrays whose shape differs, so that a part was filled.
        absent: Like `missing`, with each leaf of a container that counts as one.
        found: Differences that the options do not allow.
    """

    def __init__(
        self,
        *,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
        shapes: Shapes = "exact",
    ) -> None:
        """Takes the caller's options.

        Raises:
            InvalidError: If one is not possible.
        """
        if shapes not in _SHAPES:
            raise InvalidError(
                f'`shapes` = {shapes!r} is not possible: give "exact", "grow" or "overlap"'
            )
        self.strict, self.renames, self.shapes = strict, Renames(rename), shapes
        self.begin()

    def begin(self) -> None:
        """Forgets the checkpoint before, which proved damaged."""
        self.missing: list[str] = []
        self.left_over: list[str] = []
        self.partly: list[str] = []
        self.absent: set[str] = set()
        self.found: list[str] = []

    @property
    def conforms(self) -> bool:
        """Whether the checkpoint is brought into the form of `into` before both are compared."""
        return not self.strict or bool(self.renames)

    @property
    def is_default(self) -> bool:
        """Whether no difference is allowed."""
        return not self.conforms and self.shapes == "exact"

    def report(self) -> dict[str, tuple[str, ...]]:
        """Returns the fields of `Restored` that tell of differences."""
        lists = {"missing": self.missing, "left_over": self.left_over, "partly": self.partly}
        return {name: tuple(found) for name, found in lists.items()}

    # --- Shapes -----------------------------------------------------------------------------------

    def takes(self, shape: tuple[int, ...], own: tuple[int, ...]) -> bool:
        """Whether an array of `into` with shape `own` takes one of shape `shape`."""
        if self.shapes == "exact" or len(shape) != len(own):
            return shape == own
        return self.shapes == "overlap" or all(a <= b for a, b in zip(shape, own, strict=True))

    def common(self, shape: tuple[int, ...], own: tuple[int, ...]) -> tuple[slice, ...]:
        """Returns the part that arrays of both shapes have."""
        return tuple(slice(min(pair)) for pair in zip(shape, own, strict=True))

    # --- Names ------------------------------------------------------------------------------------

    def rename(
        self, there: Flat, here: Flat, selection: Selection, epoch: int, *, has_containers: bool
    ) -> Flat:
        """Returns the checkpoint with the names that `rename` gives; arguments as in `conform`.

        A checkpoint that has the names of `into` already keeps them. So a program restarts after
        its first save under the new names.

        Raises:
            InvalidError: If the new names are not possible.
        """

        def is_fine(flat: Flat) -> bool:
            own = flat if has_containers else _as_in(flat, here)
            return _outline(own, selection) == _outline(here, selection)

        names, is_done = self.renames.all(there.names), is_fine(there)
        if not is_done:
            self.renames.check(there.names, names, epoch)
        if names == there.names or (is_done and len(set(names)) < len(names)):
            return there
        renamed = _renamed(there, names, self.renames)
        if is_done and is_fine(renamed):
            raise InvalidError(
                f"checkpoint {epoch} has the names of `into` before and after `rename`, so it may "
                "be from before or after the change: leave `rename` out, or give the state a name "
                "that only one of the two has"
            )
        return there if is_done else renamed

    def conform(
        self, there: Flat, here: Flat, selection: Selection, epoch: int, *, has_containers: bool
    ) -> Conformed:
        """Returns the checkpoint in the form of `into`, and notes what is missing and left over.

        Args:
            there: The checkpoint, renamed.
            here: The state to fill.
            selection: The caller's selection.
            epoch: Epoch of the checkpoint, for messages.
            has_containers: Whether the checkpoint knows its containers. Otherwise its leaves are
                regions of another binding: "grid/u" is `into["grid"]["u"]` or `into["grid/u"]`.

        Raises:
            InvalidError: If `into` has nothing of the checkpoint.
        """
        if not has_containers:
            there = _as_in(there, here)
        form = _Form(there, here)
        done = form.walk()
        self.absent = {here.names[at] for at in form.missing}
        self.missing = list(_told(here, form.missing, form.empty_here, selection))
        unused = [at for at in range(len(there.names)) if at not in form.used]
        self.left_over = list(_told(there, unused, form.empty_there, selection))
        self.found = list(form.clashes(selection))
        if self.strict:
            self.found += [f"{shown(name)} is missing from `into`" for name in self.left_over]
            self.found += [f"{shown(name)} is not in the checkpoint" for name in self.missing]
        elif there.names and not (self.found or any(map(selection.has, form.common()))):
            raise InvalidError(
                f"nothing of checkpoint {epoch} is in `into`; nothing was changed: the checkpoint "
                f"has {_some(self.left_over)}, and `into` has {_some(self.missing)}. Correct "
                "`into`, or give `rename`"
            )
        return done


def _some(names: list[str]) -> str:
    more = ", …" if len(names) > _SOME else ""
    return (", ".join(map(shown, names[:_SOME])) or "nothing more") + more


def _outline(flat: Flat, selection: Selection) -> set[str]:
    """Returns the names of a state. A list of values counts as one, whatever its length is."""
    lists = value_lists(flat)
    names = {parent(name) if parent(name) in lists else name for name in flat.names}
    above = set(map(parent, [*flat.names, *(node.path for node in flat.nodes if node.path)]))
    names.update(node.path for node in flat.nodes if node.path not in above)
    return set(filter(selection.has, names))


def _renamed(there: Flat, names: list[str], renames: Renames) -> Flat:
    """Returns a checkpoint with other names. A container moves if all in it moves together."""
    nodes = []
    for node in there.nodes:
        inside, end = f"{node.path}/" if node.path else "", there.end_of(node)
        if node.at == end:
            path: str | None = renames.of(node.path) if node.path else ""
        else:
            moved = {_base(names[at], there.names[at][len(inside) :]) for at in range(node.at, end)}
            path = moved.pop() if len(moved) == 1 else None
        if path is not None:
            nodes.append(replace(node, path=path))
    return replace(there, names=names, nodes=nodes)


def _base(name: str, rest: str) -> str | None:
    """Returns the path of the container in which a leaf has the name `rest`."""
    if name == rest:
        return ""
    return name.removesuffix(f"/{rest}") if name.endswith(f"/{rest}") else None


def _as_in(there: Flat, here: Flat) -> Flat:
    """Returns regions of another binding under the names that they have in `into`."""
    mine, taken = set(here.names), set(there.names)
    names = []
    for name in there.names:
        key = escape(name)
        names.append(key if name not in mine and key in mine and key not in taken else name)
    return replace(there, names=names, nodes=[])


def _told(
    flat: Flat, numbers: Iterable[int], empty: Iterable[str], selection: Selection
) -> Iterator[str]:
    """Yields the selected ones of these leaves; a list of values or a generator counts as one."""
    whole = value_lists(flat) | {node.path for node in flat.nodes if node.kind in RANDOMS}
    paths: dict[str, None] = {}
    for at in numbers:
        name = flat.names[at]
        if selection.has(name):
            paths[next((above for above in _above(name) if above in whole), name)] = None
    paths.update(dict.fromkeys(filter(selection.has, empty)))
    yield from paths


def _above(name: str) -> Iterator[str]:
    while name:
        name = parent(name)
        yield name


class _Form:
    """A checkpoint while it gets the form of `into`."""

    def __init__(self, there: Flat, here: Flat) -> None:
        self.there, self.here = there, here
        self.numbers = {name: at for at, name in enumerate(there.names)}
        self.nodes = {node.path: node for node in there.nodes}
        # Containers of which the checkpoint's content is taken, whatever `into` has.
        self.whole = value_lists(there) & value_lists(here)
        self.whole |= {
            node.path
            for node in here.nodes
            if node.kind in RANDOMS
            and node.path in self.nodes
            and self.nodes[node.path].kind in RANDOMS
        }
        self.done = Conformed()
        self.used: set[int] = set()
        self.missing: list[int] = []
        own = {node.path for node in here.nodes}
        self.empty_here = [path for path in _hollow(here) if path not in self.nodes]
        self.empty_there = [path for path in _hollow(there) if path not in own]

    def walk(self) -> Conformed:
        """Goes through `into`, and takes each leaf from the checkpoint."""
        here = self.here
        waiting = iter(here.nodes)
        node = next(waiting, None)
        # Prefix of the leaves that are taken already.
        skip: str | None = None
        for at in range(len(here.names) + 1):
            while node is not None and node.at <= at:
                if skip is None or not node.path.startswith(skip):
                    skip = self.container(node)
                node = next(waiting, None)
            if at == len(here.names) or (skip is not None and here.names[at].startswith(skip)):
                continue
            self.leaf(at)
        return self.done

    def container(self, node: Node) -> str | None:
        """Adds a container of `into`; returns the prefix of its leaves if it took all of them."""
        there = self.there
        theirs = self.nodes.get(node.path, node)
        self.done.flat.nodes.append(replace(theirs, at=len(self.done.flat.names)))
        if node.path not in self.whole:
            return None
        inside = f"{node.path}/" if node.path else ""
        # Its leaves lie together, under names that `rename` may have given.
        inner = [n for n in there.nodes if n is not theirs and n.path.startswith(inside)]
        for at in range(theirs.at, there.end_of(theirs)):
            while inner and inner[0].at <= at:
                self.done.flat.nodes.append(replace(inner.pop(0), at=len(self.done.flat.names)))
            self.take(at)
        for left in inner:
            self.done.flat.nodes.append(replace(left, at=len(self.done.flat.names)))
        return inside

    def leaf(self, at: int) -> None:
        """Adds a leaf of `into`, with the content that the checkpoint has for it."""
        name = self.here.names[at]
        if name in self.numbers:
            self.take(self.numbers[name])
            return
        self.missing.append(at)
        self.add(name, "|u1", (0,), None)

    def take(self, at: int) -> None:
        """Adds a leaf of the checkpoint."""
        self.used.add(at)
        self.add(self.there.names[at], self.there.dtypes[at], self.there.shapes[at], at)

    def add(self, name: str, dtype: str, shape: tuple[int, ...], source: int | None) -> None:
        """Adds a leaf."""
        flat = self.done.flat
        flat.names.append(name)
        flat.dtypes.append(dtype)
        flat.shapes.append(shape)
        self.done.sources.append(source)

    def common(self) -> Iterator[str]:
        """Yields the names of the leaves that both have, and of containers taken as a whole."""
        return (self.there.names[at] for at in self.used)

    def clashes(self, selection: Selection) -> Iterator[str]:
        """Yields differences of kind: a container on one side, and a leaf on the other."""
        own = {node.path for node in self.here.nodes}
        for at, name in enumerate(self.there.names):
            if at not in self.used and name in own and selection.has(name):
                yield f"{shown(name)} is a container in `into`, a leaf in the checkpoint"
        for at, name in enumerate(self.here.names):
            if not selection.has(name):
                continue
            if name in self.nodes:
                yield f"{shown(name)} is a leaf in `into`, a container in the checkpoint"
            elif name in self.numbers:
                dtype = self.there.dtypes[self.numbers[name]]
                if self.here.dtypes[at] == TREE and dtype != TREE:
                    yield f"{shown(name)} is a container in `into`, a leaf in the checkpoint"


def _hollow(flat: Flat) -> list[str]:
    """Returns the paths of the containers without leaves and containers."""
    above = set(map(parent, [*flat.names, *(node.path for node in flat.nodes if node.path)]))
    return [node.path for node in flat.nodes if node.path not in above]
