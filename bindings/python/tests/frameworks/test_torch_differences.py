"""Tensors of a checkpoint that differs from `into`: `strict`, `rename`, `shapes`; autosave."""

from pathlib import Path
from typing import Any

import pytest
import torch

import outlive
import outlive.torch

pytestmark = pytest.mark.filterwarnings("ignore:.*parse.*", "ignore:.*beta.*")


def tied() -> dict[str, torch.Tensor]:
    """Returns a state of which the second entry is the memory of the first, and the third a part.

    The names sort in another order than the regions.
    """
    weight = torch.randn(300, 20).bfloat16()
    return {"z": weight, "head": weight, "rows": weight[100:200], "bias": torch.randn(20)}


def test_views_come_along_if_the_leaf_with_the_memory_is_left_out(job: outlive.Job) -> None:
    want = tied()
    job.save({"model": want, "step": 1}, wait=True)
    for _ in range(2):
        mine = {"model": {"rows": torch.zeros(100, 20).bfloat16()}, "more": torch.ones(2)}
        report = job.restore(into=mine, strict=False)
        assert report.missing == ("more",)
        assert report.left_over == ("model/z", "model/head", "model/bias", "step")
        assert torch.equal(mine["model"]["rows"], want["rows"])
        assert torch.equal(mine["more"], torch.ones(2))
        # Only the memory of the weight was read.
        assert report.restored_bytes < 300 * 20 * 2 + 100


def test_tied_tensors_under_other_names(job: outlive.Job) -> None:
    want = tied()
    job.save({"model": want}, wait=True)
    mine: dict[str, Any] = {name: torch.zeros_like(value) for name, value in want.items()}
    mine["a"], mine["b"] = mine.pop("z"), mine.pop("head")
    state = {"net": mine}
    rename = {"model/z": "net/a", "model/head": "net/b", "model": "net"}
    job.restore(into=state, rename=rename)
    assert torch.equal(mine["a"], want["z"])
    assert torch.equal(mine["b"], want["z"])
    assert torch.equal(mine["rows"], want["rows"])
    assert torch.equal(mine["bias"], want["bias"])
    # In the program's state they are tied, too, and stay so.
    mine["b"], mine["rows"] = mine["a"], mine["a"][100:200]
    for value in mine.values():
        value.zero_()
    job.restore(into=state, rename=rename)
    assert mine["b"] is mine["a"]
    assert torch.equal(mine["a"], want["z"])
    assert mine["rows"].untyped_storage().data_ptr() == mine["a"].untyped_storage().data_ptr()


def test_overlapping_views_under_other_names(job: outlive.Job) -> None:
    memory = torch.arange(600)
    job.save({"x": memory[:400], "y": memory[200:]}, wait=True)
    mine = {"one": torch.zeros(400, dtype=torch.int64), "y": torch.zeros(400, dtype=torch.int64)}
    job.restore(into=mine, rename={"x": "one"})
    assert torch.equal(mine["one"], memory[:400])
    assert torch.equal(mine["y"], memory[200:])
    only = {"y": torch.zeros(400, dtype=torch.int64)}
    assert job.restore(into=only, strict=False).left_over == ("x",)
    assert torch.equal(only["y"], memory[200:])


GROWN: dict[str, Any] = {
    "rows": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.permute(3, 2, 1, 0),
    "conjugated": lambda x: x.to(torch.complex64).conj(),
    "negated": lambda x: torch.complex(x, x + 1).conj().imag,
    "bfloat16": lambda x: x.bfloat16(),
    "parameter": lambda x: torch.nn.Parameter(x),
    "expanded": lambda x: x[:1].expand(4, 3, 5, 6),
}


@pytest.mark.parametrize("what", GROWN)
@pytest.mark.parametrize("device", ["cpu", "fake"])
def test_shapes(job: outlive.Job, what: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    want = GROWN[what](torch.randn(4, 3, 5, 6))
    job.save({"x": want}, wait=True)
    if device == "fake":
        seem_away(monkeypatch)
    for form in ("like the other", "in C order"):
        for grows in ((3, 0, 0, 0), (0, 2, 0, 1), (1, 1, 1, 1)):
            shape = [have + more for have, more in zip(want.shape, grows, strict=True)]
            mine = torch.full(shape, 7.0).to(want.dtype)
            if form == "like the other" and what != "expanded":
                mine = GROWN[what](torch.full(unlike(what, shape), 7.0)).detach()
            before = mine.detach().clone()
            report = job.restore(into={"x": mine}, shapes="grow")
            assert report.partly == ("x",)
            part = tuple(map(slice, want.shape))
            assert torch.equal(mine[part], want.detach())
            after = mine.detach().clone()
            after[part] = before[part]
            assert torch.equal(after, before)
    small = torch.zeros(2, 3, 8, 1).to(want.dtype)
    with pytest.raises(outlive.InvalidError, match="has shape"):
        job.restore(into={"x": small}, shapes="grow")
    job.restore(into={"x": small}, shapes="overlap")
    part = tuple(map(slice, map(min, small.shape, want.shape)))
    assert torch.equal(small[part], want.detach()[part])
    small[part] = 0
    assert not small.any()


def unlike(what: str, shape: list[int]) -> list[int]:
    return shape[::-1] if what == "transposed" else shape


def seem_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has tensors of the program look like those of a device: they are filled by a copy."""
    from outlive.torch import _tensors

    real = _tensors.dense

    def dense(value: torch.Tensor, *, fetch: bool) -> Any:
        if fetch:
            return real(value, fetch=True)
        # As of a device: host memory of another tensor.
        found = real(torch.empty(value.shape, dtype=value.dtype), fetch=False)
        assert isinstance(found, _tensors.Dense)
        return found._replace(note=found.note | {"device": "fake:0"})

    monkeypatch.setattr(_tensors, "dense", dense)


def test_tied_tensors_that_grow(job: outlive.Job) -> None:
    want = torch.randn(30, 20)
    job.save({"x": want, "y": want, "rows": want[10:20]}, wait=True)
    for shape, part in (((50, 20), (slice(30),)), ((30, 40), (slice(None), slice(20)))):
        mine = torch.full(shape, 7.0)
        state = {"x": mine, "y": mine, "rows": torch.full((15, 20), 7.0)}
        report = job.restore(into=state, shapes="grow")
        assert report.partly == ("x", "y", "rows")
        assert torch.equal(mine[part], want)
        assert (mine == 7).sum() == mine.numel() - want.numel()
        assert torch.equal(state["rows"][:10], want[10:20])
        assert (state["rows"][10:] == 7).all()
    state = {"x": torch.zeros(5, 20), "y": torch.zeros(20, 5), "rows": torch.zeros(10, 20)}
    job.restore(into=state, shapes="overlap")
    assert torch.equal(state["x"], want[:5])
    assert torch.equal(state["y"], want[:20, :5])
    assert torch.equal(state["rows"], want[10:20])


def test_objects_that_are_missing_left_over_or_renamed(job: outlive.Job) -> None:
    sparse, generator = torch.eye(5).to_sparse(), torch.Generator().manual_seed(3)
    state = {"sparse": sparse, "generator": generator, "rng": outlive.rng(), "step": 5}
    job.save(state, wait=True)
    want = torch.rand(3, generator=generator)
    other = torch.zeros(5, 5).to_sparse()
    mine = {
        "matrix": other,
        "generator": torch.Generator(),
        "new": torch.Generator().manual_seed(1),
        "new sparse": torch.eye(2).to_sparse_csr(),
        "step": 0,
    }
    report = job.restore(into=mine, strict=False, rename={"sparse": "matrix"})
    assert report.missing == ("new", "new sparse")
    assert report.left_over == ("rng",)
    assert mine["matrix"] is other
    assert torch.equal(other.to_dense(), torch.eye(5))
    assert torch.equal(torch.rand(3, generator=mine["generator"]), want)
    assert torch.equal(
        torch.rand(3, generator=mine["new"]), torch.rand(3, generator=torch.manual_seed(1))
    )
    assert torch.equal(mine["new sparse"].to_dense(), torch.eye(2))
    with pytest.raises(outlive.InvalidError, match="'new' is not in the checkpoint"):
        job.restore(into=mine, rename={"sparse": "matrix"})
    # The checkpoint has the names already: nothing is renamed.
    job.save({"matrix": sparse, "step": 6}, wait=True)
    del mine["generator"], mine["new"], mine["new sparse"]
    job.restore(into=mine, rename={"sparse": "matrix"})
    assert mine["step"] == 6


def test_an_object_of_another_shape_is_refused(job: outlive.Job) -> None:
    job.save({"x": torch.eye(5).to_sparse(), "y": torch.ones(2)}, wait=True)
    mine = {"x": torch.eye(6).to_sparse(), "y": torch.zeros(2)}
    with pytest.raises(outlive.InvalidError, match="shape"):
        job.restore(into=mine, strict=False)
    assert not mine["y"].any()


def test_a_lazy_restore_waits_for_the_memory_of_a_view(job: outlive.Job) -> None:
    weight = torch.randn(1000, 1000)
    job.save({"a": weight, "b": weight.t(), "c": torch.ones(10)}, wait=True)
    mine = {"b": torch.zeros(1000, 1000), "other": torch.zeros(10)}
    report = job.restore(into=mine, strict=False, rename={"c": "other"}, lazy=True)
    report.wait("other")
    report.wait("b")
    assert torch.equal(mine["b"], weight.t())
    assert torch.equal(mine["other"], torch.ones(10))
    tree = {"a": outlive.zeros((1000, 1000), "float32")}
    report = job.restore(into=tree, only="a", lazy=True)
    report.wait("a")
    report.wait()
    assert (tree["a"] == weight.numpy()).all()


class Program:
    """A model that learns with momentum, so that the optimizer has tensors from step 1 on."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(30, 20)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.progress = {"step": 0}

    def capture(self) -> outlive.torch.Capture:
        return outlive.torch.capture(
            model=self.model, optimizer=self.optimizer, progress=self.progress
        )

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.rand(5, 30)).sum().backward()
        self.optimizer.step()
        self.progress["step"] += 1


def test_autosave_of_a_captured_program(job: outlive.Job) -> None:
    program = Program()
    with job.autosave(program.capture()) as autosave:
        for _ in range(3):
            with autosave.step():
                program.step()
    assert job.latest is not None
    assert job.latest.epoch == 4
    # A function may return one.
    autosave = job.autosave(program.capture)
    program.step()
    assert autosave(force=True).wait()
    weight, drawn = program.model.weight.detach().clone(), torch.rand(3)
    other = Program()
    assert other.capture().restore(job)
    assert torch.equal(torch.rand(3), drawn)
    assert other.progress == {"step": 4}
    assert torch.equal(other.model.weight, weight)
    for each in (program, other):
        torch.manual_seed(5)
        each.step()
    assert torch.equal(program.model.weight, other.model.weight)
    assert not torch.equal(program.model.weight, weight)


def test_a_capture_is_made_only_if_a_save_is_due(folder: Path) -> None:
    job = outlive.open(folder).job("job", every_s=1e6)
    program, calls = Program(), list[int]()
    job.save({"first": 1}, wait=True)

    def capture() -> outlive.torch.Capture:
        calls.append(1)
        return program.capture()

    autosave = job.autosave(capture)
    program.step()
    assert not autosave()
    assert not calls
    assert autosave(force=True)
    assert calls == [1]
