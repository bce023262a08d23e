"""The global random generators of a process, as one object in a state: `outlive.rng`."""

import json
import logging
import random
import sys
from typing import Any

import numpy as np

from outlive import _notices
from outlive._errors import InvalidError


class Rng:
    """The global random generators of this process; made by `rng`."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Returns the name, for people."""
        return "<outlive.rng()>"


def rng() -> Rng:
    """Puts the global random generators into a state.

    These are Python's `random`, the legacy generator of `numpy.random`, and those of PyTorch for
    the CPU and all CUDA devices. PyTorch's count if the program has imported it. A save keeps their
    states. A restore sets the generators, with `into` and without.

    ```python
    state = {"weights": weights, "step": 0, "rng": outlive.rng()}
    ```
    """
    return Rng()


def take_apart() -> dict[str, Any]:
    """Returns the states of the generators by name: None for those that are not in use."""
    version, numbers, gauss = random.getstate()
    parts: dict[str, Any] = {
        "python": _encoded([version, list(numbers), gauss]),
        "numpy": _encoded(_listed(np.random.get_state(legacy=False))),
        "torch": None,
        "cuda": None,
    }
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        parts["torch"] = torch.get_rng_state().numpy().tobytes()
        # Before that no generator exists there, and a look would make them.
        if torch.cuda.is_initialized():
            parts["cuda"] = [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
    return parts


def give(parts: dict[str, Any]) -> None:
    """Sets the generators to states of `take_apart`.

    Raises:
        InvalidError: If they are of no use here.
    """
    try:
        version, numbers, gauss = json.loads(parts["python"])
        random.setstate((version, tuple(numbers), gauss))
        _set_numpy(_unlisted(json.loads(parts["numpy"])))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidError(f"the random generators cannot be set: {error}") from error
    if parts["torch"] is not None:
        _set_torch(parts["torch"], parts["cuda"] or [])


def _set_numpy(state: dict[str, Any]) -> None:
    name = state["bit_generator"]
    # The program may have put a generator of another class there.
    if np.random.get_state(legacy=False)["bit_generator"] != name:
        numpy_random: Any = np.random  # its types lack this function
        numpy_random.set_bit_generator(getattr(np.random, name)())
    np.random.set_state(state)


def _set_torch(cpu: bytes, cuda: list[bytes]) -> None:
    try:
        import torch
    except ImportError as error:
        raise InvalidError(
            f"the checkpoint has states of PyTorch's random generators, and PyTorch cannot be "
            f"imported ({error}): install it, or leave them out with `only`"
        ) from error
    torch.set_rng_state(_tensor(torch, cpu))
    count = torch.cuda.device_count() if cuda and torch.cuda.is_available() else 0
    for device, state in enumerate(cuda[:count]):
        torch.cuda.set_rng_state(_tensor(torch, state), device)
    if count < len(cuda):
        _notices.tell(
            logging.WARNING,
            "the checkpoint has random generators of %d CUDA devices, and %d are here: the rest "
            "stays as it is",
            len(cuda),
            count,
        )


def _tensor(torch: Any, state: bytes) -> Any:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _listed(value: Any) -> Any:
    """Returns a state as JSON has it: an array is a dict with its dtype and its numbers."""
    if isinstance(value, dict):
        return {key: _listed(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "numbers": value.tolist()}
    return value.item() if isinstance(value, np.generic) else value


def _unlisted(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"dtype", "numbers"}:
            return np.array(value["numbers"], value["dtype"])
        return {key: _unlisted(entry) for key, entry in value.items()}
    return value
