"""Makes the objects of a checkpoint, and says which cannot be made before anything is filled."""

from typing import Any

from outlive import _kinds
from outlive._errors import Error, InvalidError
from outlive._flat import DICT, ORDERED, RANDOMS, Flat, Node, ObjectNode, Skeleton, Wrap, shown
from outlive._keys import Keys
from outlive._kinds import Finder, Kind, KindError
from outlive._kinds._plain import PLAIN

_PLAIN = "`job.restore(as_plain=True)` returns plain dicts, lists and values instead"


def classes_of(here: Flat) -> dict[str, type]:
    """Returns the classes of the objects and keys of a program's state, by their names."""
    known = {_kinds.ref_of(type(found.value)): type(found.value) for found in here.lowered.values()}
    for node, container in zip(here.nodes, here.containers, strict=True):
        if isinstance(node.detail, dict):
            known.update({_kinds.ref_of(type(key)): type(key) for key in container})
    return known


def plain(skeleton: Skeleton) -> Skeleton:
    """Returns a skeleton in which the trees of objects are only trees; tables have a plain form."""
    nodes = list[Node]()
    for node in skeleton.nodes:
        is_random = node.kind in RANDOMS
        kind = DICT if is_random or node.kind == ORDERED else node.kind
        detail = None if is_random else node.detail
        wraps = _with_plain_form(node.wraps)
        nodes.append(ObjectNode(node.at, node.path, kind, detail, None, wraps))
    skeleton.nodes = nodes
    skeleton.wraps = {at: _with_plain_form(wraps) for at, wraps in skeleton.wraps.items()}
    return skeleton


def _with_plain_form(wraps: tuple[Wrap, ...]) -> tuple[Wrap, ...]:
    return tuple(wrap for wrap in wraps if wrap[0] in PLAIN)


class Objects:
    """Makes and fills objects."""

    def __init__(self, find: Finder, epoch: int) -> None:
        """Takes what finds classes, and the epoch for messages."""
        self.find, self.epoch = find, epoch
        self._checked = set[tuple[Wrap, ...]]()

    def check(self, path: str, wraps: tuple[Wrap, ...], detail: Any = None) -> None:
        """Refuses objects that cannot be made, and keys of a dict with this detail.

        Raises:
            InvalidError: If the class of one is missing, or has changed.
        """
        try:
            if detail is None and wraps in self._checked:
                return
            self._checked.add(wraps)
            for name, of_object in wraps:
                kind = _kinds.by_name(name)
                if kind.check is not None:
                    kind.check(of_object, self.find)
            if isinstance(detail, dict):
                Keys(detail, self.find, is_strict=True)
        except Exception as error:
            raise self.refusal(path, error) from error

    def make(self, path: str, wraps: tuple[Wrap, ...], tree: Any) -> Any:
        """Makes the objects for which the tree at a path stands; returns the outermost.

        Raises:
            InvalidError: If one cannot be made.
        """
        try:
            for name, detail in reversed(wraps):
                tree = _kinds.by_name(name).make(detail, tree, self.find)
        except Exception as error:
            raise self.refusal(path, error) from error
        return tree

    def fill(self, path: str, kind: Kind, old: Any, detail: Any, tree: Any) -> bool:
        """Gives an object of the program the content of a tree; false if it cannot.

        Raises:
            InvalidError: If that fails.
        """
        try:
            return kind.fill is not None and kind.fill(old, detail, tree)
        except Exception as error:
            raise self.refusal(path, error) from error

    def refusal(self, path: str, error: Exception) -> Exception:
        """Returns the error for an object that cannot be made."""
        if isinstance(error, Error | MemoryError):
            return error
        why = str(error) if isinstance(error, KindError) else repr(error)
        return InvalidError(
            f"{shown(path)} of checkpoint {self.epoch} cannot be made again: {why}. {_PLAIN}"
        )


class PlainObjects(Objects):
    """Makes plain forms in place of objects."""

    def check(self, path: str, wraps: tuple[Wrap, ...], detail: Any = None) -> None:
        """Refuses nothing."""

    def make(self, path: str, wraps: tuple[Wrap, ...], tree: Any) -> Any:
        """Returns the plain form of a tree; the tree if it has none."""
        for name, detail in reversed(wraps):
            try:
                tree = PLAIN[name](detail, tree)
            except Exception:
                # A part of it is not selected, or another version has other forms.
                return tree
        return tree
