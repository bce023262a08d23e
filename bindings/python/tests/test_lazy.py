"""Lazy restores: the program runs at once, and never sees other data than it saved."""

import gc
import logging
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive

Run = Callable[..., str]
Program = Callable[..., "subprocess.Popen[str]"]
Same = Callable[[Any, Any], None]

# Denies userfaultfd, the system call and the device, to this process, with seccomp by hand.
NO_USERFAULTFD = """
        import ctypes, struct
        libc = ctypes.CDLL(None, use_errno=True)

        def deny(*rules):
            code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
            kept = ctypes.create_string_buffer(code)
            filter = struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(kept))
            assert libc.prctl(38, 1, 0, 0, 0) == 0
            assert libc.prctl(22, 2, ctypes.c_char_p(filter), 0, 0) == 0

        number = {"x86_64": (323, 16), "aarch64": (282, 29)}[os.uname().machine]
        refuse, allow = (6, 0, 0, 0x50000 | 1), (6, 0, 0, 0x7FFF0000)
        deny(
            (0x20, 0, 0, 0),  # the call's number
            (0x15, 3, 0, number[0]),
            (0x15, 0, 3, number[1]),
            (0x20, 0, 0, 24),  # an ioctl's request
            (0x15, 0, 1, 0xAA00),
            refuse,
            allow,
        )
"""


def image(step: int) -> dict[str, Any]:
    luck = np.random.default_rng(step)
    holed = luck.random(1_000_000)
    holed[200_000:700_000] = 0
    return {
        "aligned": outlive.array(luck.random(3_000_001)),
        "holed": holed,
        "zeros": np.zeros(900_000),
        "odd": luck.integers(0, 255, 700_003, dtype=np.uint8),
        "fortran": np.asfortranarray(luck.random((900, 700))),
        "tiny": np.arange(step + 5),
        "step": step,
    }


def empty_like(state: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in state.items():
        if name == "odd":
            # Begins and ends off any boundary, beside memory that must stay unchanged.
            room = np.full(value.size + 100, 7, np.uint8)
            made[name] = room[33 : 33 + value.size]
        elif isinstance(value, np.ndarray):
            made[name] = np.full_like(value, 3)
        else:
            made[name] = None if name != "step" else 0
    made["aligned"] = outlive.zeros(state["aligned"].shape)
    return made


@pytest.fixture
def saved(folder: Path) -> Path:
    # Jobs of other tests that wait for a collection may track memory that is reused here.
    gc.collect()
    with outlive.open(folder).job("a") as job:
        for step in (1, 2):
            job.save(image(step), wait=True)
    return folder


def test_into_arrays(saved: Path, same: Same) -> None:
    job = outlive.open(saved).job("a")
    state = empty_like(image(2))
    arrays = {name: state[name] for name in ("aligned", "holed", "zeros", "odd", "fortran")}
    report = job.restore(into=state, lazy=True)
    assert report
    assert report.epoch == 2
    assert report.mode in ("full", "user-only")
    assert report.lazy_bytes > 30_000_000
    assert report.eager_because == ""
    assert state["step"] == 2, "values are there at once"
    assert all(state[name] is array for name, array in arrays.items())
    same(state, image(2))
    room = state["odd"].base
    assert (room[:33] == 7).all()
    assert (room[-67:] == 7).all()
    report.wait()
    assert report.done
    assert report.progress[0] == report.progress[1]
    same(state, image(2))


def test_a_new_tree(saved: Path, same: Same) -> None:
    job = outlive.open(saved).job("a")
    tree = job.restore(lazy=True, epoch=1)
    same(tree, image(1))
    report = job.last_restore
    assert isinstance(report, outlive.LazyRestored)
    assert report.epoch == 1
    report.wait("holed", timeout=100)
    with pytest.raises(outlive.InvalidError, match="selects nothing"):
        report.wait("nothing")
    report.wait()


def test_the_first_save_is_incremental(saved: Path, same: Same) -> None:
    job = outlive.open(saved).job("a")
    state = empty_like(image(2))
    job.restore(into=state, lazy=True)
    # Writes a page before the fill brings it, perhaps, and another one.
    state["aligned"][1_500_000] = -1
    state["holed"][400_000] = -2
    save = job.save(state, wait=True)
    assert save.epoch == 3
    assert save.changed_bytes == 2 * 4096
    job.restore(into=state, lazy=True).wait()
    assert job.save(state, wait=True).changed_bytes == 0
    want = image(2)
    want["aligned"][1_500_000] = -1
    want["holed"][400_000] = -2
    same(outlive.open(saved).job("a").restore(epoch=3), want)


def test_several_threads_touch_at_random(saved: Path) -> None:
    want = image(2)
    for round_ in range(5):
        job = outlive.open(saved).job("a")
        state = empty_like(want)
        job.restore(into=state, lazy=True)
        wrong: list[str] = []

        def touch(seed: int, state: dict[str, Any] = state, wrong: list[str] = wrong) -> None:
            luck = np.random.default_rng(seed)
            for name in ("aligned", "holed", "zeros", "odd"):
                for at in luck.integers(0, want[name].size, 300):
                    if state[name][at] != want[name][at]:
                        wrong.append(f"{name}[{at}]")

        threads = [threading.Thread(target=touch, args=(round_ * 9 + n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_no_checkpoint(folder: Path) -> None:
    job = outlive.open(folder).job("a")
    report = job.restore(into={"a": np.zeros(5)}, lazy=True)
    assert not report
    assert report.done
    assert report.progress == (0, 0)
    report.wait()
    assert job.restore(lazy=True) is None


def test_arrays_that_are_not_contiguous_are_said_to_be_read_at_once(saved: Path) -> None:
    job = outlive.open(saved).job("a")
    state = {"holed": np.zeros(2_000_000)[::2]}
    job.restore(into=state, only="holed", lazy=True)
    report = job.last_restore
    assert isinstance(report, outlive.LazyRestored)
    assert (report.mode, report.lazy_bytes) == ("eager", 0)
    assert "not contiguous" in report.eager_because
    assert np.array_equal(state["holed"], image(2)["holed"])


def test_a_part(saved: Path) -> None:
    job = outlive.open(saved).job("a")
    state = {"holed": np.zeros(1_000_000)}
    job.restore(into=state, only="holed", lazy=True)
    assert np.array_equal(state["holed"], image(2)["holed"])


def test_a_fork_waits(saved: Path, run: Run) -> None:
    out = run(
        """
        import hashlib, warnings
        warnings.simplefilter("ignore")
        job = outlive.open(sys.argv[1]).job("a")
        state = job.restore(lazy=True)
        child = os.fork()
        digest = hashlib.sha1(state["aligned"]).hexdigest()
        if child == 0:
            print(digest, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(job.last_restore.done, flush=True)
        """,
        saved,
    )
    import hashlib

    assert out.split() == [hashlib.sha1(image(2)["aligned"]).hexdigest(), "True"]


@pytest.mark.parametrize(
    "end",
    ["", "job.close()", "del job, state", "sys.exit(0)", "state.clear(); del job"],
    ids=["exit", "close", "del", "sys.exit", "free"],
)
def test_ends_while_it_fills(saved: Path, program: Program, end: str) -> None:
    child = program(
        f"""
        job = outlive.open(sys.argv[1]).job("a")
        state = {{"aligned": outlive.zeros(3_000_001), "holed": np.zeros(1_000_000)}}
        job.restore(into=state, only=["aligned", "holed"], lazy=True)
        {end}
        """,
        saved,
    )
    _, errors = child.communicate(timeout=100)
    assert (child.returncode, errors) == (0, "")


def test_without_userfaultfd_it_is_eager_and_says_so(saved: Path, run: Run) -> None:
    out = run(
        NO_USERFAULTFD
        + """
        job = outlive.open(sys.argv[1]).job("a")
        state = job.restore(lazy=True)
        report = job.last_restore
        print(report.mode, report.done, state["step"], state["aligned"].sum())
        print(report.eager_because)
        save = job.save(state, wait=True)
        print(save.changed_bytes)
        """,
        saved,
    )
    first, because, changed = out.splitlines()
    assert first.split() == ["eager", "True", "2", str(image(2)["aligned"].sum())]
    assert because.startswith("the kernel gives no userfaultfd: "), because
    assert changed == "0"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_without_rights(saved: Path, run: Run) -> None:
    for path in [saved, *saved.rglob("*")]:
        path.chmod(0o777)
    for path in saved.parents:
        if path.stat().st_mode & 0o005 != 0o005 and str(path).startswith("/tmp/"):
            path.chmod(0o755)
    out = run(
        """
        os.setgid(65534)
        os.setuid(65534)
        job = outlive.open(sys.argv[1]).job("a")
        state = job.restore(lazy=True)
        report = job.last_restore
        null = os.open("/dev/null", os.O_WRONLY)
        print(report.mode, report.eager_because)
        report.wait("holed")
        read, write = os.pipe()
        assert os.write(write, memoryview(state["holed"]).cast("B")[3_000_000:3_001_000]) == 1000
        print(state["aligned"].sum())
        """,
        saved,
    )
    mode, total = out.splitlines()
    allowed = Path("/proc/sys/vm/unprivileged_userfaultfd").read_text().strip() == "1"
    assert mode.strip() == ("full" if allowed else "user-only")
    assert total == str(image(2)["aligned"].sum())


def test_without_dumps(saved: Path, run: Run) -> None:
    out = run(
        """
        import ctypes
        assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE
        job = outlive.open(sys.argv[1]).job("a")
        state = job.restore(lazy=True)
        print(job.last_restore.mode, state["aligned"].sum())
        """,
        saved,
    )
    mode, total = out.split()
    assert mode in ("full", "user-only")
    assert total == str(image(2)["aligned"].sum())


def flip(folder: Path) -> None:
    files = [path for path in (folder / "packs").rglob("*") if path.is_file()]
    newest = max(files, key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(newest.read_bytes())
    data[900_000] ^= 1
    newest.write_bytes(data)


def test_damage_ends_the_program_and_the_next_takes_the_one_before(
    saved: Path, program: Program, same: Same, caplog: pytest.LogCaptureFixture
) -> None:
    flip(saved)
    child = program(
        """
        job = outlive.open(sys.argv[1]).job("a")
        state = job.restore(lazy=True)
        assert job.last_restore.epoch == 2
        threading.Event().wait()  # until the damage is found
        """,
        saved,
    )
    _, errors = child.communicate(timeout=100)
    assert child.returncode == 3
    for part in ["checkpoint 2 of job a", "suspect", "fingerprint", "start it again"]:
        assert part in errors, errors
    assert "Traceback" not in errors
    job = outlive.open(saved).job("a")
    with caplog.at_level(logging.WARNING, "outlive"):
        tree = job.restore(lazy=True)
    same(tree, image(1))
    report = job.last_restore
    assert report is not None
    assert [epoch for epoch, _ in report.skipped] == [2]
    assert "suspect" in report.skipped[0][1]
    assert any("suspect" in record.getMessage() for record in caplog.records)
    # An eager restore takes the checkpoint before, too, and the program goes on.
    assert outlive.open(saved).job("a").restore()["step"] == 1
    assert job.save(image(9), wait=True).epoch == 3


def test_a_touch_of_damage_ends_the_program(saved: Path, program: Program) -> None:
    flip(saved)
    child = program(
        """
        job = outlive.open(sys.argv[1]).job("a")
        state = job.restore(lazy=True)
        print(sum(float(state[name].sum()) for name in ("aligned", "holed", "odd", "fortran")))
        print("went on")
        threading.Event().wait()  # until the damage is found
        """,
        saved,
    )
    out, errors = child.communicate(timeout=100)
    assert child.returncode == 3
    assert "went on" not in out
    assert "suspect" in errors


def test_another_jobs_save_waits_for_the_memory_that_it_saves(saved: Path, same: Same) -> None:
    want = image(2)
    with outlive.open(saved, freeze="fork") as other:
        for round_ in range(3):
            state = empty_like(want)
            outlive.open(saved).job("a").restore(into=state, lazy=True)
            assert other.job("b").save(state, wait=True).epoch == round_ + 1
            same(other.job("b").restore(), want)


def test_memory_that_moves_is_filled_where_it_is(saved: Path, run: Run) -> None:
    out = run(
        """
        import ctypes, mmap
        libc = ctypes.CDLL(None, use_errno=True)
        address, size = ctypes.c_void_p, ctypes.c_size_t
        libc.mmap.restype = libc.mremap.restype = address
        libc.mmap.argtypes = [address, size] + [ctypes.c_int] * 3 + [ctypes.c_long]
        libc.mremap.argtypes = [address, size, size, ctypes.c_int, address]
        count = 3_000_001
        # The last page holds other bytes as well, and the kernel moves none but whole mappings.
        length = -(-count * 8 // 4096) * 4096
        whole = count * 8 // 4096 * 4096
        array = lambda at, n: np.ctypeslib.as_array((ctypes.c_double * n).from_address(at))
        first, second = [libc.mmap(None, length, 3, 0x22, -1, 0) for _ in range(2)]
        job = outlive.open(sys.argv[1]).job("a")
        report = job.restore(into={"aligned": array(first, count)}, only="aligned", lazy=True)
        assert report.mode != "eager", report
        assert libc.mremap(first, whole, whole, 3, second) == second
        total = array(second, whole // 8).sum()
        report.wait()
        assert array(second, whole // 8).sum() == total
        print(total)
        """,
        saved,
    )
    whole = image(2)["aligned"].nbytes // 4096 * 512
    assert out == str(image(2)["aligned"][:whole].sum())


def test_the_job_that_tracks_the_memory_is_named(saved: Path, run: Run) -> None:
    out = run(
        """
        holed = outlive.zeros(1_000_000)
        other = outlive.open(sys.argv[1]).job("finetune")
        print(other.save({"holed": holed}).wait().tracker)
        job = outlive.open(sys.argv[1]).job("a")
        restore = lambda: job.restore(into={"holed": holed}, only="holed", lazy=True)
        print(restore().eager_because)
        other.close()
        print(restore().mode)
        print(holed.sum())
        """,
        saved,
    )
    tracker, because, mode, total = out.splitlines()
    if tracker.startswith("wp-async"):
        assert 'job "finetune" of this process tracks it' in because
    assert mode != "eager"
    assert total == str(image(2)["holed"].sum())
