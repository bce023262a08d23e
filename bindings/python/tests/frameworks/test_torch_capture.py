"""`outlive.torch.capture`: training programs that are saved, killed and restored."""

import copy
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import outlive
import outlive.torch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")

Lives = Callable[..., list[Any]]


def test_a_killed_training_run_ends_with_the_same_bits(lives: Lives, tmp_path: Path) -> None:
    (want,) = lives("training", 1, tmp_path / "undisturbed")
    assert want.code == 0, want.err
    for end in (7, 8, 12, 13, 25):
        (killed,) = lives("training", 1, tmp_path / "killed", "--die-at", end)
        assert killed.code == -9, killed.err
    (got,) = lives("training", 1, tmp_path / "killed")
    assert got.code == 0, got.err
    assert "restored step" in got.err
    assert got.out == want.out


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "Adagrad": {},
    "Adadelta": {},
    "Adafactor": {},
    "ASGD": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "LBFGS": {"max_iter": 3},
}


class Program:
    """A model and an optimizer, with a parameter that never gets a gradient."""

    def __init__(self, seed: int, name: str = "AdamW", **options: Any) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 10)
        )
        self.model.unused = torch.nn.Parameter(torch.randn(3))
        parameters = list(self.model.parameters())
        groups = [{"params": parameters[:3], "lr": 0.01 * seed}, {"params": parameters[3:]}]
        if name == "LBFGS":
            groups = parameters  # type: ignore[assignment]
        self.optimizer = getattr(torch.optim, name)(groups, lr=0.02 * seed, **options)
        self.steps = 0

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.steps += 1
            generator = torch.Generator().manual_seed(self.steps)
            inputs = torch.randn(8, 30, generator=generator)

            def loss(inputs: torch.Tensor = inputs) -> Any:
                self.optimizer.zero_grad()
                found = self.model(inputs).square().sum()
                found.backward()
                return found

            self.optimizer.step(loss)

    def capture(self, **more: Any) -> outlive.torch.Capture:
        return outlive.torch.capture(model=self.model, optimizer=self.optimizer, rng=False, **more)

    def bits(self) -> list[bytes]:
        found: list[bytes] = []
        _bits([self.model.state_dict(), self.optimizer.state_dict()], found)
        return found


def _bits(tree: Any, found: list[bytes]) -> None:
    if isinstance(tree, dict):
        for key, value in tree.items():
            found.append(repr(key).encode())
            _bits(value, found)
    elif isinstance(tree, list | tuple):
        for value in tree:
            _bits(value, found)
    elif isinstance(tree, torch.Tensor):
        found.append(repr((tree.dtype, tree.shape)).encode() + tree.detach().numpy().tobytes())
    else:
        found.append(repr(tree).encode())


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps_before", [0, 1])
def test_each_optimizer_goes_on(job: outlive.Job, name: str, steps_before: int) -> None:
    program = Program(1, name, **OPTIMIZERS[name])
    program.step(2)
    program.capture().save(job, wait=True)
    other = Program(2, name, **OPTIMIZERS[name])
    other.step(steps_before)
    memory = {id(parameter): parameter.data_ptr() for parameter in other.model.parameters()}
    report = other.capture().restore(job)
    assert (report.epoch, report.restored_bytes > 0) == (1, True)
    other.steps = program.steps
    assert other.bits() == program.bits()
    assert memory == {id(each): each.data_ptr() for each in other.model.parameters()}
    program.step(2)
    other.step(2)
    assert other.bits() == program.bits()


def test_the_state_of_an_optimizer_is_filled_where_it_is(job: outlive.Job) -> None:
    program, other = Program(1), Program(2)
    program.step(2)
    program.capture().save(job, wait=True)
    other.step(1)
    moments = [entry["exp_avg"] for entry in other.optimizer.state.values()]
    other.capture().restore(job)
    assert all(
        mine is entry["exp_avg"]
        for mine, entry in zip(moments, other.optimizer.state.values(), strict=True)
    )
    assert other.optimizer.param_groups[0]["lr"] == 0.01


def test_an_optimizer_forgets_what_the_checkpoint_lacks(job: outlive.Job) -> None:
    program = Program(1)
    run = program.capture()
    run.save(job, wait=True)
    program.step(2)
    run.save(job, wait=True)
    run.restore(job, epoch=1)
    assert not program.optimizer.state
    run.restore(job)
    assert len(program.optimizer.state) == 6


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=100),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.MultiStepLR(o, [3])], [2]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_scheduler_goes_on(job: outlive.Job, name: str) -> None:
    def advance(program: Program, scheduler: Any, times: int) -> None:
        for _ in range(times):
            program.step()
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))

    program, other = Program(1), Program(2)
    mine, its = SCHEDULERS[name](program.optimizer), SCHEDULERS[name](other.optimizer)
    advance(program, mine, 3)
    program.capture(scheduler=mine).save(job, wait=True)
    other.capture(scheduler=its).restore(job)
    other.steps = program.steps
    assert type(its.state_dict()) is dict
    assert its.state_dict() == mine.state_dict()
    advance(program, mine, 4)
    advance(other, its, 4)
    assert other.bits() == program.bits()
    assert its.state_dict() == mine.state_dict()


def test_a_scaler_a_loader_and_other_objects(job: outlive.Job) -> None:
    class Sampler:
        def __init__(self) -> None:
            self.state = {"at": 0, "order": np.arange(9), "seen": []}

        def state_dict(self) -> dict[str, Any]:
            return self.state

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

    def make() -> dict[str, Any]:
        model = torch.nn.Linear(3, 4)
        return {
            "model": {"a": model, "b": torch.nn.Linear(4, 5)},
            "optimizer": [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)],
            "scaler": torch.amp.GradScaler("cpu"),
            "loader": Sampler(),
            "average": torch.optim.swa_utils.AveragedModel(model),
            "table": np.zeros((30, 40)),
            "weights": torch.zeros(50),
            "progress": {"step": 0, "best": None},
            "dice": random.Random(1),
            "sampling": torch.Generator(),
        }

    parts, others = make(), make()
    loss = parts["model"]["a"](torch.ones(2, 3)).sum()
    parts["scaler"].scale(loss).backward()
    parts["scaler"].step(parts["optimizer"][0])
    parts["scaler"].update()
    parts["average"].update_parameters(parts["model"]["a"])
    parts["loader"].state = {"at": 5, "order": np.arange(9)[::-1].copy(), "seen": [1, "x"]}
    parts["table"][...] = 7
    parts["weights"].fill_(3)
    parts["progress"] |= {"step": 12, "best": 0.5}
    parts["dice"].random()
    parts["sampling"].manual_seed(99)
    run = outlive.torch.capture(**parts)
    assert repr(run).startswith("<outlive.torch.Capture of model, optimizer, scaler, loader")
    run.save(job, wait=True)
    want = [random.random(), np.random.rand(), torch.rand(3).tolist(), parts["dice"].random()]
    want.append(torch.rand(3, generator=parts["sampling"]).tolist())
    outlive.torch.capture(**others).restore(job)
    got = [random.random(), np.random.rand(), torch.rand(3).tolist(), others["dice"].random()]
    got.append(torch.rand(3, generator=others["sampling"]).tolist())
    assert got == want
    found: list[list[bytes]] = [[], []]
    for each, into in ((parts, found[0]), (others, found[1])):
        _bits([each["model"]["b"].state_dict(), each["average"].state_dict()], into)
        _bits([each["optimizer"][0].state_dict(), each["scaler"].state_dict()], into)
        _bits([each["progress"], each["weights"], each["table"].tolist()], into)
    assert found[0] == found[1]
    assert others["loader"].state["seen"] == [1, "x"]
    assert np.array_equal(others["loader"].state["order"], parts["loader"].state["order"])


def test_a_loader_of_torchdata_goes_on_in_the_middle_of_an_epoch(job: outlive.Job) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> Any:
        generator = torch.Generator().manual_seed(5)
        data = torch.arange(100)
        return stateful.StatefulDataLoader(data, batch_size=4, shuffle=True, generator=generator)

    loader = make()
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    outlive.torch.capture(loader=loader).save(job, wait=True)
    want = torch.cat(list(batches))
    other = make()
    outlive.torch.capture(loader=other).restore(job)
    assert torch.equal(torch.cat(list(other)), want)


def test_the_memory_of_parameters_is_saved_without_a_copy(job: outlive.Job) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    run = outlive.torch.capture(model=model, rng=False)
    run.save(job, wait=True)
    with torch.no_grad():
        model[3].weight[0, 0] += 1
    stats = run.save(job, wait=True).wait()
    assert stats is not None
    assert stats.changed_bytes <= 2 * 4096
    assert stats.state_bytes == 8 * (512 * 512 + 512) * 4


def test_a_state_is_made_only_if_a_save_is_due(folder: Path) -> None:
    class Counting(torch.nn.Linear):
        states = 0

        def state_dict(self, *arguments: Any, **options: Any) -> Any:
            Counting.states += 1
            return super().state_dict(*arguments, **options)

    job = outlive.open(folder).job("job", every_s=1e6)
    run = outlive.torch.capture(model=Counting(3, 4))
    run.save(job, wait=True)
    assert Counting.states == 1
    assert not run.save(job)
    assert not job.save(run)
    assert Counting.states == 1
    assert run.save(job, force=True)
    assert run.save(job, label="kept")
    assert Counting.states == 3
    job.close()


def test_without_a_checkpoint_nothing_changes(job: outlive.Job) -> None:
    program = Program(1)
    before = program.bits()
    assert not program.capture().restore(job)
    assert program.bits() == before
    assert not program.optimizer.state


def test_state_that_is_no_memory_of_the_module_is_loaded(job: outlive.Job) -> None:
    class Scaled(torch.nn.Module):
        """Keeps its scale beside its parameters, as modules for fp8 do."""

        def __init__(self, scale: float) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((5,), scale))
            self.scale = scale

        def get_extra_state(self) -> Any:
            return {"scale": self.scale, "history": torch.full((3,), self.scale)}

        def set_extra_state(self, state: Any) -> None:
            self.scale = state["scale"]
            assert torch.equal(state["history"], torch.full((3,), self.scale))

    outlive.torch.capture(model=torch.nn.Sequential(Scaled(2.5))).save(job, wait=True)
    other = torch.nn.Sequential(Scaled(1.0))
    weight = other[0].weight
    outlive.torch.capture(model=other).restore(job)
    assert other[0].scale == 2.5
    assert other[0].weight is weight
    assert torch.equal(weight.detach(), torch.full((5,), 2.5))


def test_a_damaged_checkpoint_is_skipped(
    folder: Path, job: outlive.Job, caplog: pytest.LogCaptureFixture
) -> None:
    program = Program(1)
    model = torch.nn.Linear(700, 300)
    run = program.capture(large=model, progress={"step": 1})
    run.save(job, wait=True)
    want = {name: value.clone() for name, value in model.state_dict().items()}
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    run.save(job, wait=True)
    job.close()
    new = [path for path in folder.rglob("*.shard") if path not in sizes] or [
        path
        for path in folder.rglob("*")
        if path.is_file() and path not in sizes and path.stat().st_size > 100_000
    ]
    assert new
    for path in new:
        data = bytearray(path.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 64] = bytes(64)
        path.chmod(0o600)
        path.write_bytes(data)
    again = outlive.open(folder).job("job")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    with caplog.at_level(logging.WARNING, "outlive"):
        report = run.restore(again)
    assert report.epoch == 1
    assert [epoch for epoch, _ in report.skipped] == [2]
    assert "checkpoint 2" in caplog.text
    assert all(torch.equal(value, want[name]) for name, value in model.state_dict().items())
    with pytest.raises(outlive.DamagedError):
        run.restore(again, epoch=2)


def test_parts_are_restored_alone(job: outlive.Job) -> None:
    program = Program(1)
    program.step(2)
    program.capture(progress={"step": 2}).save(job, wait=True)
    other = Program(2)
    run = other.capture(progress={"step": 0})
    run.restore(job, only="model")
    assert not other.optimizer.state
    for name, value in program.model.state_dict().items():
        assert torch.equal(other.model.state_dict()[name], value)
    run.restore(job, only=["progress", "optimizer"])
    assert other.bits() == program.bits()
    with pytest.raises(outlive.InvalidError, match="'modle' is not captured; 'model', 'optimizer'"):
        run.restore(job, only="modle")


def test_a_program_that_does_not_match_is_not_changed(job: outlive.Job) -> None:
    program = Program(1)
    program.step(2)
    program.capture(progress={"step": 2}).save(job, wait=True)
    other = torch.nn.Sequential(torch.nn.Linear(30, 21))
    before = copy.deepcopy(other.state_dict())
    progress = {"step": 0}
    run = outlive.torch.capture(model=other, progress=progress, rng=False)
    with pytest.raises(outlive.InvalidError, match=r"'model/0\.weight' has shape"):
        run.restore(job)
    assert progress == {"step": 0}
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())
    run = outlive.torch.capture(model=program.model, other={"step": 0}, rng=False)
    with pytest.raises(outlive.InvalidError, match=r"has no 'other'; it has model, optimizer"):
        run.restore(job)


@pytest.mark.parametrize("value", [5, "text", 1.5, (1, 2), b"bytes"])
def test_values_that_a_restore_cannot_fill_are_refused(value: Any) -> None:
    with pytest.raises(outlive.InvalidError, match=r"a restore cannot fill: put it into a dict"):
        outlive.torch.capture(step=value)


def test_empty_and_ambiguous_captures_are_refused() -> None:
    with pytest.raises(outlive.InvalidError, match="nothing is captured"):
        outlive.torch.capture(rng=False)
    with pytest.raises(outlive.InvalidError, match="nothing is captured"):
        outlive.torch.Capture({})


def test_plain_values_alone_are_captured(job: outlive.Job) -> None:
    progress = {"losses": [float(number) for number in range(100)], "step": 3}
    run = outlive.torch.capture(progress=progress, rng=False)
    run.save(job, wait=True)
    other = {"losses": [0.0] * 100, "step": 0}
    outlive.torch.capture(progress=other, rng=False).restore(job)
    assert other == progress
    assert job.restore() == {"progress": progress}


def test_other_programs_read_the_checkpoint(job: outlive.Job) -> None:
    program = Program(1)
    program.step(2)
    program.capture(progress={"step": 2}).save(job, wait=True)
    tree = job.restore()
    other = Program(2)
    other.model.load_state_dict(tree["model"])
    other.optimizer.load_state_dict(tree["optimizer"])
    assert other.bits() == program.bits()
    assert tree["progress"] == {"step": 2}
