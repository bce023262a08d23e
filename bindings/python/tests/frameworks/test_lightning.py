"""The adapter for Lightning: `outlive.lightning`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import outlive
import outlive.lightning
import trained

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # Each start of such a program takes many seconds on a busy machine.
    pytest.mark.timeout(600),
]


class Net(lightning.LightningModule):
    """A network whose training draws random numbers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, width), torch.nn.Dropout(0.3), torch.nn.Linear(width, 1)
        )

    def training_step(self, batch: Any, number: int) -> Any:
        loss = (self.layers(batch[0]) ** 2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("checked", (self.layers(batch[0]) ** 2).mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def data(kind: Any = DataLoader, batch_size: int = 8, **options: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    rows = TensorDataset(torch.randn(64, 8, generator=generator))
    return kind(rows, batch_size=batch_size, shuffle=True, **options)


def trainer(callbacks: Any, epochs: int, **options: Any) -> Any:
    settings = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(each, ModelCheckpoint) for each in callbacks),
    }
    return lightning.Trainer(
        max_epochs=epochs,
        callbacks=callbacks,
        default_root_dir="/nonexistent",
        **settings | options,
    )


def bits(model: Any, used: Any) -> bytes:
    tensors = list(model.state_dict().values())
    for entry in used.optimizers[0].state_dict()["state"].values():
        tensors += entry.values()
    return b"".join(each.detach().numpy().tobytes() for each in [*tensors, torch.rand(4)])


class EndsAfter(lightning.Callback):
    """Ends a training by an exception, as a failure of the program does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step:
            raise KeyError("the program fails")


def undisturbed(folder: Path, epochs: int, kind: Any = DataLoader) -> tuple[bytes, Any]:
    lightning.seed_everything(1)
    model, saver = Net(), outlive.lightning.Callback(folder, "job", every_s=3600)
    used = trainer([saver], epochs)
    used.fit(model, data(kind))
    return bits(model, used), saver.job


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_training_ends_with_the_same_bits(tmp_path: Path, ranks: int) -> None:
    options = ("--ranks", ranks, "--epochs", 40 if ranks == 1 else 12)
    whole = trained.Training("lightning", tmp_path / "whole", *options)
    want = whole.finish()
    assert len(want) == ranks
    pool = tmp_path / "killed"
    trained.killed("lightning", pool, "epoch 4", *options)
    assert outlive.open(pool).job("lightning").latest is not None
    trained.killed("lightning", pool, "epoch 8", *options)
    resumed = trained.Training("lightning", pool, *options)
    assert resumed.finish() == want
    assert resumed.began_after(whole)


@pytest.mark.parametrize(
    ("kind", "step"), [(DataLoader, 16), (DataLoader, 21), (StatefulDataLoader, 21)]
)
def test_a_failed_training_goes_on_from_its_newest_checkpoint(
    folder: Path, tmp_path: Path, kind: Any, step: int
) -> None:
    want, _ = undisturbed(tmp_path / "other", 4, kind)
    lightning.seed_everything(1)
    saver = outlive.lightning.Callback(folder, "job")
    assert saver.newest is None
    with pytest.raises(KeyError):
        trainer([saver, EndsAfter(step)], 4).fit(Net(), data(kind), ckpt_path=saver.newest)
    steps = saver.job.restore(only="global_step")["global_step"]
    # A loader without a state is saved between its epochs only.
    assert steps == (step if kind is StatefulDataLoader else step // 8 * 8)
    assert saver.newest == "outlive:newest"
    model, used = Net(), trainer([saver], 4)
    used.fit(model, data(kind), ckpt_path=saver.newest)
    assert bits(model, used) == want


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("seed", [None, 7])
def test_loaders_with_a_state_or_a_generator_begin_epochs_as_without_a_failure(
    folder: Path, tmp_path: Path, kind: Any, seed: int | None
) -> None:
    def fit(place: Path, more: Any, epochs: int = 4) -> bytes:
        own = None if seed is None else torch.Generator().manual_seed(seed)
        saver = outlive.lightning.Callback(place, "job", within_epochs=False)
        model, used = Net(), trainer([saver, *more], epochs)
        used.fit(model, data(kind, generator=own), ckpt_path=saver.newest)
        return bits(model, used)

    lightning.seed_everything(1)
    want = fit(tmp_path / "other", [])
    lightning.seed_everything(1)
    with pytest.raises(KeyError):
        fit(folder, [EndsAfter(21)])
    assert fit(folder, []) == want
    # A training that was complete goes on to more epochs.
    lightning.seed_everything(1)
    longer = fit(tmp_path / "longer", [], 6)
    assert fit(folder, [], 6) == longer


def test_validations_draw_random_numbers_as_without_a_failure(folder: Path, tmp_path: Path) -> None:
    def fit(saver: Any, more: Any, path: Any) -> bytes:
        model, used = Net(), trainer([saver, *more], 5)
        used.fit(model, data(), data(batch_size=16), ckpt_path=path)
        return bits(model, used)

    lightning.seed_everything(1)
    want = fit(outlive.lightning.Callback(tmp_path / "other", "job"), [], None)
    lightning.seed_everything(1)
    saver = outlive.lightning.Callback(folder, "job")
    with pytest.raises(KeyError):
        fit(saver, [EndsAfter(20)], None)
    assert fit(saver, [], saver.newest) == want


def test_a_second_fit_in_the_process_goes_on(folder: Path, tmp_path: Path) -> None:
    want, _ = undisturbed(tmp_path / "other", 6)
    lightning.seed_everything(1)
    saver = outlive.lightning.Callback(folder, "job")
    trainer([saver], 3).fit(Net(), data())
    for _ in range(2):  # all is done at the second time
        model, used = Net(), trainer([saver], 6)
        used.fit(model, data(), ckpt_path=saver.newest)
        assert used.current_epoch == 6
    model.load_state_dict(saver.job.restore()["state_dict"])
    assert bits(model, used)[:-16] == want[:-16]


def test_a_checkpoint_of_another_model_is_refused(folder: Path) -> None:
    saver = outlive.lightning.Callback(folder, "job")
    trainer([saver], 1).fit(Net(), data())
    with pytest.raises(RuntimeError, match="size mismatch for layers"):
        trainer([saver], 2).fit(Net(width=16), data(), ckpt_path=saver.newest)


class FillsDisk(lightning.Callback):
    """Fills the disk at a step, and counts the later ones."""

    def __init__(self) -> None:
        self.later = 0
        self.disk = trained.full_disk()

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        self.later += trainer.global_step >= 9
        if trainer.global_step == 9:
            self.disk.__enter__()

    def on_exception(self, *args: Any) -> None:
        self.disk.__exit__(None, None, None)


def test_a_failed_save_ends_the_training_soon(folder: Path) -> None:
    fills = FillsDisk()
    saver = outlive.lightning.Callback(folder, "job")
    with pytest.raises(outlive.Error):
        trainer([fills, saver], 50).fit(Net(width=4096), data(StatefulDataLoader))
    assert fills.later < 50
    assert saver.job.latest is not None
    saver.job.restore()


STOPS = """
import warnings; warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[2])
import lightning, test_lightning as t
import outlive.lightning
class Asks(lightning.Callback):
    def on_train_batch_start(self, trainer, *args):
        if trainer.global_step == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGTERM)
outlive.on_preempt()
lightning.seed_everything(1)
saver = outlive.lightning.Callback(sys.argv[1], "job", every_s=3600)
used = t.trainer([saver, Asks()], 6)
used.fit(t.Net(), t.data(t.StatefulDataLoader))
print(used.global_step, saver.job.restore()["global_step"])
"""


@pytest.mark.parametrize("step", [21, 23])
def test_a_signal_saves_and_ends(
    folder: Path, tmp_path: Path, run: Callable[..., str], step: int
) -> None:
    want, _ = undisturbed(tmp_path / "other", 6, StatefulDataLoader)
    told = run(STOPS, folder, Path(__file__).parent, step)
    assert told.splitlines()[-1] == f"{step + 1} {step + 1}"
    saver = outlive.lightning.Callback(folder, "job")
    model, used = Net(), trainer([saver], 6)
    used.fit(model, data(StatefulDataLoader), ckpt_path=saver.newest)
    assert bits(model, used) == want


def test_a_signal_ends_a_second_fit_before_its_least_epochs(
    folder: Path, run: Callable[..., str]
) -> None:
    text = """
    import warnings; warnings.simplefilter("ignore")
    sys.path.insert(0, sys.argv[2])
    import test_lightning as t
    import outlive.lightning
    class Asks(t.lightning.Callback):
        def on_train_batch_start(self, trainer, *args):
            if trainer.global_step == 19:
                os.kill(os.getpid(), signal.SIGUSR1)
    outlive.on_preempt()
    saver = outlive.lightning.Callback(sys.argv[1], "job")
    t.trainer([saver], 2).fit(t.Net(), t.data(t.StatefulDataLoader))
    used = t.trainer([saver, Asks()], 6, min_epochs=5, accumulate_grad_batches=2)
    used.fit(t.Net(), t.data(t.StatefulDataLoader), ckpt_path=saver.newest)
    print(used.global_step, saver.job.restore()["global_step"], used.fit_loop.min_epochs)
    """
    assert run(text, folder, Path(__file__).parent).splitlines()[-1] == "20 20 5"


def test_a_sigterm_that_lightning_handles_saves_as_well(
    folder: Path, run: Callable[..., str]
) -> None:
    run(STOPS.replace("outlive.on_preempt()", ""), folder, Path(__file__).parent, 21)
    assert outlive.open(folder).job("job").restore(only="global_step") == {"global_step": 22}


def test_model_checkpoint_names_and_removes_checkpoints(folder: Path, tmp_path: Path) -> None:
    io = outlive.lightning.CheckpointIO(folder, "job")
    files = tmp_path / "files"
    keeper = ModelCheckpoint(files, monitor="checked", save_top_k=2, save_last=True)
    used = trainer([keeper], 5, plugins=[io])
    lightning.seed_everything(1)
    model = Net()
    used.fit(model, data(), data(batch_size=16))
    left = sorted(path.name for path in files.iterdir())
    assert len(left) == 3, left
    assert "last.ckpt" in left
    epochs = {epoch.epoch for epoch in io.job.epochs()}
    named = {json.loads((files / name).read_text())["epoch"] for name in left}
    # The newest is never dropped.
    assert named <= epochs <= named | {max(epochs)}
    best = io.load_checkpoint(keeper.best_model_path)
    assert best["epoch"] == int(Path(keeper.best_model_path).name[6:].split("-")[0])
    found = used.validate(Net(), data(batch_size=16), ckpt_path="best", verbose=False)
    assert found[0]["checked"] == pytest.approx(float(keeper.best_model_score), rel=1e-5)
    again = trainer([ModelCheckpoint(files, save_last=True)], 7, plugins=[io])
    again.fit(Net(), data(), ckpt_path="last")
    assert again.current_epoch == 7
    io.export(str(files / "last.ckpt"), tmp_path / "plain.ckpt")
    plain = torch.load(tmp_path / "plain.ckpt", weights_only=True)
    assert plain["state_dict"].keys() == model.state_dict().keys()


def test_a_file_whose_checkpoint_was_never_committed(folder: Path, tmp_path: Path) -> None:
    io = outlive.lightning.CheckpointIO(folder, "job")
    path = tmp_path / "last.ckpt"
    with pytest.raises(FileNotFoundError):
        io.load_checkpoint(path)
    io.save_checkpoint({"step": 1, "w": torch.ones(3)}, path)
    io.save_checkpoint({"step": 2, "w": torch.ones(3)}, path)
    assert io.load_checkpoint(path)["step"] == 2
    pointer = json.loads(path.read_text())
    # As if the program had been killed before its commit.
    lost = {**pointer, "epoch": 3, "stamp": "x", "before": {**pointer, "before": None}}
    del lost["before"]["format"]
    path.write_text(json.dumps(lost))
    assert io.load_checkpoint(path)["step"] == 2
    # Then another program has got the epoch.
    path.write_text(json.dumps({**pointer, "stamp": "x", "before": None}))
    with pytest.raises(outlive.InvalidError, match=r"never committed.*it has 1, 2"):
        io.load_checkpoint(path)
    io.job.close()


@pytest.mark.parametrize("kind", [FSDPStrategy, ModelParallelStrategy])
def test_models_that_ranks_divide_are_refused(folder: Path, kind: Any) -> None:
    saver = outlive.lightning.Callback(folder, "job")
    used = trainer([saver], 1)
    # A `Trainer` takes the first one only with a GPU.
    used._accelerator_connector.strategy = kind()
    with pytest.raises(outlive.InvalidError, match=f"{kind.__name__} divides.*outlive.torch.cap"):
        saver.setup(used, Net(), "fit")


def test_a_failed_save_leaves_the_checkpoint_that_it_replaces(folder: Path, tmp_path: Path) -> None:
    io = outlive.lightning.CheckpointIO(folder, "job")
    path, other = tmp_path / "last.ckpt", tmp_path / "other.ckpt"

    def save(step: int, to: Path = path) -> None:
        weights = torch.randn(1 << 16, generator=torch.Generator().manual_seed(step))
        io.save_checkpoint({"step": step, "w": weights}, to)

    def fail(step: int) -> None:
        """Begins a save that fails, and waits until all is done that follows from it."""
        io.job.close()
        with trained.full_disk():
            save(step)
            assert io._removed._last is not None
            assert io._removed._last._core is not None
            io._removed._last._core.wait_done()
        with io._removed._changed:
            io._removed._changed.wait_for(lambda: not io._removed._waiting)

    save(1)
    fail(2)
    # Its failure comes once.
    with pytest.raises(outlive.Error):
        save(3)
    assert io.load_checkpoint(path)["step"] == 1
    # The next save gets the number of the failed one, whose file names another checkpoint.
    save(4, other)
    assert io.load_checkpoint(other)["step"] == 4
    assert io.load_checkpoint(path)["step"] == 1
    save(5)
    save(6)
    assert io.load_checkpoint(path)["step"] == 6
    assert io.load_checkpoint(other)["step"] == 4
    fail(7)
    with pytest.raises(outlive.Error):
        io.teardown()
    io.teardown()
    assert io.load_checkpoint(path)["step"] == 6
    assert [io.job.restore(epoch=each)["step"] for each in io.job.epochs()] == [4, 6]


def test_files_of_an_earlier_program_name_only_its_own_checkpoints(
    folder: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    first, second = tmp_path / "first.ckpt", tmp_path / "second.ckpt"
    text = """
    import warnings; warnings.simplefilter("ignore")
    import outlive.lightning
    io = outlive.lightning.CheckpointIO(sys.argv[1], "job")
    for step in (1, 2, 3):
        io.save_checkpoint({"step": step}, sys.argv[2])
    io.save_checkpoint({"step": 4}, sys.argv[3])
    io.teardown()
    """
    run(text, folder, first, second)
    # As if the save of this file had failed, and the next one had got its number.
    lost = json.loads(first.read_text())
    lost["epoch"] = json.loads(second.read_text())["epoch"]
    lost["stamp"] = "x"
    (tmp_path / "lost.ckpt").write_text(json.dumps(lost))
    io = outlive.lightning.CheckpointIO(folder, "job")
    io.remove_checkpoint(tmp_path / "lost.ckpt")
    io.save_checkpoint({"step": 5}, first)
    io.save_checkpoint({"step": 6}, first)
    io.teardown()
    assert io.load_checkpoint(second)["step"] == 4
    assert io.load_checkpoint(first)["step"] == 6
    assert len(io.job.epochs()) == 2


def test_paths_and_arguments(folder: Path, tmp_path: Path) -> None:
    io = outlive.lightning.CheckpointIO(folder, "job", keep_last=2)
    with pytest.raises(outlive.InvalidError, match="has no checkpoint yet"):
        io.load_checkpoint("outlive:newest")
    for step in range(3):
        options = {"wait": True, "metrics": {"loss": 3.0 - step}}
        io.save_checkpoint({"step": step}, "outlive:newest", options)
    assert io.load_checkpoint("outlive:-2")["step"] == 1
    assert io.load_checkpoint(f"outlive:{io.job.latest.epoch}")["step"] == 2
    assert io.job.best("loss").epoch == io.job.latest.epoch
    with pytest.raises(outlive.InvalidError, match="or an epoch as in"):
        io.load_checkpoint("outlive:best")
    with pytest.raises(outlive.InvalidError, match="must lie in a directory"):
        io.save_checkpoint({"step": 1}, "s3://bucket/last.ckpt")
    torch.save({"step": 7}, tmp_path / "plain.ckpt")
    assert io.load_checkpoint(tmp_path / "plain.ckpt")["step"] == 7
    with pytest.raises(outlive.InvalidError, match="names no checkpoint of outlive"):
        io.remove_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(outlive.InvalidError, match="give the name of one after it"):
        outlive.lightning.CheckpointIO(folder)
    io.teardown()
