"""Random generators that belong to data loaders of PyTorch, and not to the process."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch

from outlive import _notices

# Where a loader, and what it consists of, refers to other parts.
_PARTS = ("dataset", "sampler", "batch_sampler")
_GENERATORS = ("generator", "synchronized_generator")


def generators(loaders: Iterable[Any]) -> list[torch.Generator]:
    """Returns the generators of loaders and their samplers, each once, always in one order."""
    found: dict[int, torch.Generator] = {}
    seen: set[int] = set()

    def visit(part: Any) -> None:
        if part is None or id(part) in seen:
            return
        seen.add(id(part))
        for name in _GENERATORS:
            generator = getattr(part, name, None)
            if isinstance(generator, torch.Generator):
                found.setdefault(id(generator), generator)
        for name in _PARTS:
            visit(getattr(part, name, None))

    for loader in loaders:
        visit(loader)
    return list(found.values())


def give(loaders: Iterable[Any], states: list[Any]) -> None:
    """Sets the generators of loaders to states of `Generator.get_state`."""
    mine = generators(loaders)
    if len(mine) != len(states):
        _notices.tell(
            logging.WARNING,
            "the checkpoint has %d random generators of data loaders, and %d are here: these stay "
            "as they are",
            len(states),
            len(mine),
        )
        return
    for generator, state in zip(mine, states, strict=True):
        generator.set_state(state)
