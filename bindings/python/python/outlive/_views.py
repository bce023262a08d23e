"""Tensors of a checkpoint, and those of them that are views of the memory of others."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlive import _foreign, _layouts, _memory
from outlive._build import ABSENT
from outlive._destinations import Destinations
from outlive._flat import Flat
from outlive._layouts import Note


@dataclass(slots=True, eq=False)
class Memory:
    """The memory of a region, which leaves are views of, whatever their names and numbers are.

    Attributes:
        region: Number of the region; None if the checkpoint has none for this rank.
        text: Text of the dtype of the region.
        shape: Shape of the region.
        note: Note of the leaf whose region it is.
        array: Its place, once that is planned.
    """

    region: int | None
    text: str
    shape: tuple[int, ...]
    note: Note
    array: Any = None


def take_notes(there: Flat, order: list[int | None]) -> None:
    """Gives tensors the dtypes and shapes that they have, instead of those of their regions.

    The notes get what the numbers and names of the leaves say, so that these may change.

    Args:
        there: The checkpoint; its leaves have the dtypes and shapes of their regions.
        order: By number of a leaf, that of its region.

    Raises:
        LookupError: If a tensor is a view of a leaf that is missing.
    """
    numbers: dict[str, int] = {}
    memories: dict[int, Memory] = {}
    for note in there.notes.values():
        if not _layouts.is_view(note):
            continue
        numbers = numbers or {name: at for at, name in enumerate(there.names)}
        base = numbers[note["of"]]
        if base not in memories:
            memories[base] = Memory(
                order[base], there.dtypes[base], there.shapes[base], there.notes[base]
            )
        note["memory"] = memories[base]
    for at, note in there.notes.items():
        if "text" in note or "shape" in note:
            note["region"] = there.dtypes[at], there.shapes[at]
            there.dtypes[at] = note.get("text", there.dtypes[at])
            there.shapes[at] = tuple(note["shape"])


class Views:
    """The tensors of one plan, of which some are views of the memory of others.

    Attributes:
        of: By number of a chosen leaf that is a view, the memory.
        linked: Views that the program's state has as well.
    """

    def __init__(
        self,
        places: Destinations,
        numbers: list[int],
        mine: Mapping[str, int],
        is_filled: Callable[[int], bool],
        *,
        as_plain: bool,
    ) -> None:
        """Takes the leaves of a plan.

        Args:
            places: Destinations of the arrays.
            numbers: Numbers of the leaves that are restored, and not known yet.
            mine: Numbers of the leaves of the program's state, by name.
            is_filled: Whether the program's own array takes a leaf.
            as_plain: Whether tensors become arrays.
        """
        self.places, self.there, self.here = places, places.there, places.here
        self.mine, self.is_filled, self.as_plain = mine, is_filled, as_plain
        notes = self.there.notes
        self.taken = [at for at in numbers if at in notes]
        self.of: dict[int, Memory] = {
            at: notes[at]["memory"] for at in self.taken if _layouts.is_view(notes[at])
        }
        by_note = {id(notes[at]): at for at in self.taken}
        # By memory, the leaf whose region it is, if that is restored.
        self.bases: dict[Memory, int] = {
            memory: by_note[id(memory.note)]
            for memory in self.of.values()
            if id(memory.note) in by_note
        }
        self.owned = {at: memory for memory, at in self.bases.items() if at not in self.of}
        self.linked = set[int]()

    def link(self) -> None:
        """Finds views that `into` has as well, which must match the checkpoint."""
        self.linked.update(self._linked())

    def _linked(self) -> Iterator[int]:
        """Yields views that `into` has as well, of the memory of the same leaf."""
        for at, memory in self.of.items():
            base = self.bases.get(memory)
            if base is None or base in self.of or not (self.is_filled(at) and self.is_filled(base)):
                continue
            my, base_my = self.mine[self.there.names[at]], self.mine[self.there.names[base]]
            whole, target = self.here.leaves[base_my], self.here.leaves[my]
            if whole.shape != self.there.shapes[base]:
                continue  # a part of it is filled
            laid = _layouts.ordered(whole, self.places.axes(base))
            begin, place = (each.__array_interface__["data"][0] for each in (laid, target))
            note, notes = self.there.notes[at], self.here.notes
            if (
                laid.flags.c_contiguous
                and "region" not in memory.note
                and not _layouts.signs(note, notes.get(my, {}))
                and not _layouts.signs(memory.note, notes.get(base_my, {}))
                and not any("device" in notes.get(each, {}) for each in (my, base_my))
                and place == begin + note["offset"]
                and list(target.strides) == note["strides"]
            ):
                yield at

    def unlink(self) -> bool:
        """Drops links to memory that is not filled any more; returns whether there were any."""
        gone = {
            at
            for at in self.linked
            if not (self.is_filled(at) and self.is_filled(self.bases[self.of[at]]))
        }
        self.linked -= gone
        return bool(gone)

    def is_revived(self, at: int) -> bool:
        """Whether a leaf becomes a tensor of PyTorch."""
        return at in self.there.notes and not self.as_plain and not self.is_filled(at)

    def plan(self, at: int) -> None:
        """Plans a leaf that is a view. All leaves that are none have a place already."""
        places, memory, note = self.places, self.of[at], self.there.notes[at]
        if at in self.linked:
            my = self.mine[self.there.names[at]]
            places.objects[at] = self.here.originals.get(my, self.here.leaves[my])
            return
        if memory.array is None:
            memory.array = _memory.empty_of(memory.shape, places.parsed[memory.text], "C")
        dtype = places.parsed[self.there.dtypes[at]]
        places.objects[at] = _layouts.viewed(memory.array, dtype, note)
        if self.is_filled(at):
            is_shared = at in places.mixed or at in places.tied
            my = self.mine[self.there.names[at]]
            places.put_later(at, my, is_apart=is_shared, is_tied=False)

    def memories(self) -> Iterator[tuple[int, Any]]:
        """Yields the regions that no leaf asks for as such, each with its place."""
        for memory in set(self.of.values()):
            if memory.array is not None and memory.region is not None:
                base = self.bases.get(memory)
                if base is None or base in self.of:
                    yield memory.region, memory.array

    def revive(self) -> None:
        """Makes tensors of the arrays that were read, those that share memory on one storage."""
        objects, there = self.places.objects, self.there
        storages: dict[Memory, Any] = {}
        for at in self.taken:
            if objects[at] is ABSENT or self.is_filled(at):
                continue
            note = there.notes[at]
            if self.as_plain:
                objects[at] = _layouts.signed(objects[at], _layouts.signs(note, {}))
                continue
            memory = self.of.get(at) or self.owned.get(at)
            storage = None
            if memory is not None:
                storage = storages.get(memory)
                if storage is None:
                    flat = memory.array.reshape(-1).view(np.uint8)
                    storage = storages[memory] = _foreign.tensors().revive(flat, "|u1", {})
                note = note if at in self.of else _as_view(objects[at], note)
            objects[at] = _foreign.tensors().revive(objects[at], there.dtypes[at], note, storage)
        for at, memory in self.of.items():
            base = self.bases.get(memory)
            if base is None or "same" not in there.notes[at]:
                continue
            if self.is_revived(at) and self.is_revived(base):
                objects[at] = objects[base]


def _as_view(array: Any, note: Note) -> Note:
    """Returns the note of a leaf as a view of its own memory."""
    return note | {"offset": 0, "strides": list(array.strides), "shape": list(array.shape)}
