"""Programs with a helper, for tests."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import outlive


def told(child: subprocess.Popen[str], word: str) -> int:
    """Returns the number after a word that a program prints."""
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line.startswith(word + " "), line
    return int(line.split()[1])


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until others have made a condition true; pytest ends a test that hangs."""
    while not condition():
        threading.Event().wait(0.005)


def processes(path: Path, name: str) -> list[int]:
    """Returns the processes of that name which have this test's helper."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
            if (process / "comm").read_text().strip() == name and (
                f"OUTLIVE_HELPER={path}\0".encode() in (process / "environ").read_bytes()
            ):
                found.append(int(process.name))
    return found


def worker(path: Path) -> int:
    """Waits for a worker of this test's helper, and returns its process."""
    found: list[int] = []

    def look() -> bool:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                environ = (process / "environ").read_bytes()
                if b"--complete" in words and f"OUTLIVE_HELPER={path}\0".encode() in environ:
                    found.append(int(process.name))
        return bool(found)

    wait_for(look)
    return found[0]


def end(process: int) -> None:
    """Kills a process, and waits until all of its threads have ended."""
    pidfd = os.pidfd_open(process)
    try:
        os.kill(process, signal.SIGKILL)
        # Not `select`, whose descriptors are below 1024: a worker of pytest may have more open.
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        waiting.poll()
    finally:
        os.close(pidfd)


def start(text: str, *arguments: object, executable: str = sys.executable) -> subprocess.Popen[str]:
    """Starts a program that saves; killed by itself or by the test."""
    head = f"import os, signal, sys\nsys.executable = {executable!r}\n"
    head += "import numpy as np\nimport outlive\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(text), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed(text: str, *arguments: object) -> str:
    """Runs a program that kills itself; returns what it has printed on standard error."""
    child = start(text, *arguments)
    _, errors = child.communicate()
    assert child.returncode == -signal.SIGKILL, errors
    return errors


KILL = "os.kill(os.getpid(), signal.SIGKILL)"
ONE_SAVE = f"""
    job = outlive.open(sys.argv[1], freeze="helper").job("job")
    job.save({{"a": np.arange(1_000_000.0), "step": 1}})
    {KILL}
"""


def restored(folder: Path) -> dict[str, object]:
    with outlive.open(folder).job("job") as job:
        state = job.restore()
        assert state is not None
        return state


# Its second save fails while it persists, as on a full disk.
FAILING = """
    import resource
    job = outlive.open(sys.argv[1], freeze="helper").job("job", on_failure="warn")
    job.save({"step": 1}, wait=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    save = job.save({"a": np.random.default_rng(1).random(20_000_000), "step": 2})
    try:
        save.wait()
    except outlive.Error as error:
        print("failed", flush=True)
    sys.stdin.readline()
"""
