"""Pickled objects come back unchanged: whole, or not at all, and before anything is filled."""

import collections
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive

Point = collections.namedtuple("Point", "count mu nu")


class Config(dict):  # type: ignore[type-arg]
    version = 7


class Vector(list):  # type: ignore[type-arg]
    def __init__(self, values: Any = (), unit: str = "m") -> None:
        super().__init__(values)
        self.unit = unit


class Tagged(tuple):  # type: ignore[type-arg]
    def __new__(cls, values: Any, extra: int = 0) -> "Tagged":
        new = super().__new__(cls, values)
        new.extra = extra
        return new

    def __getnewargs__(self) -> tuple[Any, int]:
        return tuple(self), self.extra

    extra: int


class Becomes:
    """Comes back as another object."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def __reduce__(self) -> Any:
        return _is, (self.what,)


def _is(what: Any) -> Any:
    return what


class Moved:
    """An object whose class is gone when it comes back, if `gone` is set."""

    gone = False

    def __reduce__(self) -> Any:
        return _moved, ()


def _moved() -> Moved:
    if Moved.gone:
        raise ModuleNotFoundError("No module named 'models_old'")
    return Moved()


@pytest.fixture
def trusting(folder: Path) -> outlive.Job:
    return outlive.open(folder).job("t", allow_pickle=True)


def shown(value: Any) -> tuple[Any, ...]:
    return type(value), repr(value), getattr(value, "__dict__", None)


def configured() -> Config:
    config = Config(a=1, b=[2])
    config.version = 8
    return config


OBJECTS: dict[str, Any] = {
    "defaultdict": collections.defaultdict(list, a=[1]),
    "counter": collections.Counter("aab"),
    "dict": configured(),
    "list": Vector([1, 2], "km"),
    "tuple": Tagged([1, 2], 9),
    "namedtuple": Point(1, 2.0, None),
    "becomes a dict": Becomes({"x": 1}),
    "becomes a list": Becomes([1, 2]),
    "becomes a tuple": Becomes((1, [2])),
}


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("only", ["s", "s/*", "s/0", ["s", "n"]])
def test_a_part_has_them_as_the_whole_does(
    trusting: outlive.Job, name: str, only: str | list[str]
) -> None:
    trusting.save({"s": (OBJECTS[name], 3), "n": 1, "w": np.ones(2)}, force=True, wait=True)
    whole = trusting.restore()["s"][0]
    assert shown(trusting.restore(only=only)["s"][0]) == shown(whole)
    # Into an empty state, and into a filled one.
    for into in ({}, {"s": (None, 0), "n": 0, "w": np.zeros(2)}):
        state: dict[str, Any] = dict(into)
        if into:
            trusting.restore(into=state, only=only)
            assert shown(state["s"][0]) == shown(whole)


def test_lists_with_objects_take_another_length(trusting: outlive.Job) -> None:
    trusting.save({"l": [1, Point(1, 2, 3), configured()]}, force=True, wait=True)
    state: dict[str, Any] = {"l": [0]}
    trusting.restore(into=state)
    assert [shown(entry) for entry in state["l"]] == [
        shown(entry) for entry in (1, Point(1, 2, 3), configured())
    ]


@pytest.mark.parametrize("lazy", [False, True])
def test_a_value_that_cannot_be_unpickled_leaves_into_as_it_was(
    trusting: outlive.Job, monkeypatch: pytest.MonkeyPatch, lazy: bool
) -> None:
    for step in (1, 2):
        state: dict[str, Any] = {"w": np.full(100_000, float(step)), "c": Moved(), "n": step}
        trusting.save(state, force=True, wait=True)
    into: dict[str, Any] = {"w": np.zeros(100_000), "c": None, "n": 0}
    with monkeypatch.context() as patch:
        patch.setattr(Moved, "gone", True)
        for _ in range(2):
            with pytest.raises(outlive.InvalidError, match=r"'c' .*models_old") as caught:
                trusting.restore(into=into, lazy=lazy)
            assert not caught.value.into_changed
            assert not into["w"].any()
            assert into["n"] == 0
        assert trusting.restore(into=into, only=["w", "n"])
        assert into["w"].all()
        assert into["n"] == 2
    trusting.restore(into=into)
    assert type(into["c"]) is Moved


def test_errors_are_named_as_programs_name_them() -> None:
    for name in ("Error", "RetryError", "InvalidError", "DamagedError", "FullError", "BugError"):
        cls = getattr(outlive, name)
        assert f"{cls.__module__}.{cls.__qualname__}" == f"outlive.{name}"
    again = pickle.loads(pickle.dumps(outlive.InvalidError("no")))
    assert type(again) is outlive.InvalidError
