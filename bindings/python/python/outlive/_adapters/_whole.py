"""Models that ranks divide among them, which adapters that save from one rank refuse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist

from outlive._errors import InvalidError

_INSTEAD = "Use `outlive.torch.capture` with a group, or `outlive.torch.DCPWriter`"


def check(models: Iterable[Any], kind: Any = None) -> None:
    """Raises an error if ranks divide a model.

    Args:
        models: The models.
        kind: The `DistributedType` of Accelerate, if it is known.

    Raises:
        InvalidError: If a rank has only a part of a model.
    """
    name = str(getattr(kind, "value", kind)).upper()
    if name in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        raise refusal(name)
    if not dist.is_available():
        return
    from torch.distributed.fsdp import FullyShardedDataParallel

    for model in models:
        for module in model.modules():
            if isinstance(module, FullyShardedDataParallel):
                raise refusal("FullyShardedDataParallel")
        for tensor in [*model.parameters(), *model.buffers()]:
            if hasattr(tensor, "placements"):
                raise refusal("FSDP2 or tensor parallelism")
            if hasattr(tensor, "ds_id"):
                raise refusal("ZeRO-3 of DeepSpeed")


def refusal(name: str) -> InvalidError:
    """Returns the error for something that divides models."""
    return InvalidError(
        f"{name} divides the model among ranks, and this adapter saves models that each rank has "
        f"whole. {_INSTEAD}"
    )
