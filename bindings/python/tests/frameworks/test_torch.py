"""Claims of README.md and docs/python.md about PyTorch. Run by `make test-frameworks`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import outlive

WIDE = ["float64", "float32", "float16", "int64", "int32", "uint16", "uint8", "complex64"]
FOREIGN = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu"]


def noise(dtype: Any) -> Any:
    size = torch.empty((), dtype=dtype).element_size()
    bits = np.random.default_rng(1).integers(0, 256, (30, 40 * size), dtype=np.uint8)
    return torch.from_numpy(bits).view(dtype)


def same_bits(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


class Program:
    """A model with an optimizer, half of it in bfloat16."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(30, 20), torch.nn.ReLU(), torch.nn.Linear(20, 10)
        )
        self.model[2].to(torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1 / seed)

    def step(self, times: int) -> None:
        for _ in range(times):
            self.optimizer.zero_grad()
            hidden = self.model[1](self.model[0](torch.ones(2, 30)))
            self.model[2](hidden.to(torch.bfloat16)).sum().backward()
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "opt": self.optimizer.state_dict()}

    def is_like(self, other: "Program") -> bool:
        mine, its = self.state(), other.state()
        assert mine["opt"]["param_groups"] == its["opt"]["param_groups"]
        moments = zip(mine["opt"]["state"].values(), its["opt"]["state"].values(), strict=True)
        parts = [(mine["model"], its["model"]), *moments]
        return all(torch.equal(a[name], b[name]) for a, b in parts for name in a)


@pytest.mark.parametrize("name", [*WIDE, *FOREIGN, "float4_e2m1fn_x2"])
def test_tensors_of_any_dtype_are_filled_in_place(job: outlive.Job, name: str) -> None:
    want = noise(getattr(torch, name))
    state = {"w": want.clone(), "cut": want.t()[3:7, ::2].clone().t(), "scalar": want[0, 0].clone()}
    job.save(state, wait=True)
    saved = {key: tensor.clone() for key, tensor in state.items()}
    places = [tensor.data_ptr() for tensor in state.values()]
    for tensor in state.values():
        tensor.untyped_storage().fill_(0)
    assert not same_bits(state["w"], want)
    job.restore(into=state)
    assert [tensor.data_ptr() for tensor in state.values()] == places
    assert same_bits(state["w"], saved["w"])
    assert same_bits(state["cut"].contiguous(), saved["cut"].contiguous())
    assert same_bits(state["scalar"].reshape(1), saved["scalar"].reshape(1))
    fresh = job.restore()
    assert same_bits(fresh["w"], want)
    assert same_bits(fresh["cut"].contiguous(), saved["cut"].contiguous())
    assert same_bits(fresh["scalar"].reshape(1), saved["scalar"].reshape(1))


def test_a_tensor_that_requires_a_gradient(job: outlive.Job) -> None:
    weights = torch.nn.Parameter(torch.randn(50, 20))
    want = weights.detach().clone()
    job.save({"w": weights}, wait=True)
    with torch.no_grad():
        weights.zero_()
    state = {"w": weights}
    job.restore(into=state)
    assert state["w"] is weights
    assert weights.requires_grad
    assert torch.equal(weights.detach(), want)


def test_a_state_dict_of_arrays_is_filled_where_the_model_has_it(job: outlive.Job) -> None:
    program, other = Program(1), Program(2)
    program.step(2)
    job.save({"model": program.model.state_dict()}, wait=True)
    job.restore(into={"model": other.model.state_dict()})
    for name, tensor in program.model.state_dict().items():
        assert torch.equal(other.model.state_dict()[name], tensor)


def test_the_state_of_an_optimizer(job: outlive.Job) -> None:
    program, other = Program(1), Program(2)
    program.step(2)
    job.save(program.state(), wait=True)
    # Before its first step it has no state to fill.
    with pytest.raises(outlive.InvalidError, match="has no state before its first step"):
        job.restore(into={"opt": other.optimizer.state_dict()}, only="opt")
    other.step(1)
    state = other.state()
    job.restore(into=state)
    other.optimizer.load_state_dict(state["opt"])
    assert program.is_like(other)
    program.step(3)
    other.step(3)
    assert program.is_like(other)


def test_a_fresh_program_takes_a_new_tree(job: outlive.Job) -> None:
    program, other = Program(1), Program(2)
    program.step(2)
    job.save(program.state(), wait=True)
    tree = job.restore()
    other.model.load_state_dict(tree["model"])
    other.optimizer.load_state_dict(tree["opt"])
    assert program.is_like(other)
    program.step(3)
    other.step(3)
    assert program.is_like(other)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "without shape": (lambda: torch.nn.LazyLinear(3).weight, r"run its module once"),
    "module": (lambda: torch.nn.Linear(3, 2), r"state_dict\(\)"),
    "optimizer": (lambda: Program(1).optimizer, r"state_dict\(\)"),
}


@pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore:.*nested.*")
@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_names_an_alternative(job: outlive.Job, what: str) -> None:
    make, instead = REFUSED[what]
    with pytest.raises(outlive.InvalidError, match=instead):
        job.save({"x": make()}, wait=True)
