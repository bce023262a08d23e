"""A restore into a state fills objects that the program holds, or is refused: it is never lost."""

import dataclasses
import enum
import functools
import operator
import pickle
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive
from outlive import _seen

# From Python 3.14 on, reference counts of arguments show nothing.
needs_counts = pytest.mark.skipif(
    _seen.is_referenced(_seen._TEMPORARY),
    reason="this Python does not tell whether a call holds alone",
)


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


@dataclasses.dataclass
class Tags:
    tags: set[int]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tags) and self.tags == other.tags


class OtherTags(Tags):
    pass


@dataclasses.dataclass(frozen=True)
class Frozen:
    rate: float


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


def test_objects_that_the_program_holds_elsewhere(trusting: outlive.Job) -> None:
    trusting.save({"o": Settings(1.0), "d": defaultdict(int, a=1), "n": 1}, wait=True)
    kept = Settings(2.0)
    state: dict[str, Any] = {"o": kept, "d": defaultdict(int), "n": 0}
    text = refused(lambda: trusting.restore(into=state))
    assert "'o' is an object" in text
    assert "'d'" not in text
    assert state == {"o": kept, "d": {}, "n": 0}
    # An object that only the state holds is replaced in it.
    state["o"] = Settings(3.0)
    assert trusting.restore(into=state)
    assert state == {"o": Settings(1.0), "d": {"a": 1}, "n": 1}
    # A plain value may have replaced the object meanwhile.
    trusting.save({"o": None, "d": 1, "n": 1}, wait=True)
    state["o"] = kept
    assert "'o' is an object" in refused(lambda: trusting.restore(into=state))


def test_objects_that_are_the_same_stay(trusting: outlive.Job) -> None:
    kept, other = Settings(1.0), Settings(5.0)
    state = {"o": kept, "p": other, "a": np.arange(50_000), "n": 1}
    trusting.save(state, wait=True)
    state["n"] = 0
    state["a"] = np.zeros_like(state["a"])
    assert trusting.restore(into=state)
    assert state["o"] is kept
    assert state["n"] == 1
    assert state["a"][-1] == 49_999
    other.rate = 6.0
    state["a"][:] = 0
    text = refused(lambda: trusting.restore(into=state))
    assert "'p' is an object" in text
    assert "'o'" not in text
    assert not state["a"].any()
    # A damaged checkpoint leads to the older one, whose object is compared, too.
    trusting.save(state, wait=True)
    state["a"] = np.random.default_rng(1).integers(0, 2**62, 50_000)
    trusting.save(state, wait=True)
    packs = list(Path(trusting._location).joinpath("packs").rglob("*.shard"))
    newest = max(packs, key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(newest.read_bytes())
    data[60_000] ^= 1
    newest.write_bytes(data)
    again = outlive.open(trusting._location).job("a", allow_pickle=True)
    report = again.restore(into=state)
    assert report.epoch == 2
    assert len(report.skipped) == 1
    assert state["p"] is other


def test_objects_that_are_the_same_but_for_their_bytes_stay(trusting: outlive.Job) -> None:
    """Their pickles may differ: those of a set change with the hashes of strings, at each start."""
    saved, kept = Tags({0, 8}), Tags({8, 0})
    assert saved == kept
    assert pickle.dumps(saved, protocol=5) != pickle.dumps(kept, protocol=5)
    trusting.save({"o": saved, "n": 1}, wait=True)
    state = {"o": kept, "n": 0}
    assert trusting.restore(into=state)
    assert (state["o"] is kept, state["n"]) == (True, 1)
    # An object of another type differs, and so does one that cannot be compared.
    other, array = OtherTags({0, 8}), Settings(np.zeros(2))  # type: ignore[arg-type]
    trusting.save({"o": other, "p": array}, wait=True)
    wrong: dict[str, Any] = {"o": kept, "p": Settings(np.ones(2))}  # type: ignore[arg-type]
    held = list(wrong.values())
    text = refused(lambda: trusting.restore(into=wrong))
    assert "'o' is an object" in text
    assert "'p' is an object" in text
    assert list(wrong.values()) == held


class Named(set[str]):
    """A set with an attribute."""

    def __init__(self, names: Iterable[str] = (), note: str = "") -> None:
        super().__init__(names)
        self.note = note


@dataclasses.dataclass
class Cached:
    rate: float
    uses: int = dataclasses.field(default=0, compare=False)


EQUAL: dict[str, tuple[Any, Any]] = {
    "floats": (deque([0.0], maxlen=5), deque([-0.0], maxlen=5)),
    "complex numbers": (deque([0j]), deque([complex(0, -0.0)])),
    "elements": ({1}, {True}),
    "elements of sets in sets": (deque([{(0.0,), "a"}]), deque([{(-0.0,), "a"}])),
    "counts of none": (Counter(a=0), Counter()),
    "fields that are not compared": (Cached(1.0, 1), Cached(1.0, 2)),
    "factories": (defaultdict(int), defaultdict(list)),
    "order": (defaultdict(int, a=1, b=2), defaultdict(int, b=2, a=1)),
    "limits": (deque([1], maxlen=5), deque([1])),
    "attributes": (Named("ab", "x"), Named("ab", "y")),
    "what is one object, or two": (deque([[], []]), deque([[]] * 2)),
    "types of numbers": (deque([1]), deque([1.0])),
}


@pytest.mark.parametrize("what", EQUAL)
def test_objects_that_are_equal_but_differ_are_refused(trusting: outlive.Job, what: str) -> None:
    for saved, kept in (EQUAL[what], EQUAL[what][::-1]):
        assert saved == kept
        trusting.save({"o": saved, "n": 1}, wait=True)
        state = {"o": kept, "n": 0}
        assert "'o' is an object" in refused(functools.partial(trusting.restore, into=state))
        assert (state["o"] is kept, state["n"]) == (True, 0)


def things() -> list[Any]:
    """Returns objects that are the same each time, except for the order of sets."""
    words = [f"word {number}" for number in range(200)]
    circle: deque[Any] = deque(["a", {1.5: [None]}])
    circle.append(circle)
    shared = [float("nan"), -0.0, 1j, b"b", bytearray(b"c"), 2**70]
    return [
        circle,
        deque([shared, shared, tuple(shared)]),
        Named(words, "x"),
        Tags({(word, frozenset([word, 1])) for word in words}),  # type: ignore[misc]
        {Frozen(float(number)) for number in range(50)},
        # Objects whose hash is their address.
        {Tensor([float(number)]) for number in range(20)},
        defaultdict(list, a=[Colour.RED, Path("/a"), int, len]),
        Settings(np.arange(6).reshape(2, 3)),  # type: ignore[arg-type]
        Settings(np.float32(1.5)),  # type: ignore[arg-type]
        deque([random.Random(7)]),
    ]


def test_objects_that_are_the_same_after_a_restart_stay(
    trusting: outlive.Job, folder: Path, run: Callable[..., str]
) -> None:
    """Hashes of strings differ in another process, and so the order of sets."""
    out = run(
        """
        import importlib
        sys.path.insert(0, sys.argv[2])
        state = dict(enumerate(importlib.import_module(sys.argv[4]).things()))
        outlive.open(sys.argv[1]).job("a", allow_pickle=True).save(state, wait=True)
        print(hash("a") == int(sys.argv[3]))
        """,
        folder,
        Path(__file__).parents[__name__.count(".")],
        hash("a"),
        __name__,
    )
    assert out == "False"
    kept = things()
    state = dict(enumerate(kept))
    assert trusting.restore(into=state)
    assert all(map(operator.is_, state.values(), kept))


def test_objects_that_are_values_are_replaced(trusting: outlive.Job) -> None:
    want = {"e": Colour.RED, "f": Frozen(1.0), "p": Path("/a"), "t": frozenset([1]), "c": int}
    trusting.save(want, wait=True)
    kept = [Colour.BLUE, Frozen(2.0), Path("/b"), frozenset([2]), str]
    state = dict(zip(want, kept, strict=True))
    assert trusting.restore(into=state)
    assert state == want


def test_arrays_of_objects(trusting: outlive.Job) -> None:
    trusting.save({"a": np.array([1, None], object)}, wait=True)
    kept = np.array([2, None], object)
    assert "'a' is an array" in refused(lambda: trusting.restore(into={"a": kept}))
    state = {"a": kept.copy()}
    assert trusting.restore(into=state)
    assert state["a"].tolist() == [1, None]


@needs_counts
def test_values_in_a_dict_that_nobody_holds(job: outlive.Job) -> None:
    job.save({"model": Model(1.0).state_dict(), "step": 1}, wait=True)
    model = Model(2.0)
    text = refused(lambda: job.restore(into={"model": model.state_dict(), "step": 0}))
    for name in ("model/groups/0/rate", "model/groups/0/params/0", "step"):
        assert f"'{name}' would change only in objects that nothing but `into` holds" in text
    assert "'model/weights'" not in text
    assert (model.weights == 2).all()
    assert job.restore(into={"model": model.state_dict(), "step": 0}, only="model/weights")
    assert (model.weights == 1).all()
    job.save({"list": [1, 2]}, wait=True)
    assert "'list' would change only" in refused(lambda: job.restore(into={"list": []}))
    job.save({"model": Model(1.0).state_dict(), "step": 1}, wait=True)
    # A holder of a part sees the change.
    groups = [{"rate": 2.0, "params": [0]}]
    part = {"weights": model.weights, "groups": groups}
    assert job.restore(into={"model": part, "step": 0}, only="model")
    assert groups[0]["rate"] == 1.0
    groups[0]["rate"] = 2.0
    into = {"model": {"weights": model.weights, "groups": groups}, "step": 0}
    assert job.restore(into=into)
    assert (groups[0]["rate"], into["step"]) == (1.0, 1)
    groups[0]["rate"] = 2.0
    assert functools.partial(job.restore, into={"model": part, "step": 0})()
    assert groups[0]["rate"] == 1.0


@needs_counts
def test_arrays_that_nobody_holds(job: outlive.Job) -> None:
    job.save([np.arange(3.0), np.arange(4.0)], wait=True)
    layer = np.zeros(3)
    text = refused(lambda: job.restore(into=[layer, np.zeros(4)]))
    assert "'1' would change only" in text
    assert "'0'" not in text
    backing = np.zeros(8)
    assert job.restore(into=[layer, backing[::2]])
    assert backing.tolist() == [0, 0, 1, 0, 2, 0, 3, 0]
    assert layer.tolist() == [0, 1, 2]
    weights = [np.zeros(3), np.zeros(4)]
    assert job.restore(into=weights)
    assert weights[1].tolist() == [0, 1, 2, 3]


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


@needs_counts
def test_arrays_that_cannot_be_written_are_replaced_where_somebody_sees(job: outlive.Job) -> None:
    job.save({"a": np.arange(3)}, wait=True)
    state = {"a": Constant(np.zeros(3, int))}
    assert job.restore(into=state)
    assert state["a"].values.tolist() == [0, 1, 2]
    assert "'a' would change only" in refused(
        lambda: job.restore(into={"a": Constant(np.zeros(3, int))})
    )
    job.save((np.arange(3),), wait=True)
    pair = (Constant(np.zeros(3, int)),)
    assert "'0' is an array that cannot be written" in refused(lambda: job.restore(into=pair))


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
