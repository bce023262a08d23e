"""A restore into a state fills its arrays, and replaces everything else in it."""

import dataclasses
import enum
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import outlive


class Tensor:
    """An array that shows no memory, like one on a device; it can be pickled."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __dlpack__(self, **options: object) -> Any:
        raise BufferError("the array is on a device")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


@dataclasses.dataclass
class Settings:
    rate: float


@dataclasses.dataclass(frozen=True)
class Frozen:
    rate: float


class Opaque:
    """An object that can only be pickled."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.rate == self.rate

    __hash__ = None  # type: ignore[assignment]


class Bag(set):  # type: ignore[type-arg]
    pass


class Slotted(set):  # type: ignore[type-arg]
    __slots__ = ("kept", "more")


class Table(pd.DataFrame):
    pass


class Column(pd.Series):
    pass


class Box(dict):  # type: ignore[type-arg]
    pass


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Model:
    """Returns its state as PyTorch's modules and optimizers do: in a new dict each time."""

    def __init__(self, value: float) -> None:
        self.weights = np.full(5, value)
        self.hidden = Tensor([value])
        self.rate = value

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "groups": [{"rate": self.rate, "params": [0]}]}


@pytest.fixture
def trusting(folder: Path) -> outlive.Job:
    return outlive.open(folder).job("a", allow_pickle=True)


def refused(restore: Callable[[], object]) -> str:
    with pytest.raises(outlive.InvalidError) as caught:
        restore()
    assert "nothing was changed" in str(caught.value)
    assert caught.value.differences
    return str(caught.value)


def test_pickled_arrays_are_not_filled(trusting: outlive.Job) -> None:
    model = Model(1.0)
    trusting.save({"model": {"w": model.weights, "h": model.hidden}}, wait=True)
    other = Model(2.0)
    state = {"model": {"w": other.weights, "h": other.hidden}}
    text = refused(lambda: trusting.restore(into=state))
    assert "'model/h' is an array" in text
    assert "'model/w'" not in text
    assert (other.weights == 2).all()
    assert (state["model"]["h"], other.hidden.values) == (other.hidden, [2.0])
    # No other reference is visible, but it may be a view of the program's memory.
    assert "'model/h' is an array" in refused(
        lambda: trusting.restore(into={"model": {"w": other.weights, "h": Tensor([3.0])}})
    )
    # An array that can be filled is filled.
    assert trusting.restore(into=state, only="model/w")
    assert (other.weights == 1).all()
    # A program that gives no array gets a new one.
    state["model"]["h"] = None  # type: ignore[assignment]
    assert trusting.restore(into=state)
    assert state["model"]["h"].values == [1.0]


def test_generators_are_filled_where_they_are(job: outlive.Job) -> None:
    rng = np.random.default_rng(1)
    job.save({"rng": rng}, wait=True)
    other = np.random.default_rng(2)
    assert job.restore(into={"rng": other})
    assert other.random() == rng.random()


class Constant:
    """An array whose operations make new ones, as JAX's."""

    def __init__(self, values: "np.ndarray[Any, Any]") -> None:
        self.values = values
        self.values.flags.writeable = False

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()

    def __array_namespace__(self) -> Any:
        return Constants


class Constants:
    @staticmethod
    def asarray(values: "np.ndarray[Any, Any]") -> Constant:
        return Constant(values)


def test_a_container_that_is_still_empty_is_named_once(job: outlive.Job) -> None:
    optimizer = {"state": {0: {"m": np.ones(3)}, 1: {"m": np.ones(3)}}, "groups": [0, 1]}
    job.save(optimizer, wait=True)
    state = {"state": {}, "groups": [0, 1]}
    with pytest.raises(outlive.InvalidError) as caught:
        job.restore(into=state)
    (only,) = caught.value.differences
    assert only.startswith("'state' is empty in `into`; the checkpoint has 'state/0/m' there")
    # The reverse, with keys of one type only.
    job.save({"state": {}, "groups": []}, wait=True)
    with pytest.raises(outlive.InvalidError) as caught:
        job.restore(into=optimizer)
    assert not any("keys" in line for line in caught.value.differences)


def test_keys_of_another_type_are_still_told(job: outlive.Job) -> None:
    job.save({"a": {1: np.ones(3), "b": 1}}, wait=True)
    state = {"a": {"1": np.ones(3), "b": 1}}
    with pytest.raises(outlive.InvalidError, match="'a' has keys that are str in one"):
        job.restore(into=state)


def test_objects_are_replaced_in_the_state_alone(trusting: outlive.Job) -> None:
    want = {
        "o": Opaque(1.0),
        "s": Settings(1.0),
        "d": defaultdict(int, a=1),
        "e": Colour.RED,
        "f": Frozen(1.0),
        "p": Path("/a"),
        "t": frozenset([1]),
        "c": int,
        "a": np.array([1, None], object),
    }
    trusting.save(want, wait=True)
    kept, filled = Opaque(2.0), Settings(2.0)
    state = want | {
        "o": kept,
        "s": filled,
        "d": defaultdict(int),
        "e": Colour.BLUE,
        "f": Frozen(2.0),
    }
    state |= {"p": Path("/b"), "t": frozenset([2]), "c": str, "a": np.array([2, None], object)}
    assert trusting.restore(into=state)
    assert state.pop("a").tolist() == want.pop("a").tolist()
    assert state == want
    assert kept == Opaque(2.0)
    # An object of attributes is filled where it is.
    assert state["s"] is filled
    # A plain value may have replaced the object meanwhile.
    trusting.save({"o": None, "s": None}, wait=True)
    state = {"o": kept, "s": filled}
    assert trusting.restore(into=state)
    assert state == {"o": None, "s": None}
    assert filled == Settings(1.0)


def test_a_state_dict_is_filled_where_its_arrays_are(job: outlive.Job) -> None:
    job.save({"model": Model(1.0).state_dict(), "step": 1}, wait=True)
    model = Model(2.0)
    state = {"model": model.state_dict(), "step": 0}
    assert job.restore(into=state)
    # The array is the model's. The rate is a copy, which the program has to take.
    assert (model.weights == 1).all()
    assert state["model"]["weights"] is model.weights
    assert (model.rate, state["model"]["groups"][0]["rate"], state["step"]) == (2.0, 1.0, 1)
    # A list or dict that the program holds is changed in place.
    groups = [{"rate": 2.0, "params": [0]}]
    assert job.restore(into={"model": {"weights": model.weights, "groups": groups}, "step": 0})
    assert groups == [{"rate": 1.0, "params": [0]}]
    values: list[int] = []
    job.save({"list": [1, 2]}, wait=True)
    assert job.restore(into={"list": values})
    assert values == [1, 2]


def test_parts_of_larger_arrays_are_filled(job: outlive.Job) -> None:
    job.save([np.arange(3.0), np.arange(4.0)], wait=True)
    layer, backing = np.zeros(3), np.zeros(8)
    assert job.restore(into=[layer, backing[::2]])
    assert backing.tolist() == [0, 0, 1, 0, 2, 0, 3, 0]
    assert layer.tolist() == [0, 1, 2]


def test_arrays_that_cannot_be_written_are_replaced(job: outlive.Job) -> None:
    job.save({"a": np.arange(3)}, wait=True)
    state = {"a": Constant(np.zeros(3, int))}
    assert job.restore(into=state)
    assert state["a"].values.tolist() == [0, 1, 2]
    job.save((np.arange(3),), wait=True)
    pair = (Constant(np.zeros(3, int)),)
    assert "'0' is an array that cannot be written" in refused(lambda: job.restore(into=pair))


def test_values_of_a_tuple_are_replaced_if_a_list_holds_it(job: outlive.Job) -> None:
    job.save([(1, 2), (3, [4])], wait=True)
    state = [(0, 0), (0, [0])]
    assert job.restore(into=state)
    assert state == [(1, 2), (3, [4])]
    job.save((1, [2]), wait=True)
    kept = [0]
    assert "'0' is a value, and nothing mutable holds it" in refused(
        lambda: job.restore(into=(0, kept))
    )
    assert kept == [0]


def with_attributes(made: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


@pytest.mark.parametrize(
    ("want", "held"),
    [
        (Bag({1}), Bag({2, 3})),
        (Slotted({1}), Slotted({2, 3})),
        (Table({"a": [1, 2]}), Table({"b": [3.0]})),
        (Column([1, 2], name="a"), Column([3.0])),
    ],
    ids=lambda made: type(made).__name__,
)
@pytest.mark.parametrize("attributes", [{}, {"kept": 1}])
def test_an_object_that_comes_whole_loses_attributes_that_the_checkpoint_lacks(
    job: outlive.Job, want: Any, held: Any, attributes: dict[str, Any]
) -> None:
    job.save({"x": with_attributes(type(want)(want), **attributes)}, wait=True)
    state = {"x": with_attributes(held, kept=2, more=[3])}
    assert job.restore(into=state)
    assert state["x"] is held
    assert not hasattr(held, "more")
    assert getattr(held, "kept", None) == attributes.get("kept")
    assert list(held) == list(want)
    if isinstance(held, pd.DataFrame | pd.Series):
        assert held.equals(want)
        assert held.index.tolist() == [0, 1]


@pytest.mark.parametrize("attributes", [{}, {"kept": 1}])
def test_attributes_of_an_object_with_entries_must_match(
    job: outlive.Job, attributes: dict[str, Any]
) -> None:
    job.save({"x": with_attributes(Box(a=1), **attributes)}, wait=True)
    held = with_attributes(Box(a=2), kept=2, more=3)
    assert "more" in refused(lambda: job.restore(into={"x": held}))
    assert (held, vars(held)) == (Box(a=2), {"kept": 2, "more": 3})
    del held.more
    if not attributes:
        del held.kept
    assert job.restore(into={"x": held})
    assert (held, vars(held)) == (Box(a=1), attributes)
