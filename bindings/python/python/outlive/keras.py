"""outlive for Keras: a callback that saves and resumes.

```python
import keras
import outlive.keras

saver = outlive.keras.Callback("ckpt", "training", every_s=60)
model.fit(x, y, epochs=100, callbacks=[saver])
```
"""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

from outlive import _notices, _rng
from outlive._adapters._source import Source, To
from outlive._errors import InvalidError

__all__ = ["Callback"]


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves a training at the job's interval, resumes it bit by bit, and ends it on request.

    At the begin of `fit` it restores the newest checkpoint of the job, and `fit` goes on with the
    epoch after it. A checkpoint has all variables of the model, its optimizer and metrics, and the
    global random generators, also that of Keras. It is saved at the end of an epoch, since Keras
    resumes only there. So give the callback after those which change the model or its optimizer at
    that point.

    If `Job.should_stop`, the training ends after the batch, or after the next one if Keras does not
    know the length of the epoch. After the last batch of an epoch it ends with the epoch. If a save
    fails, the end of the next batch raises its error.

    Args:
        to: A pool or its location, with the name of a job; or a job.
        name: Name of the job.
        within_epochs: Whether to save between the batches of an epoch as well. A training that
            resumes from such a checkpoint begins this epoch again, with the state that it had, so
            its bits differ from those of an undisturbed one.
        options: Options of `Pool.job`, such as `every_s=60` and `keep_last=3`.
    """

    def __init__(
        self, to: To, name: str | None = None, *, within_epochs: bool = False, **options: Any
    ) -> None:
        """Checks the arguments. Opens nothing."""
        super().__init__()
        self._source = Source(to, name, options)
        self._within_epochs = within_epochs
        # The epoch that comes next, of what is saved last and of what there is now.
        self._saved: int | None = None
        self._next = 0
        # Whether a request to stop came in this epoch, and whether the training left it at once.
        self._is_asked = self._is_cut = False

    @property
    def job(self) -> Any:
        """The job of this process."""
        return self._source.job

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores the newest whole checkpoint, if there is one.

        Raises:
            InvalidError: If the model is not built, or the checkpoint is one of another model.
        """
        model = self.model
        if not model.built:
            raise InvalidError(
                f"the model {model.name!r} has no variables yet: give it an `Input`, or call it "
                "once, before `fit`"
            )
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._is_asked = self._is_cut = False
        self._saved, self._next = None, 0
        tree = self.job.restore()
        if tree is None:
            return
        where = f"checkpoint {self.job.last_restore.epoch} of the job {self.job.name!r}"
        _assign(tree, model, where)
        model._initial_epoch = self._next = self._saved = tree["epoch"]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self._model._initial_epoch = None  # else Keras begins later calls of `fit` there, too
        self._next = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Raises the failure of a save; ends the training if it is to stop."""
        is_due, stops = self._source.is_due(), self.job.should_stop
        steps = (self.params or {}).get("steps")
        is_last = batch + 1 == steps
        if self._within_epochs and is_due and not is_last:
            self._save()
        # After the last batch, Keras still moves its loader on, which draws random numbers: so
        # the training stops at the end of the epoch. If Keras does not know the length, any batch
        # may be the last one: the training stops after the next, if there is one.
        is_inner = not is_last and (steps is not None or self._is_asked)
        self._is_asked = stops
        if stops and is_inner and not self._model.stop_training:
            # Not `self.model`, which brings the variables of JAX back to the model.
            self._model.stop_training = self._is_cut = True
            if not self._within_epochs:
                _notices.tell(
                    logging.WARNING,
                    "job %s: the training stops within epoch %d, and resumes at the last "
                    "checkpoint, which was saved between epochs: give steps_per_epoch for shorter "
                    "ones, or within_epochs=True",
                    self._source.name,
                    self._next + 1,
                )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves if a save is due and the epoch is complete; ends the training if it is to stop."""
        self._is_asked = False
        if self._is_cut:
            return
        self._next = epoch + 1
        if self._source.is_due():
            self._save()
        if self.job.should_stop:
            self._model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        """Saves the last state; returns when it is committed."""
        self._model._initial_epoch = None
        if not self._is_cut and self._next and self._saved != self._next:
            self._save()
        self.job.close()

    def _save(self) -> None:
        model = self.model
        state = {
            "variables": [_value(each) for each in _variables(model)],
            "optimizer": [_value(each) for each in _optimizer(model)],
            "epoch": self._next,
            "seeds": _seeds(),
            "rng": _rng.rng(),
        }
        self.job.save(state, force=True)
        self._saved = self._next


def _variables(model: Any) -> list[Any]:
    found = [*model.trainable_variables, *model.non_trainable_variables, *model.metrics_variables]
    return list({id(each): each for each in found}.values())


def _optimizer(model: Any) -> list[Any]:
    return [] if model.optimizer is None else list(model.optimizer.variables)


def _value(variable: Any) -> Any:
    """Returns an array of NumPy, so that any backend can take it: on the variable's own memory."""
    array = keras.ops.convert_to_numpy(variable)
    # The next step may donate a buffer of JAX.
    return array if keras.backend.backend() == "torch" else np.array(array)


def _assign(tree: Any, model: Any, where: str) -> None:
    if not isinstance(tree, dict) or not {"variables", "optimizer", "epoch"} <= tree.keys():
        raise InvalidError(f"{where} is none of outlive.keras.Callback: give a job of its own name")
    pairs = [
        ("the model", _variables(model), tree["variables"]),
        ("the optimizer", _optimizer(model), tree["optimizer"]),
    ]
    wrong = []
    for what, variables, values in pairs:
        if len(variables) != len(values):
            wrong.append(f"{what} has {len(variables)} variables, the checkpoint {len(values)}")
        wrong += [
            f"{variable.path}: {tuple(value.shape)} in the checkpoint, {tuple(variable.shape)} here"
            for variable, value in zip(variables, values, strict=False)
            if tuple(variable.shape) != tuple(value.shape)
        ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        error = InvalidError(
            f"{where} is one of another model ({'; '.join(wrong[:5])}{more}): give the model that "
            "was saved, or use a job of another name"
        )
        error.differences = wrong
        raise error
    for _, variables, values in pairs:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    if tree.get("seeds") is not None:
        generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
        if generator is None:
            generator = keras.random.SeedGenerator(seed=0)
            global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)
        generator.state.assign(tree["seeds"])


def _seeds() -> Any:
    """Returns the state of the generator for functions without a seed; None before the first."""
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return None if generator is None else _value(generator.state)
