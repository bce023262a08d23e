"""Groups of ranks: the communicators that programs bring, and parts of global arrays."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Protocol, SupportsIndex, runtime_checkable

from outlive._errors import InvalidError


@runtime_checkable
class Group(Protocol):
    """Interface for `Pool.job(group=...)`, beside communicators of mpi4py and groups of PyTorch.

    Its methods are collective: every rank calls them, in the same order. The library calls them
    only inside of its own calls, on the calling thread.

    Attributes:
        rank: Number of this rank, from 0 on.
        size: Number of ranks.
    """

    rank: int
    size: int

    def gather(self, data: bytes, /) -> Sequence[bytes] | None:
        """Returns, on rank 0, the data of every rank, by rank; None on the others."""

    def broadcast(self, data: bytes, /) -> bytes:
        """Returns the data of rank 0 on every rank."""


class Ranks:
    """A group of processes that share only the pool; made by `ranks`.

    Attributes:
        rank: Number of this rank, from 0 on.
        size: Number of ranks.
        run: Name of this run of the program.
    """

    __slots__ = ("rank", "run", "size")

    def __init__(self, rank: int, size: int, run: str) -> None:
        """Made by `ranks`."""
        self.rank, self.size, self.run = rank, size, run

    def __repr__(self) -> str:
        """Returns the rank, for people."""
        return f"<rank {self.rank} of {self.size} in run {self.run!r}>"


def ranks(rank: SupportsIndex, size: SupportsIndex, *, run: str) -> Ranks:
    """Makes a group of processes that share only the pool, for `Pool.job(group=...)`.

    Their calls go through the pool's log, so that a call of all ranks takes some milliseconds.

    Args:
        rank: Number of this process, from 0 on, different for each process.
        size: Number of processes.
        run: Name of this run of the program: text that is the same for all its processes, and new
            for every start of it. With Slurm, for example, `SLURM_JOB_ID`, `SLURM_RESTART_COUNT`
            and `SLURM_STEP_ID`. A job that a run opens twice needs two names.

    Raises:
        InvalidError: If such a rank is not possible, or `run` is no text or empty.
    """
    number, count = operator.index(rank), operator.index(size)
    if not 0 <= number < count <= 0xFFFF_FFFF:
        raise InvalidError(f"rank {number} of a group of {count}: ranks are counted from 0")
    if not isinstance(run, str) or not run.strip():
        raise InvalidError(
            f"run={run!r}: give all ranks the same text, new for every start of the program, such "
            "as the ids of its batch job and step and the number of its restarts"
        )
    return Ranks(number, count, run)


class Adapter:
    """A group, with the interface that the engine needs."""

    def __init__(self, rank: int, size: int, gather: Any, broadcast: Any) -> None:
        """Made by `adapt`."""
        self.rank, self.size = rank, size
        self._gather, self._broadcast = gather, broadcast

    def gather(self, data: bytes) -> list[bytes]:
        """See `Group.gather`."""
        return [bytes(each) for each in self._gather(data) or ()]

    def broadcast(self, data: bytes) -> bytes:
        """See `Group.broadcast`."""
        return bytes(self._broadcast(data))


def adapt(group: Any) -> Adapter | Ranks:
    """Adapts a communicator of mpi4py, a process group of PyTorch, or any `Group`.

    The result of `ranks` is returned unchanged, for the engine.

    Raises:
        InvalidError: If it is none of these.
    """
    if isinstance(group, Ranks):
        return group
    module = type(group).__module__.partition(".")[0]
    if module == "mpi4py":
        comm = _duplicate(group)
        return Adapter(comm.Get_rank(), comm.Get_size(), comm.gather, comm.bcast)
    if module == "torch" or getattr(group, "__name__", "") == "torch.distributed":
        return _of_torch(group)
    if isinstance(group, Group):
        return Adapter(int(group.rank), int(group.size), group.gather, group.broadcast)
    raise InvalidError(
        f"{group!r} is no group of ranks: give a communicator of mpi4py, such as MPI.COMM_WORLD, "
        "torch.distributed or one of its process groups, outlive.ranks(...), or an object with "
        "`rank`, `size`, `gather(bytes)` and `broadcast(bytes)`"
    )


# Key under which MPI communicators keep their duplicates, whose number is limited.
_key: int | None = None


def _duplicate(comm: Any) -> Any:
    """Returns one duplicate for all jobs, since messages of outlive must not mix with others."""
    global _key
    if _key is None:
        _key = type(comm).Create_keyval()
    found = comm.Get_attr(_key)
    if found is None:
        found = comm.Dup()
        comm.Set_attr(_key, found)
    return found


def _of_torch(group: Any) -> Adapter:
    import torch.distributed as dist

    if not dist.is_initialized():
        raise InvalidError("torch.distributed is not initialised: call init_process_group before")
    group = dist.group.WORLD if group is dist else group
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    first = dist.get_global_rank(group, 0)

    def gather(data: bytes) -> list[bytes] | None:
        everything: list[Any] | None = [None] * size if rank == 0 else None
        dist.gather_object(data, everything, dst=first, group=group)
        return everything

    def broadcast(data: bytes) -> bytes:
        held = [data]
        dist.broadcast_object_list(held, src=first, group=group)
        return held[0]

    return Adapter(rank, size, gather, broadcast)


class Sharded:
    """This rank's part of a global array; made by `sharded` and `block_cyclic`.

    Attributes:
        array: The part, an array of the program.
        global_shape: Shape of the global array.
        offset: Index of the part's first element in it.
        block: Elements of a block along each axis; None if the part is a box.
        stride: Elements of the global array from one block to the next; None if the part is a box.
    """

    __slots__ = ("array", "block", "global_shape", "offset", "stride")

    def __init__(
        self,
        array: Any,
        global_shape: tuple[int, ...],
        offset: tuple[int, ...],
        block: tuple[int, ...] | None = None,
        stride: tuple[int, ...] | None = None,
    ) -> None:
        """Made by `sharded` and `block_cyclic`."""
        self.array, self.global_shape, self.offset = array, global_shape, offset
        self.block, self.stride = block, stride

    def __repr__(self) -> str:
        """Returns the part, for people."""
        blocks = "" if self.block is None else f", blocks of {self.block} every {self.stride}"
        return f"<part of {self.global_shape} at {self.offset}{blocks}>"


def sharded(
    array: Any,
    global_shape: Sequence[SupportsIndex],
    offset: Sequence[SupportsIndex],
    *,
    block: Sequence[SupportsIndex] | None = None,
    stride: Sequence[SupportsIndex] | None = None,
) -> Sharded:
    """Marks an array as this rank's part of a global array, as a leaf of a state.

    A program with another number of ranks, or with other parts, then restores the elements that it
    needs. If parts overlap, an element may come from any rank's part.

    A part is a box, or with `stride` it is cyclic: along each axis, element `l` of the part is
    element `offset + l // block * stride + l % block` of the global array. `block_cyclic` computes
    these arguments for a grid of ranks.

    Args:
        array: The part: an array, or a tensor of PyTorch in the memory of the CPU. In C order.
        global_shape: Shape of the global array, with as many dimensions as the part has.
        offset: Index of the part's first element in the global array.
        block: Elements along each axis that lie side by side; 1 if only `stride` is given. The
            last block may have fewer.
        stride: Elements of the global array along each axis from the beginning of one block to that
            of the next. It is at least `block`, and equal to it along an axis without gaps.

    Raises:
        InvalidError: If the part does not lie in the global array, or such blocks are not possible.
    """
    shape = tuple(int(extent) for extent in array.shape)
    whole = tuple(operator.index(extent) for extent in global_shape)
    first = tuple(operator.index(index) for index in offset)
    if not shape or not len(shape) == len(whole) == len(first):
        raise InvalidError(
            f"the part has shape {shape}, the global array {whole}, and the offset is {first}: "
            "they need equally many dimensions, at least one"
        )
    if stride is None:
        if block is not None:
            raise InvalidError(
                f"block={tuple(block)} without a stride: give the number of elements from the "
                "begin of one block to the begin of the next along each axis as `stride`"
            )
        # A box is one block.
        blocks = strides = tuple(max(extent, 1) for extent in shape)
    else:
        strides = tuple(operator.index(step) for step in stride)
        blocks = (1,) * len(shape) if block is None else tuple(map(operator.index, block))
        if not len(blocks) == len(strides) == len(shape):
            raise InvalidError(
                f"the part has shape {shape}, block {blocks} and stride {strides}: they need "
                "equally many dimensions"
            )
    for axis, (extent, begin, end, size, step) in enumerate(
        zip(shape, first, whole, blocks, strides, strict=True)
    ):
        if not 1 <= size <= step < 1 << 63:
            raise InvalidError(
                f"blocks of {size} elements every {step} along axis {axis}: a block has at least "
                "one element, and the stride is at least as long as the block"
            )
        last = begin + (extent - 1) // size * step + (extent - 1) % size if extent else 0
        if not 0 <= begin < 1 << 63 or (extent and last >= end) or not 0 <= end < 1 << 63:
            how = "" if stride is None else f" in blocks of {size} every {step}"
            raise InvalidError(
                f"the part begins at {begin} along axis {axis} and has {extent} elements there"
                f"{how}; the global array has {end}"
            )
    if stride is None:
        return Sharded(array, whole, first)
    return Sharded(array, whole, first, blocks, strides)


def block_cyclic(
    array: Any,
    global_shape: Sequence[SupportsIndex],
    block: Sequence[SupportsIndex],
    grid: Sequence[SupportsIndex],
    coordinates: Sequence[SupportsIndex],
) -> Sharded:
    """Marks an array as this rank's part of a block-cyclic global array, as a leaf of a state.

    Along each axis the global array is cut into blocks. They are dealt out to the ranks of the grid
    in turn, as ScaLAPACK and `MPI.Datatype.Create_darray` do, with the first block on the first
    rank. `sharded` describes the restore.

    Args:
        array: The part: an array, or a tensor of PyTorch in the memory of the CPU. In C order. It
            has all blocks of this rank, and along each axis as many elements as ScaLAPACK's
            `numroc` returns.
        global_shape: Shape of the global array, with as many dimensions as the part has.
        block: Elements of a block along each axis (`MB`, `NB`).
        grid: Number of ranks along each axis (`NPROW`, `NPCOL`); 1 if it is not divided.
        coordinates: This rank's position in the grid along each axis (`MYROW`, `MYCOL`), from 0 on.

    Raises:
        InvalidError: If the grid has no such position, or the part has another shape.
    """
    shape = tuple(int(extent) for extent in array.shape)
    whole, blocks, ranks_along, place = (
        tuple(map(operator.index, given)) for given in (global_shape, block, grid, coordinates)
    )
    if not len(shape) == len(whole) == len(blocks) == len(ranks_along) == len(place):
        raise InvalidError(
            f"the part has shape {shape}, the global array {whole}, the block {blocks}, the grid "
            f"{ranks_along}, and the coordinates are {place}: they need equally many dimensions"
        )
    for axis, (extent, end, size, count, at) in enumerate(
        zip(shape, whole, blocks, ranks_along, place, strict=True)
    ):
        if not 0 <= at < count or size < 1:
            raise InvalidError(
                f"blocks of {size} elements for rank {at} of {count} along axis {axis}: a block "
                "has at least one element, and ranks are counted from 0"
            )
        # Rounds in which every rank has a block, and the part of this rank in the last round.
        rounds, rest = divmod(end, size * count)
        own = rounds * size + min(max(rest - at * size, 0), size)
        if extent != own:
            raise InvalidError(
                f"the part has {extent} elements along axis {axis}; of {end} elements in blocks of "
                f"{size}, rank {at} of {count} has {own}"
            )
    offset = tuple(at * size for at, size in zip(place, blocks, strict=True))
    stride = tuple(count * size for count, size in zip(ranks_along, blocks, strict=True))
    return sharded(array, whole, offset, block=blocks, stride=stride)
