"""outlive for Ray Train: an upload function that keeps the files of checkpoints in a pool.

```python
import outlive.ray

def train(config):
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with outlive.ray.directory(checkpoint) as folder:
            model.load_state_dict(torch.load(folder / "model.pt"))
    ...
    ray.train.report(
        {"loss": loss},
        checkpoint=Checkpoint.from_directory("files"),
        checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
        checkpoint_upload_fn=outlive.ray.upload("/shared/ckpt", "training"),
    )
```
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray.train
from pyarrow import fs

from outlive import _api
from outlive._adapters._source import Source, To, absolute
from outlive._errors import InvalidError
from outlive._job import Job

__all__ = ["directory", "upload"]

# Files that name the checkpoints of the ranks in a pool.
_PREFIX = "outlive-rank-"


def upload(
    to: To, name: str | None = None, **options: Any
) -> Callable[[ray.train.Checkpoint, str], ray.train.Checkpoint]:
    """Returns a function for `checkpoint_upload_fn` of `ray.train.report`.

    It stores the files of a checkpoint in a pool, where data that the pool has already takes no
    more space, and files that have not changed are not read. In the storage path of the run, the
    checkpoint gets a small file, which names the checkpoint in the pool. Ray keeps or deletes only
    that. The rules of the job, such as `keep_last`, decide how long the pool keeps the data. Give
    at least `num_to_keep` of Ray's `CheckpointConfig`.

    The first rank saves in the job, and each other one in a job with its number after the name. The
    function returns when the files are committed. With `CheckpointUploadMode.ASYNC` Ray calls it in
    a thread, while the training goes on. If it fails, Ray ends the training with its error.

    Args:
        to: A pool or its location, with the name of a job. All workers must reach the location. A
            relative path is one of the driver. In a worker, whose folder Ray has chosen, it is an
            error.
        name: Name of the job.
        options: Options of `Pool.job`, such as `keep_last=3`.

    Raises:
        InvalidError: If a worker gives a relative path.
    """
    source = Source(to, name, options)
    return _Upload(_of_driver(source.location), source.name, options)


def _of_driver(location: str) -> str:
    is_relative = "://" not in location and not Path(location).is_absolute()
    is_worker = ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
    if is_relative and is_worker:
        raise InvalidError(
            f"{location!r} is a relative path, and Ray has chosen the folder of this worker: give "
            "an absolute one, or call `upload` in the driver, and pass its result to the workers"
        )
    return absolute(location)


class _Upload:
    def __init__(self, location: str, name: str, options: dict[str, Any]) -> None:
        self._location, self._name, self._options = location, name, options

    def __call__(
        self, checkpoint: ray.train.Checkpoint, checkpoint_dir_name: str
    ) -> ray.train.Checkpoint:
        context: Any = ray.train.get_context()
        rank, storage = context.get_world_rank(), context.get_storage()
        name = self._name if rank == 0 else f"{self._name}-{rank}"
        with checkpoint.as_directory() as folder:
            job = _api.open(self._location).job(name, **self._options)
            # A missing file is an error for Ray's log only, so it gets another name.
            if not Path(folder).is_dir():
                raise InvalidError(f"{folder}, the folder of the checkpoint, does not exist")
            put = job.put_files(folder)
            job.close()
        if put.troubles:
            raise InvalidError(
                f"{len(put.troubles)} files of the checkpoint could not be read: {put.troubles[0]}"
            )
        place = storage.build_checkpoint_path_from_name(checkpoint_dir_name)
        files: fs.FileSystem = storage.storage_filesystem
        files.create_dir(place, recursive=True)
        text = json.dumps({"location": self._location, "job": name, "epoch": put.epoch})
        with files.open_output_stream(f"{place}/{_PREFIX}{rank}.json") as stream:
            stream.write(text.encode())
        return ray.train.Checkpoint(path=place, filesystem=files)


@contextlib.contextmanager
def directory(checkpoint: ray.train.Checkpoint) -> Iterator[Path]:
    """Brings the files of a checkpoint to a folder, for the time of the `with`.

    Takes checkpoints that Ray has uploaded by itself as well.

    Args:
        checkpoint: From `ray.train.get_checkpoint`, or of a `Result`.

    Raises:
        InvalidError: If the pool has no such checkpoint any more.
        DamagedError: If a file is damaged.
    """
    with checkpoint.as_directory() as there:
        pointers = sorted(Path(there).glob(f"{_PREFIX}*.json"))
        if not pointers:
            yield Path(there)
            return
        with tempfile.TemporaryDirectory(prefix="outlive-ray-") as folder:
            for pointer in pointers:
                found = json.loads(pointer.read_text())
                job = _api.open(found["location"], create=False).job(found["job"])
                _get(job, found["epoch"], folder)
            yield Path(folder)


def _get(job: Job, epoch: int, folder: str) -> None:
    epochs = [each.epoch for each in job.epochs()]
    if epoch not in epochs:
        raise InvalidError(
            f"checkpoint {epoch} of the job {job.name!r} is gone: a rule or prune has dropped it. "
            f"The job has {', '.join(map(str, epochs[-10:])) or 'none'}: give `keep_last` at least "
            "as many as Ray keeps"
        )
    got = job.get_files(folder, epoch=epoch)
    if got.troubles:
        raise InvalidError(f"not all files could be restored: {got.troubles[0]}")
