"""Objects in restores of checkpoints that differ from `into`, and parts of objects."""

import dataclasses
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import outlive

Same = Callable[[Any, Any], None]


@dataclasses.dataclass
class Model:
    weights: np.ndarray[Any, Any]
    rate: float = 0.1
    table: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)


class Pair(NamedTuple):
    first: np.ndarray[Any, Any]
    second: Any


def table(rows: int, factor: float = 1.0) -> pd.DataFrame:
    return pd.DataFrame({"a": np.arange(float(rows)) * factor, "b": ["x"] * rows})


def restored(job: outlive.Job, saved: Any, into: Any, **options: Any) -> outlive.Restored:
    job.save(saved, force=True, wait=True)
    return job.restore(into=into, **options)


def test_objects_that_only_one_side_has(job: outlive.Job, same: Same) -> None:
    saved = {
        "model": Model(np.arange(3.0), 0.5, table(4)),
        "old": table(70),
        "gone": {1, 2},
        "pair": Pair(np.ones(2), 5),
    }
    into = {
        "pair": Pair(np.zeros(2), 0),
        "new": table(3, 7.0),
        "fresh": Pair(np.full(2, 3.0), {"x"}),
        "model": Model(np.zeros(3)),
        "count": Counter("aab"),
        "last": deque([1], maxlen=3),
    }
    model, weights, new = into["model"], into["model"].weights, into["new"]
    for _ in range(2):
        report = restored(job, saved, into, strict=False)
        assert report.missing == ("new", "fresh/first", "fresh/second", "count", "last")
        assert report.left_over == ("old", "gone")
        assert into["model"] is model
        assert model.weights is weights
        assert into["new"] is new
        same(weights, np.arange(3.0))
        assert model.rate == 0.5
        pd.testing.assert_frame_equal(model.table, table(4))
        pd.testing.assert_frame_equal(new, table(3, 7.0))
        same(into["pair"], Pair(np.ones(2), 5))
        same(into["fresh"], Pair(np.full(2, 3.0), {"x"}))
        same(into["count"], Counter("aab"))
        same(into["last"], deque([1], maxlen=3))
        weights.fill(9)
    # A strict restore names the objects, and changes nothing.
    with pytest.raises(outlive.InvalidError) as caught:
        job.restore(into=into)
    assert "'old' is missing from `into`" in caught.value.differences
    assert "'new' is not in the checkpoint" in caught.value.differences
    assert (weights == 9).all()


def test_fields_that_only_one_side_has(job: outlive.Job) -> None:
    old = dataclasses.make_dataclass("Config", [("rate", float), ("gone", int)])
    new = dataclasses.make_dataclass("Config", [("rate", float), ("steps", int)])
    old.__module__ = new.__module__ = __name__
    into = {"config": new(0.5, 7)}
    config = into["config"]
    report = restored(job, {"config": old(0.25, 3)}, into, strict=False)
    assert (report.missing, report.left_over) == (("config/steps",), ("config/gone",))
    assert into["config"] is config
    assert (config.rate, config.steps) == (0.25, 7)


def test_objects_under_other_names(job: outlive.Job, same: Same) -> None:
    saved = {
        "net": {"model": Model(np.arange(3.0), 0.5, table(4)), "seen": {3, 4}},
        "log": table(80),
        "pair": Pair(np.ones(2), deque([np.arange(2)])),
    }
    into = {
        "nets": [Model(np.zeros(3))],
        "seen": set[int](),
        "history": table(2),
        "both": Pair(np.zeros(2), deque[Any]()),
    }
    weights, seen, history = into["nets"][0].weights, into["seen"], into["history"]
    rename = {
        "net/model/weights": "nets/0/weights",
        "net/model": "nets/0",
        "net/seen": "seen",
        "log": "history",
        "pair": "both",
    }
    report = restored(job, saved, into, rename=rename)
    assert (report.missing, report.left_over) == ((), ())
    assert into["nets"][0].weights is weights
    same(weights, np.arange(3.0))
    assert into["seen"] is seen == {3, 4}
    assert into["history"] is history
    pd.testing.assert_frame_equal(history, table(80))
    pd.testing.assert_frame_equal(into["nets"][0].table, table(4))
    same(into["both"], Pair(np.ones(2), deque([np.arange(2)])))
    # The next checkpoint has the new names, and the rules stay.
    into["seen"] = {5}
    report = restored(job, into, into, rename=rename)
    assert into["seen"] == {5}


def test_a_rule_does_not_reach_into_an_object_that_comes_whole(job: outlive.Job) -> None:
    into = {"frames": {"log": table(1)}}
    restored(job, {"frame": {"log": table(80)}}, into, rename={"*frame*": "*frames*"})
    pd.testing.assert_frame_equal(into["frames"]["log"], table(80))


def test_the_whole_state_may_be_an_object(job: outlive.Job, same: Same) -> None:
    into = Model(np.zeros(3), 0.0, table(2))
    report = restored(
        job, {"weights": np.ones(3), "rate": 0.5}, {"weights": np.zeros(3)}, strict=False
    )
    assert report.left_over == ("rate",)
    report = restored(job, Model(np.arange(3.0), 0.5, table(4)), into, strict=False)
    assert (report.missing, report.left_over) == ((), ())
    same(into.weights, np.arange(3.0))
    pd.testing.assert_frame_equal(into.table, table(4))
    frame = table(2)
    restored(job, table(80), frame, strict=False)
    pd.testing.assert_frame_equal(frame, table(80))


def test_arrays_in_objects_that_grow(job: outlive.Job, same: Same) -> None:
    saved = {"m": Model(np.ones((2, 3))), "p": Pair(np.ones(2, "f4"), 1), "s": {(1, 2)}}
    into = {"m": Model(np.zeros((4, 3))), "p": Pair(np.zeros(5, "f4"), 0), "s": set[Any]()}
    weights, first = into["m"].weights, into["p"].first
    report = restored(job, saved, into, shapes="grow")
    assert report.partly == ("m/weights", "p/first")
    assert into["m"].weights is weights
    assert into["p"].first is first
    same(weights, np.concatenate([np.ones((2, 3)), np.zeros((2, 3))]))
    same(first, np.array([1, 1, 0, 0, 0], "f4"))
    assert into["s"] == {(1, 2)}
    with pytest.raises(outlive.InvalidError, match="'m/weights' has shape"):
        job.restore(into=into)


def test_lists_of_objects_of_another_length(job: outlive.Job, same: Same) -> None:
    point = dataclasses.make_dataclass("Point", [("x", int)])
    point.__module__ = __name__
    saved = {
        "points": [point(n) for n in range(5)],
        "sets": [{n} for n in range(5)],
        "w": np.ones(1),
    }
    into = {"points": [point(9)], "sets": [{7}, {8}], "w": np.zeros(1), "more": 1}
    report = restored(job, saved, into, strict=False)
    assert report.missing == ("more",)
    assert report.left_over == ()
    assert [each.x for each in into["points"]] == list(range(5))
    same(into["sets"], [{n} for n in range(5)])


def test_another_thing_stays_in_the_place_of_a_part_that_is_not_selected(
    job: outlive.Job, same: Same
) -> None:
    saved = {"a": {"x": 1, "w": np.ones(2)}, "l": [np.ones(1), 2], "t": (np.ones(1), {1}), "b": 1}
    for other in (None, 5, "text", [1], (2,), {"k": 3}, np.zeros(3), {4}, Pair(np.ones(1), 2)):
        into = {"a": other, "l": other, "t": other, "b": 0}
        restored(job, saved, into, only="b")
        assert into.pop("b") == 1
        assert all(each is other for each in into.values())


@pytest.mark.parametrize("options", [{}, {"strict": False}])
def test_parts_of_objects(job: outlive.Job, same: Same, options: dict[str, Any]) -> None:
    saved = {"m": Model(np.ones(3), 0.5, table(70)), "p": Pair(np.ones(2), {"k": [1, 2]}), "n": 1}
    into = {"m": Model(np.zeros(3), 0.0, table(2)), "p": Pair(np.zeros(2), {"k": [0]}), "n": 0}
    restored(job, saved, into, only=["m/rate", "p/second/k"], **options)
    assert into["m"].rate == 0.5
    same(into["p"], Pair(np.zeros(2), {"k": [1, 2]}))
    assert into["n"] == 0
    same(into["m"].weights, np.zeros(3))
    pd.testing.assert_frame_equal(into["m"].table, table(2))
    job.restore(into=into, only="m/table", **options)
    pd.testing.assert_frame_equal(into["m"].table, table(70))
    same(into["m"].weights, np.zeros(3))
    if not options:
        same(job.restore(only="m/weights"), {"m": {"weights": np.ones(3)}})
        same(job.restore(only="m/weights", as_plain=True), {"m": {"weights": np.ones(3)}})
