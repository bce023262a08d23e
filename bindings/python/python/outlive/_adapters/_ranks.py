"""Ranks that PyTorch connects: decisions of the first one, and the generators of all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from outlive import _notices, _rng
from outlive._errors import Error

T = TypeVar("T")
K = TypeVar("K")


def rank() -> int:
    """Returns the number of this rank; 0 without ranks."""
    return int(dist.get_rank()) if _is_connected() else 0


def count() -> int:
    """Returns the number of ranks; 1 without ranks."""
    return int(dist.get_world_size()) if _is_connected() else 1


def decided(decide: Callable[[], T]) -> T:
    """Calls a function on the first rank, and returns its result on all. Collective.

    Raises:
        BaseException: On the first rank, that of the function.
        Error: On the other ranks, if the function has failed.
    """
    if count() == 1:
        return decide()
    told: list[Any] = [None, None]
    failure: BaseException | None = None
    if rank() == 0:
        try:
            told = [decide(), None]
        except BaseException as error:
            failure = error
            told = [None, f"{type(error).__name__}: {error}"]
    dist.broadcast_object_list(told, src=0)
    if failure is not None:
        raise failure
    if told[1] is not None:
        raise Error(f"rank 0 has failed: {told[1]}")
    result: T = told[0]
    return result


def led(first: Callable[[], tuple[T, K]], follow: Callable[[K], T]) -> T:
    """Restores the same checkpoint on all ranks. Collective.

    Ranks that choose for themselves may choose differently, if a save ends in between.

    Args:
        first: Restores on the first rank; returns the state, and the name of its checkpoint.
        follow: Restores the checkpoint of this name on another rank.

    Raises:
        BaseException: On the first rank, that of `first`.
        Error: On the other ranks, if it has failed.
    """
    mine: list[T] = []

    def lead() -> K:
        state, name = first()
        mine.append(state)
        return name

    name = decided(lead)
    return mine[0] if mine else follow(name)


def gathered(mine: T) -> list[T]:
    """Returns the values of all ranks, in their order. Collective."""
    if count() == 1:
        return [mine]
    found: list[Any] = [None] * count()
    dist.all_gather_object(found, mine)
    return found


def generators() -> list[dict[str, Any]]:
    """Returns the states of the global random generators of all ranks. Collective."""
    return gathered(_rng.take_apart())


def generator_of_mine(states: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns this rank's own among states of `generators`; None with a notice if it has none."""
    if rank() < len(states):
        return states[rank()]
    _notices.tell(
        logging.WARNING,
        "the checkpoint has random generators of %d ranks, and this is rank %d: its generators "
        "stay as they are",
        len(states),
        rank(),
    )
    return None


def _is_connected() -> bool:
    return bool(dist.is_available() and dist.is_initialized())
