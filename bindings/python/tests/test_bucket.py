"""A pool in a bucket of a real S3 server: programs on several machines share nothing else."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import outlive

ROOT = Path(__file__).parents[3]
KEYS = {"AWS_ACCESS_KEY_ID": "outlive", "AWS_SECRET_ACCESS_KEY": "outlive-secret"}
POOL = "s3://ckpt/runs/walk"

# Adds its seed's numbers to an array, and prints a line after each saved step.
PROGRAM = """
import sys
import numpy as np
import outlive

steps = int(sys.argv[1])
job = outlive.open("s3://ckpt/runs/walk").job("walk")
state = {"walk": outlive.zeros((300_000,)), "step": 0, "random": np.random.default_rng(7)}
job.restore(into=state)
print("restored", state["step"], flush=True)
while state["step"] < steps:
    state["walk"] += state["random"].standard_normal(state["walk"].shape)
    state["step"] += 1
    job.save(state, wait=True)
    print("saved", state["step"], flush=True)
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A server with an empty bucket, which `monkeypatch` lets this process find."""
    script = subprocess.run(
        [ROOT / "scripts/versitygw"], capture_output=True, text=True, check=False
    )
    if script.returncode != 0:
        assert "CI" not in os.environ, script.stderr
        pytest.skip("no S3 server can be built here")
    (tmp_path / "buckets/ckpt").mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    access = ["--access", "outlive", "--secret", "outlive-secret"]
    listen = ["--quiet", "--port", f"127.0.0.1:{port}", "posix", str(tmp_path / "buckets")]
    with subprocess.Popen([script.stdout.strip(), *access, *listen]) as process:
        while not is_listening(port):
            assert process.poll() is None, "the server ended"
            time.sleep(0.01)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        yield process
        process.kill()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run(folder: Path, steps: int, kill_at: int | None) -> int:
    """Runs the program in a directory of its own, as on another machine; returns its first step."""
    folder.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(steps)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        restored = int(program.stdout.readline().split()[1])
        for line in program.stdout:
            if line.split() == ["saved", str(kill_at)]:
                program.send_signal(signal.SIGKILL)
    assert program.returncode == (0 if kill_at is None else -signal.SIGKILL)
    assert not list(folder.iterdir()), "all is in the bucket"
    return restored


def test_a_program_goes_on_on_another_machine(
    tmp_path: Path, server: subprocess.Popen[bytes]
) -> None:
    assert run(tmp_path / "one", 12, kill_at=5) == 0
    assert run(tmp_path / "two", 12, kill_at=9) >= 5
    assert run(tmp_path / "three", 12, kill_at=None) >= 9
    state = outlive.open(Path(POOL), create=False).job("walk").restore()
    random = np.random.default_rng(7)
    walk = np.zeros(300_000)
    for _ in range(12):
        walk += random.standard_normal(walk.shape)
    assert state["step"] == 12
    assert state["walk"].tobytes() == walk.tobytes()


# Counts, each step a checkpoint, until it is killed or has counted far enough.
COUNTS = """
import sys
import numpy as np
import outlive

pool, steps = sys.argv[1], int(sys.argv[2])
job = outlive.open(pool).job("count")
state = {"count": np.zeros(100_000)}
job.restore(into=state)
while state["count"][0] < steps:
    state["count"] += 1
    state["count"][1:] = np.random.default_rng(int(state["count"][0])).random(99_999)
    job.save(state, wait=True)
    print(int(state["count"][0]), flush=True)
"""


def test_a_bucket_is_the_slow_tier_of_a_pool_on_local_disks(
    tmp_path: Path, server: subprocess.Popen[bytes]
) -> None:
    pool, fast = tmp_path / "a pool", tmp_path / "fast"
    made = ["pool", "init", str(pool), "--target", str(fast), "--slow", "s3://ckpt/copies"]
    sizes = ["--container-bytes", "64KiB", "--pack-bytes", "256KiB"]
    subprocess.run([sys.executable, "-m", "outlive", *made, *sizes], check=True)
    count = [sys.executable, "-c", COUNTS, str(pool)]
    # It is killed at some moment of a fill; the next commit copies the rest.
    with subprocess.Popen([*count, "99"], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        while int(program.stdout.readline()) < 3:
            pass
        program.kill()
    with outlive.open(pool).job("count") as job:
        reached = int(job.restore()["count"][0])
    done = subprocess.run([*count, str(reached + 2)], check=True, capture_output=True, text=True)
    assert done.stderr == ""
    job = outlive.open(pool).job("count")
    epochs = [each.epoch for each in job.epochs()]
    assert len(epochs) >= 5
    assert {job.tiers(epoch) for epoch in epochs} == {("fast", "slow")}
    assert job.tiers() == ("fast", "slow")
    with pytest.raises(outlive.InvalidError, match="no checkpoint 99"):
        job.tiers(99)

    # The machine's disk is lost. The log is not, since it was somewhere else.
    shutil.rmtree(fast)
    job = outlive.open(pool).job("count")
    assert job.tiers() == ("slow",)
    state = job.restore()
    assert state["count"][0] == reached + 2
    numbers = np.random.default_rng(reached + 2).random(99_999)
    assert state["count"][1:].tobytes() == numbers.tobytes()


def test_a_slow_tier_that_is_away_keeps_no_program_from_saving(
    tmp_path: Path, server: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    pool = tmp_path / "pool"
    made = ["pool", "init", str(pool), "--target", ".", "--slow", "s3://ckpt/copies"]
    subprocess.run([sys.executable, "-m", "outlive", *made], check=True)
    job = outlive.open(pool).job("job")
    job.save({"x": np.arange(1000.0)}, wait=True)
    job.close()
    server.kill()
    server.wait()
    job.save({"x": np.arange(2000.0)}, wait=True)
    job.close()
    assert "the slow tier lacks checkpoints" in caplog.text
    assert job.restore()["x"].shape == (2000,)
    assert job.tiers() == ("fast",)


def test_a_bucket_that_cannot_be_used_says_so(
    tmp_path: Path, server: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(outlive.InvalidError, match="not a pool"):
        outlive.open(POOL, create=False)
    pool = outlive.open(POOL)
    pool.job("a").save({"x": np.arange(1000.0)}, wait=True)
    with pytest.raises(outlive.InvalidError, match="create the bucket"):
        outlive.open("s3://another-bucket/x")
    with pytest.raises(outlive.InvalidError, match="no 'B'"):
        outlive.open("s3://Bucket/x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(outlive.InvalidError, match="correct the credentials"):
        outlive.open(POOL)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "outlive-secret")
    shutil.rmtree(tmp_path / "buckets/ckpt")
    with pytest.raises(outlive.Error, match="ckpt"):
        pool.job("a").save({"x": np.arange(1000.0)}, wait=True)
    server.kill()
    server.wait()
    with pytest.raises(outlive.RetryError, match="is the server running"):
        outlive.open(POOL)
