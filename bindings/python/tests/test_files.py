"""Files: `Job.put_files` and `Job.get_files`."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import outlive


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    rng = np.random.default_rng(1)
    (tree / "model.bin").write_bytes(rng.bytes(500_000))
    (tree / "sub" / "copy.bin").write_bytes((tree / "model.bin").read_bytes())
    (tree / "sub" / "empty").touch()
    (tree / "link").symlink_to("sub/empty")
    os.link(tree / "model.bin", tree / "hard")
    with (tree / "sparse").open("wb") as file:
        file.seek(40 << 20)
        file.write(b"end")
    return tree


def listing(root: Path) -> dict[str, tuple[int, int, bytes | str]]:
    found: dict[str, tuple[int, int, bytes | str]] = {}
    for path in sorted(root.rglob("*")):
        there = path.lstat()
        content: bytes | str = ""
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        found[str(path.relative_to(root))] = (there.st_mode, there.st_mtime_ns, content)
    return found


def test_a_tree_comes_back(folder: Path, tree: Path, tmp_path: Path) -> None:
    job = outlive.open(folder).job("files")
    put = job.put_files(tree, label="first", metrics={"loss": 1})
    assert put.complete
    assert put.troubles == ()
    assert (put.epoch, put.items, put.files) == (1, 8, 4)
    assert put.new_bytes < 600_000  # the copy, the other name and the hole take nothing
    got = job.get_files(tmp_path / "out")
    assert got
    assert (got.epoch, got.files, got.complete) == (1, 4, True)
    assert listing(tmp_path / "out") == listing(tree)
    assert (tmp_path / "out" / "hard").samefile(tmp_path / "out" / "model.bin")
    assert (tmp_path / "out" / "sparse").stat().st_blocks < 100
    (epoch,) = job.epochs()
    assert (epoch.label, epoch.metrics) == ("first", {"loss": 1.0})


def test_unchanged_files_are_left_alone(folder: Path, tree: Path, tmp_path: Path) -> None:
    job = outlive.open(folder).job("files")
    job.put_files(tree)
    out = tmp_path / "out"
    assert job.get_files(out).kept_files == 0
    before = listing(out)
    inode = (out / "model.bin").stat().st_ino
    again = job.get_files(out, epoch=-1, overwrite=True)
    assert (again.files, again.kept_files, again.read_bytes) == (4, 4, 0)
    assert (again.kept_bytes, again.complete) == (again.bytes, True)
    (out / "sub" / "copy.bin").write_bytes(b"?" * 500_000)
    again = job.get_files(out, epoch="latest", overwrite=True)
    assert (again.files, again.kept_files) == (4, 3)
    assert again.read_bytes > 0
    assert (out / "model.bin").stat().st_ino == inode
    (out / "sub" / "copy.bin").touch()
    assert job.get_files(out, overwrite=True).kept_files == 4
    assert listing(out) == before


def test_parts_and_versions(folder: Path, tree: Path, tmp_path: Path) -> None:
    job = outlive.open(folder).job("files")
    job.put_files([tree / "sub", tree / "model.bin"], exclude="empty")
    (tree / "model.bin").write_bytes(b"new")
    job.put_files([tree / "sub", tree / "model.bin"])
    out = tmp_path / "out"
    assert job.get_files(out, "model.bin", epoch=1).files == 1
    assert (out / "model.bin").stat().st_size == 500_000
    with pytest.raises(outlive.InvalidError, match="there already"):
        job.get_files(out, "model.bin")
    assert job.get_files(out, ["model.bin", b"sub"], overwrite=True).epoch == 2
    assert (out / "model.bin").read_bytes() == b"new"
    assert (out / "sub" / "empty").exists()


def test_files_and_memory_in_one_job(folder: Path, tree: Path, tmp_path: Path) -> None:
    job = outlive.open(folder).job("both")
    assert not job.get_files(tmp_path / "none")
    job.save({"a": np.arange(1000)}, wait=True)
    assert not job.get_files(tmp_path / "none")
    job.put_files(tree)
    job.save({"a": np.arange(1000) + 1}, wait=True)
    job.put_files(tree)
    assert job.restore()["a"][0] == 1
    assert job.get_files(tmp_path / "out").epoch == 4
    job.prune(keep_last=1)
    assert job.get_files(tmp_path / "again").epoch == 4


def test_impossible_puts_and_gets_are_refused(folder: Path, tree: Path, tmp_path: Path) -> None:
    job = outlive.open(folder).job("files")
    for paths in (tmp_path / "missing", [tree, tree]):
        with pytest.raises(outlive.InvalidError):
            job.put_files(paths)
    with pytest.raises(outlive.InvalidError, match="is not a path"):
        job.put_files(3)  # type: ignore[arg-type]
    with pytest.raises(outlive.InvalidError, match="pattern"):
        job.put_files(tree, exclude="a[")
    job.put_files(tree)
    for wanted in ("../x", "/etc", "not there"):
        with pytest.raises(outlive.InvalidError):
            job.get_files(tmp_path / "out", wanted)
    with pytest.raises(outlive.InvalidError):
        job.get_files(tmp_path / "out", epoch=7)


def test_the_pool_is_not_put_into_itself(tmp_path: Path, tree: Path) -> None:
    job = outlive.open(tree / "pool").job("files")
    assert job.put_files(tree).items == job.put_files(tree).items


def test_names_that_are_no_text(folder: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    name = os.fsdecode(b"caf\xe9\n")
    (tree / name).write_text("x")
    job = outlive.open(folder).job("files")
    job.put_files(tree)
    assert job.get_files(tmp_path / "out", name).files == 1
    assert (tmp_path / "out" / name).read_text() == "x"


def test_progress_is_told(folder: Path, tree: Path) -> None:
    told: list[str] = []
    thread = threading.get_ident()

    def progress(what: str, done: int, total: int) -> None:
        assert threading.get_ident() == thread
        assert 0 <= done <= total
        told.append(what)

    outlive.open(folder, progress=progress).job("files").put_files(tree)
    assert "put" in told


# The signal comes from the put's own progress, so always while the put is under way. If the put
# ends before the interruption reaches it, the test tries another pool.
INTERRUPTED = """
import signal, sys, outlive
signal.signal(signal.SIGINT, signal.default_int_handler)

def progress(what, done, total):
    if done < total:
        signal.raise_signal(signal.SIGINT)

for attempt in range(20):
    job = outlive.open(f"{sys.argv[1]}{attempt}", progress=progress).job("files")
    try:
        job.put_files(sys.argv[2])
    except KeyboardInterrupt:
        if not job.epochs():
            print("interrupted", attempt)
            break
"""


def test_an_interruption_ends_it(folder: Path, tmp_path: Path) -> None:
    tree = tmp_path / "large"
    tree.mkdir()
    rng = np.random.default_rng(1)
    for number in range(8):
        (tree / str(number)).write_bytes(rng.bytes(32 << 20))
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, folder, tree],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.startswith("interrupted"), done.stderr
    assert done.returncode == 0
