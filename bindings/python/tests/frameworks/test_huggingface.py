"""The adapter for the `Trainer` of Hugging Face: `outlive.huggingface`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import DistributedType
from accelerate.state import AcceleratorState, PartialState
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

import outlive
import outlive.huggingface
import trained

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # Each start of such a program takes many seconds on a busy machine.
    pytest.mark.timeout(600),
]


class Net(torch.nn.Module):
    """A network whose training draws random numbers, with tied weights."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, width)
        self.second = torch.nn.Linear(8, width)
        self.second.weight = self.first.weight
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, x: Any, labels: Any = None) -> Any:
        found = self.drop(self.first(x)) + self.second(x)
        return {"loss": (found.sum(1) - labels).square().mean(), "logits": found}


DATA = [
    {"x": row, "labels": row.sum()}
    for row in torch.randn(48, 8, generator=torch.Generator().manual_seed(1))
]


def trainer(folder: Path, callbacks: Any, *, width: int = 16, **options: Any) -> Any:
    torch.manual_seed(3)
    settings = {
        "num_train_epochs": 4,
        "per_device_train_batch_size": 6,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 3,
    }
    arguments = TrainingArguments(str(folder / "files"), **settings | options)
    return Trainer(
        Net(width), arguments, train_dataset=DATA, eval_dataset=DATA[:12], callbacks=callbacks
    )


def bits(used: Any) -> bytes:
    tensors = list(used.model.state_dict().values())
    for entry in used.optimizer.state_dict()["state"].values():
        tensors += entry.values()
    return b"".join(each.detach().numpy().tobytes() for each in [*tensors, torch.rand(4)])


class EndsAfter(TrainerCallback):
    """Ends a training by an exception, as a failure of the program does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise KeyError("the program fails")


def test_a_killed_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = trained.Training("huggingface", tmp_path / "whole")
    want = whole.finish()
    pool = tmp_path / "killed"
    for step in (30, 60):
        trained.killed("huggingface", pool, f"step {step}")
        assert outlive.open(pool).job("huggingface").latest is not None
    resumed = trained.Training("huggingface", pool)
    assert resumed.finish() == want
    assert resumed.began_after(whole)


def test_killed_ranks_end_with_the_same_bits(tmp_path: Path) -> None:
    whole = trained.on_ranks("huggingface", tmp_path / "whole", 2)
    want = [rank.finish() for rank in whole]
    pool = tmp_path / "killed"
    ranks = trained.on_ranks("huggingface", pool, 2)
    ranks[1].read_until("step 20")
    for rank in ranks:
        rank.kill()
    assert outlive.open(pool).job("huggingface").latest is not None
    resumed = trained.on_ranks("huggingface", pool, 2)
    assert [rank.finish() for rank in resumed] == want
    assert all(rank.began_after(whole[0]) for rank in resumed)


@pytest.mark.parametrize("step", [11, 16, 17])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_failed_training_goes_on_from_its_newest_checkpoint(
    tmp_path: Path, folder: Path, step: int, steps: int
) -> None:
    options = {
        "gradient_accumulation_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": steps,
        "lr_scheduler_type": "cosine",
    }
    saver = outlive.huggingface.Callback(tmp_path / "other", "job")
    used = trainer(tmp_path, [saver], **options)
    used.train()
    want, log = bits(used), used.state.log_history
    saver = outlive.huggingface.Callback(folder, "job")
    used = trainer(tmp_path, [saver, EndsAfter(step)], **options)
    assert saver.newest(used) is None
    with pytest.raises(KeyError):
        used.train(resume_from_checkpoint=saver.newest(used))
    assert saver.job.restore(only="trainer")["trainer"]["step"] == step - 1
    used = trainer(tmp_path, [saver], **options)
    used.train(resume_from_checkpoint=saver.newest(used))
    assert bits(used) == want
    assert [each["step"] for each in used.state.log_history] == [each["step"] for each in log]
    assert not list((tmp_path / "files").glob("outlive-*"))


@pytest.mark.parametrize(("batch", "accumulated"), [(6, 3), (7, 2)])
def test_accumulated_gradients_and_partial_batches(
    tmp_path: Path, folder: Path, batch: int, accumulated: int
) -> None:
    options = {
        "gradient_accumulation_steps": accumulated,
        "per_device_train_batch_size": batch,
        "num_train_epochs": 5,
    }
    used = trainer(tmp_path, [outlive.huggingface.Callback(tmp_path / "other", "job")], **options)
    used.train()
    want, steps = bits(used), used.state.global_step
    saver = outlive.huggingface.Callback(folder, "job")
    # Each start ends after one more step, so that all steps of two epochs are resumed once.
    for step in range(4, 12):
        used = trainer(tmp_path, [saver, EndsAfter(step)], **options)
        with pytest.raises(KeyError):
            used.train(resume_from_checkpoint=saver.newest(used))
    used = trainer(tmp_path, [saver], **options)
    used.train(resume_from_checkpoint=saver.newest(used))
    assert used.state.global_step == steps
    assert bits(used) == want


def test_a_second_training_in_the_process_begins_anew_or_goes_on(
    tmp_path: Path, folder: Path
) -> None:
    saver = outlive.huggingface.Callback(folder, "job", keep_last=2)
    used = trainer(tmp_path, [saver], num_train_epochs=2)
    used.train()
    assert len(saver.job.epochs()) == 2
    used = trainer(tmp_path, [saver], num_train_epochs=2)
    used.train(resume_from_checkpoint=saver.newest(used))
    assert used.state.global_step == 16
    used = trainer(tmp_path, [saver], num_train_epochs=1)
    used.train()
    assert saver.job.restore(only="trainer")["trainer"]["step"] == 8


def test_callbacks_that_have_a_state_get_it_back(tmp_path: Path, folder: Path) -> None:
    options = {
        "eval_strategy": "epoch",
        "metric_for_best_model": "loss",
        "restore_callback_states_from_checkpoint": True,
    }
    saver = outlive.huggingface.Callback(folder, "job")
    early = EarlyStoppingCallback(9, 10.0)
    used = trainer(tmp_path, [saver, early, EndsAfter(27)], **options)
    with pytest.raises(KeyError):
        used.train(resume_from_checkpoint=saver.newest(used))
    assert early.early_stopping_patience_counter == 2
    used = trainer(tmp_path, [saver, EarlyStoppingCallback(9, 10.0)], **options)
    used.train(resume_from_checkpoint=saver.newest(used))
    (early,) = (each for each in used.callback_handler.callbacks if "Early" in str(type(each)))
    assert early.early_stopping_patience_counter == 3


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, folder: Path) -> None:
    saver = outlive.huggingface.Callback(folder, "job")
    trainer(tmp_path, [saver], num_train_epochs=1).train()
    other = trainer(tmp_path, [saver], width=5)
    with pytest.raises(outlive.InvalidError, match=r"first.weight: \(16, 8\).*\(5, 8\) here"):
        saver.newest(other)
    outlive.open(folder).job("else").save({"x": 1}, wait=True)
    saver = outlive.huggingface.Callback(folder, "else")
    with pytest.raises(outlive.InvalidError, match=r"none of outlive.huggingface"):
        saver.newest(other)


@pytest.mark.parametrize("kind", [DistributedType.FSDP, DistributedType.DEEPSPEED])
def test_a_distributed_type_that_divides_the_model_is_refused(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    saver = outlive.huggingface.Callback(folder, "job")
    used = trainer(tmp_path, [saver])
    # Accelerate sets these with GPUs only.
    for state in (PartialState, AcceleratorState):
        monkeypatch.setitem(state._shared_state, "distributed_type", kind)
    with pytest.raises(outlive.InvalidError, match=f"{kind.value} divides the model among"):
        saver.newest(used)
    with pytest.raises(outlive.InvalidError, match=f"{kind.value} divides the model among"):
        begin(used)


@pytest.mark.parametrize("how", [trained.fsdp1, trained.fsdp2])
def test_a_model_that_fsdp_has_divided_is_refused(tmp_path: Path, folder: Path, how: Any) -> None:
    saver = outlive.huggingface.Callback(folder, "job")
    used = trainer(tmp_path, [saver])
    with trained.one_rank(tmp_path):
        used.model = how(used.model)
        with pytest.raises(outlive.InvalidError, match=r"divides the model.*outlive.torch.capture"):
            begin(used)


def begin(used: Any) -> None:
    """Tells the callbacks of a trainer that the training begins."""
    handler = used.callback_handler
    handler.model = used.model
    handler.on_train_begin(used.args, used.state, used.control)


def test_a_trainer_that_the_callback_does_not_know_is_a_warning(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saver = outlive.huggingface.Callback(folder, "job")
    used = trainer(tmp_path, [saver], num_train_epochs=1)
    saver.newest(used)
    used.train()
    assert "newest(trainer)" not in caplog.text
    # It knows the first one still.
    trainer(tmp_path, [saver], num_train_epochs=1).train()
    assert "call `newest(trainer)` before `train`" in caplog.text


class FillsDisk(TrainerCallback):
    """Fills the disk at a step, and notes the last one."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step = state.global_step
        if state.global_step == 5:
            self.disk = trained.full_disk()
            self.disk.__enter__()


def test_a_failed_save_ends_the_training_soon(tmp_path: Path, folder: Path) -> None:
    saver, fills = outlive.huggingface.Callback(folder, "job"), FillsDisk()
    used = trainer(tmp_path, [fills, saver], width=4096, num_train_epochs=50)
    try:
        with pytest.raises(outlive.Error):
            used.train()
    finally:
        fills.disk.__exit__(None, None, None)
    assert fills.step < 40
    assert saver.job.restore(only="trainer")["trainer"]["step"] <= 5


STOPS = """
import warnings; warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import test_huggingface as t
import outlive.huggingface
class Asks(t.TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGTERM)
outlive.on_preempt()
saver = outlive.huggingface.Callback(sys.argv[1], "job", every_s=3600)
used = t.trainer(Path(sys.argv[1]).parent, [saver, Asks()])
used.train(resume_from_checkpoint=saver.newest(used))
print(used.state.global_step, saver.job.restore()["trainer"]["step"])
"""


@pytest.mark.parametrize("step", [14, 15])
def test_a_signal_saves_and_ends(
    tmp_path: Path, folder: Path, run: Callable[..., str], step: int
) -> None:
    used = trainer(tmp_path, [outlive.huggingface.Callback(tmp_path / "other", "job")])
    used.train()
    want = bits(used)
    told = run(STOPS, folder, Path(__file__).parent, step)
    assert told.splitlines()[-1] == f"{step + 1} {step + 1}"
    saver = outlive.huggingface.Callback(folder, "job")
    used = trainer(tmp_path, [saver])
    used.train(resume_from_checkpoint=saver.newest(used))
    assert bits(used) == want
    assert json.loads(saver.job.restore()["trainer"]["state"])["global_step"] == 32
