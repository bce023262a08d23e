"""`DCPWriter`: `torch.distributed.checkpoint` saves into a job."""

from __future__ import annotations

import atexit
import io
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import (
    DefaultSavePlanner,
    create_default_global_save_plan,
)
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from outlive import _notices
from outlive._deferred import Deferred
from outlive._errors import Error, FailedSaveWarning, InvalidError
from outlive._group import Sharded
from outlive._job import Job
from outlive._pool import Pool
from outlive._saves import Save
from outlive.torch._dcp_group import exchange, job_of
from outlive.torch._dcp_metadata import Place, Places, complete, encode
from outlive.torch._stage import Stager, is_away

METADATA, BLOBS, TENSORS = "metadata", "bytes", "tensors"
# Name that PyTorch gives the threads which complete asynchronous saves.
_UPLOADS = "AsyncCheckpointExecutor"
_NO_PROCESS = (
    "another process cannot save for this one: call `async_save` with "
    "`AsyncCheckpointerType.THREAD`, which copies nothing here"
)


@dataclass
class _Item:
    """An item of a plan: a tensor with its place in the whole, or bytes."""

    index: MetadataIndex
    tensor: torch.Tensor | None = None
    data: bytes | memoryview = b""
    size: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    # Number of the items of the same name before it.
    number: int = 0

    def described(self) -> tuple[Any, ...]:
        """Returns all but the data, for the other ranks."""
        dtype = None if self.tensor is None else self.tensor.dtype
        return self.index, dtype, self.size, self.number, len(self.data)

    def nbytes(self) -> int:
        """Returns the length of the data."""
        return len(self.data) if self.tensor is None else self.tensor.nbytes


@dataclass
class _Layout:
    """The plan that all ranks agree on: the regions and their sizes."""

    # By number of the tree, names with dtypes and global shapes.
    trees: list[dict[str, tuple[torch.dtype, tuple[int, ...]]]] = field(default_factory=list)
    # Where the bytes of each rank begin, and how many all have.
    begins: list[int] = field(default_factory=list)
    total: int = 0
    metadata_bytes: int = 0


@dataclass
class _Saving:
    """A save under way."""

    save: Save
    items: list[_Item]
    metadata: Metadata | None
    label: str | None = None
    # Of a save that `stage` has begun: the plan, the planner's class, and the thread that `stage`
    # ran in. Then the thread in which PyTorch completes it.
    plan: SavePlan | None = None
    planner: type | None = None
    begun_in: threading.Thread | None = None
    ended_in: threading.Thread | None = None


class _Staged(dict[str, Any]):
    """A state that was frozen. A copy for another process would be made of what it is by then."""

    def __init__(
        self, state: dict[str, Any], refuse: Callable[[_Saving], None], saving: _Saving
    ) -> None:
        super().__init__(state)
        self._refuse, self._saving = refuse, saving

    def __reduce_ex__(self, protocol: Any) -> Any:
        # PyTorch would put the tensors themselves into shared memory.
        self._refuse(self._saving)


class DCPWriter(StorageWriter, AsyncStager):  # type: ignore[misc]
    """Saves the state dicts of `torch.distributed.checkpoint` as checkpoints of a job.

    ```python
    writer = outlive.torch.DCPWriter(outlive.open("ckpt"), "training")
    dcp.save(state_dict, storage_writer=writer)
    future = dcp.async_save(state_dict, storage_writer=writer)
    ```

    `dcp.save` returns when the checkpoint is committed. `dcp.async_save` returns as soon as the
    state may be changed again. It copies nothing: the writer freezes the state, as `Job.save` does.
    If such a save fails, its future raises, and so does the next save by this writer.

    All ranks make the writer, in the same order as other groups of `torch.distributed`.

    Args:
        to: A pool, with the name of a job; or a job, whose group are the ranks that save.
        name: Name of the job.
        group: Process group of the ranks that save. None is all of them.
        planner: Makes the planner for `async_save`, if that is given one: its class, for example.
        options: Options of `Pool.job`, such as `keep_last=3`.

    Raises:
        InvalidError: If the arguments do not fit.
    """

    # Staging is over when `stage` returns.
    _synchronize_after_execute = False

    def __init__(
        self,
        to: Pool | Job,
        name: str | None = None,
        *,
        group: Any = None,
        planner: Callable[[], SavePlanner] | None = None,
        **options: Any,
    ) -> None:
        """Opens the job, unless it is given."""
        super().__init__()
        self._owns_job = isinstance(to, Pool)
        self.job = job_of(to, name, group, options)
        self._planner = planner
        self._stager = Stager()
        # Saves that `stage` has begun: those that no thread has taken up, and all others of which
        # the threads may be alive.
        self._staged: deque[_Saving] = deque()
        self._taken: list[_Saving] = []
        # Of the thread that saves: its save, its label, and the plans of rank 0.
        self._local = threading.local()
        self._failure: tuple[int | None, BaseException] | None = None
        atexit.register(_tell_at_exit, weakref.ref(self))

    # --- The calls of `dcp.save` --------------------------------------------------------------

    def reset(self, checkpoint_id: Any = None) -> None:
        """Takes the label of the next checkpoint that this thread saves."""
        self._local.label = None if checkpoint_id is None else str(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begins a save; raises the failure of an earlier one."""
        self._local.saving = self._local.plans = None
        if kwargs.get("use_collectives", True) is False and self.job.ranks > 1:
            raise InvalidError(
                "use_collectives=False saves each rank for itself, and the job has a group: give "
                "each rank a job of its own, with `group=False`"
            )
        if is_coordinator != (self.job.rank == 0):
            raise InvalidError(
                f"this process is rank {self.job.rank} of {self.job.ranks} in the job "
                f"{self.job.name!r}, and {'' if is_coordinator else 'not '}the first one of those "
                "that save: open the job with the group of the ranks that save"
            )
        here = threading.current_thread()
        if self._staged and self._staged[0].begun_in is not here:
            saving = self._local.saving = self._staged.popleft()
            saving.ended_in = here
            self._taken.append(saving)
            return
        self._await_uploads()
        self._raise_failure()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Returns the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Checks that the ranks of the plans are those of the job."""
        if len(plans) != self.job.ranks:
            raise InvalidError(
                f"{len(plans)} ranks save, and the job {self.job.name!r} has {self.job.ranks}: "
                "open it with the group of the ranks that save"
            )
        self._local.plans = plans
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """Saves the items of a plan, and waits until the checkpoint is committed."""
        saving: _Saving | None = self._local.saving
        if saving is None:
            saving = self._begin(plan, planner, self._label)
            self._local.saving = saving
        else:
            saving.label = self._label
            self._check_staged(saving, plan, planner)
        try:
            saving.save.wait()
        except BaseException as error:
            if saving.plan is not None:
                self._failure = saving.save.epoch, error
            raise
        self._local.label = None
        future: Any = Future()
        future.set_result(
            [WriteResult(item.index, item.nbytes(), saving.save.epoch) for item in saving.items]
        )
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Completes the metadata that `dcp.save` returns. The checkpoint is committed already."""
        saving: _Saving = self._local.saving
        epoch = saving.save.epoch
        assert epoch is not None
        mine = saving.metadata
        if mine is not metadata and (
            mine is None
            or mine.state_dict_metadata != metadata.state_dict_metadata
            or mine.planner_data != metadata.planner_data
        ):
            self.job.mark(epoch, "bad")
            raise InvalidError(
                f"checkpoint {epoch} is marked as bad: its planner changes the metadata after "
                "`create_global_plan`. Have it keep the final ones as its attribute `metadata`"
            )
        if saving.plan is not None and saving.label is not None:
            self.job.note(epoch, label=saving.label)
        metadata.storage_data = {
            result.index: result.storage_data for rank in results for result in rank
        }
        complete(metadata, saving.label, epoch)

    def storage_meta(self) -> StorageMeta | None:
        """Returns the label of the checkpoint."""
        return StorageMeta(checkpoint_id=self._label)

    @property
    def checkpoint_id(self) -> str | None:
        """The label of the checkpoint that is being saved."""
        return self._label

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Returns false: no label alone names a pool."""
        return False

    @property
    def _label(self) -> str | None:
        return getattr(self._local, "label", None)

    # --- `dcp.async_save` ---------------------------------------------------------------------

    def stage(self, state_dict: Any, **_: Any) -> Any:
        """Freezes a state, and begins to save it; returns the state, which may change now.

        The result is a dict that cannot go to another process.

        Raises:
            Error: The failure of an earlier asynchronous save, or of this one's beginning.
        """
        planner = DefaultSavePlanner() if self._planner is None else self._planner()
        is_first = self.job.rank == 0

        def plan_mine() -> SavePlan:
            self._await_uploads()
            self._raise_failure()
            planner.set_up_planner(
                state_dict=state_dict, storage_meta=self.storage_meta(), is_coordinator=is_first
            )
            return planner.create_local_plan()

        def plan_all(plans: list[SavePlan]) -> list[SavePlan]:
            found, _ = planner.create_global_plan(plans)
            self._local.plans = found
            return list(found)

        plans = exchange(self.job, plan_mine, plan_all)
        plan = planner.finish_plan(plans[self.job.rank])
        saving = self._begin(plan, planner, None)
        saving.plan, saving.planner = plan, type(planner)
        saving.begun_in = threading.current_thread()
        self._staged.append(saving)
        return _Staged(state_dict, self._refuse_process, saving)

    def _await_uploads(self) -> None:
        """Waits for the threads in which PyTorch completes earlier saves.

        Two of them at once would mix up their messages, which go through one process group.
        """
        here = threading.current_thread()
        threads = {saving.ended_in for saving in self._taken}
        if self._staged:
            # A thread that has not come yet, or that has failed before it came.
            threads |= {each for each in threading.enumerate() if each.name.startswith(_UPLOADS)}
        for thread in threads - {here, None}:
            assert thread is not None
            thread.join()
        self._staged.clear()
        self._taken.clear()

    def _refuse_process(self, saving: _Saving) -> None:
        """Takes back a save that another process is to complete, and says why.

        Raises:
            InvalidError: Always.
        """
        saving.save.wait()
        if self.job.rank == 0 and saving.save.epoch is not None:
            self.job.mark(saving.save.epoch, "bad")
        raise InvalidError(f"checkpoint {saving.save.epoch} is marked as bad: {_NO_PROCESS}")

    def synchronize_staging(self) -> None:
        """Does nothing: staging is over when `stage` returns."""

    def _check_staged(self, saving: _Saving, plan: SavePlan, planner: SavePlanner) -> None:
        """Refuses a plan that is not the one of which the state was frozen."""
        assert saving.plan is not None
        if type(planner) is not saving.planner or plan.items != saving.plan.items:
            assert saving.planner is not None
            why = (
                f"`async_save` was given a {type(planner).__name__}, and the state was frozen for "
                f"a {saving.planner.__name__}: give `planner={type(planner).__name__}` to the "
                "writer as well"
                if type(planner) is not saving.planner
                else "the plan has changed since the state was frozen: save with the same objects"
            )
            what = f"checkpoint {saving.save.epoch} is not the one that was asked for"
            failure = InvalidError(f"{what}: {why}")
            if self.job.rank == 0:
                saving.save.wait()
                assert saving.save.epoch is not None
                self.job.mark(saving.save.epoch, "bad")
            self._failure = saving.save.epoch, failure
            raise failure

    def _raise_failure(self) -> None:
        """Raises the failure of an asynchronous save, or warns of it if the job says so."""
        if self._failure is None:
            return
        (epoch, error), self._failure = self._failure, None
        text = f"the asynchronous save of checkpoint {epoch} has failed: {error}"
        status = self.job.status
        is_patient = status.on_failure == "warn" and not isinstance(error, InvalidError)
        since_s, after_s = status.since_commit_s, status.fail_after_s
        if is_patient and (after_s is None or since_s is None or since_s < after_s):
            warnings.warn(text, FailedSaveWarning, stacklevel=2)
            return
        if isinstance(error, Error):
            raise type(error)(text) from error
        raise Error(text) from error

    def close(self) -> None:
        """Waits for the last save, and raises the failure of an asynchronous one.

        A job that the writer has opened is closed. In a group, all ranks call this.
        """
        self._await_uploads()
        if self._owns_job:
            self.job.close()
        self._raise_failure()

    def __reduce__(self) -> Any:
        """Refuses to go to another process, as `AsyncCheckpointerType.PROCESS` asks for."""
        raise InvalidError(_NO_PROCESS)

    # --- Saving -------------------------------------------------------------------------------

    def _begin(self, plan: SavePlan, planner: SavePlanner, label: str | None) -> _Saving:
        """Begins to save a plan; the state may change when this returns."""
        items: list[_Item] = []
        is_first = self.job.rank == 0
        metadata: Metadata | None = None
        encoded = b""

        def give() -> list[tuple[Any, ...]]:
            nonlocal metadata
            items.extend(self._resolve(plan, planner))
            if is_first:
                metadata = _metadata_of(planner, self._local.plans)
            return [item.described() for item in items]

        def merge(given: list[list[tuple[Any, ...]]]) -> _Layout:
            nonlocal encoded
            layout, places = _laid_out(given)
            assert metadata is not None
            encoded = encode(metadata, places)
            layout.metadata_bytes = len(encoded)
            return layout

        layout = exchange(self.job, give, merge)
        parts = _Parts(layout, items, encoded, self.job.rank)
        save = self.job.save(parts, force=True, label=label)
        return _Saving(save, items, metadata, label)

    def _resolve(self, plan: SavePlan, planner: SavePlanner) -> list[_Item]:
        """Returns the items of a plan, with tensors of devices in host memory."""
        found: list[_Item] = []
        counts: dict[str, int] = {}
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                found.append(_Item(item.index, data=data.getbuffer()))
                continue
            tensor = data.detach()
            written = item.tensor_data
            if not _is_dense(tensor) or tensor.shape != written.chunk.sizes:
                text = io.BytesIO()
                torch.save(tensor, text)
                found.append(_Item(item.index, data=text.getbuffer()))
                continue
            number = counts.get(item.index.fqn, 0)
            counts[item.index.fqn] = number + 1
            size, offsets = tuple(written.size), tuple(written.chunk.offsets)
            if not size:
                # A part of a global array has an axis.
                tensor, size, offsets = tensor.reshape(1), (1,), (0,)
            found.append(_Item(item.index, tensor, b"", size, offsets, number))
        tensors = [item.tensor for item in found]
        staged = self._stager.staged(tensors, fetch=True)
        for item, tensor in zip(found, staged, strict=True):
            item.tensor = tensor
        return found


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a part of an array that rows can be read of."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and (tensor.device.type == "cpu" or is_away(tensor))
    )


def _metadata_of(planner: SavePlanner, plans: list[SavePlan] | None) -> Metadata:
    """Returns the metadata that a planner has made, or makes those of PyTorch."""
    found = getattr(planner, "metadata", None)
    if isinstance(found, Metadata):
        return found
    _, made = create_default_global_save_plan(plans or [], rewrite_index_hints=False)
    return made


def _laid_out(given: list[list[tuple[Any, ...]]]) -> tuple[_Layout, Places]:
    """Returns the regions of all ranks, and the places of their items."""
    layout, places = _Layout(), Places()
    for items in given:
        layout.begins.append(layout.total)
        for index, dtype, size, number, length in items:
            if dtype is None:
                places[index] = Place(None, layout.total, length)
                layout.total += length
                continue
            while len(layout.trees) <= number:
                layout.trees.append({})
            tree = layout.trees[number]
            if tree.setdefault(index.fqn, (dtype, size)) != (dtype, size):
                raise InvalidError(
                    f"{index.fqn!r} has dtype {dtype} and size {size} on one rank, and "
                    f"{tree[index.fqn]} on another: save the same tensor on all ranks"
                )
            places[index] = Place(number)
    return layout, places


class _Parts(Deferred):
    """The state that a rank saves: its part of each region, which may be empty."""

    _takes_parts = True

    def __init__(self, layout: _Layout, items: list[_Item], metadata: bytes, rank: int) -> None:
        self.layout, self.items, self.metadata, self.rank = layout, items, metadata, rank

    def _outlive_state(self) -> Any:
        layout, items = self.layout, self.items
        own = {(item.number, item.index.fqn): item for item in items if item.tensor is not None}
        blobs = b"".join(item.data for item in items if item.tensor is None)
        state: dict[str, Any] = {
            METADATA: _bytes(self.metadata, layout.metadata_bytes, 0),
            BLOBS: _bytes(blobs, layout.total, layout.begins[self.rank]),
        }
        for number, tree in enumerate(layout.trees):
            parts = state[tree_name(number)] = {}
            for name, (dtype, size) in tree.items():
                item = own.get((number, name))
                if item is None:
                    nothing = torch.empty((0,) * len(size), dtype=dtype)
                    parts[name] = Sharded(nothing, size, (0,) * len(size))
                    continue
                tensor = item.tensor
                assert tensor is not None
                if tensor.is_conj() or tensor.is_neg():
                    tensor = tensor.resolve_conj().resolve_neg()
                parts[name] = Sharded(tensor, size, item.offsets)
        return state


def tree_name(number: int) -> str:
    """Returns the name of the tree with the tensors of that number of a rank, 0 for the first."""
    return f"{TENSORS}.{number}" if number else TENSORS


def _bytes(data: bytes, total: int, begin: int) -> Sharded:
    array = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)
    return Sharded(array.to(torch.uint8), (total,), (begin if data else 0,))


def _tell_at_exit(writer: weakref.ref[DCPWriter]) -> None:
    found = writer()
    if found is not None and found._failure is not None:
        epoch, error = found._failure
        _notices.to_stderr(
            f"job {found.job.name}: the asynchronous save of checkpoint {epoch} has failed: {error}"
        )
