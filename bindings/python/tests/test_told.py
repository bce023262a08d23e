"""Warnings and errors for a program that would otherwise silently lose data."""

import collections
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    caplog.clear()
    return records


def test_a_metric_that_is_nan_is_never_the_best(
    job: outlive.Job, caplog: pytest.LogCaptureFixture
) -> None:
    state = {"a": np.zeros(10)}
    for loss in (math.nan, 0.5, math.inf, 0.1, np.float32("nan"), -math.inf, 0.9):
        state["a"] += 1
        job.save(state, force=True, wait=True, metrics={"loss": float(loss), "n": 1})
    said = warnings(caplog)
    assert len(said) == 2
    assert all("'loss' is NaN" in text for text in said)
    figures = {epoch.epoch: dict(epoch.metrics) for epoch in job.epochs()}
    assert figures[1] == figures[5] == {"n": 1}
    kept = job.prune(keep_best=["loss:min", "loss:max"]).kept
    assert set(kept) == {3, 6, 7}


FORGETS = """
import outlive, sys
job = outlive.open(sys.argv[1]).job("j")
{before}
for step in range(3):
    job.save({{"step": step}}, force=True, wait=True)
again = outlive.open(sys.argv[1]).job("j")
again.save({{"step": 9}}, force=True, wait=True)
"""


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("", 1),
        ("job.restore()", 0),
        ("job.restore(into={'step': 0}) if False else job.restore(epoch=2)", 0),
        ("job.take_over()", 0),
        ("job.prune(everything=True)", 0),
        ("outlive.open(sys.argv[1]).job('j').restore()", 0),
    ],
)
def test_a_forgotten_restore_is_said_once(
    folder: Path, run: Callable[..., str], before: str, told: int
) -> None:
    job = outlive.open(folder).job("j")
    for step in (1000, 2000):
        job.save({"step": step}, force=True, wait=True)
    job.close()
    heard = "import logging, sys\nsys.stderr = sys.stdout\nlogging.basicConfig()\n"
    said = run(heard + FORGETS.format(before=before), folder)
    assert said.count("job.restore` forgotten?") == told, said


def test_a_job_that_begins_has_nothing_to_restore(
    job: outlive.Job, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        job.save({"a": 1}, force=True, wait=True)
    outlive.open(folder / ".").job(job.name).save({"a": 1}, force=True, wait=True)
    assert warnings(caplog) == []


@pytest.mark.parametrize("lazy", [False, True])
def test_arrays_that_share_memory_are_restored_if_the_data_fits_all(
    job: outlive.Job, lazy: bool
) -> None:
    w = np.arange(200_000.0)
    job.save({"emb": w, "head": w, "view": w[1000:2000]}, force=True, wait=True)
    z = np.zeros(200_000)
    job.restore(into={"emb": z, "head": z, "view": z[1000:2000]}, lazy=lazy)
    assert (z == w).all()
    job.save({"emb": w, "head": w + 1, "view": w[1000:2000]}, force=True, wait=True)
    with pytest.raises(outlive.InvalidError, match=r"others such as .* share memory") as caught:
        job.restore(into={"emb": z, "head": z, "view": z[1000:2000]}, lazy=lazy)
    assert caught.value.into_changed
    job.restore(into={"emb": z, "head": z, "view": z[1000:2000]}, only=["emb", "view"])
    assert (z == w).all()
    y = np.zeros((4, 6))
    job.save({"a": np.ones((4, 3)), "b": np.full((4, 3), 2.0)}, force=True, wait=True)
    x = np.zeros((4, 3))
    job.restore(into={"a": y[:, ::2], "b": x})
    with pytest.raises(outlive.InvalidError, match="share memory"):
        job.restore(into={"a": y[:, :3], "b": y[:, 1:4]})


def test_versions_in_a_state_dict_come_back(
    job: outlive.Job, caplog: pytest.LogCaptureFixture
) -> None:
    model: Any = collections.OrderedDict(w=np.ones(3), b=np.zeros(2))
    model._metadata = collections.OrderedDict({"": {"version": 1}, "bn": {"version": 2}})
    other: Any = collections.OrderedDict(w=np.ones(3))
    other.note = "gone"
    for _ in range(2):
        job.save({"model": model, "other": other}, force=True, wait=True)
    (said,) = warnings(caplog)
    assert "'other' is an OrderedDict with attributes ('note')" in said
    for only in (None, "model", "model/w"):
        there = job.restore(only=only)["model"]
        assert there._metadata == model._metadata
        assert type(there._metadata) is collections.OrderedDict
    model._metadata = {"": object()}
    job.save({"model": model}, force=True, wait=True)
    assert "'_metadata'" in warnings(caplog)[0]


@pytest.mark.parametrize(
    ("into", "message"),
    [
        (1, r"write `restore\(epoch=1\)` for that epoch"),
        ("model", r"write `restore\(only='model'\)` for a part"),
        (None, "`into` is None, which cannot be filled"),
        (0.5, "cannot be filled"),
    ],
)
def test_a_number_is_no_state_to_fill(job: outlive.Job, into: Any, message: str) -> None:
    job.save({"a": 1}, force=True, wait=True)
    with pytest.raises(outlive.InvalidError, match=message):
        job.restore(into)
    with pytest.raises(outlive.InvalidError, match=r"write `restore\(epoch=1\)`"):
        job.restore(job.epochs()[0])


class Table:
    """An object like pandas' tables."""

    dtypes = columns = ()

    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.array([None, 1])


class Bag(bytearray):
    pass


class Wrapped:
    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.array([None, 1])


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (np.array([None, len]), "'a/1' is of type"),
        (np.array(["a"], np.dtypes.StringDType(na_object=0)), "use None or `math.nan`"),
        (np.ma.masked_array(np.ones((1, 2)).view(np.matrix)), "save its `data` and its `mask`"),
        (Table(), "save its columns"),
        (Bag(), "say with `outlive.register` how it becomes a tree"),
        (Wrapped(), ""),
    ],
)
def test_advice_is_possible(job: outlive.Job, value: Any, advice: str) -> None:
    with pytest.raises(outlive.InvalidError) as caught:
        job.save({"a": value}, force=True)
    assert advice in str(caught.value)
    assert "asarray" not in str(caught.value)


@pytest.mark.parametrize(
    "views",
    [
        lambda a: {"x": a[:, 0], "y": a[:, 1]},
        lambda a: {"interior": a[1:-1], "all": a},
        lambda a: {"end": a[3:], "all": a, "begin": a[:3]},
        lambda a: {"all": a, "same": a},
        lambda a: {"real": a.view(complex)[..., 0].real, "imag": a.view(complex)[..., 0].imag},
    ],
)
def test_views_of_one_array_come_back(
    job: outlive.Job, views: Callable[[Any], dict[str, Any]]
) -> None:
    job.save(views(np.arange(20.0).reshape(5, 4)), force=True, wait=True)
    there = np.zeros((5, 4))
    restored = views(there)
    job.restore(into=restored)
    expected = views(np.arange(20.0).reshape(5, 4))
    for name, array in restored.items():
        np.testing.assert_array_equal(array, expected[name])
        assert np.shares_memory(array, there)


def test_a_net_of_objects_is_refused_at_once(job: outlive.Job) -> None:
    nodes: list[dict[str, Any]] = [{"id": number} for number in range(60)]
    for node in nodes:
        node["near"] = [other for other in nodes if other is not node]
    with pytest.raises(outlive.InvalidError):
        job.save({"net": nodes}, force=True)


def test_metadata_that_is_no_dict_is_left_out(
    job: outlive.Job, caplog: pytest.LogCaptureFixture
) -> None:
    state = collections.OrderedDict(a=1)
    state._metadata = 7  # type: ignore[attr-defined]
    job.save({"m": state}, force=True, wait=True)
    assert any("_metadata" in text for text in warnings(caplog))
    assert job.restore() == {"m": {"a": 1}}
