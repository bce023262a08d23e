"""Tensors inside of objects, and beside tables: restores with and without types."""

import dataclasses
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

import outlive

pytestmark = pytest.mark.filterwarnings("ignore:.*uant.*", "ignore:.*beta.*", "ignore:.*sparse.*")


@dataclasses.dataclass
class Layer:
    weight: torch.Tensor
    name: str = "layer"
    more: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    weight: torch.Tensor


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def a_state() -> dict[str, Any]:
    weight = torch.arange(600, dtype=torch.float32).reshape(20, 30)
    return {
        "layer": Layer(weight, "first", {"shape": torch.Size([2, 3]), "dtype": torch.bfloat16}),
        "pair": Pair(weight.t(), torch.arange(8).bfloat16()),
        "frozen": Frozen(torch.arange(10).to(torch.complex64).conj()),
        "sparse": torch.eye(3).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.ones(4), 0.5, 3, torch.quint8),
        "table": pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}),
        "count": Counter("aab"),
        "rng": outlive.rng(),
        "step": 7,
    }


def test_tensors_of_objects_come_back_tied(job: outlive.Job) -> None:
    want = a_state()
    save = job.save(want, wait=True)
    stats = save.wait()
    assert stats is not None
    got = job.restore()
    assert [type(got[key]) for key in got] == [type(want[key]) for key in want]
    assert (got["layer"].name, got["layer"].more) == ("first", want["layer"].more)
    assert torch.equal(got["layer"].weight, want["layer"].weight)
    assert torch.equal(got["pair"].first, want["pair"].first)
    storages = [
        each.untyped_storage().data_ptr() for each in (got["layer"].weight, got["pair"].first)
    ]
    assert storages[0] == storages[1]
    assert got["pair"].second.dtype == torch.bfloat16
    assert got["frozen"].weight.is_conj()
    assert torch.equal(got["frozen"].weight, want["frozen"].weight)
    assert torch.equal(got["sparse"].to_dense(), torch.eye(3))
    assert torch.equal(got["quantized"].int_repr(), want["quantized"].int_repr())
    pd.testing.assert_frame_equal(got["table"], want["table"])


def test_tensors_of_objects_are_filled(job: outlive.Job) -> None:
    want = a_state()
    job.save(want, wait=True)
    mine = a_state()
    mine["layer"].weight = torch.zeros(20, 30)
    mine["pair"] = Pair(torch.zeros(30, 20), torch.zeros(8).bfloat16())
    mine["frozen"] = Frozen(torch.zeros(10, dtype=torch.complex64))
    mine["step"] = 0
    kept = {key: mine[key] for key in mine}
    tensors = [mine["layer"].weight, *mine["pair"], mine["frozen"].weight]
    job.restore(into=mine)
    assert all(mine[key] is kept[key] for key in kept if key != "step")
    after = [mine["layer"].weight, *mine["pair"], mine["frozen"].weight]
    assert list(map(id, after)) == list(map(id, tensors))
    assert torch.equal(tensors[0], want["layer"].weight)
    assert torch.equal(tensors[1], want["pair"].first)
    assert torch.equal(tensors[2], want["pair"].second)
    assert torch.equal(tensors[3], want["frozen"].weight)
    assert mine["step"] == 7


def test_tensors_of_objects_in_a_checkpoint_that_differs(job: outlive.Job) -> None:
    want = a_state()
    job.save(want, wait=True)
    mine = {
        "two": Pair(torch.zeros(40, 20), torch.ones(3).bfloat16()),
        "layer": Layer(torch.ones(2), "mine", None),
        "table": pd.DataFrame(),
        "new": Frozen(torch.ones(2)),
    }
    first = mine["two"].first
    with pytest.raises(outlive.InvalidError, match="'layer/weight' has shape"):
        job.restore(into=mine, strict=False, rename={"pair": "two"})
    report = job.restore(
        into=mine,
        strict=False,
        rename={"pair": "two"},
        shapes="overlap",
        only=["two", "table", "new"],
    )
    assert report.missing == ("new/weight",)
    assert report.partly == ("two/first", "two/second")
    assert mine["two"].first is first
    # A view of the memory of the layer, which was not restored.
    assert torch.equal(first[:30], want["pair"].first)
    assert not first[30:].any()
    assert torch.equal(mine["two"].second, want["pair"].second[:3])
    assert torch.equal(mine["layer"].weight, torch.ones(2))
    pd.testing.assert_frame_equal(mine["table"], want["table"])


def check_plain(plain: Any) -> None:
    weight = np.arange(600, dtype="f4").reshape(20, 30)
    assert type(plain["layer"]) is dict
    assert list(plain["layer"]) == ["weight", "name", "more"]
    assert type(plain["layer"]["weight"]) is np.ndarray
    assert np.array_equal(plain["layer"]["weight"], weight)
    assert plain["layer"]["more"] == {"shape": (2, 3), "dtype": "torch.bfloat16"}
    assert np.array_equal(plain["pair"]["first"], weight.T)
    assert plain["pair"]["second"].dtype.name == "bfloat16"
    assert np.array_equal(plain["frozen"]["weight"], np.arange(10).astype("c8").conj())
    assert sorted(plain["sparse"]) == ["indices", "values"]
    assert np.array_equal(plain["sparse"]["indices"], [[0, 1, 2], [0, 1, 2]])
    assert list(plain["quantized"]) == ["data"]
    assert np.array_equal(plain["table"]["data"]["a"], [1, 2])
    assert plain["count"] == {"a": 2, "b": 1}
    assert sorted(plain["rng"]) == ["cuda", "numpy", "python", "torch"]
    assert plain["step"] == 7


def test_as_plain(job: outlive.Job) -> None:
    job.save(a_state(), wait=True)
    before = torch.get_rng_state()
    torch.rand(3)
    drawn = torch.get_rng_state()
    check_plain(job.restore(as_plain=True))
    # It sets no generators.
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not torch.equal(before, drawn)
    assert job.restore(only="layer/name", as_plain=True) == {"layer": {"name": "first"}}
    part = job.restore(only=["pair/first"], as_plain=True)
    assert np.array_equal(part["pair"]["first"], np.arange(600).reshape(20, 30).T)


def test_as_plain_needs_none_of_the_packages(job: outlive.Job, folder: Path) -> None:
    job.save(a_state(), wait=True)
    code = f"""
import sys

for name in ("torch", "pandas", {__name__!r}):
    sys.modules[name] = None
import outlive

job = outlive.open({str(folder)!r}).job("job")
plain = job.restore(as_plain=True)
print(sorted(plain), type(plain["layer"]["weight"]).__name__, plain["table"]["columns"] is not None)
print(job.restore(only="step"), job.restore(only="count"))
try:
    job.restore(only="sparse")
except outlive.InvalidError as error:
    print(error)
try:
    job.restore(only="pair/second")
except outlive.InvalidError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second, third, fourth = done.stdout.splitlines()
    assert first.endswith("] ndarray True")
    assert second == "{'step': 7} {'count': Counter({'a': 2, 'b': 1})}"
    assert "torch" in third
    assert "as_plain=True" in third
    assert "PyTorch cannot be imported" in fourth
    assert "as_plain=True" in fourth


def test_parts_of_objects(job: outlive.Job) -> None:
    want = a_state()
    job.save(want, wait=True)
    got = job.restore(only=["pair/first", "layer/more"])
    assert list(got) == ["layer", "pair"]
    assert torch.equal(got["pair"]["first"], want["pair"].first)
    assert got["layer"]["more"] == want["layer"].more
    mine = a_state()
    mine["pair"].first.zero_()  # and with it the weight of the layer
    mine["layer"].more = None
    job.restore(into=mine, only="pair/first")
    assert torch.equal(mine["layer"].weight, want["layer"].weight)
    assert mine["layer"].more is None


def test_a_registered_class_with_tensors(job: outlive.Job) -> None:
    class Mesh:
        def __init__(self, points: torch.Tensor) -> None:
            self.points = points

    outlive.register(Mesh, lambda mesh: mesh.points, Mesh)
    mesh = Mesh(torch.ones(4).bfloat16())
    job.save({"mesh": mesh, "points": mesh.points}, wait=True)
    got = job.restore()
    assert type(got["mesh"]) is Mesh
    assert torch.equal(got["mesh"].points, mesh.points)
    assert (
        got["mesh"].points.untyped_storage().data_ptr()
        == got["points"].untyped_storage().data_ptr()
    )
    state = {"mesh": Mesh(torch.zeros(4).bfloat16()), "points": torch.zeros(4).bfloat16()}
    points = state["points"]
    job.restore(into=state)
    assert state["points"] is points
    assert torch.equal(points, mesh.points)
    assert torch.equal(state["mesh"].points, mesh.points)
