"""outlive for Lightning: a callback that saves and resumes, and a `CheckpointIO`.

```python
import lightning
import outlive.lightning

saver = outlive.lightning.Callback("ckpt", "training", every_s=60)
trainer = lightning.Trainer(max_epochs=100, callbacks=[saver])
trainer.fit(model, data, ckpt_path=saver.newest)
```
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch

from outlive import _notices, _preempt, _rng
from outlive._adapters import _loaders, _pointers, _ranks, _whole
from outlive._adapters._removed import Removed
from outlive._adapters._source import Source, To
from outlive._errors import InvalidError

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    import pytorch_lightning as pl
    from lightning_fabric.plugins import CheckpointIO as _CheckpointIO
else:
    import lightning.pytorch as pl
    from lightning.fabric.plugins import CheckpointIO as _CheckpointIO

__all__ = ["Callback", "CheckpointIO"]

_SCHEME = "outlive:"
_STATE = "outlive_rng"

# A checkpoint: the pointer that names it, or None for the own job, and its epoch.
_Place = tuple[_pointers.Pointer | None, int | None]


class CheckpointIO(_CheckpointIO):  # type: ignore[misc]
    """Saves the checkpoints of a `Trainer` in a job, while the training goes on.

    ```python
    trainer = lightning.Trainer(
        plugins=[outlive.lightning.CheckpointIO("ckpt", "training")],
        callbacks=[ModelCheckpoint(every_n_train_steps=100, save_top_k=3, monitor="loss")],
    )
    ```

    At the path that `ModelCheckpoint` chooses lies a small file, which names the checkpoint in the
    pool. So `save_top_k`, `save_last` and `ckpt_path="best"` work as with files. If Lightning
    removes the file, the checkpoint is dropped from the job. The rules of the job, such as
    `keep_last`, drop checkpoints as well.

    `ckpt_path="outlive:newest"` names the newest whole checkpoint of the job, and `"outlive:7"` the
    one with this epoch. A save to such a path writes no file.

    If a save fails, the next save raises its error, and so does the end of `fit`.

    Args:
        to: A pool or its location, with the name of a job; or a job.
        name: Name of the job.
        options: Options of `Pool.job`, such as `keep_last=3`.
    """

    def __init__(self, to: To, name: str | None = None, **options: Any) -> None:
        """Checks the arguments. Opens nothing."""
        self._source = Source(to, name, options)
        self._removed = Removed(self._source)

    @property
    def job(self) -> Any:
        """The job of this process."""
        return self._source.job

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Begins to save; returns as soon as the training may go on.

        Args:
            checkpoint: The state, as Lightning collects it.
            path: Where a file is to name the checkpoint, or a text that begins with "outlive:".
            storage_options: Options of `Job.save`: `label`, `pin`, `metrics`, `wait`.

        Raises:
            Error: As `Job.save`: also the failure of the save before.
        """
        options = dict(storage_options or {})
        stamp = _pointers.new_stamp()
        state = {**checkpoint, _pointers.KEY: {"stamp": stamp}}
        save = self.job.save(state, **{"force": True, **options})
        replaced = None
        if not _is_own(path):
            has_failed = self._removed.has_failed
            pointer = _pointers.write(_local(path), self.job, save.epoch, stamp, has_failed)
            replaced = pointer.before
        self._removed.saving(save, stamp, replaced)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Returns a checkpoint as a new tree. Collective.

        The first rank restores, and then the others restore the same checkpoint.

        Args:
            path: Path of a file that `save_checkpoint` has written, or a text such as
                "outlive:newest" or "outlive:7". Lightning reads all other files by itself.
            map_location: Device of the tensors. None and functions leave them in host memory.
            weights_only: Not used: a restore unpickles nothing, unless the job allows it.

        Raises:
            FileNotFoundError: If there is no such file.
            InvalidError: If the checkpoint is not there.
            DamagedError: If it is damaged.
        """

        def first() -> tuple[Any, _Place | None]:
            place = self._find(path)
            if place is None:
                return None, None
            return self._restore(path, *place)

        def follow(place: _Place | None) -> Any:
            return None if place is None else self._restore(path, *place)[0]

        tree = _ranks.led(first, follow)
        if tree is None:
            return self._load_file(_local(path), map_location, weights_only)
        if isinstance(map_location, str | torch.device):
            tree = _moved(tree, torch.device(map_location))
        return tree  # type: ignore[no-any-return]

    def _find(self, path: Any) -> _Place | None:
        """Returns the checkpoint at a path; None if an ordinary file is there."""
        self._source.settle()
        if _is_own(path):
            return None, _own_epoch(path)
        file = _local(path)
        pointer = _pointers.read(file)
        if pointer is None:
            if not file.exists():
                raise FileNotFoundError(f"Checkpoint file not found: {path}")
            return None
        job = _pointers.job_of(pointer, self.job)
        return pointer, _pointers.epoch_of(pointer, job, str(path))

    def _restore(
        self, path: Any, pointer: _pointers.Pointer | None, epoch: int | None
    ) -> tuple[dict[str, Any], _Place]:
        """Returns the state, and the checkpoint that was taken."""
        job = self.job if pointer is None else _pointers.job_of(pointer, self.job)
        tree, report = job.restore(epoch=epoch), job.last_restore
        if tree is None or report is None:
            raise InvalidError(f"{path}: the job {job.name!r} has no checkpoint yet")
        tree.pop(_pointers.KEY, None)
        return tree, (pointer, report.epoch)

    @staticmethod
    def _load_file(file: Path, map_location: Any, weights_only: bool | None) -> dict[str, Any]:
        """Loads an ordinary file, so that a program may go on from one."""
        options = {} if weights_only is None else {"weights_only": weights_only}
        found: dict[str, Any] = torch.load(file, map_location=map_location or "cpu", **options)
        return found

    def remove_checkpoint(self, path: Any) -> None:
        """Removes the file, and drops the checkpoint from the job once no save is under way."""
        if _is_own(path):
            return
        file = _local(path)
        pointer = _pointers.read(file)
        if pointer is None and file.exists() and not file.is_symlink():
            raise InvalidError(f"{path} names no checkpoint of outlive: remove it yourself")
        file.unlink(missing_ok=True)
        if pointer is not None:
            self._removed.add(pointer)

    def export(self, path: Any, to: Any) -> None:
        """Writes a checkpoint as an ordinary file, such as `load_from_checkpoint` reads.

        It is not collective: one rank calls it.

        Args:
            path: As for `load_checkpoint`.
            to: Path of the new file.
        """
        place = self._find(path)
        if place is None:
            raise InvalidError(f"{path} is an ordinary file already: copy it")
        torch.save(self._restore(path, *place)[0], to)

    def teardown(self) -> None:
        """Waits for the last save; raises its failure."""
        try:
            self.job.close()
        finally:
            self._removed.finish()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out all that belongs to this process."""
        return {key: value for key, value in self.__dict__.items() if key != "_removed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes the state in another process."""
        self.__dict__.update(state)
        self._removed = Removed(self._source)


class _Route(CheckpointIO):
    """A `CheckpointIO` for paths of a callback; all others go where they went before."""

    def __init__(self, source: Source, before: Any) -> None:
        self._source, self.before = source, before
        self._removed = Removed(source)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        if _is_own(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            self.before.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if _is_own(path):
            return super().load_checkpoint(path, *args, **kwargs)
        return self.before.load_checkpoint(path, *args, **kwargs)  # type: ignore[no-any-return]

    def remove_checkpoint(self, path: Any) -> None:
        if not _is_own(path):
            self.before.remove_checkpoint(path)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.before.teardown()


class Callback(pl.Callback):  # type: ignore[misc]
    """Saves a training at the job's interval, resumes it bit by bit, and ends it on request.

    It saves at the begin of an epoch, if a save is due. It saves between the batches of an epoch as
    well if all data loaders have `state_dict`, since else a resumed training would see other
    batches. The last state is saved in any case.

    The global random generators of each rank, and those of its data loaders, are part of the
    checkpoints, also of those that `ModelCheckpoint` saves.

    If `Job.should_stop`, the training ends after the batch. After `outlive.on_preempt`, Lightning
    installs no signal handlers of its own. Without it, a SIGTERM saves the state after the batch,
    and then Lightning ends the program. If a save fails, the end of the next batch raises its
    error.

    Args:
        to: A pool or its location, with the name of a job; or a job.
        name: Name of the job.
        within_epochs: Whether to save between the batches of an epoch. None: if all data loaders
            have `state_dict`.
        options: Options of `Pool.job`, such as `every_s=60` and `keep_last=3`.
    """

    def __init__(
        self, to: To, name: str | None = None, *, within_epochs: bool | None = None, **options: Any
    ) -> None:
        """Checks the arguments. Opens nothing."""
        self._source = Source(to, name, options)
        self._within_epochs = within_epochs
        # Whether the job had a checkpoint when the program asked for the newest one.
        self._found: bool | None = None
        self._saved_step: int | None = None
        self._loaded: dict[str, Any] | None = None
        self._is_at_begin = False
        # The least epochs and steps of the trainer, once the training is to stop before them.
        self._least: tuple[Any, Any] | None = None

    @property
    def job(self) -> Any:
        """The job of this process."""
        return self._source.job

    @property
    def newest(self) -> str | None:
        """Name of the newest checkpoint, for `ckpt_path`; None if the job has none."""
        self._found = self.job.latest is not None
        return f"{_SCHEME}newest" if self._found else None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Has the strategy load and save the checkpoints of this callback by outlive."""
        self._saved_step = None
        if _preempt.is_asked():
            _register_no_signals(trainer)
        strategy = type(trainer.strategy)
        # FSDPStrategy, ModelParallelStrategy and DeepSpeedStrategy read files of their own.
        if strategy.load_checkpoint is not pl.strategies.Strategy.load_checkpoint:
            raise _whole.refusal(strategy.__name__)
        found = _ranks.gathered(self._found)
        if len(set(found)) > 1:
            raise InvalidError(
                f"the ranks disagree on whether the job {self._source.name!r} has a checkpoint "
                f"(`newest`: {found}), as one was committed in between: start the training again"
            )
        before = known = trainer.strategy.checkpoint_io
        while isinstance(known, _Route) and known._source is not self._source:
            known = known.before
        if not isinstance(known, _Route):
            trainer.strategy.checkpoint_io = _Route(self._source, before)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Adds the random generators of all ranks."""
        states = [each.get_state() for each in _loaders.generators(_loaders_of(trainer))]
        checkpoint[_STATE] = {
            "within": _is_within(trainer),
            "ranks": _ranks.generators(),
            "loaders": _ranks.gathered(states),
        }
        if self._is_at_begin:
            _begin_epoch(checkpoint["loops"]["fit_loop"])

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keeps the random generators until the training begins."""
        self._loaded = checkpoint.get(_STATE)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Sets the random generators, if the training resumes at the begin of an epoch."""
        if self._loaded is not None and not self._loaded["within"]:
            self._give(self._loaded)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Sets the random generators, if the training resumes within an epoch."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        if loaded["within"]:
            self._give(loaded)
            self._saved_step = trainer.global_step
            return
        loaders, mine = _loaders_of(trainer), _ranks.rank()
        states = loaded["loaders"][mine] if mine < len(loaded["loaders"]) else []
        if states or any(hasattr(loader, "state_dict") for loader in loaders):
            # These loaders have begun the epoch from another state of the generators.
            _loaders.give(loaders, states)
            self._give(loaded)
            iter(trainer.fit_loop._data_fetcher)

    @staticmethod
    def _give(loaded: dict[str, Any]) -> None:
        mine = _ranks.generator_of_mine(loaded["ranks"])
        if mine is not None:
            _rng.give(mine)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Saves if a save is due."""
        # A Lightning that has resumed here counts this epoch too little. The end of the training
        # would then look like one within an epoch, and a training that goes on would end it soon.
        counts = trainer.fit_loop.epoch_progress.current
        counts.ready = counts.started + 1
        if trainer.global_step and _ranks.decided(self._source.is_due):
            self._is_at_begin = True
            try:
                self._save(trainer)
            finally:
                self._is_at_begin = False

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves if a save is due and possible; ends the training if it is to stop."""
        is_due, stops = _ranks.decided(
            lambda: (self._source.is_due(), self.job.should_stop or trainer.received_sigterm)
        )
        is_last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        is_whole = is_last or (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if (is_due or stops) and is_whole and not is_last and self._saves_within(trainer):
            self._save(trainer)
        if stops and is_whole and self._least is None:
            self._stop(trainer)
            if not is_last and self._saved_step != trainer.global_step:
                # The end of this epoch is none: nothing must be saved there.
                self._saved_step = trainer.global_step
                _notices.tell(
                    logging.WARNING,
                    "job %s: the training stops within an epoch, and its data loader has no "
                    "`state_dict`: it resumes at the last checkpoint. Give it a loader such as "
                    "StatefulDataLoader, or `within_epochs=True`",
                    self._source.name,
                )

    def _stop(self, trainer: Any) -> None:
        """Ends the training, also before the least epochs and steps of the trainer."""
        loop = trainer.fit_loop
        self._least = loop.min_epochs, loop.epoch_loop.min_steps
        loop.min_epochs = loop.epoch_loop.min_steps = None
        trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Saves the last state, unless it is saved."""
        if self._least is not None:
            loop = trainer.fit_loop
            (loop.min_epochs, loop.epoch_loop.min_steps), self._least = self._least, None
        if self._saved_step != trainer.global_step:
            self._save(trainer)

    def _save(self, trainer: Any) -> None:
        if self._saved_step == trainer.global_step:
            return
        metrics = {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if getattr(value, "numel", lambda: 1)() == 1
        }
        trainer.save_checkpoint(f"{_SCHEME}newest", storage_options={"metrics": metrics})
        self._saved_step = trainer.global_step

    def _saves_within(self, trainer: Any) -> bool:
        if self._within_epochs is not None:
            return self._within_epochs
        return all(hasattr(loader, "state_dict") for loader in _loaders_of(trainer))


def _register_no_signals(trainer: Any) -> None:
    """Keeps the handlers of `on_preempt`, which those of Lightning would replace and reset."""
    connector, name = getattr(trainer, "_signal_connector", None), "register_signal_handlers"
    if not callable(getattr(connector, name, None)):
        _notices.tell(
            logging.WARNING,
            "Lightning %s has no Trainer._signal_connector.%s: it replaces the signal handlers of "
            "outlive.on_preempt. Use Lightning 2.6, or ask by `outlive stop`",
            pl.__version__,
            name,
        )
        return
    setattr(connector, name, _register_none)


def _register_none() -> None:
    """Takes the place of a method of `Trainer`; a function can be pickled with it."""


def _loaders_of(trainer: Any) -> list[Any]:
    """Returns the data loaders of the training."""
    combined = trainer.fit_loop._combined_loader
    return [] if combined is None else list(combined.flattened)


def _is_within(trainer: Any) -> bool:
    progress = trainer.fit_loop.epoch_loop.batch_progress
    return progress.current.ready > 0 and not progress.is_last_batch


def _begin_epoch(loop: dict[str, Any]) -> None:
    """Sets the counters of batches to zero, as Lightning itself does only after this save.

    Otherwise a training that resumes takes the last epoch's count for that of the new one, and ends
    it after one batch.
    """
    for name in ("batch_progress", "scheduler_progress", "automatic_optimization.optim_progress"):
        _clear(loop[f"epoch_loop.{name}"])
    checked = loop["epoch_loop.val_loop.batch_progress"]
    checked["total"] = dict.fromkeys(checked["total"], 0)


def _clear(progress: dict[str, Any]) -> None:
    for key, value in progress.items():
        if key == "current":
            progress[key] = dict.fromkeys(value, 0)
        elif key == "is_last_batch":
            progress[key] = False
        elif isinstance(value, dict) and key != "total":
            _clear(value)


def _is_own(path: Any) -> bool:
    return isinstance(path, str) and path.startswith(_SCHEME)


def _own_epoch(path: str) -> int | None:
    text = path.removeprefix(_SCHEME)
    if text == "newest":
        return None
    if not text.removeprefix("-").isdecimal():
        raise InvalidError(f'{path!r}: give "outlive:newest", or an epoch as in "outlive:7"')
    return int(text)


def _local(path: Any) -> Path:
    text = os.fspath(path)
    if "://" in text:
        raise InvalidError(
            f"{text}: the file that names a checkpoint must lie in a directory; the pool may be in "
            "a bucket. Give `dirpath` of ModelCheckpoint a directory"
        )
    return Path(text)


def _moved(tree: Any, device: torch.device) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.to(device)
    if isinstance(tree, dict):
        return {key: _moved(value, device) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_moved(value, device) for value in tree)
    return tree
