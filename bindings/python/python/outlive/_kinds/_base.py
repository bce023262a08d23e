"""The definition of a kind of objects, and the classes that a checkpoint names."""

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

_T = TypeVar("_T")

# Details of an object beside its tree: None, text, whole numbers, and tuples of them.
Detail = Any


class UnsuitedError(Exception):
    """An object cannot become a tree; the text says why, and what to do."""


class KindError(Exception):
    """A tree cannot become an object; the text says why."""


class Finder:
    """Finds the classes that a checkpoint names. It runs no code of theirs, but imports modules."""

    def __init__(self, known: Mapping[str, type] | None = None, *, trusts: bool = False) -> None:
        """Takes classes that the program has shown, by name, and whether functions are trusted."""
        self.known = known or {}
        self.trusts = trusts
        # Results of checks by function and detail, as a state may have a million such objects.
        self.checked: dict[tuple[Any, Detail], Any] = {}

    def cls(self, ref: Any) -> type:
        """Returns the class for a text of `ref_of`.

        Raises:
            KindError: If there is none.
        """
        found = self.known.get(ref) or _named(ref)
        if not isinstance(found, type):
            raise KindError(f"{ref} is no class")
        return found

    def function(self, ref: Any) -> Any:
        """Returns the function for a text of `ref_of`, for a job that trusts its checkpoints.

        Raises:
            KindError: If there is none, or the job may hold what others have written.
        """
        if not self.trusts:
            raise KindError(
                f"it calls the function {ref}, and a restore takes only classes from a checkpoint "
                "(a job with `allow_pickle=True` takes functions, too)"
            )
        found = _named(ref)
        if type(found) is not FunctionType:
            raise KindError(f"{ref} is no function")
        return found


def remembered(check: Callable[[Detail, Finder], _T]) -> Callable[[Detail, Finder], _T]:
    """Makes a check of a detail run once for each finder."""

    @functools.wraps(check)
    def checking(detail: Detail, find: Finder) -> _T:
        found: _T | None = find.checked.get((check, detail))
        if found is None:
            found = find.checked[check, detail] = check(detail, find)
        return found

    return checking


def ref_of(thing: Any) -> str:
    """Returns the name of a class or function, by which `Finder` finds it."""
    module = thing.__module__
    # A child of `multiprocessing` has the main module under a name of its own.
    return f"{'__main__' if module == '__mp_main__' else module}:{thing.__qualname__}"


def said(ref: Any) -> str:
    """Returns the name of a class for people."""
    return str(ref).replace(":", ".", 1)


def _named(ref: Any) -> Any:
    module_name, colon, path = ref.partition(":") if type(ref) is str else ("", "", "")
    parts = path.split(".")
    if "<locals>" in parts:
        raise KindError(f"{said(ref)} is defined in a function, where no restore can find it")
    if not colon or not all(part.isidentifier() for part in [*module_name.split("."), *parts]):
        raise KindError(f"{ref!r} is no name of a class")
    module = sys.modules.get(module_name)
    if module is None:
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            # A module may raise any exception while it is imported.
            raise KindError(f"the module {module_name} cannot be imported ({error!r})") from error
    found: Any = module
    for part in parts:
        # Not `getattr`, which may run code.
        try:
            found = vars(found)[part]
        except (KeyError, TypeError):
            raise KindError(f"the module {module_name} has no {path}") from None
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A kind of objects: how one becomes a tree, and a tree becomes one again.

    A kind is *whole* if its objects are replaced as a whole, and their parts may differ between a
    checkpoint and `into`. The parts of other kinds are entries of the state, as those of a dict.

    Attributes:
        name: Its name in checkpoints.
        lower: Returns the details of an object, and the tree that stands for it: any state.
        make: Makes an object of details and tree.
        check: Raises `KindError` if the classes that the details name are not there or do not fit.
        fill: Gives an object that the program holds the content of a tree; false if it cannot. None
            if objects cannot change.
        remake: Makes an object of one that the program holds, with the parts of a tree; for objects
            that cannot change, of a kind that is not whole.
        difference: Returns why an object that the program holds cannot take the content of another
            one, given the details of both; None if it can.
        is_whole: See above.
        lends: Whether a restore may read into the arrays of an object that the program holds, and
            then calls `fill`. False if some of the arrays are indices into others.
    """

    name: str
    lower: Callable[[Any], tuple[Detail, Any]]
    make: Callable[[Detail, Any, Finder], Any]
    check: Callable[[Detail, Finder], object] | None = None
    fill: Callable[[Any, Detail, Any], bool] | None = None
    remake: Callable[[Any, Any], Any] | None = None
    difference: Callable[[Detail, Detail], str | None] | None = None
    is_whole: bool = True
    lends: bool = True
