"""`capture`: all state of a training program, for one call that saves and one that restores."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any

import torch

from outlive import _notices, _rng
from outlive._deferred import Deferred
from outlive._errors import DamagedError, InvalidError
from outlive._flat import escape, unescape
from outlive._job import Job
from outlive._look import Look, look
from outlive._saves import Epoch, Restored, Save
from outlive.torch._sources import (
    ModuleSource,
    OptimizerSource,
    Source,
    StatefulSource,
    StateSource,
)
from outlive.torch._stage import Stager

# Parts of which each rank of a group has its own.
_OF_EACH_RANK = ("loader",)


def capture(
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Any = None,
    rng: bool = True,
    **more: Any,
) -> Capture:
    """Captures a training program: what it saves, and what a restore fills.

    A save reads the memory of the parameters themselves, and copies none of it. Tensors on a device
    are copied to the host, and only pages that have changed are written.

    Each argument may also be a list, tuple or dict of such objects.

    Args:
        model: Module.
        optimizer: Optimizer. A restore also fills one that has no state yet.
        scheduler: Scheduler of the learning rate.
        scaler: `GradScaler`.
        loader: Loader with `state_dict` and `load_state_dict`, such as `StatefulDataLoader` of
            torchdata. In a group, each rank has its own.
        rng: Whether to put the global random generators into the state: see `outlive.rng`.
        more: Other parts: modules, optimizers, all objects with `state_dict` and `load_state_dict`,
            and states as `Job.save` takes them. A restore fills these where they are, so they must
            be dicts, lists, arrays, tensors or random generators.

    Raises:
        InvalidError: If an object cannot be captured.
    """
    parts = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "loader": loader,
        **more,
    }
    parts = {name: part for name, part in parts.items() if part is not None}
    if rng:
        if "rng" in more:
            raise InvalidError("`rng` is the name of the global random generators: choose another")
        parts["rng"] = _rng.rng()
    return Capture(parts)


class Capture(Deferred):
    """The state of a training program; made by `capture`."""

    def __init__(self, parts: dict[str, Any], stager: Stager | None = None) -> None:
        """Takes the parts by name."""
        if not parts:
            raise InvalidError("nothing is captured: give a model, an optimizer or another part")
        self._sources: dict[str, list[Source]] = {}
        self._stager = stager or Stager()
        for name, part in parts.items():
            found = self._sources[name] = []
            _collect(escape(name), part, found, each_rank=name in _OF_EACH_RANK)

    def save(self, job: Job, **options: Any) -> Save:
        """Saves the program's state.

        Makes the state only if a save is due.

        Args:
            job: The job.
            options: Options of `Job.save`: `force`, `wait`, `label`, `pin`, `tags`, `metrics`.

        Raises:
            Error: Errors of `Job.save`.
        """
        return job.save(self, **options)

    def _outlive_state(self) -> Any:
        tree: dict[str, Any] = {}
        for source in self._all():
            _put(tree, source.path, source.state())
        return self._stager.staged(tree, fetch=True)

    def restore(
        self,
        job: Job,
        *,
        epoch: int | str | Epoch | None = None,
        only: str | Iterable[str] | None = None,
    ) -> Restored:
        """Restores the program's state: the newest whole checkpoint, if there is one.

        Parameters, buffers and the state of optimizers are filled where they are, on whatever
        device. Other objects get their state by `load_state_dict`.

        If the newest checkpoint is damaged, the next older one is taken, with a warning.

        Args:
            job: The job.
            epoch: The checkpoint, as in `Job.restore`, and no other.
            only: Names of the parts to restore, such as "model". None restores all.

        Returns:
            Report of the restore. It is false if the job has no checkpoint: nothing was changed.

        Raises:
            InvalidError: If the program and the checkpoint do not match. Nothing was changed,
                unless `into_changed` is set.
            DamagedError: If no checkpoint is whole.
        """
        sources = self._chosen(only)
        skipped: list[tuple[int | None, str]] = []
        wanted = job._number_of(epoch)
        while True:
            seen = look(job, wanted)
            if seen is None:
                return Restored(None)
            try:
                report = self._restore(job, seen, sources)
                break
            except DamagedError as error:
                older = [
                    each.epoch
                    for each in job.epochs()
                    if each.epoch < seen.epoch and each.mark != "bad"
                ]
                if epoch is not None or not older:
                    raise
                skipped.append((seen.epoch, str(error)))
                text = "job %s: checkpoint %s is damaged, and is skipped: %s"
                _notices.tell(logging.WARNING, text, job.name, seen.epoch, error)
                wanted = older[-1]
        report = dataclasses.replace(report, skipped=(*skipped, *report.skipped))
        job.last_restore = report
        return report

    def _restore(self, job: Job, seen: Look, sources: list[Source]) -> Restored:
        missing = [source.path for source in sources if not seen.has(source.path)]
        if missing:
            names = ", ".join(map(repr, missing))
            raise InvalidError(
                f"checkpoint {seen.epoch} has no {names}; it has {', '.join(seen.tops())}. Capture "
                "what it has, or choose parts with `only`"
            )
        filled: dict[str, Any] = {}
        made: list[str] = []
        for source in sources:
            filled.update(source.filled(seen))
            made += source.made(seen)
        trees: dict[str, Any] = {}
        reports: list[Restored] = []
        # This changes nothing, so its errors come first.
        if made:
            tree = job.restore(only=made, epoch=seen.epoch)
            trees = {path: _at(tree, path) for path in made}
            reports.append(_last(job))
        if filled:
            into: dict[str, Any] = {}
            for path, tree in filled.items():
                _put(into, path, tree)
            staged = self._stager.staged(into, fetch=False)
            reports.append(job.restore(into=staged, only=list(filled), epoch=seen.epoch))
            if staged is not into:
                self._stager.push(into, staged)
                for path in filled:
                    _take_values(_at(into, path), _at(staged, path))
            trees.update({path: _at(into, path) for path in filled})
        for source in sources:
            source.load(trees)
        return Restored(
            seen.epoch,
            sum(report.seconds for report in reports),
            sum(report.restored_bytes for report in reports),
            sum(report.read_bytes for report in reports),
        )

    @property
    def replicated(self) -> list[str]:
        """Names of the leaves that are the same on all ranks, for `Pool.job(replicated=...)`.

        These are models, optimizers, schedulers and scalers, except for parts of `DTensor`s. Each
        rank saves loaders, random generators and states of the program for itself.
        """
        return [name for source in self._all() for name in source.replicated()]

    def _all(self) -> list[Source]:
        return [source for sources in self._sources.values() for source in sources]

    def _chosen(self, only: str | Iterable[str] | None) -> list[Source]:
        if only is None:
            return self._all()
        names = [only] if isinstance(only, str) else list(only)
        for name in names:
            if name not in self._sources:
                some = ", ".join(map(repr, self._sources))
                raise InvalidError(f"`only`: {name!r} is not captured; {some} are")
        return [source for name in names for source in self._sources[name]]

    def __repr__(self) -> str:
        """Returns the names of the parts, for people."""
        return f"<outlive.torch.Capture of {', '.join(self._sources)}>"


def _collect(path: str, part: Any, found: list[Source], *, each_rank: bool) -> None:
    """Adds the sources of a part."""
    if isinstance(part, torch.nn.Module):
        found.append(ModuleSource(path, part))
    elif isinstance(part, torch.optim.Optimizer):
        found.append(OptimizerSource(path, part))
    elif _is_stateful(part):
        found.append(StatefulSource(path, part, each_rank=each_rank))
    elif _has_sources(part):
        entries = part.items() if isinstance(part, dict) else enumerate(part)
        for key, value in entries:
            _collect(f"{path}/{escape(str(key))}", value, found, each_rank=each_rank)
    else:
        found.append(StateSource(path, part))


def _is_stateful(value: Any) -> bool:
    return (
        not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def _has_sources(value: Any) -> bool:
    """Whether a container has an object that becomes a state by `state_dict`."""
    if type(value) not in (dict, list, tuple):
        return False
    entries = value.values() if isinstance(value, dict) else value
    return any(_is_stateful(entry) or _has_sources(entry) for entry in entries)


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Puts a value into a tree of dicts."""
    *above, last = map(unescape, path.split("/"))
    for key in above:
        tree = tree.setdefault(key, {})
    tree[last] = value


def _at(tree: Any, path: str) -> Any:
    for key in map(unescape, path.split("/")):
        tree = tree[key]
    return tree


def _take_values(tree: Any, staged: Any) -> None:
    """Takes what a restore has replaced in a copy of a tree: all but tensors and containers."""
    if isinstance(tree, dict | list):
        for key, value in list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)):
            if isinstance(value, dict | list):
                _take_values(value, staged[key])
            elif not isinstance(value, torch.Tensor):
                tree[key] = staged[key]


def _last(job: Job) -> Restored:
    report = job.last_restore
    assert report is not None
    return report
