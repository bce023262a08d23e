"""The parts of a captured program: how each becomes a state, and takes one again."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from outlive import _foreign, _kinds, _rng
from outlive._errors import InvalidError
from outlive._flat import DICT, TREE, escape, is_value
from outlive._look import Look


class Source(Protocol):
    """A part of a captured program, at the path that its state has."""

    path: str

    def state(self) -> Any:
        """Returns its state, on its own memory."""

    def filled(self, look: Look) -> dict[str, Any]:
        """Returns, by path, the trees that a restore of this checkpoint fills."""

    def made(self, look: Look) -> list[str]:
        """Returns the paths of which a restore makes new trees."""

    def load(self, trees: dict[str, Any]) -> None:
        """Takes the trees of `filled` and `made`, by path."""

    def replicated(self) -> list[str]:
        """Returns the names of leaves that are the same on all ranks of a group."""


class ModuleSource:
    """A module: its parameters and buffers are filled where they are."""

    def __init__(self, path: str, module: torch.nn.Module) -> None:
        """Takes a module."""
        self.path, self.module = path, module

    def state(self) -> Any:
        """Returns its `state_dict`."""
        return self.module.state_dict()

    def filled(self, look: Look) -> dict[str, Any]:
        """Returns the tensors of its `state_dict`."""
        return {self.path: self.module.state_dict()}

    def made(self, look: Look) -> list[str]:
        """Returns nothing."""
        return []

    def load(self, trees: dict[str, Any]) -> None:
        """Loads those entries of the `state_dict` that are not the module's own memory."""
        state = trees[self.path]
        own = {
            _address(tensor)
            for tensors in (self.module.parameters(), self.module.buffers())
            for tensor in tensors
        }
        if not all(_is_at(value, own) for value in state.values()):
            self.module.load_state_dict(state)

    def replicated(self) -> list[str]:
        """Returns all but parts of distributed tensors."""
        return _not_distributed(self.path, self.module.state_dict())


class OptimizerSource:
    """An optimizer: its state is filled where it is, or made as the checkpoint has it."""

    def __init__(self, path: str, optimizer: torch.optim.Optimizer) -> None:
        """Takes an optimizer."""
        self.path, self.optimizer = path, optimizer

    def state(self) -> Any:
        """Returns its `state_dict`."""
        return self.optimizer.state_dict()

    def filled(self, look: Look) -> dict[str, Any]:
        """Returns tensors for all entries of the state, new ones where the optimizer has none."""
        inside = f"{self.path}/state"
        leaves, nodes = look.inside(inside)
        if not _is_flat(look, inside):
            return {}
        mine = self.optimizer.state_dict()["state"]
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        # Some optimizers name their parameters by texts.
        known = {escape(str(key)): key for key in mine}
        state: dict[Any, dict[str, Any]] = {}
        for node in nodes:
            key = node.path.rpartition("/")[2]
            state[known.get(key, int(key) if key.isdecimal() else key)] = {}
        for at in leaves:
            _, part, entry = look.names[at].rsplit("/", 2)
            key = known.get(part, int(part) if part.isdecimal() else part)
            was = mine.get(key, {}).get(entry)
            parameter = parameters[key] if type(key) is int and key < len(parameters) else None
            state[key][entry] = _place(look, at, was, parameter)
        return {inside: state}

    def made(self, look: Look) -> list[str]:
        """Returns the rest of the `state_dict`."""
        if _is_flat(look, f"{self.path}/state"):
            # Other keys than `state` and `param_groups` are those of optimizers of other packages.
            tops = dict.fromkeys(_tops(look, self.path))
            return [f"{self.path}/{key}" for key in tops if key != "state"]
        return [self.path]

    def load(self, trees: dict[str, Any]) -> None:
        """Gives the optimizer a `state_dict` of tensors that it may keep."""
        if self.path in trees:
            self.optimizer.load_state_dict(trees[self.path])
            return
        inner = f"{self.path}/"
        found = {
            path.removeprefix(inner): tree for path, tree in trees.items() if path.startswith(inner)
        }
        self.optimizer.load_state_dict(found)

    def replicated(self) -> list[str]:
        """Returns all but what belongs to distributed parameters."""
        names = [f"{self.path}/param_groups"]
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        for number, parameter in enumerate(parameters):
            name = f"{self.path}/state/{number}"
            names.append(f"{name}/step" if _is_distributed(parameter) else name)
        return names


class StatefulSource:
    """Any object with `state_dict` and `load_state_dict`."""

    def __init__(self, path: str, value: Any, *, each_rank: bool) -> None:
        """Takes an object; with `each_rank`, each rank of a group has its own."""
        self.path, self.value, self.each_rank = path, value, each_rank

    def state(self) -> Any:
        """Returns its `state_dict`."""
        return self.value.state_dict()

    def filled(self, look: Look) -> dict[str, Any]:
        """Returns nothing."""
        return {}

    def made(self, look: Look) -> list[str]:
        """Returns its path."""
        return [self.path]

    def load(self, trees: dict[str, Any]) -> None:
        """Gives the tree to `load_state_dict`."""
        self.value.load_state_dict(trees[self.path])

    def replicated(self) -> list[str]:
        """Returns all of it, unless each rank has its own."""
        return [] if self.each_rank else [self.path]


class StateSource:
    """A state of the program: a container, an array, a tensor, or `outlive.rng()`."""

    def __init__(self, path: str, value: Any) -> None:
        """Takes a state that a restore can fill.

        Raises:
            InvalidError: If it is a single value.
        """
        self.path, self.value = path, value
        if isinstance(value, tuple) or not (
            isinstance(value, dict | list | _rng.Rng)
            or hasattr(value, "shape")
            or hasattr(value, "state")
            or hasattr(value, "bit_generator")
            or hasattr(value, "setstate")
            or _is_fillable(value)
        ):
            raise InvalidError(
                f"{path} is {repr(value)[:100]}, which a restore cannot fill: put it into a dict, "
                'such as `progress={"step": 0}`'
            )

    def state(self) -> Any:
        """Returns the object itself."""
        return self.value

    def filled(self, look: Look) -> dict[str, Any]:
        """Returns the object itself."""
        return {self.path: self.value}

    def made(self, look: Look) -> list[str]:
        """Returns nothing."""
        return []

    def load(self, trees: dict[str, Any]) -> None:
        """Does nothing: the restore has filled it."""

    def replicated(self) -> list[str]:
        """Returns nothing: the program knows it."""
        return []


def _is_fillable(value: Any) -> bool:
    """Whether a restore fills an object where it is."""
    kind = _kinds.kind_of(value)
    return kind is not None and kind.fill is not None


def _tops(look: Look, path: str) -> list[str]:
    leaves, nodes = look.inside(path)
    inner = f"{path}/"
    paths = [look.names[at] for at in leaves] + [node.path for node in nodes]
    return [each.removeprefix(inner).partition("/")[0] for each in paths]


def _is_flat(look: Look, inside: str) -> bool:
    """Whether a state is a dict of dicts of leaves, and not empty."""
    leaves, nodes = look.inside(inside)
    depth = inside.count("/") + 1
    are_dicts = all(
        node.path.count("/") == depth and node.kind == DICT and not node.wraps for node in nodes
    )
    return bool(leaves) and are_dicts and not any(look.dtypes[at] == TREE for at in leaves)


def _place(look: Look, at: int, was: Any, parameter: torch.Tensor | None) -> Any:
    """Returns what a restore fills for an entry of an optimizer's state."""
    text, shape = look.dtypes[at], look.shapes[at]
    if is_value(text):
        return None
    if at in look.parts:
        shape = look.parts[at][0]
    tensors = _foreign.tensors()
    try:
        dtype = tensors.dtype_of(text, look.notes.get(at, {}).get("dtype"))
    except ValueError as error:
        raise InvalidError(f"{look.names[at]} of checkpoint {look.epoch}: {error}") from error
    if isinstance(was, torch.Tensor) and (was.dtype, tuple(was.shape)) == (dtype, tuple(shape)):
        return was
    if parameter is not None and tuple(parameter.shape) == tuple(shape):
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(shape, dtype=dtype)


def _address(tensor: Any) -> int | None:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    try:
        address: int = local.untyped_storage().data_ptr()
        return address
    except (RuntimeError, NotImplementedError):
        return None  # sparse: its `state_dict` has other objects


def _is_at(value: Any, own: set[int | None]) -> bool:
    if not isinstance(value, torch.Tensor) or value.is_quantized:
        return False
    address = _address(value)
    return address is not None and address in own


def _is_distributed(tensor: Any) -> bool:
    return hasattr(tensor, "placements") and hasattr(tensor, "to_local")


def _not_distributed(path: str, tree: Any) -> list[str]:
    """Returns the names of all that is the same on all ranks."""
    if not any(map(_is_distributed, tree.values())):
        return [path]
    return [
        f"{path}/{escape(str(key))}" for key, value in tree.items() if not _is_distributed(value)
    ]
