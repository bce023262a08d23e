"""The leaves of a checkpoint, without their data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from outlive._flat import ROOT, Flat, Node, read_skeleton, unescape

if TYPE_CHECKING:
    from outlive._job import Job


class Look(NamedTuple):
    """A checkpoint as its catalog lists it."""

    epoch: int
    names: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    # Global shape and offset of those that are parts of a global array, with block and stride.
    parts: dict[int, tuple[tuple[int, ...], ...]]
    nodes: list[Node]
    notes: dict[int, dict[str, Any]]

    def inside(self, path: str) -> tuple[list[int], list[Node]]:
        """Returns the numbers of the leaves below a path, and the containers there."""
        inner = f"{path}/"
        leaves = [at for at, name in enumerate(self.names) if name.startswith(inner)]
        return leaves, [node for node in self.nodes if node.path.startswith(inner)]

    def has(self, path: str) -> bool:
        """Whether there may be a leaf or a container at a path, or below it."""
        if self.names == [ROOT]:
            return True  # a tree of plain values, which only its data shows
        if any(node.path == path for node in self.nodes):
            return True
        inner = f"{path}/"
        return any(name == path or name.startswith(inner) for name in self.names)

    def tops(self) -> list[str]:
        """Returns the keys of the outermost container."""
        paths = [*self.names, *(node.path for node in self.nodes if node.path)]
        return [unescape(key) for key in dict.fromkeys(path.partition("/")[0] for path in paths)]


def look(job: Job, epoch: int | None) -> Look | None:
    """Looks at the checkpoint that a restore would take; None without one. Collective in a group.

    Raises:
        Error: As `Job.restore`.
    """
    seen: dict[str, Any] = {}

    def plan(**told: Any) -> list[None]:
        seen.update(told)
        return [None] * len(told["names"])

    if job._core.restore(plan, job._tick, epoch=epoch, user_only=None) is None:
        return None
    skeleton = read_skeleton(seen["attachment"])
    flat = Flat(seen["names"], seen["dtypes"], seen["shapes"])
    parts = seen["distributions"]
    if skeleton is not None and skeleton.names is not None:
        numbers = {name: at for at, name in enumerate(flat.names)}
        order = [numbers.get(name) for name in skeleton.names]
        flat.names = skeleton.names
        flat.dtypes = ["|u1" if at is None else flat.dtypes[at] for at in order]
        flat.shapes = [(0,) if at is None else flat.shapes[at] for at in order]
        parts = [None if at is None else parts[at] for at in order]
    notes = {} if skeleton is None else skeleton.notes
    for at, note in notes.items():
        flat.dtypes[at] = note.get("text", flat.dtypes[at])
        flat.shapes[at] = tuple(note.get("shape", flat.shapes[at]))
    return Look(
        seen["epoch"],
        flat.names,
        flat.dtypes,
        flat.shapes,
        {at: part for at, part in enumerate(parts) if isinstance(part, tuple)},
        [] if skeleton is None else skeleton.nodes,
        notes,
    )
