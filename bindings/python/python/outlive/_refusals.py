"""Checkpoints of which a restore cannot take what was chosen: errors before anything is filled."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from outlive import _dtypes, _foreign
from outlive._errors import DamagedError, InvalidError
from outlive._flat import PICKLE, SCALAR, Flat, is_value, shown


class Refusals:
    """The checks of one checkpoint."""

    def __init__(self, there: Flat, epoch: int) -> None:
        """Takes the checkpoint."""
        self.there, self.epoch = there, epoch

    def lengths(self, lengths: Sequence[int]) -> "dict[str, np.dtype[Any]]":
        """Returns the dtypes of the regions by text, whose lengths must fit dtypes and shapes.

        Raises:
            DamagedError: If one does not fit.
            InvalidError: If this build has no such dtype.
        """
        there = self.there
        parsed: dict[str, np.dtype[Any]] = {}
        sizes: dict[str, int] = dict.fromkeys((d for d in set(there.dtypes) if d[:3] == "py:"), -1)
        for at, dtype in enumerate(there.dtypes):
            if dtype not in sizes:
                parsed[dtype] = self.dtype(at, dtype.removeprefix(SCALAR))
                sizes[dtype] = parsed[dtype].itemsize
            size = sizes[dtype]
            for extent in there.shapes[at]:
                size *= extent
            if size >= 0 and size != lengths[at]:
                raise DamagedError(
                    f"{shown(there.names[at])} of checkpoint {self.epoch} has {lengths[at]} bytes; "
                    f"dtype {dtype} and shape {there.shapes[at]} make {size}"
                )
        return parsed

    def dtype(self, at: int, text: str) -> "np.dtype[Any]":
        """Returns the dtype of a leaf's memory.

        Raises:
            InvalidError: If this build has none for the text.
        """
        try:
            return _dtypes.memory(text)
        except ValueError as error:
            raise self._no_dtype(at, error) from None

    def missing_regions(self, missing: list[str], ranks: int) -> None:
        """Refuses leaves that each rank saved for itself, if there are none of this rank."""
        if missing:
            raise InvalidError(
                f"checkpoint {self.epoch} was saved by {ranks} ranks, and this is none of them. It "
                f"has nothing for this rank in {some(missing)}, which each rank has saved for "
                "itself: name these in `replicated` when the job is opened, if they are the same "
                "on all ranks, save them as `outlive.sharded`, leave them out with `only`, or "
                "restart with as many ranks"
            )

    def parts_of_others(self, chosen: Sequence[bool], ranks: int, own_ranks: int) -> None:
        """Refuses, for a new tree, parts of global arrays that another number of ranks has saved.

        Only the same number of ranks knows which part each has. One process takes the whole.
        """
        if own_ranks in (ranks, 1):
            return
        parts = [self.there.names[at] for at in self.there.parts if chosen[at]]
        if parts:
            raise InvalidError(
                f"checkpoint {self.epoch} was saved by {ranks} ranks, and this is one of "
                f"{own_ranks}: say which part of {some(parts)} it has, by `into` with "
                "`outlive.sharded(array, global_shape, offset)`"
            )

    def pickles(self, chosen: Sequence[bool]) -> None:
        """Refuses pickled objects, for a job that does not allow them."""
        if PICKLE not in self.there.dtypes:
            return
        leaves = zip(self.there.names, self.there.dtypes, chosen, strict=True)
        found = [name for name, dtype, is_chosen in leaves if is_chosen and dtype == PICKLE]
        if found:
            raise InvalidError(
                f"checkpoint {self.epoch} holds pickled objects ({some(found)}). Unpickling runs "
                "code: if you trust every user that can write to the pool, open the job with "
                "`pool.job(..., allow_pickle=True)`; else leave them out with `only`"
            )

    def missing_dtypes(self, texts: Iterable[str], is_made: Callable[[int], bool]) -> None:
        """Refuses dtypes that NumPy lacks, for arrays of NumPy that are made."""
        for text in texts:
            try:
                _dtypes.parse(text.removeprefix(SCALAR))
            except ValueError as error:
                for at, dtype in enumerate(self.there.dtypes):
                    if dtype == text and is_made(at):
                        raise self._no_dtype(at, error) from None

    def missing_tensors(self, revived: Iterable[int]) -> None:
        """Refuses tensors that PyTorch here cannot make."""
        for at in revived:
            try:
                name = self.there.notes[at].get("dtype")
                _foreign.tensors().dtype_of(self.there.dtypes[at], name)
            except InvalidError:
                raise
            except ValueError as error:
                raise self._no_dtype(at, error) from None

    def _no_dtype(self, at: int, error: ValueError) -> InvalidError:
        return InvalidError(f"{shown(self.there.names[at])} of checkpoint {self.epoch}: {error}")


def some(names: list[str]) -> str:
    """Returns the first ten names, for a message."""
    return ", ".join(map(shown, names[:10])) + (", …" if len(names) > 10 else "")


def texts_to_make(there: Flat, inner: Iterable[int] | None) -> set[str]:
    """Returns the texts of dtypes that a restore makes arrays or scalars of.

    Args:
        there: The checkpoint.
        inner: Numbers of the leaves of which `into` takes new arrays; None for a new tree.
    """
    texts = {text for text in set(there.dtypes) if text[:3] != "py:"}
    if inner is None:
        return texts
    made = {there.dtypes[at] for at in inner}
    return {text for text in texts if is_value(text) or text in made}
