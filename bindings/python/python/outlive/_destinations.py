"""Where a restore puts the arrays of a checkpoint: into those of the program, or into new ones."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from outlive import _foreign, _jax_arrays, _layouts, _memory
from outlive._build import ABSENT
from outlive._errors import InvalidError
from outlive._flat import Flat, shown
from outlive._match import Match


def _whole(part: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Returns the whole of the global array, as a part."""
    shape = part[0]
    return shape, (0,) * len(shape)


class Destinations:
    """The arrays for the regions of one plan.

    Attributes:
        objects: By number of the leaf, the object for the tree; `ABSENT` until it is known.
        copied_bytes: Bytes of the arrays that are copied from others in the end.
    """

    def __init__(
        self,
        there: Flat,
        here: Flat,
        parsed: "Mapping[str, np.dtype[Any]]",
        match: Match,
        epoch: int,
    ) -> None:
        """Takes the two states and the options.

        Args:
            there: The checkpoint.
            here: The state to fill, which may be empty.
            parsed: The dtypes of the checkpoint's memory, by their texts.
            match: The options of the restore.
            epoch: The checkpoint's epoch, for messages.
        """
        self.there, self.here, self.parsed = there, here, parsed
        self.match, self.epoch = match, epoch
        self.fortran = frozenset(there.fortran)
        self.objects: list[Any] = [ABSENT] * len(there.names)
        self.copied_bytes = 0
        # Leaves whose array is filled in a different place: number of the leaf, and the function
        # that puts the content in place.
        self.later: list[tuple[int, Callable[[], Any]]] = []
        self.checks: list[tuple[int, Any, Any]] = []
        # Arrays that share memory: see `tied`.
        self.tied: Mapping[int, int] = {}
        self.mixed: Mapping[int, int] = {}

    # --- New arrays -------------------------------------------------------------------------------

    def make(self, at: int, dtype: "np.dtype[Any]") -> Any:
        """Makes a new array for a region; returns it in the order of its memory."""
        shape = self.there.shapes[at]
        if dtype.itemsize == 0:
            # NumPy allocates a byte for elements without bytes, unless a buffer has none.
            made: Any = np.ndarray(shape, dtype, buffer=b"")
            self.objects[at] = made
            return bytearray()
        if self.there.notes.get(at, {}).keys() & {"axes", "region"}:
            return self._make_noted(at, dtype)
        fortran = at in self.fortran
        made = _memory.empty_of(shape, dtype, "F" if fortran else "C")
        self.objects[at] = made
        return made.T if fortran else made

    def _make_noted(self, at: int, dtype: "np.dtype[Any]") -> Any:
        """Makes a new array for a region that is not just its array; returns the memory."""
        text, shape = self.there.notes[at].get("region", (None, self.there.shapes[at]))
        of_memory = dtype if text is None else self.parsed[text]
        axes = self.axes(at)
        lengths = tuple(shape) if axes is None else tuple(shape[axis] for axis in axes)
        memory = _memory.empty_of(lengths, of_memory, "C")
        made = _layouts.unordered(memory, axes)
        self.objects[at] = made if text is None else _layouts.repeated(made, self.there.shapes[at])
        return memory

    def make_whole(self, at: int, dtype: "np.dtype[Any]") -> Any:
        """Makes a new array for the whole of the global array that a region is a part of."""
        part = _whole(self.there.parts[at])
        try:
            made = _memory.empty(part[0], dtype)
        except (MemoryError, OverflowError, ValueError):
            name = self.there.names[at]
            raise InvalidError(
                f"there is no memory for all of {shown(name)} of checkpoint {self.epoch}, an array "
                f"of shape {part[0]} and dtype {dtype}: restore a part, by `into` with "
                "`outlive.sharded(array, global_shape, offset)`, or leave it out with `only`"
            ) from None
        self.objects[at] = made
        return (made, part, made.shape)

    def axes(self, at: int) -> list[int] | None:
        """Returns the order of a leaf's axes in its region; None is C order."""
        if at in self.fortran:
            return list(range(len(self.there.shapes[at])))[::-1]
        axes: list[int] | None = self.there.notes.get(at, {}).get("axes")
        return axes

    # --- Arrays of the program --------------------------------------------------------------------

    def fill(self, at: int, my: int) -> Any:
        """Returns the program's array for a region, or another one to copy from later."""
        target = self.here.leaves[my]
        original = self.here.originals.get(my, target)
        part = self.here.parts.get(my)
        if part is None and at in self.there.parts:
            part = _whole(self.there.parts[at])
        if part is not None:
            return self._fill_part(at, my, target, original, part)
        seen = target[self._common(at, my)]
        laid = _layouts.ordered(seen, self.axes(at))
        fits = laid.flags.c_contiguous and seen.shape == self.there.shapes[at]
        fits = fits and not ("region" in self._note(at) or self._signs(at, my))
        is_mixed = at in self.mixed and target.flags.writeable
        is_tied = at in self.tied and target.flags.writeable and not is_mixed
        is_apart = is_tied or is_mixed
        if target.flags.writeable and fits and target.dtype.itemsize and not is_apart:
            self.objects[at] = original
            if "device" in self.here.notes.get(my, {}):
                self.later.append((at, self._putting(at, my, seen)))
            return laid
        wish = self.make(at, target.dtype)
        self.put_later(at, my, is_apart=is_apart, is_tied=is_tied)
        return wish

    def put_later(self, at: int, my: int, *, is_apart: bool, is_tied: bool) -> None:
        """Has the array that was made for a leaf copied to the program's after the read.

        Args:
            at: Number of the leaf in the checkpoint.
            my: Its number in the state to fill.
            is_apart: Whether others share the memory, so that all must have the same content.
            is_tied: Whether another leaf fills the very same memory.
        """
        target, common = self.here.leaves[my], self._common(at, my)
        made = self.objects[at][common]
        if is_apart:
            values = _layouts.signed(made, self._signs(at, my))
            self.checks.append((at, target[common], values))
        original = self.here.originals.get(my, target)
        self.later.append((at, (lambda: original) if is_tied else self._putting(at, my, made)))
        self.copied_bytes += made.nbytes

    def _putting(self, at: int, my: int, made: Any) -> Callable[[], Any]:
        """Returns a function that copies an array to the program's, and returns its object.

        The array has the part that the leaves have in common.
        """
        target, common = self.here.leaves[my], self._common(at, my)
        original = self.here.originals.get(my, target)
        note, text, keys = self._note(at), self.there.dtypes[at], self._signs(at, my)
        is_away = "device" in self.here.notes.get(my, {})
        by_torch = is_away or (keys and made.dtype.kind == "V")

        def put() -> Any:
            if by_torch:
                tensors = _foreign.tensors()
                values = tensors.revive(made, text, _layouts.only_values(note))
                tensors.copy(original, values, common)
            elif target.flags.writeable:
                _layouts.assign(target[common], _layouts.signed(made, keys))
            else:
                whole = _layouts.signed(made, keys)
                if common is not ...:
                    whole = target.copy()
                    whole[common] = _layouts.signed(made, keys)
                return _jax_arrays.like(original, whole)
            return original

        return put

    def _common(self, at: int, my: int) -> Any:
        """Returns the index of the elements that a leaf has in the checkpoint and here."""
        shape, own = self.there.shapes[at], self.here.leaves[my].shape
        return ... if shape == own else self.match.common(shape, own)

    def _note(self, at: int) -> _layouts.Note:
        return self.there.notes.get(at, {})

    def _signs(self, at: int, my: int) -> list[str]:
        """Returns the signs by which the memory of a leaf differs there and here."""
        return _layouts.signs(self._note(at), self.here.notes.get(my, {}))

    def _fill_part(
        self, at: int, my: int, target: Any, original: Any, part: tuple[Any, ...]
    ) -> Any:
        """Returns the program's part of a global array, or another array to copy from later."""
        self.objects[at] = original
        target = target.reshape(target.shape or (1,))
        made = target
        if "device" in self.here.notes.get(my, {}):
            tensors, text, note = _foreign.tensors(), self.there.dtypes[at], self._note(at)

            def send() -> Any:
                tensors.copy(original, tensors.revive(target, text, _layouts.only_values(note)))
                return original

            self.later.append((at, send))
        of_jax = isinstance(original, _jax_arrays.Part)
        if of_jax or not (target.flags.writeable and target.flags.c_contiguous):
            made = _memory.empty(target.shape, target.dtype)

            def put() -> Any:
                if of_jax:
                    return _jax_arrays.like(original.whole, made, original.offset)
                if not target.flags.writeable:
                    return _jax_arrays.like(original, made)
                target[...] = made
                return original

            self.later.append((at, put))
        return (made, part, target.shape)

    # --- After the read ---------------------------------------------------------------------------

    def settle(self) -> None:
        """Puts in place what was read into another array, once all is read.

        Raises:
            InvalidError: If arrays share memory, and differ in the checkpoint.
        """
        for at, put in self.later:
            self.objects[at] = put()
        # Check once all are filled.
        for at, target, made in self.checks:
            self._refuse_untied(at, target, made)

    def _refuse_untied(self, at: int, target: Any, made: Any) -> None:
        """Refuses arrays that share memory, unless all have the same content in the checkpoint."""
        if target.tobytes() != made.tobytes():
            with_it = self.mixed.get(at, self.tied.get(at, at))
            name, other = self.there.names[at], self.there.names[with_it]
            raise InvalidError(
                f"{shown(name)} and others such as {shown(other)} share memory in `into`, and "
                f"differ in checkpoint {self.epoch}. Give each its own array, as when it was "
                "saved, or leave one of them out with `only`"
            )
