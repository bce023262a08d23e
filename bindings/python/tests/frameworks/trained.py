"""Runs the examples of training frameworks, and kills them."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

EXAMPLES = Path(__file__).parents[4] / "examples"


class Training:
    """An example that runs, in a session of its own."""

    def __init__(self, name: str, pool: Path, *arguments: object, **environ: object) -> None:
        self.log = pool.with_name(f"{pool.name}-{name}.err")
        self.child = subprocess.Popen(
            [sys.executable, str(EXAMPLES / f"train_{name}.py"), str(pool), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
            start_new_session=True,
            env={**os.environ, **{key: str(value) for key, value in environ.items()}},
        )

    def read_until(self, start: str) -> str:
        """Returns the first line that begins like that."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.startswith(start):
                return line.strip()
        self.child.wait()
        raise AssertionError(f"no line {start!r} came:\n{self.log.read_text()}")

    def kill(self) -> None:
        """Kills it and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.communicate()

    def finish(self) -> list[str]:
        """Waits for its end; returns the lines "done ...", sorted."""
        try:
            out, _ = self.child.communicate()
        except BaseException:
            self.kill()
            raise
        assert self.child.returncode == 0, out + self.log.read_text()
        return sorted(line for line in out.splitlines() if line.startswith("done"))


def trained(name: str, pool: Path, *arguments: object, **environ: object) -> list[str]:
    """Runs an example to its end."""
    return Training(name, pool, *arguments, **environ).finish()


def killed(name: str, pool: Path, line: str, *arguments: object, **environ: object) -> None:
    """Runs an example until it prints a line, and kills it there."""
    training = Training(name, pool, *arguments, **environ)
    try:
        training.read_until(line)
    finally:
        training.kill()


def on_ranks(name: str, pool: Path, count: int, *arguments: object) -> list[Training]:
    """Starts an example on several ranks, as `torchrun` does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        Training(
            name,
            pool,
            *arguments,
            RANK=rank,
            LOCAL_RANK=rank,
            WORLD_SIZE=count,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            GLOO_SOCKET_IFNAME="lo",
            OMP_NUM_THREADS=1,
        )
        for rank in range(count)
    ]


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Lets no file of this process get longer than 5,000 bytes."""
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
