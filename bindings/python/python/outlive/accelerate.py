"""outlive for Accelerate: everything that an `Accelerator` knows, and hooks for its own files.

```python
import outlive.accelerate

accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
run = outlive.accelerate.capture(accelerator, "ckpt", "training", progress=progress, every_s=60)
run.restore()
while progress["step"] < 10_000 and not run.should_stop:
    train(model, optimizer)
    progress["step"] += 1
    run.save()
```
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outlive import _rng
from outlive._adapters import _loaders, _pointers, _ranks, _whole
from outlive._adapters._source import Source, To
from outlive._errors import InvalidError
from outlive._saves import Epoch, Restored, Save
from outlive.torch import capture as _capture

__all__ = ["Hooks", "Run", "attach", "capture"]

_FILE = "outlive.json"


def capture(
    accelerator: Any, to: To, name: str | None = None, *, progress: Any = None, **options: Any
) -> Run:
    """Captures all that an `Accelerator` has prepared, and what the program adds.

    These are models, optimizers, schedulers, data loaders that have a state, the scaler, objects of
    `register_for_checkpointing` and the step of `accumulate`. Random generators are those of data
    loaders, and the global ones of each rank. Call it after `prepare`.

    A program that saves within epochs needs `use_stateful_dataloader=True` and, with several ranks,
    `use_seedable_sampler=True` in `DataLoaderConfiguration`.

    Args:
        accelerator: The `Accelerator`.
        to: A pool or its location, with the name of a job; or a job.
        name: Name of the job.
        progress: State of the program, such as `{"step": 0}`, which a restore fills.
        options: Options of `Pool.job`, such as `every_s=60` and `keep_last=3`.

    Raises:
        InvalidError: If a model is divided among ranks, or nothing is prepared.
    """
    return Run(accelerator, Source(to, name, options), progress)


class Run:
    """A captured training; made by `capture`. All ranks make the same calls; the first one saves.

    Attributes:
        job: The job of this process.
    """

    def __init__(self, accelerator: Any, source: Source, progress: Any) -> None:
        """Takes what `capture` got."""
        if not accelerator._models:
            raise InvalidError("the Accelerator has no model: call `capture` after `prepare`")
        if progress is None:
            progress = {}
        _whole.check(accelerator._models, accelerator.distributed_type)
        self._accelerator, self._source = accelerator, source
        self.job = source.job
        self._more = _More()
        loaders = [each for each in accelerator._dataloaders if _has_state(each)]
        optimizers = [getattr(each, "optimizer", each) for each in accelerator._optimizers]
        schedulers = [getattr(each, "scheduler", each) for each in accelerator._schedulers]
        parts: dict[str, Any] = {
            "model": [accelerator.unwrap_model(each) for each in accelerator._models],
            "optimizer": optimizers,
            "scheduler": schedulers,
            "loader": loaders,
            "custom": list(accelerator._custom_objects),
        }
        self._capture = _capture(
            **{key: part for key, part in parts.items() if part},
            scaler=accelerator.scaler,
            progress=progress,
            accelerator=self._more,
            rng=False,
        )

    def save(self, *, force: bool = False, **options: Any) -> Save | None:
        """Saves if a save is due; returns as soon as the training may go on. Collective.

        Args:
            force: Whether to save now, even if none is due yet.
            options: Options of `Job.save`: `wait`, `label`, `pin`, `metrics`.

        Returns:
            The handle of the save, on the first rank; else None, and also if none was due.

        Raises:
            Error: As `Job.save`: also the failure of the save before.
        """
        force = force or bool(options.get("label") or options.get("pin"))
        if not (_ranks.decided(self._source.is_due) or force):
            return None
        loaders = self._accelerator._dataloaders
        self._more.state = {
            "step": self._accelerator.step,
            # Of these the order of the next epoch's samples depends.
            "iterations": [getattr(loader, "iteration", 0) for loader in loaders],
            "generators": [each.get_state() for each in _loaders.generators(loaders)],
            "ranks": _ranks.generators(),
        }
        saves: list[Save] = []
        _ranks.decided(lambda: saves.append(self._capture.save(self.job, force=True, **options)))
        return saves[0] if saves else None

    def restore(self, *, epoch: int | str | Epoch | None = None) -> Restored:
        """Restores the newest whole checkpoint into the prepared objects, if there is one.

        Collective. The first rank restores, and then the others restore the same checkpoint.

        Args:
            epoch: The checkpoint, as in `Job.restore`, and no other.

        Returns:
            Report of the restore. It is false if the job has no checkpoint: nothing was changed.

        Raises:
            InvalidError: If the program and the checkpoint do not match.
            DamagedError: If no checkpoint is whole.
        """

        def first() -> tuple[Restored, int | None]:
            report = self._capture.restore(self.job, epoch=epoch)
            return report, report.epoch

        def follow(taken: int | None) -> Restored:
            return Restored(None) if taken is None else self._capture.restore(self.job, epoch=taken)

        report = _ranks.led(first, follow)
        if report:
            self._accelerator.step = self._more.state["step"]
            iterations = self._more.state["iterations"]
            for loader, count in zip(self._accelerator._dataloaders, iterations, strict=False):
                loader.iteration = count
            _loaders.give(self._accelerator._dataloaders, self._more.state["generators"])
            mine = _ranks.generator_of_mine(self._more.state["ranks"])
            if mine is not None:
                _rng.give(mine)
        return report

    @property
    def should_stop(self) -> bool:
        """Whether the program is to save and to end: see `Job.should_stop`. Collective."""
        return _ranks.decided(lambda: self.job.should_stop)

    def close(self) -> None:
        """Waits until the last save is over; raises its failure."""
        self.job.close()


class _More:
    """The state that an `Accelerator` has outside of its objects; a restore makes it again."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def attach(accelerator: Any, to: To, name: str | None = None, **options: Any) -> Hooks:
    """Lets `save_state` and `load_state` keep the models' weights in a job.

    Accelerate lets a hook take the weights, and nothing else. It writes optimizers, schedulers and
    the rest as its files, before `save_state` returns. `capture` saves all of it in the background.

    Args:
        accelerator: The `Accelerator`.
        to: A pool or its location, with the name of a job; or a job.
        name: Name of the job.
        options: Options of `Pool.job`, such as `keep_last=3`.

    Returns:
        The hooks; `remove` takes them away.
    """
    return Hooks(accelerator, Source(to, name, options))


class Hooks:
    """Hooks of an `Accelerator`; made by `attach`.

    If a save fails, the next `save_state` raises its error, and so does `close`.
    """

    def __init__(self, accelerator: Any, source: Source) -> None:
        """Registers the hooks."""
        _whole.check(accelerator._models, accelerator.distributed_type)
        self._accelerator, self._source = accelerator, source
        self._handles = [
            accelerator.register_save_state_pre_hook(self._save),
            accelerator.register_load_state_pre_hook(self._load),
        ]

    @property
    def job(self) -> Any:
        """The job of this process."""
        return self._source.job

    def _save(self, models: list[Any], weights: list[Any], output_dir: str) -> None:
        def save() -> None:
            stamp = _pointers.new_stamp()
            state = {"models": list(weights), _pointers.KEY: {"stamp": stamp}}
            save = self.job.save(state, force=True)
            _pointers.write(Path(output_dir) / _FILE, self.job, save.epoch, stamp)

        _ranks.decided(save)
        weights.clear()

    def _load(self, models: list[Any], input_dir: str) -> None:
        file = Path(input_dir) / _FILE

        def find() -> tuple[_pointers.Pointer, int] | None:
            self._source.settle()
            pointer = _pointers.read(file)
            if pointer is None:
                return None
            job = _pointers.job_of(pointer, self.job)
            return pointer, _pointers.epoch_of(pointer, job, str(file))

        found = _ranks.decided(find)
        if found is None:
            return  # Accelerate loads its own files, or says that they are missing
        pointer, epoch = found
        into = {"models": [model.state_dict() for model in models]}
        job = _pointers.job_of(pointer, self.job)
        job.restore(into=into, only="models", epoch=epoch)
        for model, state in zip(models, into["models"], strict=True):
            model.load_state_dict(state)
        models.clear()

    def remove(self) -> None:
        """Takes the hooks away."""
        for handle in self._handles:
            handle.remove()

    def close(self) -> None:
        """Waits until the last save is over; raises its failure."""
        self.job.close()


def _has_state(loader: Any) -> bool:
    # Other prepared loaders have the method, and raise.
    return bool(getattr(loader, "use_stateful_dataloader", False))
