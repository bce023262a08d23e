"""Keys of a dict: as parts of paths, and those that are no text as codes in the skeleton.

The code of a key is JSON: a text, an integer, true, false and null for themselves; otherwise a list
with a letter and the parts. Objects of a kind have their details and the code of their tree.
"""

import operator
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from outlive import _dtypes, _kinds
from outlive._errors import InvalidError
from outlive._flat import escape, shown, tuples, unescape
from outlive._kinds import Finder, KindError, UnsuitedError

_FIRST = operator.itemgetter(0)
_PART_MAX = 200
_INT64 = range(-(1 << 63), 1 << 63)


def parts_of(name: str, entries: Sequence[tuple[Any, Any]]) -> tuple[Any, Iterable[str]]:
    """Returns which keys are no text, as the detail of a node, and the parts of the paths.

    Raises:
        InvalidError: If a key cannot be saved, or two of them have the same part.
    """
    kinds = set(map(type, map(_FIRST, entries)))
    if kinds <= {str}:
        return None, (escape(key) for key, _ in entries)
    if kinds == {int}:
        return True, (str(key) for key, _ in entries)
    keys = [key for key, _ in entries]
    parts = [_part(key) for key in keys]
    pairs = zip(keys, parts, strict=True)
    if kinds == {int, str}:
        detail: Any = [part for key, part in pairs if type(key) is int]
    else:
        detail = {part: _code(name, key) for key, part in pairs if type(key) is not str}
    if len(set(parts)) < len(parts):
        _refuse_twins(name, keys, parts)
    return detail, parts


def _refuse_twins(name: str, keys: Sequence[Any], parts: list[str]) -> None:
    first: dict[str, Any] = {}
    for key, part in zip(keys, parts, strict=True):
        if part in first:
            one, two = sorted((first[part], key), key=lambda key: type(key) is str)
            raise InvalidError(
                f"{shown(name)} has both the key {one!r} and the key {two!r}, which would have the "
                "same name: rename one"
            )
        first[part] = key


def _part(key: Any) -> str:
    if type(key) is str:
        return escape(key)
    member = getattr(key, "_name_", None)
    if type(member) is str:
        return escape(f"{type(key).__name__}.{member}")
    text = str(key) if type(key) is not bytes else repr(key)
    return escape(text if len(text) <= _PART_MAX else f"{text[: _PART_MAX - 1]}…")


def _code(name: str, key: Any) -> Any:
    try:
        return code_of(key)
    except (UnsuitedError, RecursionError, TypeError) as error:
        cls = type(key)
        raise InvalidError(
            f"the key {str(key)[:100]!r} of {shown(name)} is of type {cls.__module__}."
            f"{cls.__qualname__}: {error}"
        ) from None


def code_of(key: Any) -> Any:
    """Returns the code of a key.

    Raises:
        UnsuitedError: If it can have none.
    """
    cls = type(key)
    if cls in (str, bool, type(None)) or (cls is int and key in _INT64):
        return key
    if cls in _SIMPLE:
        letter, to, _ = _SIMPLE[cls]
        return [letter, to(key)]
    if cls in (tuple, list):
        return ["t" if cls is tuple else "l", *map(code_of, key)]
    if cls is dict:
        return ["d", *([code_of(k), code_of(entry)] for k, entry in key.items())]
    if isinstance(key, np.generic):
        text = _dtypes.text_of(key.dtype)
        if text is not None:
            return ["n", text, np.asarray(key).tobytes().hex()]
    kind = _kinds.kind_of(key)
    if kind is None:
        raise UnsuitedError(
            "keys must be plain values, tuples of these, or values of the standard library, such "
            "as members of an Enum"
        )
    detail, tree = kind.lower(key)
    return ["k", kind.name, _lists(detail), code_of(tree)]


def _lists(detail: Any) -> Any:
    """Returns details as they are once they were JSON."""
    return list(map(_lists, detail)) if type(detail) is tuple else detail


_SIMPLE: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    int: ("i", hex, lambda text: int(text, 16)),
    float: (
        "f",
        lambda key: struct.pack(">d", key).hex(),
        lambda text: struct.unpack(">d", bytes.fromhex(text))[0],
    ),
    complex: (
        "c",
        lambda key: struct.pack(">dd", key.real, key.imag).hex(),
        lambda text: complex(*struct.unpack(">dd", bytes.fromhex(text))),
    ),
    bytes: ("b", bytes.hex, bytes.fromhex),
}
_BY_LETTER = {letter: back for letter, _, back in _SIMPLE.values()}


def key_of(code: Any, find: Finder | None) -> Any:
    """Returns the key for a code.

    Args:
        code: Result of `code_of`.
        find: Finds classes; None for plain keys only.

    Raises:
        KindError: If an object cannot be made.
        ValueError, TypeError, LookupError: If `code_of` has not written the code.
    """
    if type(code) is not list:
        return code
    letter, *rest = code
    if letter in _BY_LETTER:
        return _BY_LETTER[letter](*rest)
    if letter in ("t", "l"):
        parts = [key_of(part, find) for part in rest]
        return tuple(parts) if letter == "t" else parts
    if letter == "d":
        return {key_of(one, find): key_of(two, find) for one, two in rest}
    if letter == "n":
        text, content = rest
        scalar = np.frombuffer(bytes.fromhex(content), _dtypes.parse(text))[0]
        return scalar.item() if find is None else scalar
    if letter != "k":
        raise KindError(f"a newer outlive has saved one of its keys ({letter!r})")
    name, detail, tree = rest
    if find is None:
        raise KindError("it is not plain")
    return _kinds.by_name(name).make(tuples(detail), key_of(tree, find), find)


class Keys:
    """The keys of one dict of a checkpoint, by their parts in paths."""

    __slots__ = ("_known", "_numbers")

    def __init__(self, detail: Any, find: Finder | None, *, is_strict: bool = False) -> None:
        """Takes the detail of a node, and what finds classes; None for plain keys only.

        The part stands for a key that cannot be made: it may belong to an entry that is not
        selected.

        Raises:
            KindError: If a key cannot be made, and `is_strict`.
        """
        self._known: dict[str, Any] = {}
        self._numbers: Any = ()
        if isinstance(detail, dict):
            for part, code in detail.items():
                try:
                    self._known[part] = key_of(code, find)
                except KindError:
                    if is_strict:
                        raise
                    self._known[part] = unescape(part)
        elif detail is not None:
            self._numbers = True if detail is True else frozenset(detail)

    def of(self, part: str) -> Any:
        """Returns the key for a part."""
        if self._numbers is True or part in self._numbers:
            return int(part)
        return self._known[part] if part in self._known else unescape(part)


def kind_at(part: str, detail: Any) -> Any:
    """Returns what tells a key from others with the same part."""
    if isinstance(detail, dict):
        code = detail.get(part)
        return "int" if type(code) is int else code
    return "int" if detail is True or (detail is not None and part in detail) else None
