"""How changed pages are found, seen from a program: it reports every way and every denial."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive

# Loads the C library's functions that the children below need.
PRELUDE = """
import ctypes, os, sys
import numpy as np
import outlive

libc = ctypes.CDLL(None, use_errno=True)

def save_some(folder, **tuning):
    state = {"a": np.zeros(1 << 20), "step": 0}
    with outlive.open(folder, **tuning) as pool:
        job = pool.job("job")
        for step in range(5):
            state["a"][step * 5000 : step * 5000 + 10] = step + 1
            state["step"] = step
            figures = job.save(state).wait()
            want = state["a"].copy()
        back = {"a": np.zeros(1 << 20), "step": 0}
        pool.job("job").restore(into=back)
        assert (back["a"] == want).all() and back["step"] == 4
    print("tracker", figures.tracker)
    print("changed", figures.changed_bytes)
"""


def child(code: str, *arguments: str | Path, **options: Any) -> str:
    """Runs Python code in a process of its own; returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("tracker", ["auto", "wp-async", "hash"])
def test_every_tracker_finds_the_changes(tmp_path: Path, tracker: str) -> None:
    rng = np.random.default_rng(1)
    state = {"aligned": outlive.zeros((700, 1000)), "numpy": rng.random((600, 1001)), "step": 0}
    with outlive.open(tmp_path, tracker=tracker) as pool:
        job = pool.job("job")
        for step in range(12):
            state["aligned"][step * 50] += step
            state["numpy"][rng.integers(0, 600, 7), rng.integers(0, 1001, 7)] = step
            state["step"] = step
            figures = job.save(state).wait()
            assert figures is not None
            if step > 4:
                assert figures.changed_bytes < 200_000
            back = {"aligned": np.empty((700, 1000)), "numpy": np.empty((600, 1001)), "step": 0}
            pool.job("job").restore(into=back)
            assert np.array_equal(back["aligned"], state["aligned"])
            assert np.array_equal(back["numpy"], state["numpy"])
        assert tracker in ("auto", figures.tracker.split(":")[0].split(" ")[0])


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(outlive.InvalidError, match="auto, wp-async or hash"):
        outlive.open(tmp_path, tracker="magic")


def test_arrays_that_are_replaced_and_resized(tmp_path: Path) -> None:
    state: dict[str, object] = {"a": np.arange(500_000.0)}
    with outlive.open(tmp_path) as pool:
        job = pool.job("job")
        for step in range(20):
            array = state["a"]
            assert isinstance(array, np.ndarray)
            array[step] = -1.0
            if step % 3 == 1:
                # Most likely this is the memory that was just freed.
                length = len(array)
                del state["a"], array
                state["a"] = np.full(length, float(step))
            elif step % 3 == 2:
                array.resize(500_000 + 1000 * step, refcheck=False)
            job.save(state).wait()
            back = pool.job("job").restore()
            assert np.array_equal(back["a"], state["a"])


def test_shared_and_mapped_memory_is_compared(tmp_path: Path) -> None:
    import mmap

    shared = mmap.mmap(-1, 1 << 20)
    (tmp_path / "file").write_bytes(b"1" * (1 << 20))
    mapped = np.memmap(tmp_path / "file", dtype=np.uint8, mode="c")
    state = {"shared": np.frombuffer(shared, dtype=np.uint8), "mapped": mapped}
    with outlive.open(tmp_path / "pool", tracker="wp-async") as pool:
        job = pool.job("job")
        for step in range(4):
            # Another process writes to the shared memory.
            if (pid := os.fork()) == 0:
                shared[step * 5000] = step + 1
                os._exit(0)
            os.waitpid(pid, 0)
            mapped[step * 9000] = step + 2
            figures = job.save(state).wait()
            assert figures is not None
            if step > 0:
                assert figures.changed_bytes == 2 * 4096
        if figures.tracker.startswith("wp-async"):
            assert "shared memory" in figures.tracker
            assert "mapped from a file" in figures.tracker
        back = pool.job("job").restore()
        assert np.array_equal(back["shared"], np.frombuffer(shared, dtype=np.uint8))
        assert np.array_equal(back["mapped"], mapped)
    del state, back


def test_a_denied_userfaultfd_is_named(tmp_path: Path) -> None:
    """A seccomp filter refuses the call, as containers do."""
    out = child(
        """
        import struct
        PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
        USERFAULTFD = {"x86_64": 323, "aarch64": 282}[os.uname().machine]
        # Load the number of the call; if it is userfaultfd, EPERM, else allow.
        code = b"".join(
            struct.pack("HBBI", *line)
            for line in [
                (0x20, 0, 0, 0),
                (0x15, 0, 1, USERFAULTFD),
                (0x06, 0, 0, 0x00050000 | 1),
                (0x06, 0, 0, 0x7FFF0000),
            ]
        )
        buffer = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
        assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        assert libc.prctl(PR_SET_SECCOMP, FILTER, program, 0, 0) == 0
        save_some(sys.argv[1])
        """,
        tmp_path / "pool",
    )
    assert "tracker hash (wp-async does not work here" in out
    assert "userfaultfd" in out
    assert "changed 4104" in out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_without_privileges(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for folder in [*tmp_path.parents][:-1]:
        folder.chmod(folder.stat().st_mode | 0o011)
    with_them = child("save_some(sys.argv[1])", tmp_path / "root")
    # After a change of user a process is not dumpable, until it allows that or executes a program.
    become = "os.setgroups([]); os.setgid(65534); os.setuid(65534); libc.prctl(4, 1, 0, 0, 0)\n"
    without = child(become + "save_some(sys.argv[1])", tmp_path / "nobody")
    kind = without.split()[1]
    assert kind == with_them.split()[1], without
    # Such a process can no longer open its own page map.
    hidden = child(
        become + "assert libc.prctl(4, 0, 0, 0, 0) == 0\nsave_some(sys.argv[1])",
        tmp_path / "hidden",
    )
    assert "tracker hash (wp-async does not work here: /proc/self/pagemap" in hidden or (
        "tracker hash" in with_them
    )


def test_a_process_with_too_many_mappings_saves(tmp_path: Path) -> None:
    """Registering memory may split mappings, of which a process has a limited number."""
    out = child(
        """
        import mmap
        limit = int(open("/proc/sys/vm/max_map_count").read())
        state = {"a": np.zeros(1 << 20)}
        with outlive.open(sys.argv[1]) as pool:
            job = pool.job("job")
            job.save(state).wait()
            # Pages of two protections in turn use up what is left.
            length = 4096 * (limit + 10)
            libc.mmap.restype = ctypes.c_void_p
            libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [
                ctypes.c_long
            ]
            start = libc.mmap(None, length, 0, 0x4022, -1, 0)
            libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            for page in range(0, limit, 2):
                if libc.mprotect(start + 4096 * page, 4096, 1) != 0:
                    break
            # Some are given back, or not even a thread could be started.
            for last in range(page - 80, page, 2):
                libc.mprotect(start + 4096 * last, 4096, 0)
            for step in range(4):
                state["b"] = np.full(1 << 18, step)
                state["a"][step * 3000] = step + 1
                figures = job.save(state).wait()
            back = pool.job("job").restore()
            assert (back["a"] == state["a"]).all() and (back["b"] == 3).all()
        print("saved", figures.tracker)
        """,
        tmp_path / "pool",
    )
    assert "saved" in out


class Constant:
    """Stands in for an array of JAX: it shows its memory by DLPack and cannot be written."""

    __module__ = "jaxlib._jax"

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)
        self.values.flags.writeable = False

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()


def test_constant_arrays_are_not_copied(tmp_path: Path) -> None:
    values = np.random.default_rng(3).random(4_000_000)
    with outlive.open(tmp_path, freeze_bytes_max=1 << 20, freeze="copy") as pool:
        job = pool.job("job")
        for step in range(3):
            state = {"constant": Constant(values + step), "other": np.full(50_000, float(step))}
            save = job.save(state)
            # The job keeps the array until the save is over.
            del state
            figures = save.wait()
            assert figures is not None
            assert figures.live_bytes == 0
            assert figures.copied_bytes <= 50_000 * 8 + 4096
            assert figures.changed_bytes > 32_000_000
        back = pool.job("job").restore()
        assert np.array_equal(back["constant"], values + 2)
        # The array also stays if the program drops the job with a save under way.
        pool.job("another").save({"constant": Constant(values)})
    while (found := outlive.open(tmp_path).job("another").restore()) is None:
        time.sleep(0.01)
    assert np.array_equal(found["constant"], values)
