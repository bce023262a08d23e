"""Restores into the program's own state, and into parts of one."""

import copy
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import outlive

Same = Callable[[Any, Any], None]


def sample(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    large = random.random((200, 300))
    return {
        "step": seed,
        "name": f"run {seed}",
        "best": None if seed % 2 else 1.5,
        "u": large,
        "f": np.asfortranarray(large + 1),
        "small": random.random(4),
        "dates": np.arange(3).astype("M8[D]"),
        "blob": bytearray(b"x" * seed),
        "history": [float(seed)] * seed,
        "layers": [{"w": random.random((3, 3)), "scale": 0.5 * seed}, {"w": random.random(2)}],
        "pair": (seed, random.random(3), "t"),
        "rng": np.random.default_rng(seed),
        3: {"deep": (1, (seed, [seed]))},
    }


def test_arrays_keep_their_memory_and_values_are_replaced(folder: Path, same: Same) -> None:
    want = sample(7)
    outlive.open(folder).job("a").save(want, wait=True)
    state = sample(2)
    kept = [state, state["u"], state["f"], state["small"], state["layers"], state["rng"]]
    kept += [state["blob"], state["history"], state["pair"][1], state["layers"][0]["w"]]
    report = outlive.open(folder).job("a").restore(into=state)
    assert report
    assert report.epoch == 1
    assert report.restored_bytes > want["u"].nbytes
    same(state, want)
    now = [state, state["u"], state["f"], state["small"], state["layers"], state["rng"]]
    now += [state["blob"], state["history"], state["pair"][1], state["layers"][0]["w"]]
    assert all(a is b for a, b in zip(kept, now, strict=True))


def test_no_checkpoint_yet(job: outlive.Job, same: Same) -> None:
    state = sample(3)
    report = job.restore(into=state)
    assert not report
    assert report.epoch is None
    assert job.restore() is None
    same(state, sample(3))


def test_arrays_that_are_not_in_one_piece(job: outlive.Job) -> None:
    plain = np.arange(40_000.0).reshape(200, 200)
    job.save({"a": plain, "b": plain[::2, ::2], "c": np.asfortranarray(plain)}, wait=True)
    backing = np.zeros((400, 400))
    state = {
        "a": backing[::2, ::2],
        "b": np.zeros((100, 100), order="F"),
        "c": np.zeros((200, 200)),
    }
    assert job.restore(into=state)
    assert np.array_equal(backing[::2, ::2], plain)
    assert not backing[1::2].any()
    assert np.array_equal(state["b"], plain[::2, ::2])
    assert np.array_equal(state["c"], plain)
    # A second save stores the same content, and writes only the memory order again.
    job.save(state, wait=True)
    assert np.array_equal(job.restore()["a"], plain)


def test_every_difference_is_named_and_nothing_touched(job: outlive.Job, same: Same) -> None:
    job.save(sample(7), wait=True)
    state = sample(7)
    del state["name"]
    state["u"] = np.ones((200, 301))
    state["small"] = np.ones(4, np.float32)
    state["dates"] = 5
    state["layers"][0]["scale"] = np.ones(3)
    state["layers"].append({"w": 1})
    state["rng"] = np.random.Generator(np.random.MT19937(1))
    state["pair"] = list(state["pair"])
    state["extra"] = {}
    state["more/~"] = 1
    state["best"] = {"x": 1}
    state["f"].flags.writeable = False
    state["step"] = 99
    before = {key: value for key, value in state.items() if key != "rng"}
    copy = {key: value.copy() for key, value in before.items() if isinstance(value, np.ndarray)}
    with pytest.raises(outlive.InvalidError) as caught:
        job.restore(into=state)
    text = str(caught.value)
    for place in [
        "'name' is missing",
        "'u' has shape (200, 301) in `into`, (200, 300)",
        "'small' has dtype <f4 in `into`, <f8",
        "'dates' is a value in `into`, an array",
        "'layers/0/scale' is an array in `into`, a value",
        "'layers/2/w' is not in the checkpoint",
        "'rng' is a MT19937 generator in `into`, a PCG64",
        "'pair' is a list in `into`, a tuple",
        "'extra' (dict) is not in the checkpoint",
        "'more~1~0' is not in the checkpoint",
        "'best/x' is not in the checkpoint",
        "'f' is read-only",
    ]:
        assert place in text
        assert any(place in line for line in caught.value.differences)
    assert isinstance(caught.value, ValueError)
    assert state["step"] == 99
    for key, array in copy.items():
        assert np.array_equal(state[key], array)


def test_values_without_a_mutable_holder(job: outlive.Job) -> None:
    job.save((np.arange(3), 5), wait=True)
    with pytest.raises(outlive.InvalidError, match="nothing mutable holds it"):
        job.restore(into=(np.zeros(3, int), 1))
    job.save((np.arange(3), [5]), wait=True)
    state = (np.zeros(3, int), [1])
    job.restore(into=state)
    assert state[1] == [5]
    assert state[0].tolist() == [0, 1, 2]


def test_unselected_keys_are_not_added(job: outlive.Job) -> None:
    state = {"x": np.arange(5), "y": np.ones(3), "z": {"k": 1, "m": np.zeros(2)}, "s": 3}
    job.save(state, wait=True)
    into: dict[str, Any] = {"x": np.zeros(5, int)}
    job.restore(into=into, only="x")
    assert list(into) == ["x"]
    assert np.array_equal(into["x"], np.arange(5))
    into = {"x": np.zeros(5, int), "own": 4, "z": {"k": 0}}
    job.restore(into=into, only=["x", "z/k"])
    assert into.pop("z") == {"k": 1}
    assert list(into) == ["x", "own"]


def test_generators_and_empty_containers_that_are_not_selected(job: outlive.Job) -> None:
    rngs = [np.random.default_rng(1), Random(1)]
    empty: dict[str, Any] = {"list": [], "in": {"dict": {}, "tuple": ()}}
    job.save({"x": 1, "rngs": rngs, "rng": rngs[0], **empty}, wait=True)
    into: dict[str, Any] = {"x": 0}
    job.restore(into=into, only="x")
    assert into == {"x": 1}
    # The program's own content there stays unchanged.
    own: dict[str, Any] = {"list": [5], "in": {"dict": {"k": 1}, "tuple": (2,)}, "rng": rngs[1]}
    into = {"x": 0, **copy.deepcopy(own)}
    into["rng"] = rngs[1]
    job.restore(into=into, only="x")
    assert into == {"x": 1, **own}
    into = {"x": 0}
    job.restore(into=into, only=["x", "in/tuple"])
    assert into == {"x": 1, "in": {"tuple": ()}}
    # With nothing left out, the restore includes them.
    into = {"x": 0, "rngs": [np.random.default_rng(2), Random(2)], "rng": rngs[0], **empty}
    into["list"] = [1]
    job.restore(into=into)
    assert (into["list"], into["in"]) == ([], empty["in"])
    assert into["rngs"][1].random() == Random(1).random()


def test_only_some(job: outlive.Job, same: Same) -> None:
    want = sample(7)
    job.save(want, wait=True)
    state = sample(2)
    job.restore(into=state, only=["u", "layers", "rng/state/inc"])
    other = sample(2)
    for key in ["u", "layers", "rng"]:
        other[key] = want[key]
    same(state, other)
    # Differences in other places do not matter.
    part = {"u": np.zeros((200, 300)), "something": "else"}
    job.restore(into=part, only="u")
    same(part["u"], want["u"])
    same(
        job.restore(only="layers/*/w"), {"layers": [{"w": layer["w"]} for layer in want["layers"]]}
    )
    same(job.restore(only=["pair/1", "step"]), {"step": 7, "pair": (None, want["pair"][1], None)})
    with pytest.raises(outlive.InvalidError, match="selects nothing"):
        job.restore(only=["u", "nonsense*"])
    # Containers without a leaf work like others.
    job.save({"model": {"w": 1, "e": {}}, "l": [[], {}, ()], "a/b": {"": []}, 1: ()}, wait=True)
    same(job.restore(only="model/*w*"), {"model": {"w": 1}})
    same(job.restore(only="model"), {"model": {"w": 1, "e": {}}})
    same(job.restore(only=["model/w", "l/1"]), {"model": {"w": 1}, "l": [None, {}, None]})
    same(job.restore(only=["model/w", "a~1b", "1"]), {"model": {"w": 1}, "a/b": {"": []}, 1: ()})
    job.save(want, wait=True)
    with pytest.raises(outlive.InvalidError, match="missing from `into`"):
        job.restore(into={}, only="u")
    # The next save must not take a partial restore for the whole image.
    state = sample(1)
    job.restore(into=state, only="u")
    job.save(state, wait=True)
    same(job.restore(), state)


def test_a_chosen_epoch(job: outlive.Job, same: Same) -> None:
    for step in range(1, 4):
        job.save(sample(step), wait=True)
    assert [epoch.epoch for epoch in job.epochs()] == [1, 2, 3]
    same(job.restore(epoch=2), sample(2))
    state = sample(1)
    assert job.restore(state, epoch=1).epoch == 1
    # A program may continue from an older epoch.
    job.save(state, wait=True)
    same(job.restore(), sample(1))
    for epoch in [0, 9, 2**64 - 1]:
        with pytest.raises(outlive.InvalidError, match=f"no checkpoint {epoch}"):
            job.restore(epoch=epoch)
    # Epochs counted from the newest, and then that one.
    for epoch, step in [(-1, 1), ("latest", 1), (-2, 3), (-4, 1), ("2", 2), (job.epochs()[1], 2)]:
        same(job.restore(epoch=epoch), sample(step))
    with pytest.raises(outlive.InvalidError, match="has no checkpoint -5: it has 4"):
        job.restore(epoch=-5)
    for epoch in ["newest", "", "-0", 1.0, 2**64]:
        with pytest.raises(outlive.InvalidError, match="no epoch"):
            job.restore(epoch=epoch)
    # A save under way counts.
    job.save(sample(7), force=True)
    same(job.restore(epoch=-1), sample(7))
    job.note(-2, label="before")
    assert [epoch.label for epoch in job.epochs()][-2:] == ["before", ""]
    assert job.prune(drop=[-1, 1], collect=False).dropped
    assert [epoch.epoch for epoch in job.epochs()] == [2, 3, 4]
