"""Writers of `outlive://`: several at once, killed ones, full disks, damage, a bucket."""

import errno
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from test_bucket import server as server  # the fixture

import outlive
from outlive.fsspec import OutliveFileSystem

# Writes files of its own into one directory, and prints each when it is closed.
WRITER = """
import sys
import numpy as np
import fsspec

root, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
fs, path = fsspec.url_to_fs(root)
fs.makedirs(path, exist_ok=True)
for number in range(count):
    data = np.random.default_rng(number).bytes(number * 50_000)
    with fs.open(f"{path}/{name}.{number}.tmp", "wb") as file:
        file.write(data)
    fs.rename(f"{path}/{name}.{number}.tmp", f"{path}/{name}.{number}")
    print(number, flush=True)
"""


def noise(seed: int, count: int) -> bytes:
    return np.random.default_rng(seed).bytes(count)


def start(root: str, name: str, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, root, name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_write_into_one_directory(folder: Path) -> None:
    writers = [start(f"outlive://{folder}!/job/dir", f"rank {rank}", 8) for rank in range(4)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    fs = OutliveFileSystem(pool=folder)
    assert len(fs.ls("job/dir")) == 4 * 8
    for rank in range(4):
        for number in range(8):
            assert fs.cat(f"job/dir/rank {rank}.{number}") == noise(number, number * 50_000)
    assert not outlive.open(folder).job("job").epochs()[0].epoch > 1


def test_threads_that_wait_become_one_checkpoint(folder: Path) -> None:
    count = 200

    def write(number: int) -> None:
        OutliveFileSystem(pool=folder).pipe(f"job/{number}", b"%d" % number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fs = OutliveFileSystem(pool=folder)
    assert {fs.cat(f"job/{number}") for number in range(count)} == {b"%d" % n for n in range(count)}
    assert len(outlive.open(folder).job("job").epochs()) < count


def test_a_refused_change_does_not_hurt_others_of_its_batch(folder: Path) -> None:
    OutliveFileSystem(pool=folder).pipe("job/0", b"")
    outcomes: dict[int, BaseException | None] = {}
    begin = threading.Barrier(20)

    def write(number: int) -> None:
        fs = OutliveFileSystem(pool=folder)
        begin.wait()
        try:
            fs._change("rename" if number % 4 == 0 else "write", f"job/{number}", b"none/x/y")
            outcomes[number] = None
        except OSError as error:
            outcomes[number] = error

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 21)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = {number for number, error in outcomes.items() if error is not None}
    assert failed == {4, 8, 12, 16, 20}
    assert all(isinstance(outcomes[number], FileNotFoundError) for number in failed)
    names = OutliveFileSystem(pool=folder).ls("job", detail=False)
    assert len(names) == 1 + 15


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_writer_leaves_whole_files(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    root = f"outlive://{folder}!/job/dir"
    acknowledged = -1
    for _ in range(3):
        with start(root, "x", 50) as writer:
            last = chance.randrange(1, 6)
            assert writer.stdout is not None
            for line in writer.stdout:
                acknowledged = max(acknowledged, int(line))
                if int(line) == last:
                    # Somewhere in the next file: the time is the machine's.
                    writer.send_signal(signal.SIGKILL)
        assert writer.returncode == -signal.SIGKILL
    fs = OutliveFileSystem(pool=folder)
    names = {name.rpartition("/")[2] for name in fs.ls("job/dir", detail=False)}
    assert {f"x.{number}" for number in range(acknowledged + 1)} <= names
    for name in names:
        number = int(name.split(".")[1])
        assert fs.cat(f"job/dir/{name}") == noise(number, number * 50_000), name
    fs.pipe("job/after", b"1")
    checked = subprocess.run(["outlive", "verify", str(folder)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_thousand_small_files(folder: Path) -> None:
    fs = OutliveFileSystem(pool=folder)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    with fs.transaction:
        for number in range(1000):
            with fs.open(f"job/{number % 10}/{number}", "wb") as file:
                file.write(b"%d" % number)
    assert len(fs.find("job")) == 1000
    for number in range(100):
        fs.pipe(f"job/single/{number}", b"x")
        assert fs.cat(f"job/single/{number}") == b"x"
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_files + 20
    assert fs.cat("job/7/777") == b"777"


def test_long_files_become_one_checkpoint(folder: Path, tmp_path: Path) -> None:
    fs = OutliveFileSystem(pool=folder, spool=tmp_path)
    contents = {f"job/{number}": noise(number, (number << 20) + 5) for number in (1, 9, 10)}
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    fs.pipe(contents)
    assert all(fs.cat(name) == content for name, content in contents.items())
    assert [epoch.epoch for epoch in outlive.open(folder).job("job").epochs()] == [1]
    with fs.transaction:
        fs.pipe("job/9", contents["job/10"])
        with fs.open("job/10", "wb") as file:
            file.write(contents["job/9"])
    assert fs.cat("job/9") == contents["job/10"]
    assert fs.cat("job/10") == contents["job/9"]
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_files + 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(disk)], check=True)
    try:
        fs = OutliveFileSystem(pool=disk / "pool")
        fs.pipe("job/small", noise(1, 100_000))
        with pytest.raises(OSError, match=r"space|full|No") as raised:
            fs.pipe("job/large", noise(2, 40 << 20))
        assert raised.value.errno == errno.ENOSPC
        assert isinstance(raised.value, outlive.FullError)
        assert fs.ls("job", detail=False) == ["job/small"]
        assert fs.cat("job/small") == noise(1, 100_000)
        fs.pipe("job/again", b"room for this")
        assert fs.cat("job/again") == b"room for this"
    finally:
        outlive.fsspec._pools.close_all()
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_damage_is_an_error_and_never_wrong_bytes(folder: Path) -> None:
    fs = OutliveFileSystem(pool=folder)
    fs.pipe("job/good", noise(1, 100_000))
    before = set(folder.rglob("*.shard"))
    fs.pipe("job/bad", noise(2, 100_000))
    (shard,) = set(folder.rglob("*.shard")) - before
    data = bytearray(shard.read_bytes())
    # In the content, behind the header; the listing lies further back.
    data[20_000] ^= 1
    shard.write_bytes(data)
    with pytest.raises(OSError, match="bad") as raised:
        fs.cat("job/bad")
    assert raised.value.errno == errno.EIO
    assert isinstance(raised.value, outlive.DamagedError)
    assert fs.cat("job/good") == noise(1, 100_000)
    assert fs.cat("job@1/good") == noise(1, 100_000)
    fs.pipe("job/bad", noise(3, 1000))
    assert fs.cat("job/bad") == noise(3, 1000)


def test_a_damaged_tree_is_an_error(folder: Path) -> None:
    fs = OutliveFileSystem(pool=folder)
    fs.pipe("job/old", b"1")
    before = set(folder.rglob("*.shard"))
    fs.pipe("job/new", noise(2, 100_000))
    (shard,) = set(folder.rglob("*.shard")) - before
    shard.write_bytes(bytes(shard.stat().st_size))
    outlive.fsspec._pools.close_all()
    for call in (fs.cat, fs.exists, fs.isfile, lambda path: fs.pipe(path, b"")):
        with pytest.raises(outlive.DamagedError):
            call("job/new")
    assert fs.cat("job@1/old") == b"1"


def test_a_pool_in_a_bucket(server: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    root = "outlive://s3://ckpt/files!/job"
    writers = [start(f"{root}/dir", f"rank {rank}", 4) for rank in range(3)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    fs = OutliveFileSystem(skip_instance_cache=True)
    names = fs.ls(f"{root}/dir", detail=False)
    assert len(names) == 12
    assert names[0] == "s3://ckpt/files!/job/dir/rank 0.0"
    assert fs.cat(f"{root}/dir/rank 2.3") == noise(3, 150_000)
    fs.mv(f"{root}/dir", f"{root}/moved", recursive=True)
    assert len(fs.find(f"{root}/moved")) == 12
    fs.get(f"{root}/moved/rank 1.2", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == noise(2, 100_000)
    outlive.fsspec._pools.close_all()
