"""A fast tier in memory (a tmpfs that is emptied), and a slow one on disk."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import outlive


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Returns a directory in memory that stands for this test's host."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no /dev/shm")
    monkeypatch.setenv("OUTLIVE_HOST", "one")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as there:
        yield Path(there)


def pool_with(tmp_path: Path, memory: Path, *more: str) -> Path:
    pool = tmp_path / "pool"
    sizes = ["--container-bytes", "64KiB", "--pack-bytes", "256KiB"]
    made = ["pool", "init", str(pool), "--volatile", str(memory / "ckpt"), *more, *sizes]
    subprocess.run([sys.executable, "-m", "outlive", *made], check=True)
    return pool


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(50_000)


def test_a_program_goes_on_when_memory_was_lost(
    tmp_path: Path, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_with(tmp_path, memory, "--slow", str(tmp_path / "slow"))
    with outlive.open(pool).job("count") as job:
        assert job.save({"x": numbers(1)}).wait(60, tier="slow") is not None
        assert job.tiers(1) == ("fast", "slow")
    with (pool / "pool.toml").open("a") as config:
        config.write("\n[tiers]\nfill = false\n")
    job = outlive.open(pool).job("count")
    assert job.restore()["x"].tobytes() == numbers(1).tobytes()
    save = job.save({"x": numbers(2)}, wait=True)
    with pytest.raises(TimeoutError, match="the slow tier lacks it still"):
        save.wait(0.3, tier="slow")
    with pytest.raises(outlive.InvalidError, match="not possible"):
        save.wait(tier="middle")

    # While the program runs, which saves the same again.
    shutil.rmtree(memory / "ckpt")
    assert job.save({"x": numbers(2)}, wait=True).epoch == 3
    assert "recreated as target 3" in caplog.text
    assert "checkpoints 2; the newest that is left is" in caplog.text
    assert job.restore(epoch=3)["x"].tobytes() == numbers(2).tobytes()
    assert job.restore(epoch=1)["x"].tobytes() == numbers(1).tobytes()
    with pytest.raises(outlive.DamagedError):
        job.restore(epoch=2)
    job.close()

    # And after a restart of the host.
    shutil.rmtree(memory / "ckpt")
    job = outlive.open(pool).job("count")
    assert job.restore()["x"].tobytes() == numbers(1).tobytes()
    for seed in (2, 3):
        job.save({"x": numbers(seed)}, wait=True)
        assert job.restore()["x"].tobytes() == numbers(seed).tobytes()
    job.close()


def test_a_job_that_was_in_memory_alone_begins_anew(
    tmp_path: Path, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_with(tmp_path, memory)
    with outlive.open(pool).job("count") as job:
        job.save({"x": numbers(1)}, wait=True)
    shutil.rmtree(memory / "ckpt")
    with outlive.open(pool).job("count") as job:
        assert job.restore() is None
        assert "has no checkpoint any more" in caplog.text
        assert job.save({"x": numbers(1)}, wait=True).epoch == 2
        assert job.restore()["x"].tobytes() == numbers(1).tobytes()


def test_a_job_that_the_program_has_dropped_waits_for_the_slow_tier(
    tmp_path: Path, memory: Path, run: Callable[..., str]
) -> None:
    pool = pool_with(tmp_path, memory, "--slow", str(tmp_path / "slow"))
    run(
        """
        state = {"x": np.random.default_rng(1).random(8_000_000)}
        outlive.open(sys.argv[1]).job("a").save(state, wait=True)
        """,
        pool,
    )
    assert outlive.open(pool).job("a").tiers(1) == ("fast", "slow")
