"""The adapter for Keras: `outlive.keras`. KERAS_BACKEND chooses the backend: torch, else jax."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pytest
import torch

import outlive
import outlive.keras
import trained

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # Each start of such a program takes many seconds on a busy machine.
    pytest.mark.timeout(600),
]

INPUTS = np.random.default_rng(1).standard_normal((48, 8)).astype("float32")
TARGETS = np.random.default_rng(2).standard_normal((48, 1)).astype("float32")


class Rows(torch.utils.data.IterableDataset[Any]):
    """All rows, whose number Keras does not know."""

    def __iter__(self) -> Any:
        return iter(list(zip(INPUTS, TARGETS, strict=True)))


def fit(
    callbacks: Any,
    epochs: int,
    *,
    seed: int = 1,
    width: int = 16,
    rows: Rows | None = None,
    **options: Any,
) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((8,)),
        keras.layers.Dense(width),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "mse", metrics=["mae"])
    if rows is not None:
        loader = torch.utils.data.DataLoader(rows, batch_size=8)
        model.fit(loader, epochs=epochs, callbacks=callbacks, verbose=0)
        return model
    settings = {"batch_size": 8, "verbose": 0, "validation_split": 0.25}
    model.fit(INPUTS, TARGETS, epochs=epochs, callbacks=callbacks, **settings | options)
    return model


def bits(model: Any) -> bytes:
    variables = [*model.variables, *model.optimizer.variables]
    return b"".join(keras.ops.convert_to_numpy(each).tobytes() for each in variables)


class EndsAt(keras.callbacks.Callback):
    """Ends a training by an exception, as a failure of the program does."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.left = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyError("the program fails")


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_killed_training_ends_with_the_same_bits(tmp_path: Path, backend: str) -> None:
    whole = trained.Training("keras", tmp_path / "whole", KERAS_BACKEND=backend)
    want = whole.finish()
    pool = tmp_path / "killed"
    for epoch in (5, 15):
        trained.killed("keras", pool, f"epoch {epoch}", KERAS_BACKEND=backend)
        assert outlive.open(pool).job("keras").latest is not None
    resumed = trained.Training("keras", pool, KERAS_BACKEND=backend)
    assert resumed.finish() == want
    assert resumed.began_after(whole)


@pytest.mark.parametrize("batch", [15, 18])
def test_a_failed_training_goes_on_from_its_newest_checkpoint(folder: Path, batch: int) -> None:
    def callbacks() -> list[Any]:
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            outlive.keras.Callback(folder, "job", keep_last=2),
        ]

    want = bits(fit(callbacks()[:1], 6))
    with pytest.raises(KeyError):
        fit([*callbacks(), EndsAt(batch)], 6)
    model = fit(callbacks(), 6, seed=2)
    assert bits(model) == want
    # All is done.
    assert bits(fit(callbacks(), 6, seed=3)) == want


class Noise(keras.layers.Layer):
    """Draws from the global generator of Keras, as functions without a seed do."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs + keras.random.normal(keras.ops.shape(inputs)) if training else inputs


def test_the_global_generator_of_keras_goes_on(folder: Path) -> None:
    def noisy(callbacks: Any, epochs: int, seed: int) -> bytes:
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input((8,)), Noise(), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        model.fit(INPUTS, TARGETS, epochs=epochs, callbacks=callbacks, verbose=0)
        return bits(model)

    want = noisy([], 4, 1)
    saver = outlive.keras.Callback(folder, "job")
    noisy([saver], 2, 1)
    assert noisy([saver], 4, 2) == want


def test_a_second_fit_in_the_process_goes_on(folder: Path) -> None:
    want = bits(fit([], 5))
    saver = outlive.keras.Callback(folder, "job")
    fit([saver], 2)
    assert bits(fit([saver], 5, seed=7)) == want
    assert saver.job.restore()["epoch"] == 5


def test_a_later_fit_without_the_callback_begins_at_its_own_first_epoch(folder: Path) -> None:
    saver = outlive.keras.Callback(folder, "job")
    fit([saver], 2)
    for epochs in (3, 3):  # all is done at the second time
        model = fit([saver], epochs)
        assert model.fit(INPUTS, TARGETS, epochs=2, verbose=0).epoch == [0, 1]


def test_a_checkpoint_of_another_model_is_refused(folder: Path) -> None:
    saver = outlive.keras.Callback(folder, "job")
    fit([saver], 1)
    with pytest.raises(outlive.InvalidError, match=r"kernel: \(8, 16\).*\(8, 5\) here"):
        fit([saver], 2, width=5)
    outlive.open(folder).job("else").save({"x": 1}, wait=True)
    with pytest.raises(outlive.InvalidError, match=r"none of outlive.keras"):
        fit([outlive.keras.Callback(folder, "else")], 2)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse")
    saver.set_model(model)
    with pytest.raises(outlive.InvalidError, match="give it an `Input`"):
        saver.on_train_begin()


class FillsDisk(keras.callbacks.Callback):
    """Fills the disk in an epoch, and counts later batches."""

    def __init__(self, job: Any) -> None:
        super().__init__()
        self.disk, self.job, self.later, self.epoch = trained.full_disk(), job, 0, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        if epoch == 2:
            self.job.close()  # the save of the epoch before is complete
            self.disk.__enter__()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.later += self.epoch >= 2


def test_a_failed_save_ends_the_training_soon(folder: Path) -> None:
    saver = outlive.keras.Callback(folder, "job")
    fills = FillsDisk(saver.job)
    try:
        with pytest.raises(outlive.Error):
            fit([fills, saver], 50, width=4096)
    finally:
        fills.disk.__exit__(None, None, None)
    assert fills.later < 60
    assert saver.job.restore()["epoch"] == 2


STOPS = """
import warnings; warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[2])
import test_keras as t
import outlive.keras
class Asks(t.keras.callbacks.Callback):
    left = int(sys.argv[3])
    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
outlive.on_preempt()
saver = outlive.keras.Callback(sys.argv[1], "job", within_epochs=sys.argv[4] == "True")
asks = Asks()
t.fit([asks, saver], 6)
print(-asks.left, saver.job.restore()["epoch"])
"""


def test_a_signal_in_a_validation_ends_the_training_there(
    folder: Path, run: Callable[..., str]
) -> None:
    text = STOPS.replace("on_train_batch_begin", "on_test_begin")
    told = run(text, folder, Path(__file__).parent, 2, False)
    assert told.splitlines()[-1] == "0 2"
    assert bits(fit([outlive.keras.Callback(folder, "job")], 6, seed=2)) == bits(fit([], 6))


@pytest.mark.parametrize(("batch", "last", "epoch"), [(8, 9, 1), (12, 12, 2)])
def test_a_signal_ends_a_training_whose_epochs_have_no_known_length(
    folder: Path, run: Callable[..., str], batch: int, last: int, epoch: int
) -> None:
    text = STOPS.replace("6)", "6, rows=t.Rows())")
    told = run(text, folder, Path(__file__).parent, batch, False)
    assert told.splitlines()[-1] == f"{last - batch} {epoch}"


@pytest.mark.parametrize(
    ("batch", "within", "epoch"), [(10, False, 2), (8, False, 1), (8, True, 1)]
)
def test_a_signal_ends_the_training(
    folder: Path, run: Callable[..., str], batch: int, within: bool, epoch: int
) -> None:
    told = run(STOPS, folder, Path(__file__).parent, batch, within)
    assert told.splitlines()[-1] == f"0 {epoch}"
    model = fit([outlive.keras.Callback(folder, "job")], 6, seed=2)
    same = bits(model) == bits(fit([], 6))
    assert same != within
