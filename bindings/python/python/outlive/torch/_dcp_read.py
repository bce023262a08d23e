"""`DCPReader`: `torch.distributed.checkpoint` loads from a job."""

from __future__ import annotations

import dataclasses
import io
import logging
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from outlive import _api, _dtypes, _notices
from outlive._errors import DamagedError, InvalidError
from outlive._job import Job
from outlive._pool import Pool
from outlive._saves import Epoch, Restored
from outlive.torch import _tensors
from outlive.torch._dcp_boxes import Box, memory_of, merged
from outlive.torch._dcp_group import can_exchange, exchange, job_of
from outlive.torch._dcp_metadata import Place, Places, decode
from outlive.torch._dcp_write import BLOBS, METADATA

Part = tuple[tuple[int, ...], ...]

T = TypeVar("T")
R = TypeVar("R")


class _Read(NamedTuple):
    """Items of a plan that a rank has read: some fill tensors, and others are bytes."""

    tensors: list[tuple[ReadItem, torch.Tensor]]
    blobs: list[ReadItem]
    data: list[bytes]
    report: Restored


class DCPReader(StorageReader):  # type: ignore[misc]
    """Loads checkpoints that `DCPWriter` has saved, on any number of ranks.

    ```python
    reader = outlive.torch.DCPReader(outlive.open("ckpt"), "training")
    dcp.load(state_dict, storage_reader=reader)
    ```

    Of each tensor, a rank reads only the rows that its part needs.

    If the newest checkpoint is damaged, the load takes the next older one with the same tensors,
    and warns. It does not if a checkpoint was named.

    `checkpoint_id` of `dcp.load` is a label, or an epoch as in `Job.restore`. It holds for that
    load: the next one without it takes the `epoch` of the reader again.

    All ranks make the reader, in the same order as other groups of `torch.distributed`. A writer
    and a reader of the same pool object and name share a job, so the next save continues from the
    checkpoint that was loaded.

    Args:
        to: A pool, with the name of a job; or a job.
        name: Name of the job.
        group: Process group of the ranks that load. None is all of them; False is this process
            alone.
        epoch: The checkpoint to load, as in `Job.restore`. None is the newest.
        allow_pickle: Whether data of a planner of the program's own may be unpickled.

    Attributes:
        last_restore: Report on the last load, of this rank; None before the first.

    Raises:
        InvalidError: If the arguments do not fit.
    """

    def __init__(
        self,
        to: Pool | Job,
        name: str | None = None,
        *,
        group: Any = None,
        epoch: int | str | Epoch | None = None,
        allow_pickle: bool = False,
    ) -> None:
        """Opens the job, unless it is given."""
        super().__init__()
        self.job = job_of(to, name, group, {})
        self.allow_pickle = allow_pickle
        self.last_restore: Restored | None = None
        self._default: Any = epoch
        self._wanted: Any = epoch
        # The checkpoint that is being loaded.
        self._epoch = 0
        self._metadata = Metadata({})
        self._places = Places()
        self._skipped: list[tuple[int | None, str]] = []
        self._alone: Job | None = None

    def reset(self, checkpoint_id: Any = None) -> None:
        """Takes the label or the epoch of the checkpoint for one load."""
        self._wanted = self._default if checkpoint_id is None else checkpoint_id

    @property
    def checkpoint_id(self) -> Any:
        """The label or epoch of the checkpoint to load; None is the newest."""
        return self._wanted

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Returns false: no label alone names a pool."""
        return False

    # The signature without `kwargs` says that there is no metadata of single ranks.
    def read_metadata(self) -> Metadata:
        """Reads the metadata of the newest whole checkpoint, or of the one that was named."""
        self._skipped = []
        try:
            if not self._take(self._agree(self._number, lambda told: told[0])):
                raise InvalidError(f"the job {self.job.name!r} has no checkpoint: save one first")
        except BaseException:
            self.reset()
            raise
        return self._metadata

    def _take(self, wanted: int | None) -> bool:
        """Reads the metadata of a checkpoint, None for the newest whole one; false without one."""
        found = bytearray()

        def wish(name: str, dtype: str, shape: tuple[int, ...], part: Part | None) -> Any:
            if name != METADATA or part is None:
                return None
            found.extend(bytes(part[0][0]))
            return found, (part[0], (0,)), part[0]

        done = _fetch(self.job, wanted, wish)
        if done is None:
            return False
        if not found:
            raise InvalidError(
                f"checkpoint {done.epoch} of {self.job.name!r} was not saved by "
                "`torch.distributed.checkpoint`: name another one, or use `job.restore()`"
            )
        assert done.epoch is not None
        self.job._know_history()
        try:
            metadata, places = decode(
                bytes(found), epoch=done.epoch, allow_pickle=self.allow_pickle
            )
        except InvalidError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(
                f"the metadata of checkpoint {done.epoch} make no sense ({error!r}): take another"
            ) from error
        self._epoch, self._metadata, self._places = done.epoch, metadata, places
        self._skipped += done.skipped
        return True

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Does nothing: the metadata are known."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Adds the epoch to the plan."""
        plan.storage_data = self._epoch
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Checks that all ranks load the same checkpoint."""
        epochs = {plan.storage_data for plan in plans}
        if len(epochs) > 1:
            raise InvalidError(
                f"the ranks see different newest checkpoints, {sorted(epochs)}: give all of them "
                "the same epoch"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        """Reads the items of a plan, and gives them to the planner.

        If the checkpoint proves damaged, and none was named, the next older one is taken. If a rank
        fails, all of them do: they exchange their failures once, and then none waits for another.
        """
        try:
            if plan.storage_data not in (None, self._epoch):
                # Another load has begun since this plan was made.
                self._take(plan.storage_data)
            while (read := self._read_whole(plan, planner)) is None:
                self._take_older(plan)
        finally:
            self.reset()
        self.last_restore = dataclasses.replace(read.report, skipped=tuple(self._skipped))
        for item, target in read.tensors:
            planner.commit_tensor(item, target)
        for item, each in zip(read.blobs, read.data, strict=True):
            self._give_bytes(planner, item, each)
        future: Any = Future()
        future.set_result(None)
        return future

    def _place_of(self, item: ReadItem) -> Place:
        return self._places.get(item.storage_index, Place(0))

    def _agree(self, give: Callable[[], T], merge: Callable[[list[T]], R]) -> R:
        """Merges what the ranks give. Ranks that cannot talk to each other act for themselves.

        Raises:
            Error: On all ranks, if one has failed.
        """
        if can_exchange(self.job):
            return exchange(self.job, give, merge, what="nothing is loaded")
        return merge([give()])

    # --- Damage -------------------------------------------------------------------------------

    def _read_whole(self, plan: LoadPlan, planner: LoadPlanner) -> _Read | None:
        """Reads items; None if the checkpoint is damaged and another one may be taken."""
        read: _Read | None = None
        failure: DamagedError | None = None

        def give() -> str | None:
            nonlocal read, failure
            try:
                read = self._read_items(plan, planner)
            except DamagedError as error:
                failure = error
            return None if failure is None else str(failure)

        why = self._agree(give, _first)
        if why is None:
            return read
        if self._wanted is not None or not can_exchange(self.job):
            raise failure or DamagedError(why)
        self._skip(self._epoch, why)
        return None

    def _skip(self, epoch: int, why: str) -> None:
        self._skipped.append((epoch, why))
        if self.job.rank == 0:
            text = "job %s: checkpoint %s is damaged, and is skipped: %s"
            _notices.tell(logging.WARNING, text, self.job.name, epoch, why)

    def _take_older(self, plan: LoadPlan) -> None:
        """Takes the newest older checkpoint that has the items of a plan in the same form.

        Raises:
            DamagedError: If there is none.
        """
        newest, metadata, places = self._epoch, self._metadata, self._places
        damage = self._skipped[-1][1]
        others: list[int] = []
        for epoch in self._agree(self._older, lambda told: told[0]):
            try:
                found = self._take(epoch)
            except DamagedError as error:
                self._skip(epoch, str(error))
                continue
            except InvalidError:
                continue  # a state of another form

            def fits() -> bool:
                return self._is_like(plan, metadata, places)

            if found and self._agree(fits, all):
                return
            others.append(epoch)
        self._epoch, self._metadata, self._places = newest, metadata, places
        way_out = (
            f"those before it, such as {others[0]}, have other tensors: load one by its number, "
            f"`checkpoint_id={others[0]}`"
            if others
            else "there is no older one that `torch.distributed.checkpoint` has saved"
        )
        raise DamagedError(f"{damage}; {way_out}")

    def _older(self) -> list[int]:
        """Returns the checkpoints before the one that proved damaged, the newest first."""
        found = [
            each.epoch
            for each in self.job.epochs()
            if each.epoch < self._epoch and each.mark != "bad"
        ]
        return found[::-1]

    def _is_like(self, plan: LoadPlan, metadata: Metadata, places: Places) -> bool:
        """Whether the items of a plan for other metadata are in this checkpoint, too."""
        return all(
            _form(self._metadata, item) == _form(metadata, item) is not None
            and (self._place_of(item).region is None)
            == (places.get(item.storage_index, Place(0)).region is None)
            for item in plan.items
        )

    # --- Reading ------------------------------------------------------------------------------

    def _read_items(self, plan: LoadPlan, planner: LoadPlanner) -> _Read:
        """Fills the tensors of a plan, and reads the bytes of its other items."""
        blobs: list[ReadItem] = []
        tensors: list[tuple[ReadItem, torch.Tensor]] = []
        for item in plan.items:
            if self._place_of(item).region is None:
                blobs.append(item)
            elif item.type == LoadItemType.BYTE_IO:
                raise DamagedError(f"{item.storage_index.fqn!r} is no bytes in the checkpoint")
            else:
                tensors.append((item, planner.resolve_tensor(item).detach()))
        boxes = merged([(item, target, self._place_of(item)) for item, target in tensors])
        places = [self._place_of(item) for item in blobs]
        begin, end = _span(places)
        data = torch.empty(end - begin, dtype=torch.uint8)
        if data.numel():
            boxes.append(Box(BLOBS, (begin,), (data.numel(),), data))
        report = self._read(boxes)
        content = data.numpy()
        found = [
            content[place.offset - begin : place.offset - begin + place.length].tobytes()
            for place in places
        ]
        return _Read(tensors, blobs, found, report)

    def _give_bytes(self, planner: LoadPlanner, item: ReadItem, data: bytes) -> None:
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(data))
            return
        # A tensor that is no part of an array: sparse, quantized, of a class of its own.
        saved = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        target = planner.resolve_tensor(item)
        box = zip(item.storage_offsets, item.lengths, strict=True)
        for axis, (begin, length) in enumerate(box):
            if (begin, length) != (0, saved.shape[axis]):
                saved = saved.narrow(axis, begin, length)
        with torch.no_grad():
            target.copy_(saved)
        planner.commit_tensor(item, target)

    def _read(self, boxes: list[Box]) -> Restored:
        """Reads boxes: in one pass over the checkpoint, unless a region has several."""
        total = Restored(self._epoch)
        while boxes:
            taken = {box.region: box for box in reversed(boxes)}
            boxes = [box for box in boxes if taken[box.region] is not box]
            done = self._read_some(taken)
            total = Restored(
                self._epoch,
                total.seconds + done.seconds,
                total.restored_bytes + done.restored_bytes,
                total.read_bytes + done.read_bytes,
            )
        return total

    def _read_some(self, boxes: dict[str, Box]) -> Restored:
        copies: list[tuple[torch.Tensor, np.ndarray[Any, Any], str]] = []
        missing = set(boxes)

        def wish(name: str, dtype: str, shape: tuple[int, ...], part: Part | None) -> Any:
            box = boxes.get(name)
            if box is None:
                return None
            missing.discard(name)
            lengths = box.lengths or (1,)
            whole = shape if part is None else part[0]
            memory = memory_of(box.target, dtype)
            if memory is None:
                memory = np.empty(lengths, _dtypes.memory(dtype))
                copies.append((box.target, memory, dtype))
            return memory.reshape(lengths), (whole, box.offset or (0,)), lengths

        done = _fetch(self._reader(), self._epoch, wish)
        if done is None or missing:
            some = ", ".join(sorted(missing)[:10])
            raise DamagedError(f"checkpoint {self._epoch} lacks {some}: take another")
        for target, memory, dtype in copies:
            source = _tensors.revive(memory, dtype, self._note_of(target, dtype))
            _tensors.copy(target, source.reshape(target.shape))
        return done

    def _note_of(self, target: torch.Tensor, dtype: str) -> dict[str, Any]:
        """Returns what the text of a dtype does not say."""
        text, _, name = _tensors.kind_of(target.dtype)
        return {"dtype": name} if name is not None and text == dtype else {}

    def _reader(self) -> Job:
        """Returns a job of this process alone: each rank reads at its own pace."""
        if self.job._core.group() is None:
            return self.job
        if self._alone is None:
            pool = _api.open(self.job._location, create=False)
            self._alone = pool.job(self.job.name)
        return self._alone

    def _number(self) -> int | None:
        """Returns the epoch of the checkpoint that was named; None is the newest whole one."""
        wanted = self._wanted
        if wanted is None or isinstance(wanted, Epoch) or type(wanted) is int:
            return self.job._number_of(wanted)
        text = str(wanted)
        labelled = [epoch.epoch for epoch in self.job.epochs() if epoch.label == text]
        if labelled:
            return labelled[-1]
        if re.fullmatch(r"-?\d+|latest", text) is None:
            raise InvalidError(
                f"no checkpoint of {self.job.name!r} has the label {text!r}, and it is no epoch: "
                "`job.epochs()` lists them"
            )
        return self.job._number_of(text)


def _fetch(job: Job, epoch: int | None, wish: Any) -> Restored | None:
    """Reads what `wish` wants of each region, given its name, dtype, shape and part."""

    def plan(
        names: list[str],
        dtypes: list[str],
        shapes: list[tuple[int, ...]],
        distributions: list[Any],
        **_: Any,
    ) -> list[Any]:
        return [
            wish(name, dtype, shape, part if isinstance(part, tuple) else None)
            for name, dtype, shape, part in zip(names, dtypes, shapes, distributions, strict=True)
        ]

    done = job._core.restore(plan, job._tick, epoch=epoch, user_only=None)
    if done is None:
        return None
    done.pop("values")
    return Restored(**done)


def _form(metadata: Metadata, item: ReadItem) -> Any:
    """Returns the form of an item in a checkpoint; None if it is not there."""
    found = metadata.state_dict_metadata.get(item.storage_index.fqn)
    if isinstance(found, TensorStorageMetadata):
        return found.size, found.properties.dtype, found.chunks
    return None if found is None else type(found)


def _first(told: list[str | None]) -> str | None:
    """Returns the first text of those that ranks gave."""
    return next((each for each in told if each is not None), None)


def _span(places: list[Place]) -> tuple[int, int]:
    """Returns the range of the region of bytes in which all of some items lie."""
    if not places:
        return 0, 0
    begin = min(place.offset for place in places)
    return begin, max(place.offset + place.length for place in places)
