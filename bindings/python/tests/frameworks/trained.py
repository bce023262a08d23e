"""Runs the examples of training frameworks, and kills them."""

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

EXAMPLES = Path(__file__).parents[4] / "examples"


class Training:
    """An example that runs, in a session of its own.

    Attributes:
        first: The first epoch or step that it has printed. A training that has resumed begins with
            a higher one.
    """

    first: int | None = None

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
            self._look(line)
            if line.startswith(start):
                return line.strip()
        self.child.wait()
        raise AssertionError(f"no line {start!r} came:\n{self.log.read_text()}")

    def _look(self, line: str) -> None:
        found = re.match(r"(epoch|step) (\d+)\b", line)
        if found and self.first is None:
            self.first = int(found[2])

    def began_after(self, other: "Training") -> bool:
        """Whether it has begun with a higher epoch or step than another one."""
        assert self.first is not None
        assert other.first is not None
        return self.first > other.first

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
        for line in out.splitlines():
            self._look(line)
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
    return [Training(name, pool, *arguments, **environ) for environ in _environs(count)]


def told_by_ranks(text: str, count: int, *arguments: object) -> list[str]:
    """Runs a program on several ranks; returns their output, and fails if one of them fails."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **{key: str(value) for key, value in environ.items()}},
        )
        for environ in _environs(count)
    ]
    found = [child.communicate() for child in children]
    assert all(child.returncode == 0 for child in children), found
    return [out.strip() for out, _ in found]


def _environs(count: int) -> list[dict[str, object]]:
    """Returns the variables of several ranks, as `torchrun` sets them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": count,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": 1,
        }
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


@contextlib.contextmanager
def one_rank(folder: Path) -> Iterator[None]:
    """Connects this process alone, as the only rank."""
    store = f"file://{folder / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def fsdp1(model: torch.nn.Module) -> torch.nn.Module:
    """Divides a model by the first version of FSDP."""
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def fsdp2(model: torch.nn.Module) -> torch.nn.Module:
    """Divides a model by the second version of FSDP."""
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model
