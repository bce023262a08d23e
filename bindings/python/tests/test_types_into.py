"""Objects of many classes in `into`: which are filled where they are, and which are replaced."""

import collections
import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest

import outlive

Same = Callable[[Any, Any], None]

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Config:
    rate: float
    weights: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    rate: float
    weights: Any


@attrs.define
class Defined:
    rate: float
    weights: Any


@attrs.frozen
class Solid:
    rate: float
    weights: Any


class Settings(dict):  # type: ignore[type-arg]
    pass


class Vector(list):  # type: ignore[type-arg]
    pass


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def settings(rate: float, weights: Any) -> Any:
    made = Settings(weights=weights)
    made.rate = rate
    return made


def vector(rate: float, weights: Any) -> Any:
    made = Vector([weights])
    made.rate = rate
    return made


def namespace(rate: float, weights: Any) -> Any:
    return types.SimpleNamespace(rate=rate, weights=weights)


def deque(rate: float, weights: Any) -> Any:
    return collections.deque([rate, weights], maxlen=9)


def default(rate: float, weights: Any) -> Any:
    return collections.defaultdict(list, rate=rate, weights=weights)


def masked(rate: float, weights: Any) -> Any:
    return np.ma.masked_array(weights, weights == rate, fill_value=rate)


MUTABLE = [Config, Defined, settings, vector, namespace, deque, default, masked]
FIXED = [Point, Frozen, Solid]


@pytest.mark.parametrize("make", MUTABLE)
@pytest.mark.parametrize("size", [3, 100_000])
def test_what_can_change_is_filled_where_it_is(
    job: outlive.Job, same: Same, make: Callable[..., Any], size: int
) -> None:
    want = {"o": make(0.5, np.arange(float(size))), "in": (make(1.5, np.ones(size)),)}
    job.save(want, wait=True)
    arrays = [np.zeros(size), np.zeros(size)]
    held = [make(9.0, arrays[0]), make(9.0, arrays[1])]
    into = {"o": held[0], "in": (held[1],)}
    inner = into["in"]
    for _ in range(2):
        assert job.restore(into=into)
        same(into, want)
        assert (into["o"], into["in"], into["in"][0]) == (held[0], inner, held[1]) or (
            into["o"] is held[0] and into["in"] is inner and into["in"][0] is held[1]
        )
        # The program sees the new content wherever it holds the array.
        assert (arrays[0] == np.arange(size)).all()
        assert (arrays[1] == 1).all()
        arrays[0][:] = 7
        job.save(into, wait=True)
        job.prune(drop=[-1])
    # The object may be the state itself.
    job.save(want["o"], wait=True)
    if make is not masked:
        assert job.restore(into=held[0])
        same(held[0], want["o"])


@pytest.mark.parametrize("make", FIXED)
def test_what_cannot_change_is_replaced_with_its_arrays(
    job: outlive.Job, same: Same, make: Callable[..., Any]
) -> None:
    want = {"o": make(0.5, np.arange(3.0)), "in": [(make(1.5, np.ones(3)),)]}
    job.save(want, wait=True)
    array = np.zeros(3)
    held = make(9.0, array)
    into = {"o": held, "in": [(make(9.0, np.zeros(3)),)]}
    assert job.restore(into=into)
    same(into, want)
    assert into["o"] is not held
    assert into["o"].weights is array if make is not Point else into["o"].y is array
    # Without a holder nothing can take its values, but an array can be filled.
    job.save(want["o"], wait=True)
    with pytest.raises(outlive.InvalidError, match="nothing mutable holds it"):
        job.restore(into=held)
    assert array.tolist() == [0, 1, 2]
    job.save({"o": Point(np.ones(3), [1])}, wait=True)
    point = Point(np.zeros(3), [0])
    into = {"o": point}
    assert job.restore(into=into)
    assert into["o"] is point
    assert (point.x.tolist(), point.y) == ([1, 1, 1], [1])


def test_a_whole_object_may_have_other_parts(job: outlive.Job, same: Same) -> None:
    want: dict[str, Any] = {
        "set": {1, "a", (2,)},
        "counter": collections.Counter("abcab"),
        "deque": collections.deque([np.ones(3), np.ones(4)], maxlen=5),
        "default": collections.defaultdict(list, a=[1], b=np.ones(2)),
        "objects": np.array([1, None, "x"], object),
        "masked": np.ma.masked_array(np.arange(5), np.arange(5) > 3),
        "strings": np.array(["a", "b"], np.dtypes.StringDType()),
    }
    job.save(want, wait=True)
    fine = np.zeros(3)
    into: dict[str, Any] = {
        "set": set(),
        "counter": collections.Counter(z=1),
        "deque": collections.deque([fine], maxlen=5),
        "default": collections.defaultdict(list, c=[1], b=[]),
        "objects": np.array([None], object),
        "masked": np.ma.masked_array(np.arange(3.0)),
        "strings": np.array(["long"] * 5, np.dtypes.StringDType()),
    }
    held = dict(into)
    assert job.restore(into=into)
    same(into, want)
    for name in ("set", "counter", "deque", "default"):
        assert into[name] is held[name]
    # An array that fits is filled where it is.
    assert into["deque"][0] is fine
    # A deque of another length cannot be filled.
    into["deque"] = held["deque"] = collections.deque(maxlen=1)
    assert job.restore(into=into)
    assert into["deque"] is not held["deque"]
    same(into, want)


def test_arrays_that_share_memory_with_a_whole_object(job: outlive.Job, same: Same) -> None:
    want = {"a": np.arange(4.0), "q": collections.deque([np.ones(4), np.zeros(2)])}
    job.save(want, wait=True)
    one = np.full(4, 9.0)
    into = {"a": one, "q": collections.deque([one, one[:2]])}
    assert job.restore(into=into)
    assert into["a"] is one
    same(into, want)


def test_a_value_takes_the_place_of_an_object_and_back(job: outlive.Job, same: Same) -> None:
    for saved, mine in [
        ({"o": Config(0.5, np.ones(2))}, {"o": None}),
        ({"o": None}, {"o": Config(0.5, np.ones(2))}),
        ({"o": [Config(0.5, 1), 2]}, {"o": [1, Config(0.25, 1)]}),
        ({"o": {1}}, {"o": Point(1, np.ones(2))}),
        ({"o": Colour.RED}, {"o": Frozen(1, 2)}),
        ({"o": (Config(0.5, 1),)}, {"o": (1.0,)}),
    ]:
        job.save(saved, wait=True)
        assert job.restore(into=mine)
        same(mine, saved)


def test_lists_of_objects_without_arrays_take_another_length(job: outlive.Job, same: Same) -> None:
    history = [Config(0.5, at) for at in range(5)]
    for saved, mine in [
        (history, []),
        (history, history[:2]),
        (history[:1], [None, *history]),
        ([Point(1, {2}), Colour.RED, {3}], [1]),
    ]:
        job.save({"l": saved, "n": 1}, wait=True)
        into: dict[str, Any] = {"l": list(mine), "n": 0}
        held = into["l"]
        assert job.restore(into=into)
        assert into["l"] is held
        same(into, {"l": saved, "n": 1})
    job.save({"l": [Config(0.5, np.ones(3))]}, wait=True)
    with pytest.raises(outlive.InvalidError, match="'l' is empty in `into`"):
        job.restore(into={"l": []})


def test_differences_are_named_and_nothing_touched(job: outlive.Job) -> None:
    job.save({"c": Config(0.5, np.ones(3)), "s": {1}, "w": np.ones(2)}, wait=True)
    weights = np.zeros(2)
    for into, told in [
        (
            {"c": Frozen(9.0, np.zeros(3))},
            "'c' is a dataclass .*Frozen in `into`, a dataclass .*Co",
        ),
        (
            {"c": {"rate": 1, "weights": np.zeros(3)}},
            "'c' is a dict in `into`, a dataclass .*Config",
        ),
        ({"c": Config(9.0, np.zeros(4))}, r"'c/weights' has shape \(4,\) in `into`, \(3,\)"),
        ({"c": Config(9.0, [])}, r"'c/weights' is empty in `into`|missing"),
        ({"s": np.zeros(2)}, "'s' is an array in `into`, an object in the checkpoint"),
        ({"s": {"a": 1}}, "'s/a' is not in the checkpoint"),
        ({"w": {1}}, "'w' is an object in `into`, an array in the checkpoint"),
    ]:
        state = {"c": Config(9.0, np.zeros(3)), "s": set(), "w": weights} | into
        with pytest.raises(outlive.InvalidError, match=told) as caught:
            job.restore(into=state)
        assert "nothing was changed" in str(caught.value)
        assert not caught.value.into_changed
        assert not weights.any()


def test_keys_of_another_type_are_told(job: outlive.Job) -> None:
    job.save({1.5: np.ones(2), Colour.RED: 2}, wait=True)
    for into in ({"1.5": np.zeros(2), Colour.RED: 0}, {1.5: np.zeros(2), "Colour.RED": 0}):
        with pytest.raises(outlive.InvalidError, match="keys that are of one type in `into`"):
            job.restore(into=into)
    mine = {1.5: np.zeros(2), Colour.RED: 0}
    assert job.restore(into=mine)
    assert (mine[1.5].tolist(), mine[Colour.RED]) == ([1, 1], 2)


def test_a_part_of_an_object(job: outlive.Job, same: Same) -> None:
    state = {
        "c": Config(0.5, np.ones(3)),
        "p": Point([1, {"a": 2}], 3),
        "s": {1, 2},
        "d": collections.defaultdict(list, a=[1]),
        "v": vector(0.5, np.ones(3)),
    }
    job.save(state, wait=True)
    # A new tree has the part alone, and an object only if all of it is chosen.
    same(job.restore(only="c/rate"), {"c": {"rate": 0.5}})
    same(job.restore(only="p/x/1"), {"p": {"x": [None, {"a": 2}]}})
    same(job.restore(only=["c/*", "p"]), {"c": state["c"], "p": state["p"]})
    same(job.restore(only="v/attributes"), {"v": {"attributes": {"rate": 0.5}}})
    # One that is replaced as a whole comes as a whole.
    same(job.restore(only="d"), {"d": state["d"]})
    with pytest.raises(outlive.InvalidError, match="'d/a' selects nothing"):
        job.restore(only="d/a")
    same(job.restore(only="d/a", as_plain=True), {"d": {"a": [1]}})
    same(job.restore(only="s*"), {"s": {1, 2}})
    into: dict[str, Any] = {"c": Config(9.0, np.zeros(3)), "p": Point([0, {"a": 0}], 9), "s": {7}}
    held = dict(into)
    assert job.restore(into=into, only=["c/weights", "p/x/1/a"])
    same(into, {"c": Config(9.0, np.ones(3)), "p": Point([0, {"a": 2}], 9), "s": {7}})
    assert into["c"] is held["c"]
    assert into["p"] is held["p"]
    assert job.restore(into=into, only="p/y")
    same(into["p"], Point([0, {"a": 2}], 3))
    # The next save has all of it.
    job.save(into, wait=True)
    same(job.restore(), into)


def test_a_lazy_restore(job: outlive.Job, same: Same) -> None:
    want = {"c": Config(0.5, np.ones(100_000)), "m": masked(1.0, np.arange(100_000.0)), "s": {1}}
    job.save(want, wait=True)
    tree = job.restore(lazy=True)
    same(tree, want)
    into = {"c": Config(9.0, np.zeros(100_000)), "m": masked(2.0, np.zeros(100_000)), "s": {3}}
    weights = into["c"].weights  # type: ignore[attr-defined]
    job.restore(into=into, lazy=True).wait()
    same(into, want)
    assert into["c"].weights is weights  # type: ignore[attr-defined]


def test_a_group_of_ranks(folder: Any, same: Same) -> None:
    job = outlive.open(folder).job("a", group=outlive.ranks(0, 1, run="one"))
    large = np.arange(50_000.0)
    want = {
        "c": Config(0.5, outlive.sharded(large, large.shape, (0,))),
        "s": set(range(500)),
        "k": {1.5: 2, Colour.RED: [1] * 100},
        "o": np.array([1, "x"], object),
        "d": collections.defaultdict(list, a=list(range(500))),
    }
    job.save(want, wait=True)
    want["c"] = Config(0.5, large)
    same(job.restore(), want)
    into: dict[str, Any] = {
        "c": Config(9.0, np.zeros(50_000)),
        "s": set(),
        "k": {1.5: 0, Colour.RED: []},
        "o": None,
        "d": collections.defaultdict(list),
    }
    assert job.restore(into=into)
    same(into, want)
    job.close()
    # One process takes it as well.
    same(outlive.open(folder).job("a").restore(), want)


class Mesh:
    """A class that the program registers."""

    def __init__(self, points: Any, name: str) -> None:
        self.points, self.name = points, name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and (self.name, self.points.tolist()) == (
            other.name,
            other.points.tolist(),
        )

    __hash__ = None  # type: ignore[assignment]


def register(fill: Any = None) -> None:
    outlive.register(
        Mesh,
        lambda mesh: {"points": mesh.points, "name": mesh.name},
        lambda tree: Mesh(tree["points"], tree["name"]),
        fill=fill,
    )


def test_a_registered_class(job: outlive.Job) -> None:
    register()
    mesh = Mesh(np.arange(100_000.0), "a")
    job.save({"m": mesh, "l": [mesh]}, wait=True)
    assert job.restore()["l"] == [mesh]
    assert job.restore(as_plain=True)["m"]["name"] == "a"
    points = np.zeros(100_000)
    held = Mesh(points, "b")
    into = {"m": held, "l": [None]}
    assert job.restore(into=into)
    assert into == {"m": mesh, "l": [mesh]}
    # The object is another one, with the array that the program holds.
    assert into["m"] is not held
    assert into["m"].points is points
    # Only changes are written.
    points[0] = 5
    save = job.save(into, force=True)
    save.wait()
    assert (save.changed_bytes or 0) < 20_000

    def fill(mesh: Mesh, tree: Any) -> None:
        mesh.points, mesh.name = tree["points"], tree["name"]

    register(fill)
    into["m"] = held
    held.name = "c"
    assert job.restore(into=into)
    assert into["m"] is held
    assert held.name == "a"
    # Objects of another size are filled, too.
    small = Mesh(np.zeros(2), "d")
    assert job.restore(into={"m": small, "l": [small]})
    assert small.points.size == 100_000


def test_functions_of_a_registered_class_may_fail(job: outlive.Job) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("no")

    register()
    job.save({"m": Mesh(np.ones(2), "a")}, wait=True)
    outlive.register(Mesh, fail, fail)
    with pytest.raises(outlive.InvalidError, match=r"'m' is of type .*Mesh, .*ZeroDivisionError"):
        job.save({"m": Mesh(np.ones(2), "a")})
    with pytest.raises(outlive.InvalidError, match=r"'m' of checkpoint 1 cannot be.*ZeroDivision"):
        job.restore()
    assert job.restore(as_plain=True)["m"]["name"] == "a"
    register(fail)
    with pytest.raises(outlive.InvalidError, match=r"ZeroDivisionError.*restore again") as caught:
        job.restore(into={"m": Mesh(np.zeros(2), "a")})
    assert caught.value.into_changed


def test_a_registered_class_of_other_objects(job: outlive.Job, same: Same) -> None:
    outlive.register(Mesh, lambda mesh: Point(mesh.points, {mesh.name}), lambda tree: tree)
    job.save({"m": Mesh(Config(1, 2), "a")}, wait=True)
    same(job.restore(), {"m": Point(Config(1, 2), {"a"})})
    outlive.register(Mesh, lambda mesh: mesh, lambda tree: tree)
    with pytest.raises(outlive.InvalidError, match="'m' contains itself"):
        job.save({"m": Mesh(1, "a")})
    outlive.register(Mesh, lambda mesh: mesh.points, lambda tree: Mesh(tree, "x"))
    for points in (np.arange(3), 5, None, [1] * 100):
        job.save({"m": Mesh(points, "x"), "a": 1}, wait=True)
        same(job.restore()["m"].points, points)
        into = {"m": Mesh(None, "x"), "a": 0}
        assert job.restore(into=into)
        same(into["m"].points, points)  # type: ignore[attr-defined]
