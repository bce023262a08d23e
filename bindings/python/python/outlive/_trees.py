"""Trees of plain values in a checkpoint: which fit a container, and the leaves of the others."""

from collections import OrderedDict
from collections.abc import Mapping
from itertools import starmap
from typing import Any

from outlive._errors import InvalidError
from outlive._flat import Flat, ObjectNode, shown
from outlive._tree import flatten

_PLAIN = frozenset((int, float, str, bool, bytes, complex, type(None)))


def path_of(flat: Flat, at: int) -> str:
    """Returns the path of a tree, which may be the whole state."""
    return flat.names[at] if flat.nodes else ""


def inside(path: str) -> str:
    """Returns the prefix of the paths of a container's entries."""
    return f"{path}/" if path else ""


def fits(mine: Any, theirs: Any) -> bool:
    """Whether a tree can replace the content of a container, with the same keys everywhere.

    Lists of plain values may differ in length. A comparison of all leaves decides about other
    differences, and names them.
    """
    kind, own = type(theirs), type(mine)
    if kind in _PLAIN:
        return own in _PLAIN
    if kind is dict:
        if own not in (dict, OrderedDict) or mine.keys() != theirs.keys():
            return False
        if set(map(type, mine)) != set(map(type, theirs)):
            return False  # 1 and True are equal
        values = theirs.values()
        if _PLAIN.issuperset(map(type, values)):
            return _PLAIN.issuperset(map(type, mine.values()))
        return all(fits(mine[key], value) for key, value in theirs.items())
    if own is not kind:
        return False
    if _PLAIN.issuperset(map(type, theirs)):
        same_length = kind is list or len(mine) == len(theirs)
        return same_length and _PLAIN.issuperset(map(type, mine))
    return len(mine) == len(theirs) and all(starmap(fits, zip(mine, theirs, strict=True)))


def is_nameable(tree: Any) -> bool:
    """Whether a path can name each entry of a tree."""
    kind = type(tree)
    if kind is dict:
        kinds = set(map(type, tree))
        if not kinds <= {str, int}:
            return False
        if len(kinds) == 2 and any(type(key) is int and str(key) in tree for key in tree):
            return False
        return all(map(is_nameable, tree.values()))
    return kind not in (list, tuple) or all(map(is_nameable, tree))


def opened(
    there: Flat, contents: Mapping[int, Any], epoch: int
) -> tuple[Flat, list[int], dict[int, Any]]:
    """Returns a checkpoint in which all leaves of some of its trees replace these.

    Args:
        there: The checkpoint.
        contents: The trees, by number of the leaf.
        epoch: Its epoch, for messages.

    Returns:
        The leaves; by number of each, the number of its old leaf or tree; by number, the values.

    Raises:
        InvalidError: If no path can name the entries of a tree.
    """
    new, was, values = Flat(), list[int](), dict[int, Any]()
    # By number of each leaf its new number; one more for nodes at the end.
    moved: list[int] = []
    waiting = iter(there.nodes)
    node = next(waiting, None)
    for at, name in enumerate(there.names):
        while node is not None and node.at <= at:
            new.nodes.append(node.moved(len(new.names)))
            node = next(waiting, None)
        moved.append(len(new.names))
        if at not in contents:
            new.names.append(name)
            new.dtypes.append(there.dtypes[at])
            new.shapes.append(there.shapes[at])
            was.append(at)
            continue
        if not is_nameable(contents[at]):
            raise InvalidError(
                f"{shown(name)} of checkpoint {epoch} is restored as a whole or not at all, into a "
                "container with the same keys or into a new tree: it has keys that no path names"
            )
        tree = flatten(contents[at], to_save=False, trees=())
        begin, above = len(new.names), path_of(there, at)
        before = inside(above)
        for inner in tree.nodes:
            path = before + inner.path if inner.path else above
            wraps = () if inner.path else there.wraps.get(at, ())
            new.nodes.append(
                ObjectNode(begin + inner.at, path, inner.kind, inner.detail, None, wraps)
            )
        new.names += [before + inner for inner in tree.names]
        new.dtypes += tree.dtypes
        new.shapes += tree.shapes
        was += [at] * len(tree.names)
        values.update(enumerate(tree.leaves, begin))
    while node is not None:
        new.nodes.append(node.moved(len(new.names)))
        node = next(waiting, None)
    new.fortran = [moved[at] for at in there.fortran]
    new.parts = {moved[at]: part for at, part in there.parts.items()}
    new.notes = {moved[at]: note for at, note in there.notes.items()}
    kept = ((at, wraps) for at, wraps in there.wraps.items() if at not in contents)
    new.wraps = {moved[at]: wraps for at, wraps in kept}
    return new, was, values
