"""Tensors come back as tensors: dtypes, layouts, classes, shared memory."""

import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outlive

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*experimental.*",
    "ignore:.*uant.*",
    "ignore:.*beta.*",
    "ignore:.*sparse.*",
    "ignore:.*nested tensors.*",
)

DTYPES = sorted(
    name
    for name, value in vars(torch).items()
    if isinstance(value, torch.dtype) and str(value) == f"torch.{name}" and name[0] != "q"
)
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def some(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Returns a tensor with random bits."""
    tensor = torch.empty(shape, dtype=dtype)
    raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    raw.random_(0, 2 if dtype == torch.bool else 256)
    return tensor


def bits(tensor: torch.Tensor) -> bytes:
    """Returns the elements in C order, as bytes."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        return bits(tensor.int_repr())
    if tensor.is_complex() and tensor.dtype in (torch.complex64, torch.complex128):
        tensor = tensor.resolve_conj().resolve_neg()
        return tensor.numpy().tobytes()
    tensor = tensor.resolve_neg() if tensor.is_neg() else tensor
    if tensor.itemsize == 16:
        return tensor.numpy().tobytes()
    return tensor.view(INTEGERS[tensor.itemsize]).contiguous().numpy().tobytes()


def assert_like(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    assert (got.dtype, got.shape, got.requires_grad) == (want.dtype, want.shape, want.requires_grad)
    assert (got.is_conj(), got.is_neg()) == (want.is_conj(), want.is_neg())
    assert bits(got) == bits(want)


@pytest.mark.parametrize("name", DTYPES)
def test_each_dtype(job: outlive.Job, name: str) -> None:
    dtype = getattr(torch, name)
    large = some(dtype, 300, 401)
    state = {
        "large": large,
        "empty": some(dtype, 0, 3),
        "scalar": some(dtype),
        "one": some(dtype, 1, 1, 1),
        "cut": some(dtype, 40, 50).view(INTEGERS.get(dtype.itemsize, dtype))[3:30:2, 5::3],
    }
    state["cut"] = state["cut"].view(dtype)
    job.save(state, wait=True)
    got = job.restore()
    for key, want in state.items():
        assert_like(got[key], want)
    # Into memory of the program, with other strides as well.
    mine = {
        key: torch.zeros_like(value.view(torch.uint8)).view(dtype)
        for key, value in state.items()
        if key in ("large", "one")
    }
    places = {key: value.data_ptr() for key, value in mine.items()}
    job.restore(into=mine, only=list(mine))
    for key, value in mine.items():
        assert value.data_ptr() == places[key]
        assert_like(value, state[key])


MAKERS: dict[str, Callable[[], torch.Tensor]] = {
    "channels last": lambda: torch.randn(4, 3, 50, 60).to(memory_format=torch.channels_last),
    "channels last 3d": lambda: torch.randn(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
    "transposed": lambda: torch.randn(300, 200).t(),
    "permuted": lambda: torch.randn(3, 40, 50, 6).permute(2, 0, 3, 1),
    "expanded": lambda: torch.randn(1, 300).expand(200, 300),
    "expanded from one": lambda: torch.randn(()).expand(1000, 1000),
    "expanded and permuted": lambda: torch.randn(5, 1, 300).expand(5, 7, 300).permute(2, 1, 0),
    "every second": lambda: torch.randn(300, 200)[::2, 1::2],
    "conjugated": lambda: torch.randn(200, 300, dtype=torch.complex64).conj(),
    "conjugated and transposed": lambda: torch.randn(200, 300, dtype=torch.complex128).mH,
    "negated": lambda: torch.randn(200, 300, dtype=torch.complex64).conj().imag,
    "parameter": lambda: torch.nn.Parameter(torch.randn(50, 70)),
    "frozen parameter": lambda: torch.nn.Parameter(torch.randn(50, 70), requires_grad=False),
    "buffer": lambda: torch.nn.Buffer(torch.randn(50), persistent=False),
    "requires a gradient": lambda: torch.randn(50, 70, requires_grad=True),
    "result": lambda: torch.randn(50, 70, requires_grad=True) * 2,
}


@pytest.mark.parametrize("what", MAKERS)
def test_each_form(job: outlive.Job, what: str) -> None:
    want = MAKERS[what]()
    save = job.save({"x": want, "other": torch.ones(3)}, wait=True)
    got = job.restore()["x"]
    assert_like(got, want)
    if what not in ("every second", "negated"):  # gaps are not saved
        assert got.stride() == want.stride()
    if "expanded" in what:  # only its own memory is saved
        assert save.wait().state_bytes < want.numel() * 4 / 5
    if what == "frozen parameter":
        assert isinstance(got, torch.nn.Parameter)
    if what == "buffer":
        assert isinstance(got, torch.nn.Buffer)
        assert not got.persistent
    # Another memory of the same form, and one in C order.
    for mine in (want.detach().clone(memory_format=torch.preserve_format), torch.empty(0)):
        if mine.numel() == 0:
            mine = torch.zeros_like(want.detach(), memory_format=torch.contiguous_format)
        mine.fill_(7)
        state = {"x": mine}
        job.restore(into=state, only="x")
        assert state["x"] is mine
        assert torch.equal(mine, want.detach())


def test_an_expanded_tensor_of_the_program_is_filled(job: outlive.Job) -> None:
    want = torch.randn(1, 300).expand(200, 300)
    job.save({"x": want}, wait=True)
    mine = torch.zeros(1, 300).expand(200, 300)
    job.restore(into={"x": mine})
    assert torch.equal(mine, want)


def test_a_conjugated_tensor_of_the_program_is_filled(job: outlive.Job) -> None:
    want = torch.randn(200, 300, dtype=torch.complex64)
    job.save({"x": want}, wait=True)
    mine = torch.zeros_like(want).conj()
    job.restore(into={"x": mine})
    assert mine.is_conj()
    assert torch.equal(mine, want)
    array = np.zeros((200, 300), np.complex64)
    job.save({"x": want.conj()}, wait=True)
    job.restore(into={"x": array})
    assert np.array_equal(array, want.conj().resolve_conj().numpy())


def test_the_memory_of_a_parameter_is_tracked_in_place(job: outlive.Job) -> None:
    model = torch.nn.Conv2d(64, 128, 9).to(memory_format=torch.channels_last)
    job.save(model.state_dict(), wait=True)
    with torch.no_grad():
        model.weight[0, 0, 0, 0] += 1
    stats = job.save(model.state_dict(), wait=True).wait()
    assert stats is not None
    assert stats.changed_bytes <= 3 * 4096


APART: dict[str, Callable[[], Any]] = {
    "coo": lambda: torch.randn(30, 40).relu().to_sparse(),
    "coo, uncoalesced": lambda: torch.sparse_coo_tensor(
        [[1, 1, 2], [0, 0, 3]], [1.0, 2, 3], (4, 5)
    ),
    "coo, hybrid": lambda: torch.randn(30, 40, 2).relu().to_sparse(2),
    "csr": lambda: torch.randn(30, 40).relu().to_sparse_csr(),
    "csc": lambda: torch.randn(30, 40).relu().to_sparse_csc(),
    "bsr": lambda: torch.randn(30, 40).relu().to_sparse_bsr((5, 4)),
    "bsc": lambda: torch.randn(30, 40).relu().to_sparse_bsc((5, 4)),
    "empty": lambda: torch.zeros(30, 40).to_sparse(),
    "bfloat16": lambda: torch.randn(30, 40).relu().bfloat16().to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(30, 40), 0.1, 3, torch.quint8),
    "quantized to 32 bits": lambda: torch.quantize_per_tensor(
        torch.randn(30, 40), 1e-4, 0, torch.qint32
    ),
    "quantized by channel": lambda: torch.quantize_per_channel(
        torch.randn(30, 40), torch.rand(30) + 0.01, torch.arange(30), 0, torch.qint8
    ),
    "sparse parameter": lambda: torch.nn.Parameter(torch.randn(30, 40).relu().to_sparse()),
}


def dense(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    return value.dequantize() if value.is_quantized else value.to_dense()


@pytest.mark.parametrize("what", APART)
def test_sparse_and_quantized_tensors(job: outlive.Job, what: str) -> None:
    torch.manual_seed(1)
    want, other = APART[what](), APART[what]()
    job.save({"x": want, "step": 1}, wait=True)
    got = job.restore()["x"]
    assert type(got) is type(want)
    assert (got.layout, got.dtype, got.requires_grad) == (
        want.layout,
        want.dtype,
        want.requires_grad,
    )
    assert torch.equal(dense(got), dense(want))
    if want.layout == torch.sparse_coo:
        assert got.is_coalesced() == want.is_coalesced()
        assert torch.equal(got._indices(), want._indices())
    if want.is_quantized:
        assert got.qscheme() == want.qscheme()
        assert torch.equal(got.int_repr(), want.int_repr())
    # It may have another number of elements.
    state = {"x": other, "step": 0}
    job.restore(into=state)
    assert torch.equal(dense(state["x"]), dense(want))
    if want.layout == torch.sparse_coo or want.is_quantized:
        assert state["x"] is other
    assert job.restore(only="x").keys() == {"x"}


def jagged(*lengths: int, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    rows = [torch.randn(length, 30) for length in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def holed() -> Any:
    return torch.nested.narrow(
        torch.randn(3, 9, 4),
        1,
        torch.tensor([0, 2, 1]),
        torch.tensor([4, 5, 8]),
        layout=torch.jagged,
    )


NESTED: dict[str, Callable[[], Any]] = {
    "strided": lambda: torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 7)]),
    "strided, empty": lambda: torch.nested.nested_tensor([]),
    "strided, bfloat16": lambda: torch.nested.nested_tensor(
        [torch.randn(3, 4), torch.randn(0, 7)], dtype=torch.bfloat16
    ),
    "jagged": lambda: jagged(3, 0, 700),
    "jagged, transposed": lambda: jagged(3, 5).transpose(1, 2),
    "jagged with holes": holed,
    "parameter": lambda: torch.nn.Parameter(
        torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 7)])
    ),
}


@pytest.mark.parametrize("what", NESTED)
def test_nested_tensors(job: outlive.Job, what: str) -> None:
    want = NESTED[what]()
    job.save({"n": want, "tail": torch.ones(3)}, wait=True)

    def check(got: Any) -> None:
        assert type(got) is type(want)
        assert (got.dtype, got.layout, got.is_nested) == (want.dtype, want.layout, True)
        assert got.requires_grad == want.requires_grad
        for mine, its in zip(got.unbind(), want.unbind(), strict=True):
            assert torch.equal(mine, its)

    check(job.restore()["n"])
    held = NESTED[what]()
    with torch.no_grad():
        for each in held.unbind():
            each.zero_()
    into: dict[str, Any] = {"n": held, "tail": torch.zeros(3)}
    assert job.restore(into=into)
    check(into["n"])
    assert into["n"] is held
    # Others of other lengths give way.
    others: dict[str, Any] = {"n": None, "tail": torch.zeros(3)}
    assert job.restore(into=others)
    check(others["n"])
    plain = job.restore(as_plain=True)["n"]
    assert all(type(part) is np.ndarray for part in plain.values())


def test_a_nested_tensor_of_other_lengths_gives_way(job: outlive.Job) -> None:
    want = jagged(3, 2, 5)
    job.save({"n": want}, wait=True)
    held = jagged(1, 7, 2, seed=2)
    rows = [each.clone() for each in held.unbind()]
    # Another tensor of the program shares the lengths.
    twin = held * 2
    into = {"n": held}
    assert job.restore(into=into)
    got: Any = into["n"]
    assert got is not held
    assert torch.equal(got.values(), want.values())
    assert torch.equal(got.offsets(), want.offsets())
    for mine, other, row in zip(held.unbind(), twin.unbind(), rows, strict=True):
        assert torch.equal(mine, row)
        assert torch.equal(other, row * 2)


def test_a_nested_tensor_along_another_axis_gives_way(job: outlive.Job) -> None:
    rows = [torch.randn(3, 5), torch.randn(2, 5)]
    want: Any = torch.nested.nested_tensor(rows, layout=torch.jagged)
    job.save({"n": want}, wait=True)
    held: Any = torch.nested.nested_tensor(rows, layout=torch.jagged).transpose(1, 2)
    into = {"n": held}
    assert job.restore(into=into)
    assert [each.shape for each in into["n"].unbind()] == [(3, 5), (2, 5)]


def rows_of(offsets: list[int], lengths: list[int] | None = None) -> Any:
    """Returns a jagged tensor of ten rows, with offsets that PyTorch does not look at."""
    each = None if lengths is None else torch.tensor(lengths)
    return torch.nested.nested_tensor_from_jagged(
        torch.randn(10, 2), torch.tensor(offsets), each, min_seqlen=1, max_seqlen=10
    )


def sparse_of(*indices: list[int], layout: Any = torch.sparse_coo) -> Any:
    values = torch.ones(2)
    if layout == torch.sparse_coo:
        return torch.sparse_coo_tensor([*indices], values, (2, 3), check_invariants=False)
    first, second = map(torch.tensor, indices)
    return torch.sparse_compressed_tensor(
        first, second, values, (2, 3), layout=layout, check_invariants=False
    )


LYING: dict[str, Callable[[], Any]] = {
    "offsets beyond the values": lambda: rows_of([0, 4, 1 << 40]),
    "offsets that go back": lambda: rows_of([0, 9, 2]),
    "offsets before the values": lambda: rows_of([-4, 3, 10]),
    "lengths beyond the values": lambda: rows_of([0, 4, 10], [4, 7]),
    "lengths that overflow": lambda: rows_of([0, 4, 10], [4, (1 << 63) - 2]),
    "negative lengths": lambda: rows_of([0, 4, 10], [4, -1]),
    "coo": lambda: sparse_of([0, 1], [0, 1 << 40]),
    "coo, negative": lambda: sparse_of([0, -9], [0, 1]),
    "csr, columns": lambda: sparse_of([0, 1, 2], [0, 1 << 40], layout=torch.sparse_csr),
    "csr, rows": lambda: sparse_of([0, 1 << 40, 2], [0, 1], layout=torch.sparse_csr),
    "csc": lambda: sparse_of([0, 1, 1, 2], [0, -7], layout=torch.sparse_csc),
}


@pytest.mark.parametrize("what", LYING)
def test_indices_that_lead_out_of_a_tensor_are_refused(job: outlive.Job, what: str) -> None:
    lying = LYING[what]()
    job.save({"x": lying}, wait=True)
    with pytest.raises(outlive.InvalidError, match=r"'x' of checkpoint 1 cannot be made again"):
        job.restore()
    held = (
        rows_of([0, 4, 10]) if lying.is_nested else torch.eye(2, 3).to_sparse(layout=lying.layout)
    )
    held = held.coalesce() if held.layout == torch.sparse_coo else held
    before = held.clone()
    with pytest.raises(outlive.InvalidError, match="'x' of checkpoint 1 cannot be made again"):
        job.restore(into={"x": held})
    parts = zip(held.unbind(), before.unbind(), strict=True) if held.is_nested else [(held, before)]
    assert all(torch.equal(dense(mine), dense(its)) for mine, its in parts)
    assert job.restore(as_plain=True)["x"].keys() >= {"values"}


def test_a_sparse_tensor_of_another_shape_is_refused(job: outlive.Job) -> None:
    job.save({"x": torch.eye(3).to_sparse()}, wait=True)
    mine = torch.eye(4).to_sparse()
    with pytest.raises(outlive.InvalidError, match=r"'x' has shape \[4, 4\]"):
        job.restore(into={"x": mine})
    for other in (torch.eye(3), {"indices": 1}, [torch.eye(3)]):
        with pytest.raises(outlive.InvalidError, match="'x"):
            job.restore(into={"x": other})
    # As each object, it may take the place of a value.
    for value in (1, None):
        state: dict[str, Any] = {"x": value}
        job.restore(into=state)
        assert torch.equal(state["x"].to_dense(), torch.eye(3))
    job.save({"x": torch.eye(3)}, wait=True)
    with pytest.raises(outlive.InvalidError, match="'x"):
        job.restore(into={"x": torch.eye(3).to_sparse()})


def test_a_meta_tensor_keeps_shape_and_dtype(job: outlive.Job) -> None:
    want = torch.nn.Linear(30, 40, device="meta", dtype=torch.bfloat16).state_dict()
    want["strided"] = torch.empty_strided((3, 4), (1, 3), device="meta")
    job.save(want, wait=True)
    got = job.restore()
    assert got["weight"].is_meta
    assert (got["weight"].shape, got["weight"].dtype) == ((40, 30), torch.bfloat16)
    assert got["strided"].stride() == (1, 3)
    job.restore(into=want)
    want["weight"] = torch.empty(3, 4, device="meta")
    with pytest.raises(outlive.InvalidError, match=r"'weight' has shape \[3, 4\] in `into`"):
        job.restore(into=want)


def test_a_generator_comes_back(job: outlive.Job) -> None:
    generator = torch.Generator().manual_seed(7)
    torch.rand(5, generator=generator)
    job.save({"rng": generator}, wait=True)
    want = torch.rand(9, generator=generator)
    assert torch.equal(torch.rand(9, generator=job.restore()["rng"]), want)
    job.restore(into={"rng": generator})
    assert torch.equal(torch.rand(9, generator=generator), want)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Embedding(300, 64)
        self.last = torch.nn.Linear(64, 300, bias=False)
        self.last.weight = self.first.weight


def test_tied_weights_are_saved_once_and_come_back_tied(job: outlive.Job) -> None:
    model = Tied()
    stats = job.save(model.state_dict(), wait=True).wait()
    assert stats is not None
    assert stats.state_bytes == 300 * 64 * 4
    got = job.restore()
    assert got["first.weight"].data_ptr() == got["last.weight"].data_ptr()
    assert (
        got["first.weight"].untyped_storage()._cdata == got["last.weight"].untyped_storage()._cdata
    )
    other = Tied()
    other.load_state_dict(got)
    assert torch.equal(other.last.weight, model.first.weight)
    # A part alone, into tied weights, and into weights that are not tied.
    assert torch.equal(job.restore(only="last.weight")["last.weight"], model.first.weight)
    third = Tied()
    job.restore(into=third.state_dict())
    assert torch.equal(third.last.weight, model.first.weight)
    loose = {name: torch.zeros(300, 64) for name in got}
    job.restore(into=loose)
    assert all(torch.equal(weight, model.first.weight) for weight in loose.values())
    lone = {"last.weight": torch.zeros(300, 64)}
    job.restore(into=lone, only="last.weight")
    assert torch.equal(lone["last.weight"], model.first.weight)
    # The next save after a change of one page writes little.
    with torch.no_grad():
        third.first.weight[0, 0] += 1
    job.save(third.state_dict(), wait=True)
    assert torch.equal(job.restore()["last.weight"], third.first.weight)


def test_untied_weights_go_into_tied_ones_only_if_they_are_equal(job: outlive.Job) -> None:
    job.save({"a": torch.ones(300), "b": torch.zeros(300)}, wait=True)
    memory = torch.zeros(300)
    with pytest.raises(outlive.InvalidError, match="share memory in `into`"):
        job.restore(into={"a": memory, "b": memory[:]})


def test_views_come_back_as_views(job: outlive.Job) -> None:
    whole = torch.randn(100, 200)
    state = {
        "row": whole[3],
        "column": whole[:, 7],
        "whole": whole,
        "transposed": whole.t(),
        "bytes": whole.view(torch.uint8),
        "again": whole,
        "apart": whole.clone(),
    }
    want = {name: tensor.clone() for name, tensor in state.items()}
    stats = job.save(state, wait=True).wait()
    assert stats is not None
    assert stats.state_bytes == 2 * 100 * 200 * 4
    got = job.restore()
    for name, tensor in want.items():
        assert torch.equal(got[name], tensor)
        assert got[name].stride() == state[name].stride()
    assert got["again"] is got["whole"]
    got["whole"][3, 7] = 99
    assert got["row"][7] == got["column"][3] == got["transposed"][7, 3] == 99
    assert got["apart"][3, 7] != 99
    # In place.
    whole.zero_()
    job.restore(into=state)
    for name, tensor in want.items():
        assert torch.equal(state[name], tensor)
    assert state["row"].data_ptr() == whole[3].data_ptr()
    # In part.
    some = job.restore(only=["row", "column"])
    assert torch.equal(some["row"], want["row"])
    assert some["row"].untyped_storage()._cdata == some["column"].untyped_storage()._cdata


def test_overlapping_windows_share_one_memory(job: outlive.Job) -> None:
    memory = torch.arange(100_000.0)
    state = {"first": memory[:60_000], "second": memory[40_000:], "odd": memory[1::2]}
    want = {name: tensor.clone() for name, tensor in state.items()}
    stats = job.save(state, wait=True).wait()
    assert stats is not None
    assert stats.state_bytes == 400_000
    got = job.restore()
    for name, tensor in want.items():
        assert torch.equal(got[name], tensor)
    got["first"][50_001] = -1
    assert got["second"][10_001] == got["odd"][25_000] == -1
    assert torch.equal(job.restore(only="odd")["odd"], want["odd"])
    memory.zero_()
    job.restore(into=state)
    assert torch.equal(memory, torch.arange(100_000.0))
    apart = {name: torch.zeros_like(tensor) for name, tensor in want.items()}
    job.restore(into=apart)
    for name, tensor in want.items():
        assert torch.equal(apart[name], tensor)


def test_slices_of_one_storage_that_do_not_overlap_are_apart(job: outlive.Job) -> None:
    memory = torch.randn(3_000_000)
    stats = job.save({"a": memory[:100], "b": memory[-100:]}, wait=True).wait()
    assert stats is not None
    assert stats.state_bytes == 800
    got = job.restore()
    assert torch.equal(got["a"], memory[:100])
    assert torch.equal(got["b"], memory[-100:])


def test_the_versions_of_modules_come_back(job: outlive.Job) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(30))
    job.save({"model": model.state_dict()}, wait=True)
    got = job.restore()["model"]
    assert type(got) is OrderedDict
    assert got._metadata == model.state_dict()._metadata
    torch.nn.Sequential(torch.nn.BatchNorm1d(30)).load_state_dict(got)


def test_a_lazy_restore_makes_tensors(job: outlive.Job) -> None:
    want = {"w": torch.randn(2000, 1000), "tied": torch.empty(0)}
    want["tied"] = want["w"]
    job.save(want, wait=True)
    got = job.restore(lazy=True)
    assert torch.equal(got["w"], want["w"])
    assert got["tied"] is got["w"]
    mine = {"w": torch.zeros(2000, 1000), "tied": torch.zeros(2000, 1000)}
    job.restore(into=mine, lazy=True).wait()
    assert torch.equal(mine["tied"], want["w"])


def test_without_pytorch_a_new_tree_is_refused(job: outlive.Job, folder: Path) -> None:
    job.save({"w": torch.arange(50_000), "step": 3}, wait=True)
    job.close()
    code = f"""
import sys
sys.modules["torch"] = None
import numpy as np, outlive
job = outlive.open({str(folder)!r}).job("job")
try:
    job.restore()
except outlive.InvalidError as error:
    assert "PyTorch cannot be imported" in str(error), error
else:
    raise AssertionError
assert job.restore(only="step") == {{"step": 3}}
state = {{"w": np.zeros(50_000, np.int64), "step": 0}}
assert job.restore(into=state)
assert np.array_equal(state["w"], np.arange(50_000))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_older_build_refuses_tensors(job: outlive.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.save({"w": torch.ones(3)}, wait=True)
    monkeypatch.setattr("outlive._flat._WITH_OBJECTS", 2)
    with pytest.raises(outlive.InvalidError, match="a newer outlive has saved this"):
        job.restore()
