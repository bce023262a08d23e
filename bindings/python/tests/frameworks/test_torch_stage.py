"""Mirrors of device memory, with a device that a test plays."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import outlive
import outlive.torch
from fake_device import Device, Stream
from outlive.torch._stage import Lane, Stager

PAGE = 4096


@pytest.fixture(params=["late", "at once"], autouse=True)
def _streams(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "late", request.param == "late")


class Machine:
    """A device, the tensors on it, and a stager for them."""

    def __init__(self, piece_bytes: int = 3 * PAGE) -> None:
        self.device = Device()
        self.storages: set[int] = set()
        self.stager = Stager(self.lane, self.is_away)
        self.piece_bytes = piece_bytes

    def lane(self, device: torch.device) -> Lane:
        return Lane(
            device,
            self.device,
            copy=self.device.copy,
            pinned=lambda size: torch.empty(size, dtype=torch.uint8),
            piece_bytes=self.piece_bytes,
        )

    def is_away(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.storages

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        self.storages.add(tensor.untyped_storage().data_ptr())
        return tensor


def test_a_mirror_follows_the_device() -> None:
    machine = Machine()
    there = machine.put(torch.randn(10_001))
    for _ in range(3):
        staged = machine.stager.staged({"w": there}, fetch=True)["w"]
        assert staged.data_ptr() != there.data_ptr()
        assert torch.equal(staged, there)
        there[5_000] += 1
        assert staged[5_000] != there[5_000]
    # The same memory each time, in pieces through two buffers.
    assert machine.stager.staged({"w": there}, fetch=True)["w"].data_ptr() == staged.data_ptr()
    assert max(machine.device.copied) == 3 * PAGE


def test_a_copy_waits_for_what_the_program_has_queued() -> None:
    machine = Machine()
    there = machine.put(torch.zeros(30_000))
    machine.device.default.queue(lambda: there.fill_(7))
    staged = machine.stager.staged([there], fetch=True)[0]
    assert bool((staged == 7).all())
    # An action that the program queues later comes after the copy.
    machine.device.default.queue(lambda: there.fill_(8))
    machine.device.default.synchronize()
    assert bool((staged == 7).all())


def test_only_changed_pages_of_a_mirror_are_written() -> None:
    from outlive.torch._stage import take_changed

    old = torch.zeros(10 * PAGE + 100, dtype=torch.uint8)
    fresh = old.clone()
    fresh[3 * PAGE + 5] = 1
    fresh[-1] = 2

    before = old.clone()
    take_changed(old, fresh)
    assert torch.equal(old, fresh)
    assert int((old != before).sum()) == 2


def test_a_save_writes_only_what_has_changed_on_the_device(job: outlive.Job) -> None:
    machine = Machine(piece_bytes=64 * PAGE)
    model = torch.nn.Sequential(*(torch.nn.Linear(300, 400) for _ in range(4)))
    for parameter in model.parameters():
        machine.put(parameter)
    run = outlive.torch.Capture({"model": model}, machine.stager)
    run.save(job, wait=True)
    with torch.no_grad():
        model[2].weight[7, 7] += 1
    stats = run.save(job, wait=True).wait()
    assert stats is not None
    assert 0 < stats.changed_bytes <= 2 * PAGE
    got = job.restore()["model"]
    for name, value in model.state_dict().items():
        assert torch.equal(got[name], value)


def test_a_restore_brings_the_state_to_the_device(job: outlive.Job) -> None:
    def make(seed: int) -> tuple[Any, Any]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * seed)
        model(torch.randn(8, 30)).square().sum().backward()
        optimizer.step()
        return model, optimizer

    model, optimizer = make(1)
    outlive.torch.Capture({"model": model, "optimizer": optimizer}).save(job, wait=True)
    machine = Machine()
    other, its = make(2)
    for tensor in [*other.parameters(), *other.buffers()]:
        machine.put(tensor)
    for entry in its.state.values():
        machine.put(entry["exp_avg"])
    run = outlive.torch.Capture({"model": other, "optimizer": its}, machine.stager)
    run.restore(job)
    assert machine.device.copied
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    mine, theirs = optimizer.state_dict(), its.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    for key, entry in mine["state"].items():
        for name, value in entry.items():
            assert torch.equal(theirs["state"][key][name], value)
    # The next save finds the mirrors as they are on the device.
    copied = len(machine.device.copied)
    stats = run.save(job, wait=True).wait()
    assert stats is not None
    assert len(machine.device.copied) > copied
    assert torch.equal(job.restore()["model"]["0.weight"], other[0].weight)


def test_a_restore_that_is_refused_leaves_the_device_alone(job: outlive.Job) -> None:
    outlive.torch.Capture({"model": torch.nn.Linear(30, 40)}).save(job, wait=True)
    machine = Machine()
    other = torch.nn.Linear(30, 41)
    machine.put(other.weight)
    before = other.weight.detach().clone()
    with pytest.raises(outlive.InvalidError, match="has shape"):
        outlive.torch.Capture({"model": other}, machine.stager).restore(job)
    assert torch.equal(other.weight, before)
    assert not machine.device.copied


FORMS: dict[str, Callable[[], torch.Tensor]] = {
    "bfloat16": lambda: torch.randn(300, 41).bfloat16(),
    "float8": lambda: torch.randn(300, 41).to(torch.float8_e4m3fn),
    "bool": lambda: torch.randn(3000) > 0,
    "complex": lambda: torch.randn(300, 41, dtype=torch.complex64),
    "conjugated": lambda: torch.randn(300, 41, dtype=torch.complex64).conj(),
    "scalar": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 3),
    "transposed": lambda: torch.randn(300, 41).t(),
    "channels last": lambda: torch.randn(2, 3, 40, 50).to(memory_format=torch.channels_last),
    "part of a storage": lambda: torch.randn(70_000)[33_333:33_399],
    "every second": lambda: torch.randn(3000)[1::2],
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form(job: outlive.Job, form: str) -> None:
    machine = Machine()
    there = machine.put(FORMS[form]())
    staged = machine.stager.staged({"x": there}, fetch=True)
    job.save(staged, wait=True)
    got = job.restore()["x"]
    assert (got.dtype, got.shape, got.is_conj()) == (there.dtype, there.shape, there.is_conj())
    assert _same(got, there)
    want = there.clone()
    with torch.no_grad():
        there.zero_()
    into = {"x": there}
    staged = machine.stager.staged(into, fetch=False)
    job.restore(into=staged)
    assert not bool(there.to(torch.complex64).any())
    machine.stager.push(into, staged)
    machine.device.default.synchronize()
    assert _same(there, want)


def _same(one: torch.Tensor, two: torch.Tensor) -> bool:
    bits = [torch.empty_like(each, memory_format=torch.contiguous_format) for each in (one, two)]
    for into, each in zip(bits, (one, two), strict=True):
        into.copy_(each)
    return torch.equal(*(each.reshape(-1).view(torch.uint8) for each in bits))


def test_tied_tensors_on_a_device_stay_tied(job: outlive.Job) -> None:
    machine = Machine()
    weight = machine.put(torch.randn(300, 40))
    state = {"a": weight, "b": weight.t(), "c": weight[3]}
    stats = job.save(machine.stager.staged(state, fetch=True), wait=True).wait()
    assert stats is not None
    assert stats.state_bytes == weight.numel() * 4
    got = job.restore()
    assert torch.equal(got["b"], weight.t())
    assert got["a"].untyped_storage()._cdata == got["c"].untyped_storage()._cdata


def test_mirrors_of_tensors_that_are_gone_are_dropped() -> None:
    machine = Machine()
    first, second = machine.put(torch.ones(9)), machine.put(torch.ones(9))
    machine.stager.staged([first, second], fetch=True)
    assert len(machine.stager._mirrors) == 2
    machine.stager.staged([second], fetch=True)
    assert len(machine.stager._mirrors) == 1
    machine.stager.staged([3], fetch=True)
    assert not machine.stager._mirrors
