"""The adapter for Accelerate: `outlive.accelerate`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration, DistributedType
from accelerate.state import AcceleratorState

import outlive
import outlive.accelerate
import trained

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # Each start of such a program takes many seconds on a busy machine.
    pytest.mark.timeout(600),
]


class Counter:
    """An object of the program with a state."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Program:
    """A training that Accelerate has prepared, with a loader that has a state."""

    def __init__(self, seed: int, width: int = 16) -> None:
        torch.manual_seed(seed)
        config = DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True)
        self.accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=2, dataloader_config=config
        )
        model = torch.nn.Sequential(
            torch.nn.Linear(8, width), torch.nn.Dropout(0.3), torch.nn.Linear(width, 1)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
        # With a generator of its own, an iterator draws nothing from the global one.
        own = torch.Generator().manual_seed(2)
        loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True, generator=own)
        self.model, self.optimizer, self.scheduler, self.loader = self.accelerator.prepare(
            model, optimizer, scheduler, loader
        )
        self.counter = Counter()
        self.accelerator.register_for_checkpointing(self.counter)
        self.progress = {"epoch": 0}

    def spoil(self) -> "Program":
        """Forgets all weights, and draws other random numbers."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()
        torch.manual_seed(9)
        return self

    def run(self, until: int, after: Callable[[], Any] = lambda: None) -> bytes:
        """Trains up to a number of batches, and returns all bits of the state."""
        while self.counter.count < until:
            for rows in self.loader:
                with self.accelerator.accumulate(self.model):
                    loss = self.model(rows).square().mean()
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
                self.counter.count += 1
                # Sums of gradients are no part of a state.
                if self.counter.count % 2 == 0:
                    after()
                if self.counter.count == until:
                    break
            else:
                self.progress["epoch"] += 1
        tensors = list(self.model.state_dict().values())
        for entry in self.optimizer.state_dict()["state"].values():
            tensors += entry.values()
        text = repr((self.scheduler.state_dict(), self.counter.count, self.progress))
        tensors.append(torch.rand(4))
        return b"".join(each.detach().numpy().tobytes() for each in tensors) + text.encode()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_training_ends_with_the_same_bits(tmp_path: Path, ranks: int) -> None:
    def start(pool: Path) -> list[trained.Training]:
        if ranks == 1:
            return [trained.Training("accelerate", pool)]
        return trained.on_ranks("accelerate", pool, ranks)

    whole = start(tmp_path / "whole")
    want = [each.finish() for each in whole]
    pool = tmp_path / "killed"
    if ranks == 1:
        for epoch in (5, 20):
            trained.killed("accelerate", pool, f"epoch {epoch}")
    else:
        started = start(pool)
        started[1].read_until("epoch 7")
        for each in started:
            each.kill()
    assert outlive.open(pool).job("accelerate").latest is not None
    resumed = start(pool)
    assert [each.finish() for each in resumed] == want
    assert all(each.began_after(whole[0]) for each in resumed)


def test_a_program_goes_on_within_an_epoch(folder: Path) -> None:
    want = Program(1).run(40)
    first = Program(1)
    run = outlive.accelerate.capture(
        first.accelerator, folder, "job", progress=first.progress, keep_last=2
    )
    assert not run.restore()
    first.run(22, run.save)
    second = Program(1).spoil()
    again = outlive.accelerate.capture(second.accelerator, folder, "job", progress=second.progress)
    assert again.restore()
    assert second.counter.count == 22
    assert second.run(40) == want
    assert not again.should_stop
    again.close()


def test_the_own_generator_of_a_loader_goes_on_between_epochs(folder: Path) -> None:
    def train(epochs: int) -> tuple[int, bytes]:
        torch.manual_seed(1)
        accelerator = Accelerator(cpu=True)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        rows = torch.randn(64, 8)
        own = torch.Generator().manual_seed(2)
        loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True, generator=own)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        progress = {"epoch": 0}
        run = outlive.accelerate.capture(accelerator, folder, "job", progress=progress)
        run.restore()
        first = progress["epoch"]
        while progress["epoch"] < epochs:
            for batch in loader:
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            progress["epoch"] += 1
            run.save()
        run.close()
        return first, b"".join(each.detach().numpy().tobytes() for each in model.parameters())

    assert train(2)[0] == 0
    first, got = train(4)
    assert first == 2
    outlive.open(folder).job("job").prune(keep_last=1)
    folder.rename(folder.with_name("other"))
    assert train(4) == (0, got)


def test_a_signal_ends_the_training(folder: Path, run: Callable[..., str]) -> None:
    text = """
    sys.path.insert(0, sys.argv[2])
    import warnings; warnings.simplefilter("ignore")
    import test_accelerate as t
    import outlive.accelerate
    outlive.on_preempt()
    program = t.Program(1)
    run = outlive.accelerate.capture(program.accelerator, sys.argv[1], "job", every_s=3600)
    def after():
        if program.counter.count == 22:
            os.kill(os.getpid(), signal.SIGTERM)
        run.save()
        if run.should_stop:
            raise StopIteration
    try:
        program.run(40, after)
    except StopIteration:
        (saved,) = run.job.restore()["custom"].values()
        print(program.counter.count, saved["count"])
    """
    assert run(text, folder, Path(__file__).parent).splitlines()[-1] == "22 22"


def test_another_model_or_none_is_refused(folder: Path) -> None:
    first = Program(1)
    outlive.accelerate.capture(first.accelerator, folder, "job").save(wait=True)
    other = Program(1, width=5)
    run = outlive.accelerate.capture(other.accelerator, folder, "job")
    with pytest.raises(outlive.InvalidError, match=r"\(16, 8\)|16.*8"):
        run.restore()
    bare = Accelerator(cpu=True)
    bare.free_memory()
    with pytest.raises(outlive.InvalidError, match="call `capture` after `prepare`"):
        outlive.accelerate.capture(bare, folder, "job")


@pytest.mark.parametrize("kind", [DistributedType.FSDP, DistributedType.DEEPSPEED])
def test_models_that_ranks_divide_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    accelerator = Program(1).accelerator
    # Accelerate sets these with GPUs only.
    monkeypatch.setitem(AcceleratorState._shared_state, "distributed_type", kind)
    for use in (outlive.accelerate.capture, outlive.accelerate.attach):
        with pytest.raises(outlive.InvalidError, match=f"{kind.value} divides the model among"):
            use(accelerator, folder, "job")


@pytest.mark.parametrize("how", [trained.fsdp1, trained.fsdp2])
def test_models_that_fsdp_has_divided_are_refused(folder: Path, tmp_path: Path, how: Any) -> None:
    program = Program(1)
    with trained.one_rank(tmp_path):
        program.accelerator._models = [how(torch.nn.Linear(8, 8))]
        with pytest.raises(outlive.InvalidError, match=r"divides the model.*outlive.torch.capture"):
            outlive.accelerate.capture(program.accelerator, folder, "job")


def test_a_failed_save_surfaces_at_the_next_step(folder: Path) -> None:
    program = Program(1, width=4096)
    run = outlive.accelerate.capture(program.accelerator, folder, "job")
    run.save(wait=True)
    done = 0

    def save() -> None:
        nonlocal done
        run.save()
        done += 1

    with trained.full_disk(), pytest.raises(outlive.Error):
        program.run(100, save)
    assert done < 20
    run.save(wait=True)


def test_hooks_keep_the_weights_of_save_state(folder: Path, tmp_path: Path) -> None:
    want = Program(1).run(16)
    program = Program(1)
    hooks = outlive.accelerate.attach(program.accelerator, folder, "job")

    def save() -> None:
        program.accelerator.save_state(str(tmp_path / str(program.counter.count)))

    program.run(10, save)
    assert not list((tmp_path / "6").glob("*model*"))
    program.accelerator.load_state(str(tmp_path / "6"))
    hooks.close()
    hooks.remove()
    other = Program(1).spoil()
    outlive.accelerate.attach(other.accelerator, folder, "job")
    other.accelerator.load_state(str(tmp_path / "6"))
    assert other.counter.count == 6
    assert other.run(16) == want
    smaller = Program(2, width=5)
    outlive.accelerate.attach(smaller.accelerator, folder, "job")
    with pytest.raises(outlive.InvalidError):
        smaller.accelerator.load_state(str(tmp_path / "6"))
