"""Compares a checkpoint with the state that a restore will fill."""

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outlive import _foreign, _keys, _kinds
from outlive._errors import InvalidError
from outlive._flat import (
    DICT,
    LIST,
    ORDERED,
    PICKLE,
    RANDOMS,
    TREE,
    TUPLE,
    Flat,
    Node,
    Wrap,
    is_value,
    parent,
    shown,
)
from outlive._seeds import KEY
from outlive._select import Selection
from outlive._wholes import OBJECT

if TYPE_CHECKING:
    from outlive._match import Match

# Most differences in a message; `InvalidError.differences` has all of them.
_SHOWN_MAX = 100


def refuse_differences(
    there: Flat,
    here: Flat,
    selection: Selection,
    chosen: list[bool],
    epoch: int,
    match: "Match",
    also: Sequence[str] = (),
) -> None:
    """Compares the chosen leaves of checkpoint `there` with the program's state `here`.

    Passes over differences that `match` allows, and notes there the arrays that are filled partly.
    Takes over the differences in `also`.

    Raises:
        InvalidError: If they do not match, or `into` cannot take some of it. It names every path.
    """
    comparison = _Comparison(there, here, selection, chosen, match)
    comparison.found += also
    # Containers come first: one of their differences may stand for a thousand leaves.
    comparison.containers()
    comparison.leaves()
    found = comparison.found or comparison.unchangeable() or comparison.unfillable()
    if found:
        raise refusal(f"`into` does not match checkpoint {epoch}", found, "Correct `into`")


def refusal(what: str, found: list[str], advice: str) -> InvalidError:
    """Returns an error that names all paths; `what` is wrong, and `advice` says what to do."""
    listed = found[:_SHOWN_MAX]
    if len(found) > len(listed):
        listed.append(f"… and {len(found) - len(listed)} more")
    error = InvalidError(
        f"{what}; nothing was changed:"
        + "".join(f"\n  {line}" for line in listed)
        + f"\n{advice}, select with `only`, or use `restore()` for a new tree and take from that "
        "what the program needs (as with `load_state_dict`)"
    )
    error.differences = tuple(found)
    return error


def _kind_of_part(whole: tuple[int, ...] | None) -> str:
    """Describes an array that is part of the global array with this shape, or of none."""
    return "not sharded" if whole is None else f"part of an array of shape {whole}"


class _Comparison:
    def __init__(
        self, there: Flat, here: Flat, selection: Selection, chosen: list[bool], match: "Match"
    ) -> None:
        self.there, self.here = there, here
        self.selection, self.chosen, self.match = selection, chosen, match
        self.found: list[str] = list(match.found)
        # The keys of each container, by the id of the state that it is in.
        self.entries: dict[int, dict[str, set[str]]] = {}
        self.above_chosen: set[str] | None = None
        # A list of values counts as one value: it may have another length than before.
        self.free = value_lists(there) & value_lists(here)
        if not selection.everything:
            left_out = (
                n for n, is_chosen in zip(there.names, chosen, strict=True) if not is_chosen
            )
            self.free.difference_update(map(parent, left_out))

    def leaves(self) -> None:
        """Compares the leaves by their names."""
        there, here = self.there, self.here
        absent = self.match.absent
        if self.selection.everything and there.names == here.names and not absent:
            for at, name in enumerate(there.names):
                self.leaf(at, at, name)
            return
        mine = {name: at for at, name in enumerate(here.names)}
        theirs = {node.path for node in there.nodes}
        own = {node.path for node in here.nodes}
        randoms = {node.path for node in there.nodes if node.kind in RANDOMS}
        # Empty containers of `into`, each with a leaf that is missing there.
        above = {parent(path) for path in [*here.names, *filter(None, own)]}
        empty: dict[str, str | None] = dict.fromkeys(own - above - self.free - {""})
        for at, name in enumerate(there.names):
            if not self.chosen[at]:
                continue
            my = mine.pop(name, None)
            if my is not None:
                self.leaf(at, my, name)
            elif (hollow := next((path for path in _above(name) if path in empty), None)) is None:
                if parent(name) not in self.free:
                    what = ", which has a container there" if name in own else ""
                    self.found.append(f"{shown(name)} is missing from `into`{what}")
            elif empty[hollow] is None:
                empty[hollow] = name
        for path, first in empty.items():
            if first is not None:
                self.found.append(
                    f"{shown(path)} is empty in `into`; the checkpoint has {shown(first)} there, "
                    "for example (an optimizer has no state before its first step)"
                )
        for name in mine:
            if name.rpartition("/")[2] == KEY and parent(name) in randoms:
                continue  # an earlier build saved the random generator
            if name in absent:
                continue  # noted already
            if self.selection.has(name) and parent(name) not in self.free:
                what = ", which has a container there" if name in theirs else ""
                self.found.append(f"{shown(name)} is not in the checkpoint{what}")

    def pairs(self) -> Iterable[tuple[int, int]]:
        """Yields the numbers of the chosen leaves that both have, there and here."""
        mine = {name: at for at, name in enumerate(self.here.names)}
        for at, name in enumerate(self.there.names):
            my = mine.get(name)
            if my is not None and self.chosen[at]:
                yield at, my

    def leaf(self, at: int, my: int, name: str) -> None:
        """Compares a leaf that both have."""
        dtype, own = self.there.dtypes[at], self.here.dtypes[my]
        if is_value(dtype) and is_value(own):
            return
        if is_value(dtype) or is_value(own):
            # An object that cannot change is made again, with a number or an array of one.
            is_made = parent(name) in self.here.fixed and OBJECT not in (dtype, own)
            if is_made and self.there.shapes[at] == self.here.shapes[my] == ():
                return
            what = "an object" if OBJECT in (dtype, own) else "a value"
            kinds = ("an array", what) if is_value(dtype) else (what, "an array")
            is_number = is_value(own) and self.there.shapes[at] == ()
            how = ": put an array of shape () there" if is_number else ""
            self.found.append(
                f"{shown(name)} is {kinds[0]} in `into`, {kinds[1]} in the checkpoint{how}"
            )
            return
        shape, own_shape = self.there.shapes[at], self.here.shapes[my]
        whole, own_whole = (
            None if part is None else part[0]
            for part in (self.there.parts.get(at), self.here.parts.get(my))
        )
        if own_whole is None and whole is not None and (own_shape or (1,)) == whole:
            pass  # the whole of the global array fills it; one without axes has got one there
        elif own_whole is None and whole is not None:
            self.found.append(
                f"{shown(name)} has shape {own_shape} in `into`; in the checkpoint it is a part of "
                f"an array of shape {whole}: give an array of that shape, or `outlive.sharded`"
            )
        elif whole != own_whole:
            own_kind, kind = map(_kind_of_part, (own_whole, whole))
            self.found.append(f"{shown(name)} is {own_kind} in `into`, {kind} in the checkpoint")
        elif whole is None and shape != own_shape and self.match.takes(shape, own_shape):
            self.match.partly.append(name)
        elif whole is None and shape != own_shape:
            self.found.append(
                f"{shown(name)} has shape {own_shape} in `into`, {shape} in the checkpoint"
            )
        if dtype != own:
            self.found.append(f"{shown(name)} has dtype {own} in `into`, {dtype} in the checkpoint")
        original = self.here.originals.get(my)
        if not self.here.leaves[my].flags.writeable and not hasattr(
            original, "__array_namespace__"
        ):
            unsaid = "" if original is None else ", or does not say that it can be written"
            self.found.append(
                f"{shown(name)} is read-only in `into`{unsaid}: put `numpy.array` of it there, "
                "which is a copy that can be filled"
            )

    def containers(self) -> None:
        """Compares the containers by their paths. Missing leaves are listed already."""
        theirs = {node.path: node for node in self.there.nodes}
        mine = {node.path: node for node in self.here.nodes}
        for path, node in theirs.items():
            own = mine.get(path)
            if own is not None:
                if self.selected(path):
                    self.container(node, own)
            elif self.selection.everything and not _has_leaf(self.there, node):
                self.found.append(f"{shown(path)} ({node.kind}) is missing from `into`")
        if self.selection.everything:
            for path, node in mine.items():
                if path not in theirs and not _has_leaf(self.here, node):
                    self.found.append(f"{shown(path)} ({node.kind}) is not in the checkpoint")

    def selected(self, path: str) -> bool:
        """Whether any chosen leaf is below a container."""
        if self.selection.everything:
            return True
        if self.above_chosen is None:
            self.above_chosen = set[str]()
            for name in itertools.compress(self.there.names, self.chosen):
                for above in _above(name):
                    if above in self.above_chosen:
                        break
                    self.above_chosen.add(above)
        return path in self.above_chosen

    def container(self, node: Node, own: Node) -> None:
        """Compares a container that both have."""
        if classes(node.wraps) != classes(own.wraps):
            self.found.append(
                f"{shown(node.path)} is {_what(own)} in `into`, {_what(node)} in the checkpoint"
            )
        elif node.kind != own.kind and {node.kind, own.kind} != {DICT, ORDERED}:
            self.found.append(
                f"{shown(node.path)} is a {own.kind} in `into`, a {node.kind} in the checkpoint"
            )
        elif node.detail != own.detail and node.kind in RANDOMS:
            self.found.append(
                f"{shown(node.path)} is a {own.detail} generator in `into`, a {node.detail} "
                "generator in the checkpoint"
            )
        elif node.detail != own.detail and node.kind not in RANDOMS:
            theirs, mine = self.keys(self.there, node), self.keys(self.here, own)
            common = sorted(key for key in theirs if key in mine)
            other = [
                key
                for key in common
                if _keys.kind_at(key, node.detail) != _keys.kind_at(key, own.detail)
            ]
            if other:
                types = "str in one of `into` and the checkpoint, and int in the other"
                if isinstance(node.detail, dict) or isinstance(own.detail, dict):
                    types = f"of one type in `into`, and of another in the checkpoint: {other[0]}"
                self.found.append(f"{shown(node.path)} has keys that are {types}")

    def keys(self, flat: Flat, node: Node) -> set[str]:
        """Returns the keys of a container, as they are in paths."""
        if id(flat) not in self.entries:
            entries: dict[str, set[str]] = {}
            for path in [*flat.names, *(node.path for node in flat.nodes if node.path)]:
                above, _, key = path.rpartition("/")
                entries.setdefault(above, set()).add(key)
            self.entries[id(flat)] = entries
        return self.entries[id(flat)].get(node.path, set())

    def unchangeable(self) -> list[str]:
        """Lists values that cannot be replaced, since nothing above them can be changed."""
        mutable = mutable_containers(self.here)
        if "" in mutable:
            return []
        found = []
        for at, my in self.pairs():
            if self.here.dtypes[my] == TREE:
                continue  # it fits, otherwise it would not be one
            name, value = self.there.names[at], is_value(self.there.dtypes[at])
            path = self.here.names[my] if self.here.nodes else ""
            if self.here.dtypes[my] == OBJECT and path not in self.here.fixed:
                continue  # it is filled where it is
            if not value and self.here.leaves[my].flags.writeable:
                continue
            if not is_changeable(name, mutable):
                what = "a value" if value else "an array that cannot be written"
                found.append(f"{shown(name)} is {what}, and nothing mutable holds it")
        return found

    def unfillable(self) -> list[str]:
        """Lists arrays that were pickled, such as those of a device: nothing fills their memory."""
        if PICKLE not in self.here.dtypes:
            return []  # as most states, which may have a million leaves
        found = []
        for _, my in self.pairs():
            if self.here.dtypes[my] != PICKLE:
                continue
            mine = self.here.leaves[my]
            if isinstance(mine, np.ndarray) or not _foreign.shows_memory(mine):
                continue
            found.append(
                f"{shown(self.here.names[my])} is an array ({type(mine).__module__}."
                f"{type(mine).__qualname__}) that cannot be saved as one, so that it was pickled: "
                "what was unpickled would not get into its memory. Put None in its place"
            )
        return found


def is_changeable(path: str, mutable: Collection[str]) -> bool:
    """Whether a value can be replaced, since one of the containers above it is mutable."""
    return any(above in mutable for above in _above(path))


def mutable_containers(flat: Flat) -> set[str]:
    """Returns the paths of the containers whose entries can be replaced."""
    return {node.path for node in flat.nodes if node.kind != TUPLE and node.path not in flat.fixed}


def classes(wraps: tuple[Wrap, ...]) -> list[Any]:
    """Returns what must be the same of the objects that two containers stand for."""
    return [(name, detail[0] if type(detail) is tuple else detail) for name, detail in wraps]


def _what(node: Node) -> str:
    if not node.wraps:
        return f"a {node.kind}"
    name, ref = classes(node.wraps)[0]
    return f"a {name} {_kinds.said(ref)}" if type(ref) is str else f"a {name}"


def value_lists(flat: Flat) -> set[str]:
    """Returns the lists that hold only values."""
    lists = {node.path for node in flat.nodes if node.kind == LIST}
    if lists:
        lists.difference_update(parent(node.path) for node in flat.nodes if node.path)
        leaves = zip(flat.names, flat.dtypes, strict=True)
        lists.difference_update(
            parent(name) for name, dtype in leaves if not is_value(dtype) or dtype == TREE
        )
    return lists


def _above(name: str) -> Iterable[str]:
    while name:
        name = parent(name)
        yield name


def _has_leaf(flat: Flat, node: Node) -> bool:
    inside = f"{node.path}/" if node.path else ""
    return node.at < len(flat.names) and flat.names[node.at].startswith(inside)
