"""The kinds of objects that a state may have beside dict, list, tuple and leaves.

Each becomes a tree of plain containers and leaves, with details beside it, and a restore makes it
again. None is pickled, and no package is imported before an object of it is met.
"""

import collections
import functools
import importlib
import random
import sys
from typing import Any

import numpy as np

from outlive import _foreign
from outlive._flat import VALUES
from outlive._kinds import _attributes, _containers, _global, _registered, _subclasses
from outlive._kinds._base import (
    Detail,
    Finder,
    Kind,
    KindError,
    UnsuitedError,
    ref_of,
    said,
)
from outlive._kinds._registered import register

# Modules here for the classes of other packages. A module has `kind_of` and `BY_NAME`.
_PACKAGES = {
    "numpy": "_numpy",
    "pandas": "_pandas",
    "scipy": "_scipy",
    "pyarrow": "_arrow",
    "torch": "_torch",
    "jax": "_jax",
    "jaxlib": "_jax",
    "flax": "_jax",
}
_BUILT_IN: frozenset[type] = frozenset(
    {
        *VALUES,
        *(dict, list, tuple, collections.OrderedDict, object),
        *(np.ndarray, np.random.Generator, np.random.RandomState, random.Random),
    }
)
_BY_CLASS: dict[type, Kind] = {**_containers.KINDS, **_global.KINDS}
_BY_NAME: dict[str, Kind] = {
    _subclasses.SUBCLASS.name: _subclasses.SUBCLASS,
    _subclasses.SET_SUBCLASS.name: _subclasses.SET_SUBCLASS,
    _registered.REGISTERED.name: _registered.REGISTERED,
    **_attributes.BY_NAME,
    **{kind.name: kind for kind in _BY_CLASS.values()},
}


def kind_of(value: Any) -> Kind | None:
    """Returns the kind of an object; None for one that cannot become a tree."""
    cls = type(value)
    if _foreign.is_tensor(value):
        of_tensor: Kind | None = _module("_torch").kind_of_tensor(value)
        return _registered.kind_of(cls) or of_tensor
    found: Kind | None = _registered.kind_of(cls) or _BY_CLASS.get(cls)
    found = found or _standard().kind_of(cls) or _of_package(cls.__module__.partition(".")[0], cls)
    if found is not None or isinstance(value, np.ndarray | np.generic):
        return found
    # A dataclass may be built on a dict, as those of Transformers are.
    of_fields = None if _subclasses.is_on_container(cls) else _attributes.kind_of(cls)
    found = of_fields or _subclasses.kind_of(cls)
    if found is None:
        packages = (base.__module__.partition(".")[0] for base in cls.__mro__[1:-1])
        found = next(filter(None, (_of_package(name, cls) for name in packages)), None)
    if found is None and "jax" in sys.modules:
        found = _module("_jax").kind_of_node(value)
    return found


def _of_package(package: str, cls: type) -> Kind | None:
    """Returns the kind of a class of another package."""
    if package not in _PACKAGES or package not in sys.modules:
        return None
    found: Kind | None = _module(_PACKAGES[package]).kind_of(cls)
    return found


def by_name(name: str) -> Kind:
    """Returns the kind that a checkpoint names.

    Raises:
        KindError: If this build has none of that name.
    """
    found: Kind | None = _BY_NAME.get(name)
    if found is not None:
        return found
    found = _standard().BY_NAME.get(name)
    top = name.partition(".")[0]
    if found is None and top in _PACKAGES:
        try:
            found = _module(_PACKAGES[top]).BY_NAME.get(name)
        except ImportError as error:
            raise KindError(f"it needs the package {top}, which is missing ({error})") from None
    if found is None:
        raise KindError(f"a newer outlive has saved it ({name!r}): restore it with that")
    _BY_NAME[name] = found
    return found


def _module(package: str) -> Any:
    return importlib.import_module(f"outlive._kinds.{package}")


@functools.cache
def _standard() -> Any:
    """Returns the module for single values, which imports several others."""
    return _module("_values")


def is_built_in(cls: type) -> bool:
    """Whether a class is a container or leaf of every state, so that no tree can stand for it."""
    return cls in _BUILT_IN or issubclass(cls, np.generic | np.random.BitGenerator)


def is_saveable(value: Any, depth: int = 0) -> bool:
    """Whether an object of plain parts can be saved, looking at all of them."""
    cls = type(value)
    if cls in VALUES:
        return True
    if depth > 20:
        return False
    if cls in (list, tuple, dict):
        parts = value.values() if cls is dict else value
        return all(is_saveable(part, depth + 1) for part in parts)
    if isinstance(value, np.ndarray | np.generic):
        return not value.dtype.hasobject
    if hasattr(value, "__dlpack__"):
        return True
    kind = kind_of(value)
    try:
        return kind is not None and is_saveable(kind.lower(value)[1], depth + 1)
    except UnsuitedError:
        return False


__all__ = [
    "Detail",
    "Finder",
    "Kind",
    "KindError",
    "UnsuitedError",
    "by_name",
    "is_built_in",
    "is_saveable",
    "kind_of",
    "ref_of",
    "register",
    "said",
]
