"""Containers of plain values are one leaf, and come back unchanged."""

import collections
import math
import random
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import outlive

MANY = 200


def same(a: Any, b: Any) -> bool:
    """Whether types, bits of floats, and the order of keys are the same."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is float:
        return struct.pack("<d", a) == struct.pack("<d", b)
    if type(a) is complex:
        return struct.pack("<dd", a.real, a.imag) == struct.pack("<dd", b.real, b.imag)
    if isinstance(a, dict):
        keys = list(zip(a, b, strict=True)) if len(a) == len(b) else [(0, "")]
        return all(same(k, m) for k, m in keys) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


STRANGE: dict[str, Any] = {
    "floats": [i * 0.5 for i in range(MANY)],
    "zeros": [0.0, -0.0, math.inf, -math.inf, 5e-324] * MANY,
    "nans": [struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\x7f")[0], math.nan] * MANY,
    "bytes of integers": list(range(-100, 200)),
    "integers": [0, 255, 256, -1, 65535, 65536, 2**31, -(2**31), 2**63 - 1, -(2**63)] * MANY,
    "beyond": [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**500, -(10**500)] * MANY,
    "mixed": [1, True, 1.0, None, "1", b"1", 1j, False, 0, "", b"", "x" * 300] * MANY,
    "texts": ["é", "\U0001d4b3😀", "x\udc80y", "a\0b", "z" * 127, "z" * 128] * MANY,
    "records": [{"loss": i / 3, "step": i, "tags": ["a", i]} for i in range(MANY)],
    "records that differ": [{"a": 1, **({"b": i} if i % 3 else {})} for i in range(MANY)],
    "pairs": [(i, [i], ()) for i in range(MANY)],
    "empties": [[], {}, (), [[]], {"": {}}] * MANY,
    "a tuple": tuple(range(MANY)),
    "keys": {f"key/{i}~": i for i in range(MANY)},
    "order": {str(MANY - i): [i] for i in range(MANY)},
    "int keys": {i - 5: str(i) for i in range(MANY)},
    "int and str": {1: "a", "1": "b"},
    "odd keys": {1.5: 1, None: 2, (1, "a"): 3, b"k": {True: 4}, False: 5},
    "deep": [[[[[[list(range(MANY)), (1, [2])]]]]]],
    "state of random": random.Random(3).getstate(),
}


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("as_root", [False, True])
def test_types_bits_and_orders_come_back(job: outlive.Job, name: str, as_root: bool) -> None:
    state = STRANGE[name] if as_root else {"v": STRANGE[name], "w": np.arange(3)}
    for _ in range(2):
        job.save(state, force=True, wait=True)
        there = job.restore()
        assert same(there if as_root else there["v"], STRANGE[name])
    assert job.epochs()[-1].regions <= 2


def test_a_million_values_are_one_leaf_that_costs_little(job: outlive.Job) -> None:
    state = {"l": [i * 0.5 for i in range(100_000)], "w": np.zeros(10)}
    first = job.save(state, force=True)
    first.wait()
    assert job.epochs()[-1].regions == 2
    assert first.new_bytes < 900_000
    second = job.save(state, force=True)
    second.wait()
    assert second.changed_bytes == 0
    state["l"].append(1.0)
    third = job.save(state, force=True)
    third.wait()
    assert third.changed_bytes <= 16_384, "what is appended leaves the rest alone"


def test_one_element_becomes_an_array_and_a_value_again(job: outlive.Job) -> None:
    state: dict[str, Any] = {"l": [float(i) for i in range(MANY)], "other": list(range(MANY))}
    job.save(state, force=True, wait=True)
    assert job.epochs()[-1].regions == 1
    state["l"][7] = np.ones(4)
    job.save(state, force=True, wait=True)
    assert job.epochs()[-1].regions == MANY + 1
    there = job.restore()
    assert (there["l"].pop(7) == 1).all()
    assert there["l"] == [float(i) for i in range(MANY) if i != 7]
    assert there["other"] == state["other"]
    state["l"][7] = 7.0
    job.save(state, force=True, wait=True)
    assert same(job.restore(), state)
    # Restores a checkpoint without an array into a state whose list has one.
    state["l"][7] = np.zeros(4)
    with pytest.raises(outlive.InvalidError, match="'l/7' is an array in `into`, a value in the c"):
        job.restore(into=state)


def test_into_fills_containers_where_they_are(job: outlive.Job) -> None:
    inner = {"a": [1] * MANY, "b": 2}
    state: dict[str, Any] = {
        "flat": [0.5] * MANY,
        "dict": {f"k{i}": i for i in range(MANY)},
        "nested": {"x": inner, "y": (1, [2, 3])},
        "w": np.arange(5.0),
        "step": 1,
    }
    job.save(state, force=True, wait=True)
    flat, listed, pair = state["flat"], inner["a"], state["nested"]["y"][1]
    dict_ = state["dict"]
    flat.clear()
    dict_.update(dict.fromkeys(dict_, -1))
    listed[:] = [9]
    pair[:] = [0, 0]
    state["w"][:] = 0
    state["step"] = 0
    assert job.restore(into=state)
    assert state["flat"] is flat
    assert flat == [0.5] * MANY
    assert state["dict"] is dict_
    assert list(dict_.items()) == [(f"k{i}", i) for i in range(MANY)]
    assert inner["a"] is listed
    assert listed == [1] * MANY
    assert state["nested"]["y"][1] is pair
    assert pair == [2, 3]
    assert state["step"] == 1
    assert state["w"][4] == 4


@pytest.mark.parametrize(
    ("into", "message"),
    [
        ({"d": {f"k{i}": 0 for i in range(MANY + 1)}}, r"'d/k200' is not in the checkpoint"),
        ({"d": {f"k{i}": 0 for i in range(MANY - 1)}}, r"'d/k199' is missing from `into`"),
        ({"d": {f"k{i}": [i] for i in range(MANY)}}, r"'d/k0'"),
        ({"d": [0] * MANY}, r"'d' is a list in `into`, a dict in the checkpoint"),
        ({"d": None}, r"'d/k0' is missing from `into`"),
        ({}, r"'d/k0' is missing from `into`"),
        ({"e": list(range(MANY)), "d": {f"k{i}": 0 for i in range(MANY)}}, "'e"),
    ],
)
def test_into_of_another_form_is_refused(
    job: outlive.Job, into: dict[str, Any], message: str
) -> None:
    job.save({"d": {f"k{i}": i for i in range(MANY)}, "w": np.ones(3)}, force=True, wait=True)
    into["w"] = np.zeros(3)
    with pytest.raises(outlive.InvalidError, match=message):
        job.restore(into=into)
    assert not into["w"].any()


def test_a_part_is_restored(job: outlive.Job) -> None:
    state = {
        "c": {"lr": 0.5, "names": [f"n{i}" for i in range(MANY)], "a/b": 3, "o": {"lr": 7}},
        "w": np.ones(3),
    }
    job.save(state, force=True, wait=True)
    assert job.epochs()[-1].regions == 2
    assert job.restore(only="c") == {"c": state["c"]}
    assert job.restore(only="c/lr") == {"c": {"lr": 0.5}}
    assert job.restore(only="c/a~1b") == {"c": {"a/b": 3}}
    assert job.restore(only="c/names/3")["c"]["names"][:5] == [None, None, None, "n3", None]
    assert job.restore(only="*/lr") == {"c": {"lr": 0.5, "o": {"lr": 7}}}
    for nothing in ("c/no", "c?", "lr"):
        with pytest.raises(outlive.InvalidError, match="selects nothing"):
            job.restore(only=nothing)
    here: dict[str, Any] = {"c": {"lr": 0.0, "o": {"lr": 0}}, "w": np.zeros(3)}
    job.restore(into=here, only=["c/lr", "c/o"])
    assert here["c"] == {"lr": 0.5, "o": {"lr": 7}}
    assert not here["w"].any()
    big = {"c": {**state["c"], "lr": 0.0, "names": ["x"] * MANY}, "w": np.zeros(3)}
    job.restore(into=big, only="c/names")
    assert big["c"]["lr"] == 0.0
    assert big["c"]["names"] == state["c"]["names"]
    job.restore(into=big, only="w")
    assert big["w"].all()


def test_a_part_of_a_state_that_is_one_leaf(job: outlive.Job) -> None:
    state = {"a": list(range(MANY)), "b": {"c": 1}}
    job.save(state, force=True, wait=True)
    assert job.restore(only="b") == {"b": {"c": 1}}
    assert job.restore(only=".") == state
    here = {"a": [0], "b": {"c": 0}}
    job.restore(into=here, only="b/c")
    assert here == {"a": [0], "b": {"c": 1}}


def test_containers_that_grow_and_shrink_past_the_bound(job: outlive.Job) -> None:
    for length in (3, MANY, 5, 63, 64, 65, 0):
        job.save({"l": list(range(length)), "w": np.ones(2)}, force=True, wait=True)
        for mine in (0, 3, 64, MANY):
            state: dict[str, Any] = {"l": list(range(mine)), "w": np.zeros(2)}
            held = state["l"]
            job.restore(into=state)
            assert held == list(range(length))
            assert state["w"].all()


def test_ordered_dicts_keep_their_own_order(job: outlive.Job) -> None:
    ordered = collections.OrderedDict((f"k{i}", list(range(MANY))) for i in range(3))
    ordered.move_to_end("k0")
    job.save({"o": ordered}, force=True, wait=True)
    there = job.restore()["o"]
    assert type(there) is collections.OrderedDict
    assert list(there) == ["k1", "k2", "k0"]
    assert job.epochs()[-1].regions == 3


def test_keys_that_no_path_can_name_come_into_the_same(job: outlive.Job) -> None:
    state: dict[str, Any] = {"d": {1.5: 1, (1, 2): [3]}, "w": np.ones(2)}
    job.save(state, force=True, wait=True)
    inner = state["d"]
    inner.update({1.5: 0, (1, 2): [0]})
    job.restore(into=state)
    assert inner == {1.5: 1, (1, 2): [3]}
    with pytest.raises(outlive.InvalidError, match="does not match checkpoint 1; nothing was"):
        job.restore(into={"d": {1.5: 1}, "w": np.zeros(2)})
    with pytest.raises(outlive.InvalidError, match="as a whole"):
        job.restore(only="d/1.5")
    # Beside an array each key has a name of its own.
    job.save({"d": {1.5: np.ones(2)}}, force=True, wait=True)
    assert (job.restore(only="d/1.5")["d"][1.5] == 1).all()


def test_patterns_pass_over_keys_that_no_path_can_name(job: outlive.Job) -> None:
    named = {f"k{i}": i for i in range(MANY)}
    state: dict[str, Any] = {
        "d": {1.5: 1, 1: 2, "1": 3},
        "n": {"odd": {None: 1}, "even": named},
        "o": {"even": named},
        "w": np.ones(2),
    }
    job.save(state, force=True, wait=True)
    assert (job.restore(only="w*")["w"] == 1).all()
    assert job.restore(only="d*") == {"d": state["d"]}
    # The whole of "n" is one leaf.
    assert job.restore(only="*/k1*") == {
        "o": {"even": {key: value for key, value in named.items() if key.startswith("k1")}}
    }
    mine: dict[str, Any] = {"d": {2.5: 0}, "n": {}, "o": {}, "w": np.zeros(2)}
    job.restore(into=mine, only="w*")
    assert (mine["w"] == 1).all()
    assert mine["d"] == {2.5: 0}
    held = mine["d"] = {1.5: 0, 1: 0, "1": 0}
    job.restore(into=mine, only="d*")
    assert held == state["d"]
    with pytest.raises(outlive.InvalidError, match="as a whole"):
        job.restore(only=["w*", "d/1.5"])


def test_the_walk_and_the_encoding_count_as_stall(job: outlive.Job) -> None:
    state = {f"key{i}": f"value {i}" for i in range(300_000)}

    def told() -> bool:
        begun = time.perf_counter()
        save = job.save(state, force=True)
        held_ms = 1e3 * (time.perf_counter() - begun)
        save.wait()
        assert save.stall_ms <= held_ms
        assert save.stats is not None
        assert save.stats.total_s >= save.stats.stall_s
        return save.stall_ms >= 0.7 * held_ms

    # Another program may take the processor in between.
    assert any(told() for _ in range(20))


def long_containers() -> dict[str, Any]:
    return {
        "list": [(i, i * 0.5, f"value {i}")[i % 3] for i in range(10_000)],
        "floats": [i * 0.5 for i in range(10_000)],
        "tuple": tuple(f"t{i}" for i in range(10_000)),
        "dict": {f"k{i}": (i, str(i)) for i in range(10_000)},
        "more": [{f"k{i}": i for i in range(5_000)}, {f"k{i}": -i for i in range(5_000)}],
    }


CHANGES: list[Callable[[dict[str, Any]], object]] = [
    lambda state: None,
    lambda state: state["list"].__setitem__(5000, None),
    lambda state: state["list"].__setitem__(5000, [1]),
    lambda state: state["list"][5000].append(2),
    lambda state: state["list"].append(1.5),
    lambda state: state["list"].pop(0),
    lambda state: state["floats"].reverse(),
    lambda state: state.update(tuple=tuple(reversed(state["tuple"]))),
    lambda state: state.update(tuple=list(state["tuple"])),
    lambda state: state["dict"].update(k77="x"),
    lambda state: state["dict"].update(new=1),
    lambda state: state["dict"].pop("k0"),
    lambda state: state["dict"].update(k0=state["dict"].pop("k1")),
    lambda state: state["dict"].update({7: 7}),
    lambda state: state["more"][1].update(k0=5),
    lambda state: state["more"].insert(0, dict(state["more"][0])),
    lambda state: state.update(first=1, list=state.pop("list")),
    lambda state: state.update(list=[float(i) for i in range(10_000)]),
    lambda state: state["floats"].__setitem__(1, np.ones(3)),
    lambda state: state["floats"].__setitem__(1, 0.5),
]


def test_long_containers_are_saved_as_they_are_at_each_save(job: outlive.Job) -> None:
    state = long_containers()
    for change in CHANGES:
        change(state)
        for _ in range(2):
            job.save(state, force=True, wait=True)
            there = job.restore()
            array = isinstance(state["floats"][1], np.ndarray)
            if array:
                assert (there["floats"][1] == 1).all()
                there["floats"][1] = state["floats"][1]
            assert same(there, state)
    job.close()
    job.save(state, force=True, wait=True)
    assert same(job.restore(), state)


def test_objects_that_come_and_go_are_not_mistaken(job: outlive.Job) -> None:
    # New objects get the addresses of those before them.
    for number in range(30):
        state = {"l": [float(i * number) for i in range(5_000)], "t": ["x"] * 5_000}
        state["l"] = tuple(state["l"]) if number % 3 else state["l"]  # type: ignore[assignment]
        job.save(state, force=True, wait=True)
        assert same(job.restore(), state)
        del state
