"""The file system `outlive://`: what programs see of it."""

import errno
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest

import outlive
from outlive.fsspec import OutliveFileSystem
from outlive.fsspec._pools import close_all


@pytest.fixture
def fs(folder: Path) -> OutliveFileSystem:
    return OutliveFileSystem(pool=folder)


def noise(seed: int, count: int) -> bytes:
    return np.random.default_rng(seed).bytes(count)


def epochs(folder: Path, job: str = "job") -> int:
    return len(outlive.open(folder).job(job).epochs())


def test_urls_name_pool_job_checkpoint_and_path(folder: Path) -> None:
    url = f"outlive://{folder}!/job/a/b.txt"
    with fsspec.open(url, "w") as file:
        file.write("one")
    with fsspec.open(url, "w") as file:
        file.write("two")
    fs, path = fsspec.url_to_fs(url)
    assert isinstance(fs, OutliveFileSystem)
    assert path == f"{folder}!/job/a/b.txt"
    assert fs.unstrip_protocol(path) == url
    assert fs.cat(path) == b"two"
    # fsspec itself made the directory before, as checkpoint 1.
    assert fs.cat(f"outlive://{folder}!/job@2/a/b.txt") == b"one"
    assert fs.cat(f"{folder}!/job@-2/a/b.txt") == b"one"
    assert fs.cat(f"{folder}!/job@-1/a/b.txt") == b"two"
    assert fs.ls(f"{folder}!/job", detail=False) == [f"{folder}!/job/a"]
    assert fs.ls(f"{folder}!/job@2/a", detail=False) == [f"{folder}!/job@2/a/b.txt"]
    assert fs.ls(f"{folder}!", detail=False) == [f"{folder}!/job"]
    assert fs._parent(f"{folder}!/job") == f"{folder}!"
    assert fs._parent(f"{folder}!/job/a") == f"{folder}!/job"
    assert fs.glob(f"{folder}!/job/*/*.txt") == [path]
    assert fs.find(f"{folder}!/") == [path]


def test_the_pool_of_a_path_without_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLIVE_POOL", str(folder))
    fs = OutliveFileSystem(skip_instance_cache=True)
    fs.pipe("outlive://job/x", b"1")
    assert fs.ls("", detail=False) == ["job"]
    assert fsspec.filesystem("outlive", pool=folder).cat("/job/x") == b"1"
    monkeypatch.delenv("OUTLIVE_POOL")
    with pytest.raises(ValueError, match="no pool is named"):
        fs.cat("job/x")


def test_names_of_jobs_are_escaped(fs: OutliveFileSystem, folder: Path) -> None:
    for name in ["with space", "a/b", "c@3", "50%", "é"]:
        job = outlive.open(folder).job(name)
        (folder.parent / "file").write_text(name)
        job.put_files(folder.parent / "file")
        job.close()
    names = fs.ls("", detail=False)
    assert names == ["50%25", "a%2Fb", "c%403", "with space", "é"]
    assert [fs.cat(f"{name}/file").decode() for name in names] == [
        "50%", "a/b", "c@3", "with space", "é",
    ]  # fmt: skip


def test_the_command_and_the_file_system_see_the_same_tree(
    fs: OutliveFileSystem, folder: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub/put").write_bytes(noise(1, 300_000))
    (tree / "link").symlink_to("sub/put")
    os.link(tree / "sub/put", tree / "zz")
    outlive.open(folder).job("job").put_files(tree)
    assert fs.cat("job/sub/put") == noise(1, 300_000)
    assert fs.cat("job/zz") == noise(1, 300_000)
    assert fs.info("job/link")["type"] == "link"
    fs.pipe("job/sub/piped", noise(2, 100_000))
    fs.mv("job/sub/put", "job/moved")
    got = outlive.open(folder).job("job").get_files(tmp_path / "out")
    assert got.complete
    found = sorted(str(it.relative_to(tmp_path / "out")) for it in (tmp_path / "out").rglob("*"))
    assert found == ["link", "moved", "sub", "sub/piped", "zz"]
    for name, seed, count in [("moved", 1, 300_000), ("zz", 1, 300_000), ("sub/piped", 2, 100_000)]:
        assert (tmp_path / "out" / name).read_bytes() == noise(seed, count)
    command = ["outlive", "find", str(folder), "piped"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "sub/piped" in said


def test_a_file_is_there_when_it_is_closed(fs: OutliveFileSystem, folder: Path) -> None:
    file = fs.open("job/x", "wb")
    file.write(b"half")
    file.flush()
    assert not fs.exists("job/x")
    file.write(b" and half")
    assert file.tell() == 13
    file.close()
    file.close()
    assert fs.cat("job/x") == b"half and half"
    assert epochs(folder) == 1
    with pytest.raises(ValueError, match="closed"):
        file.write(b"more")


def test_an_exception_commits_nothing(fs: OutliveFileSystem) -> None:
    fs.pipe("job/x", b"old")

    def fail() -> None:
        with fs.open("job/x", "wb") as file:
            file.write(b"a half-written")
            raise KeyError("an error of the program")

    with pytest.raises(KeyError):
        fail()
    assert fs.cat("job/x") == b"old"
    file = fs.open("job/x", "wb")
    file.write(b"never closed")
    with pytest.warns(ResourceWarning, match="never closed"):
        del file
    assert fs.cat("job/x") == b"old"


def test_long_files_wait_outside_of_memory(fs: OutliveFileSystem, tmp_path: Path) -> None:
    block = noise(1, 1 << 20)
    with fs.open("job/long", "wb") as file:
        for _ in range(40):
            file.write(block)
        assert len(file._content._memory) == 0
        assert not list(tmp_path.glob("*.tmp"))
    assert fs.size("job/long") == 40 << 20
    with fs.open("job/long", "rb") as file:
        for at in (0, 17 << 20, (40 << 20) - 5):
            file.seek(at)
            assert file.read(5) == (block * 2)[at % (1 << 20) :][:5]
        file.seek(0)
        into = bytearray(3 << 20)
        assert file.readinto(into) == 3 << 20
        assert into == block * 3
    array = np.arange(2_000_000)
    with fs.open("job/array", "wb") as file:
        assert file.write(array) == array.nbytes
    assert fs.cat("job/array") == array.tobytes()


def test_ranges(fs: OutliveFileSystem) -> None:
    data = noise(1, 500_000)
    fs.pipe("job/x", data)
    for start, end in [(None, None), (5, 10), (-7, None), (499_999, 600_000), (7, 3), (-9, -4)]:
        assert fs.cat_file("job/x", start, end) == data[slice(start, end)]
    assert fs.cat_ranges(["job/x"] * 2, [0, 400_000], [3, 400_003]) == [
        data[:3],
        data[400_000:400_003],
    ]
    assert fs.head("job/x", 4) == data[:4]
    assert fs.tail("job/x", 4) == data[-4:]


def test_append_and_exclusive_creation(fs: OutliveFileSystem) -> None:
    for part in (b"one ", b"two ", noise(1, 200_000), b"end"):
        with fs.open("job/log", "ab") as file:
            file.write(part)
    assert fs.cat("job/log") == b"one two " + noise(1, 200_000) + b"end"
    with fs.open("job/log", "ab") as file:
        assert file.tell() == 200_011
        file.write(b"!")
    with pytest.raises(FileExistsError):
        fs.open("job/log", "xb")
    late = fs.open("job/new", "xb")
    late.write(b"late")
    fs.pipe("job/new", b"first")
    with pytest.raises(FileExistsError):
        late.close()
    assert fs.cat("job/new") == b"first"
    with pytest.raises(FileExistsError):
        fs.pipe_file("job/new", b"", mode="create")


def test_errors_are_those_of_file_systems(fs: OutliveFileSystem, folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no pool"):
        fs.cat("job/x")
    assert not folder.exists(), "a read makes no pool"
    fs.pipe("job/dir/x", b"1")
    for call in (fs.cat, fs.ls, fs.info, fs.rm, fs.rm_file, fs.rmdir, fs.open, fs.modified):
        with pytest.raises(FileNotFoundError):
            call("job/none")
        with pytest.raises(FileNotFoundError):
            call("none/x")
    with pytest.raises(FileNotFoundError, match="99"):
        fs.cat("job@99/dir/x")
    for call in (fs.cat, fs.open, fs.rm_file):
        with pytest.raises(IsADirectoryError):
            call("job/dir")
    for call in (lambda: fs.pipe("job/dir", b""), lambda: fs.open("job", "wb")):
        with pytest.raises(IsADirectoryError):
            call()
    with pytest.raises(NotADirectoryError):
        fs.pipe("job/dir/x/y", b"")
    with pytest.raises(NotADirectoryError):
        fs.rmdir("job/dir/x")
    with pytest.raises(OSError, match="not empty") as raised:
        fs.rmdir("job/dir")
    assert raised.value.errno == errno.ENOTEMPTY
    with pytest.raises(OSError, match="Read-only") as raised:
        fs.pipe("job@1/dir/x", b"")
    assert raised.value.errno == errno.EROFS
    with pytest.raises(FileExistsError):
        fs.mkdir("job/dir")
    with pytest.raises(FileExistsError):
        fs.makedirs("job/dir")
    fs.makedirs("job/dir", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs("job/dir/x", exist_ok=True)
    with pytest.raises(FileNotFoundError):
        fs.mkdir("job/a/b/c", create_parents=False)
    with pytest.raises(ValueError, match="mode"):
        fs.open("job/dir/x", "r+b")
    with pytest.raises(OSError, match="Invalid"):
        fs.pipe("job/../x", b"")
    assert epochs(folder) == 1, "no refused change is a checkpoint"


def test_directories(fs: OutliveFileSystem, folder: Path) -> None:
    fs.mkdir("job")
    assert fs.ls("job") == []
    assert fs.isdir("job")
    fs.makedirs("job/a/b/c")
    fs.rmdir("job/a/b/c")
    assert fs.isdir("job/a/b")
    fs.pipe({"job/a/x": b"1", "job/a/b/y": b"2"})
    assert fs.du("job") == 2
    assert [(top, dirs, files) for top, dirs, files in fs.walk("job/a")] == [
        ("job/a", ["b"], ["x"]),
        ("job/a/b", [], ["y"]),
    ]
    fs.rm("job", recursive=True)
    assert not fs.exists("job")
    assert fs.ls("") == []
    assert fs.cat("job@-2/a/x") == b"1", "the older tree is still there"
    fs.touch("job/again")
    assert fs.info("job/again")["size"] == 0


def test_moves_and_copies(fs: OutliveFileSystem, folder: Path) -> None:
    fs.pipe({f"job/src/{name}": name.encode() for name in ("a", "b", "sub/c")})
    before = epochs(folder)
    fs.mv("job/src", "job/dst", recursive=True)
    assert epochs(folder) == before + 1
    assert fs.find("job") == ["job/dst/a", "job/dst/b", "job/dst/sub/c"]
    fs.mv("job/dst/a", "job/dst/b")
    assert fs.cat("job/dst/b") == b"a"
    fs.rename("job/dst/b", "job/other/deep/name")
    assert fs.find("job") == ["job/dst/sub/c", "job/other/deep/name"]
    fs.mv("job/other/deep/name", "job/dst/")
    assert fs.cat("job/dst/name") == b"a"
    before = epochs(folder)
    fs.cp("job/dst", "job/copy", recursive=True)
    assert epochs(folder) == before + 1
    assert fs.find("job/copy") == ["job/copy/name", "job/copy/sub/c"]
    fs.mv("job/copy", "second/place", recursive=True)
    assert fs.find("second") == ["second/place/name", "second/place/sub/c"]
    assert not fs.exists("job/copy")
    fs.cp("job@1/src/sub/c", "job/restored")
    assert fs.cat("job/restored") == b"sub/c"
    with pytest.raises(FileNotFoundError):
        fs.mv("job/none", "job/x")


def test_put_and_get_are_one_checkpoint(
    fs: OutliveFileSystem, folder: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    for number in range(50):
        path = tree / f"dir {number % 5}" / f"file {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise(number, number * 1000))
    (tree / "empty").mkdir()
    fs.put(str(tree), "job/tree", recursive=True)
    assert epochs(folder) == 1
    fs.get("job/tree", str(tmp_path / "out"), recursive=True)
    found = {it.relative_to(tmp_path / "out"): it for it in (tmp_path / "out").rglob("*")}
    assert len(found) == 50 + 6
    for path in tree.rglob("*"):
        copy = found[path.relative_to(tree)]
        assert copy.is_dir() if path.is_dir() else copy.read_bytes() == path.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    thread = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(b"through"))
    thread.start()
    fs.put_file(tmp_path / "pipe", "job/piped")
    thread.join()
    assert fs.cat("job/piped") == b"through"
    out = io.BytesIO()
    fs.get_file("job/tree/dir 4/file 49", out)
    assert out.getvalue() == noise(49, 49_000)


def test_a_transaction_is_one_checkpoint(fs: OutliveFileSystem, folder: Path) -> None:
    fs.pipe({"job/old": b"old", "job/tmp": b"t"})
    with fs.transaction:
        with fs.open("job/new", "wb") as file:
            file.write(noise(1, 10 << 20))
        fs.mv("job/new", "job/newer")
        fs.rm("job/old")
        fs.makedirs("job/dir")
        fs.pipe("other/x", b"x")
        fs.cp_file("job/tmp", "other/tmp")
        assert fs.exists("job/old"), "nothing is visible before the end"
        assert not fs.exists("job/new")
    assert epochs(folder) == 2
    assert fs.ls("job", detail=False) == ["job/dir", "job/newer", "job/tmp"]
    assert fs.cat("job/newer") == noise(1, 10 << 20)
    assert fs.cat("other/tmp") == b"t"

    def fail() -> None:
        with fs.transaction:
            fs.pipe("job/more", b"")
            raise KeyError("an error of the program")

    with pytest.raises(KeyError):
        fail()
    assert not fs.exists("job/more")

    def refuse() -> None:
        with fs.transaction:
            fs.pipe("job/more", b"")
            fs.rm("job/none")

    with pytest.raises(FileNotFoundError):
        refuse()
    assert epochs(folder) == 2
    fs.pipe("job/after", b"a transaction that failed is over")
    assert epochs(folder) == 3


def test_an_open_file_keeps_its_version(fs: OutliveFileSystem) -> None:
    fs.pipe("job/x", noise(1, 1 << 20))
    with fs.open("job/x", "rb", block_size=1000) as file:
        assert file.read(10) == noise(1, 1 << 20)[:10]
        fs.pipe("job/x", b"another")
        fs.rm("job/x")
        file.seek(700_000)
        assert file.read(10) == noise(1, 1 << 20)[700_000:700_010]
        again = pickle.loads(pickle.dumps(file))
        assert again.read(10) == noise(1, 1 << 20)[700_010:700_020]
    assert not fs.exists("job/x")


def test_the_object_works_in_other_processes(fs: OutliveFileSystem, folder: Path) -> None:
    fs.pipe("job/parent", b"1")
    assert pickle.loads(pickle.dumps(fs)).cat("job/parent") == b"1"
    for method in ("fork", "spawn"):
        context: Any = multiprocessing.get_context(method)
        with context.Pool(2) as workers:
            workers.starmap(_write, [(fs, f"job/{method} {number}") for number in range(6)])
    assert len(fs.ls("job")) == 13
    with fs.open("job/parent", "rb") as file:
        child = os.fork()
        if child == 0:
            os._exit(0 if file.read() == b"1" else 1)
        assert os.waitpid(child, 0)[1] == 0


def _write(fs: OutliveFileSystem, path: str) -> None:
    fs.pipe(path, path.encode())
    assert fs.cat(path) == path.encode()


def test_versions_are_dropped_by_rules(folder: Path) -> None:
    fs = OutliveFileSystem(pool=folder, keep="last 3")
    for number in range(10):
        fs.pipe(f"job/{number}", b"x")
    close_all()
    kept = [epoch.epoch for epoch in outlive.open(folder).job("job").epochs()]
    assert kept == [8, 9, 10]
    assert len(fs.ls("job")) == 10


def test_names_of_versions(fs: OutliveFileSystem) -> None:
    fs.pipe("job/x", b"one")
    fs.pipe("job/y", b"one")
    first = fs.info("job/x")
    assert (first["epoch"], first["size"], first["type"]) == (2, 3, "file")
    assert fs.checksum("job/x") == fs.checksum("job/y")
    assert fs.ukey("job/x") == fs.ukey("job/y")
    assert fs.modified("job/x").timestamp() == pytest.approx(first["mtime"], abs=1e-5)
    fs.pipe("job/x", b"two")
    assert fs.checksum("job/x") != fs.checksum("job/y")


def test_pandas(folder: Path, same: Any) -> None:
    table = pd.DataFrame({"x": range(1000), "y": [f"text {n}" for n in range(1000)]})
    root = f"outlive://{folder}!/tables"
    table.to_parquet(f"{root}/table.parquet")
    table.to_csv(f"{root}/table.csv.gz", index=False)
    pd.testing.assert_frame_equal(pd.read_parquet(f"{root}/table.parquet"), table)
    pd.testing.assert_frame_equal(pd.read_csv(f"{root}/table.csv.gz"), table)
    options = {"pool": str(folder)}
    table.to_json("outlive://tables/table.json", storage_options=options)
    read = pd.read_json("outlive://tables/table.json", storage_options=options)
    pd.testing.assert_frame_equal(read, table)


def test_zarr(folder: Path) -> None:
    zarr = pytest.importorskip("zarr")
    url = f"outlive://{folder}!/arrays/group.zarr"
    group = zarr.open_group(url, mode="w")
    values = np.arange(10_000.0).reshape(100, 100)
    array = group.create_array("x", shape=values.shape, chunks=(30, 30), dtype=values.dtype)
    array[:] = values
    group.attrs["name"] = "a group"
    read = zarr.open_group(url, mode="r")
    assert (read["x"][:] == values).all()
    assert read.attrs["name"] == "a group"
    array[5, 5] = -1
    assert zarr.open_group(url, mode="r")["x"][5, 5] == -1


def test_a_mapping(fs: OutliveFileSystem) -> None:
    store = fs.get_mapper("job/map", create=True)
    store["a/b"] = b"1"
    store.setitems({"c": b"2", "d": b"3"})
    assert sorted(store) == ["a/b", "c", "d"]
    del store["c"]
    with pytest.raises(KeyError):
        store["c"]
    assert store.getitems(["a/b", "d"]) == {"a/b": b"1", "d": b"3"}


def test_the_entry_point_needs_no_import(folder: Path) -> None:
    program = (
        "import sys, fsspec\n"
        "with fsspec.open(sys.argv[1], 'wb') as file: file.write(b'1')\n"
        "assert fsspec.open(sys.argv[1]).open().read() == b'1'\n"
    )
    url = f"outlive://{folder}!/job/x"
    subprocess.run([sys.executable, "-W", "error", "-c", program, url], check=True)
