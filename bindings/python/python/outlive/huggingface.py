"""outlive for the `Trainer` of Hugging Face: a callback that saves and resumes.

```python
import outlive.huggingface

saver = outlive.huggingface.Callback("ckpt", "training", every_s=60)
trainer = Trainer(model, args, train_dataset=data, callbacks=[saver])
trainer.train(resume_from_checkpoint=saver.newest(trainer))
```

Set `save_strategy="no"` in the `TrainingArguments`: the callback saves, and no files are needed.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import weakref
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from outlive import _notices, _rng
from outlive._adapters import _ranks, _whole
from outlive._adapters._source import Source, To
from outlive._errors import InvalidError
from outlive.torch import Capture, capture

__all__ = ["Callback"]

# Name of the folder, in `output_dir`, of the files that a `Trainer` resumes from.
_FOLDER = "outlive-resume"


class Callback(TrainerCallback):  # type: ignore[misc]
    """Saves a training at the job's interval, resumes it bit by bit, and ends it on request.

    A checkpoint has the model, the optimizer, the scheduler, the scaler, the state of the `Trainer`
    and of its callbacks, and the global random generators of each rank. It is the state between two
    steps, after logs and evaluations.

    If `Job.should_stop`, the training ends after the step, and its state is committed. If a save
    fails, the next step raises its error. With several ranks, the first one saves.

    Args:
        to: A pool or its location, with the name of a job; or a job.
        name: Name of the job.
        options: Options of `Pool.job`, such as `every_s=60` and `keep_last=3`.
    """

    def __init__(self, to: To, name: str | None = None, **options: Any) -> None:
        """Checks the arguments. Opens nothing."""
        self._source = Source(to, name, options)
        self._trainer: weakref.ref[Any] | None = None
        self._capture: Capture | None = None
        self._progress: dict[str, Any] = {}
        self._saved_step: int | None = None
        self._resumed: dict[str, Any] | None = None
        self._folder: Path | None = None
        self._stops = False

    @property
    def job(self) -> Any:
        """The job of this process."""
        return self._source.job

    def newest(self, trainer: Any) -> str | None:
        """Restores the newest whole checkpoint, for `resume_from_checkpoint`. Collective.

        The first rank restores, and then the others restore the same checkpoint.
        The files that a `Trainer` reads are written to its `output_dir`, and deleted when the
        training begins.

        Args:
            trainer: The trainer, which has this callback.

        Returns:
            The folder with the files; None if the job has no checkpoint.

        Raises:
            InvalidError: If the checkpoint is one of another model, or ranks divide the model.
            DamagedError: If no checkpoint is whole.
        """
        _whole.check([trainer.model], trainer.accelerator.distributed_type)
        self._trainer = weakref.ref(trainer)
        self._resumed = None

        def first() -> tuple[Any, int | None]:
            tree = self.job.restore()
            return tree, None if tree is None else self.job.last_restore.epoch

        def follow(taken: int | None) -> Any:
            return None if taken is None else self.job.restore(epoch=taken)

        tree = _ranks.led(first, follow)
        if tree is None:
            return None
        where = f"checkpoint {self.job.last_restore.epoch} of the job {self.job.name!r}"
        _check(tree, trainer.model, where)
        folder = Path(trainer.args.output_dir) / f"{_FOLDER}-{_ranks.rank()}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        progress = tree["trainer"]
        (folder / "trainer_state.json").write_text(progress["state"])
        torch.save(tree["model"], folder / "pytorch_model.bin")
        torch.save(tree["optimizer"], folder / "optimizer.pt")
        torch.save(tree["scheduler"], folder / "scheduler.pt")
        if "scaler" in tree:
            torch.save(tree["scaler"], folder / "scaler.pt")
        self._resumed = {"step": progress["step"], "ranks": progress["ranks"]}
        self._folder = folder
        return str(folder)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Deletes the files of `newest`, and looks at what there is to save."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        resumed = self._resumed
        if resumed is not None and resumed["step"] != state.global_step:
            self._resumed = None
        self._saved_step = state.global_step if self._resumed is not None else None
        self._stops = False
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None or trainer.state is not state:
            self._trainer = None
            _notices.tell(
                logging.WARNING,
                "job %s: its checkpoints will lack the states of other callbacks: call "
                "`newest(trainer)` before `train`, also if the training begins at step 0",
                self._source.name,
            )
        _whole.check([model], AcceleratorState().distributed_type)
        self._capture = capture(
            model=model,
            optimizer=getattr(optimizer, "optimizer", optimizer),
            scheduler=kwargs["lr_scheduler"],
            scaler=getattr(optimizer, "scaler", None),
            trainer=self._progress,
            rng=False,
        )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Saves the end of the epoch before, if a save is due."""
        is_first = self._give(state, within=False)
        if state.global_step and not is_first:
            self._save_if_due(state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Saves the step before, if a save is due."""
        if self._give(state, within=True):
            return
        # The state at the begin of an epoch is the one before its first batch was drawn.
        if state.global_step and not _is_at_begin(state):
            self._save_if_due(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Raises the failure of a save; ends the training if it is to stop."""
        _ranks.decided(self._source.is_due)
        if _ranks.decided(lambda: self.job.should_stop):
            self._stops = True
            control.should_training_stop = True
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Saves where the training stops within an epoch."""
        # The evaluation at the end of an epoch follows, which this is not.
        if self._stops and not _is_at_begin(state):
            self._save(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Saves the last state; returns when it is committed."""
        self._save(state)
        self._capture = None
        if _ranks.rank() == 0:
            self.job.close()

    def _give(self, state: Any, *, within: bool) -> bool:
        """Sets the generators where the save took them; returns whether it did."""
        resumed = self._resumed
        if resumed is None or within == _is_at_begin(state):
            return False
        self._resumed = None
        mine = _ranks.generator_of_mine(resumed["ranks"])
        if mine is not None:
            _rng.give(mine)
        return True

    def _save_if_due(self, state: Any) -> None:
        if self._saved_step != state.global_step and _ranks.decided(self._source.is_due):
            self._save(state)

    def _save(self, state: Any) -> None:
        if self._saved_step == state.global_step or self._capture is None:
            return
        found, generators = self._capture, _ranks.generators()

        def save() -> None:
            self._progress.update(
                state=self._state_of(state), step=state.global_step, ranks=generators
            )
            found.save(self.job, force=True, metrics=_metrics(state))

        _ranks.decided(save)
        self._saved_step = state.global_step

    def _state_of(self, state: Any) -> str:
        """Returns the state of the trainer and its callbacks, as its file would have it."""
        trainer = None if self._trainer is None else self._trainer()
        found = dataclasses.asdict(state)
        if trainer is not None:
            exported: dict[str, Any] = {}
            for each in [*trainer.callback_handler.callbacks, trainer.control]:
                if isinstance(each, ExportableState):
                    exported.setdefault(type(each).__name__, []).append(each.state())
            found["stateful_callbacks"] = {
                name: states[0] if len(states) == 1 else states for name, states in exported.items()
            }
        return json.dumps(found)


def _is_at_begin(state: Any) -> bool:
    """Whether the step is the last one of its epoch, so that the next one begins another."""
    return state.epoch is not None and float(state.epoch).is_integer()


def _metrics(state: Any) -> dict[str, float]:
    last = state.log_history[-1] if state.log_history else {}
    return {key: float(value) for key, value in last.items() if isinstance(value, int | float)}


def _check(tree: Any, model: Any, where: str) -> None:
    """Raises an error if a checkpoint is none of this model."""
    if not isinstance(tree, dict) or not {"model", "optimizer", "trainer"} <= tree.keys():
        raise InvalidError(
            f"{where} is none of outlive.huggingface.Callback: give a job of its own name"
        )
    saved, mine = tree["model"], model.state_dict()
    wrong = [
        f"{name}: {tuple(saved[name].shape)} in the checkpoint, {tuple(mine[name].shape)} here"
        for name in mine
        if name in saved and saved[name].shape != mine[name].shape
    ]
    wrong += [f"{name}: only here" for name in mine if name not in saved]
    wrong += [f"{name}: only in the checkpoint" for name in saved if name not in mine]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        error = InvalidError(
            f"{where} is one of another model ({'; '.join(wrong[:5])}{more}): give the trainer the "
            "model that was saved, or use a job of another name"
        )
        error.differences = wrong
        raise error
