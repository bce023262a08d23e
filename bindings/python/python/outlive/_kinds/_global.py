"""The global random generators of the process, as an object of a state: `outlive.rng`."""

from typing import Any

from outlive import _rng
from outlive._kinds._base import Detail, Kind


def _give(old: Any, detail: Detail, tree: Any) -> bool:
    _rng.give(tree)
    return True


def _make(detail: Detail, tree: Any, find: Any) -> Any:
    _rng.give(tree)
    return _rng.rng()


RNG = Kind("rng", lambda value: (None, _rng.take_apart()), _make, fill=_give)
KINDS: dict[type, Kind] = {_rng.Rng: RNG}
