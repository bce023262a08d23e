"""Changes of `outlive://` that wait: files open for writing, transactions, forked children.

Children end by `os._exit`, and tell by their exit code whether all was as it should be.
"""

import gc
import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import outlive
from outlive.fsspec import OutliveFileSystem

LONG = np.random.default_rng(1).bytes(9 << 20)


@pytest.fixture
def fs(folder: Path) -> OutliveFileSystem:
    return OutliveFileSystem(pool=folder)


def in_a_child(act: Callable[[], object]) -> None:
    """Runs a function in a forked child, which must not fail."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("content", [b"short", LONG])
def test_a_transaction_takes_local_files_at_the_call(
    fs: OutliveFileSystem, tmp_path: Path, content: bytes
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("changed", "removed", "alone"):
        (tree / name).write_bytes(content)
    data = bytearray(content)
    told: list[int] = []

    class Telling(outlive.fsspec._system.DEFAULT_CALLBACK.__class__):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            told.append(inc)

    with fs.transaction:
        fs.put(str(tree), "job/tree", recursive=True)
        fs.put_file(tree / "alone", "job/alone", callback=Telling())
        fs.pipe("job/piped", data)
        (tree / "changed").write_bytes(b"another content")
        (tree / "removed").unlink()
        (tree / "alone").rename(tree / "moved")
        data[:5] = b"later"
        assert not fs.exists("job")
    assert sum(told) == len(content)
    for name in ("tree/changed", "tree/removed", "tree/alone", "alone", "piped"):
        assert fs.cat(f"job/{name}") == content, name


def test_a_file_without_an_end_fails_its_transaction(fs: OutliveFileSystem) -> None:
    fs.pipe("job/x", b"old")

    def forget() -> io.TextIOWrapper:
        with fs.transaction:
            fs.pipe("job/y", b"whole")
            text: io.TextIOWrapper = fs.open("job/x", "w")
            text.write("half")
        return text

    with pytest.raises(OSError, match=r"still open at the end of the transaction.*job/x"):
        forget()
    assert fs.find("job") == ["job/x"]
    assert fs.cat("job/x") == b"old"

    def fail() -> None:
        with fs.open("job/x", "wb") as file:
            file.write(b"half")
            raise KeyError

    # The `with` of a file has failed, and the program goes on.
    with fs.transaction:
        with pytest.raises(KeyError):
            fail()
        fs.pipe("job/y", b"whole")
    assert fs.cat(["job/x", "job/y"]) == {"job/x": b"old", "job/y": b"whole"}


@pytest.mark.parametrize("mode", ["wb", "ab", "xb"])
@pytest.mark.parametrize("content", [b"short", LONG])
def test_a_child_does_not_touch_a_file_of_its_parent(
    fs: OutliveFileSystem, mode: str, content: bytes
) -> None:
    if mode == "ab":
        fs.pipe("job/x", b"old ")
    file = fs.open("job/x", mode)
    file.write(content)

    def collect() -> None:
        nonlocal file
        del file
        gc.collect()

    def leave() -> None:
        with pytest.raises(SystemExit), file:
            raise SystemExit

    def write() -> None:
        with pytest.raises(outlive.InvalidError, match="forked from it") as raised:
            file.write(b"by the child")
        assert isinstance(raised.value, OSError)
        file.close()

    def close() -> None:
        with pytest.raises(outlive.InvalidError, match="open a file here"):
            file.close()
        with fs.open("job/of the child", "wb") as own:
            own.write(b"1")

    for act in (collect, leave, write, close):
        in_a_child(act)
    file.write(b" and more")
    assert fs.exists("job/x") == (mode == "ab")
    file.close()
    assert fs.cat("job/x") == (b"old " if mode == "ab" else b"") + content + b" and more"
    assert fs.cat("job/of the child") == b"1"


def test_a_child_is_no_part_of_a_transaction(fs: OutliveFileSystem, folder: Path) -> None:
    with fs.transaction:
        fs.pipe("job/parent", b"1")
        with fs.open("job/long", "wb") as file:
            file.write(LONG)
        transaction = fs.transaction

        def end() -> None:
            fs.pipe("job/child", b"2")
            assert fs.cat("job/child") == b"2", "a change of the child is made at once"
            transaction.complete()
            assert fs.find("job") == ["job/child"]
            with fs.transaction:
                fs.pipe("job/child", b"3")
            assert fs.cat("job/child") == b"3"

        in_a_child(end)
        fs.pipe("job/more", b"4")
        assert fs.find("job") == ["job/child"]
    assert fs.find("job") == ["job/child", "job/long", "job/more", "job/parent"]
    assert fs.cat("job/long") == LONG
    assert fs.cat("job/child") == b"3"
    assert len(outlive.open(folder).job("job").epochs()) == 3
