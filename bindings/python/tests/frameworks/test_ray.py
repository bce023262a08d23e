"""The adapter for Ray Train: `outlive.ray`."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import outlive
import outlive.ray
import trained

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    # Each start of a worker takes many seconds on a busy machine.
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        configure_logging=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
    )
    yield
    ray.shutdown()


def test_a_killed_worker_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    (want,) = trained.trained("ray", tmp_path / "whole")
    training = trained.Training("ray", tmp_path / "killed")
    assert training.child.stdout is not None
    killed = False
    text = []
    for line in training.child.stdout:
        text.append(line)
        found = re.search(r"step 7 (\d+)", line)
        if found and not killed:
            os.kill(int(found[1]), signal.SIGKILL)
            killed = True
    training.child.wait()
    assert killed, "".join(text)
    assert f"{want}\n" in text
    # Steps before the last checkpoint are not run again.
    steps = [int(found[1]) for found in map(re.compile(r"step (\d+)").search, text) if found]
    assert steps.count(1) == 1
    assert len(outlive.open(tmp_path / "killed").job("ray").epochs()) <= 4


def fit(runs: Path, workers: int, work: Any, **config: Any) -> Any:
    return DataParallelTrainer(
        work,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(name="run", storage_path=str(runs)),
    ).fit()


def test_files_of_several_ranks_are_merged(cluster: None, tmp_path: Path) -> None:
    def work(config: dict[str, Any]) -> None:
        rank = ray.train.get_context().get_world_rank()
        for step in range(3):
            files = Path(config["folder"]) / f"files-{rank}"
            files.mkdir(exist_ok=True)
            (files / f"part-{rank}").write_text(f"{rank} {step}")
            ray.train.report(
                {"step": step},
                checkpoint=ray.train.Checkpoint.from_directory(files),
                checkpoint_upload_fn=outlive.ray.upload(config["folder"] + "/pool", "job"),
            )

    result = fit(tmp_path / "runs", 2, work, folder=str(tmp_path))
    with outlive.ray.directory(result.checkpoint) as folder:
        found = {path.name: path.read_text() for path in folder.iterdir()}
    assert found == {"part-0": "0 2", "part-1": "1 2"}
    pool = outlive.open(tmp_path / "pool")
    assert sorted(pool.jobs()) == ["job", "job-1"]
    pool.job("job").prune(keep_last=1)
    oldest = min((each for each, _ in result.best_checkpoints), key=lambda each: each.path)
    with pytest.raises(outlive.InvalidError, match="is gone"), outlive.ray.directory(oldest):
        pass


@pytest.mark.parametrize("mode", ["SYNC", "ASYNC"])
def test_a_failed_upload_ends_the_training(cluster: None, tmp_path: Path, mode: str) -> None:
    def work(config: dict[str, Any]) -> None:
        place = Path(config["folder"])
        upload = outlive.ray.upload(place / "pool", "job")

        def fail(checkpoint: Any, name: str) -> Any:
            with trained.full_disk():
                return upload(checkpoint, name)

        for step in range(3):
            files = place / f"files-{step}"
            files.mkdir()
            (files / "x").write_bytes(os.urandom(100_000))
            ray.train.report(
                {"step": step},
                checkpoint=ray.train.Checkpoint.from_directory(files),
                checkpoint_upload_mode=ray.train.CheckpointUploadMode[config["mode"]],
                checkpoint_upload_fn=fail if step == 2 else upload,
            )
        for step in range(10_000):
            ray.train.report({"step": step})
            time.sleep(0.01)

    with pytest.raises(ray.train.TrainingFailedError, match="File too large"):
        fit(tmp_path / "runs", 1, work, folder=str(tmp_path), mode=mode)
    assert len(outlive.open(tmp_path / "pool").job("job").epochs()) == 2


def test_a_relative_pool_is_one_of_the_driver(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(config: dict[str, Any]) -> None:
        files = Path(config["folder"]) / "files"
        files.mkdir()
        (files / "x").write_text("1")
        with pytest.raises(outlive.InvalidError, match="'pool' is a relative path"):
            outlive.ray.upload("pool", "job")
        ray.train.report(
            {},
            checkpoint=ray.train.Checkpoint.from_directory(files),
            checkpoint_upload_fn=config["upload"],
        )

    monkeypatch.chdir(tmp_path)
    upload = outlive.ray.upload("pool", "job")
    monkeypatch.chdir("/")
    result = fit(tmp_path / "runs", 1, work, folder=str(tmp_path), upload=upload)
    assert len(outlive.open(tmp_path / "pool", create=False).job("job").epochs()) == 1
    with outlive.ray.directory(result.checkpoint) as folder:
        assert (folder / "x").read_text() == "1"


def test_a_checkpoint_of_ray_itself(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1")
    with outlive.ray.directory(ray.train.Checkpoint.from_directory(tmp_path)) as folder:
        assert (folder / "x").read_text() == "1"
