"""Runs the load under MPI, and HPL beside it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hpl
from staging.hosts import Host
from striped.devices import HERE, command

ROOT = HERE.parent.parent
# Open MPI: there are more ranks than cores, so they must not spin; root may start it here.
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
PATIENCE_S = 1800


@dataclass(frozen=True)
class Load:
    """The program that is saved, and how it starts.

    Attributes:
        program: Path of the program.
        libraries: Folder of outlive's library.
        before: Words before `mpirun`, as to start it on another host.
        mpirun: `mpirun` itself, and its options.
    """

    program: Path
    libraries: Path
    before: tuple[str, ...] = ()
    mpirun: tuple[str, ...] = ("mpirun",)

    def run(self, ranks: int, *words: object) -> list[dict[str, Any]]:
        """Runs it, and returns the measurements of each of its saves, or of its restore."""
        call = [*self.before, *self.mpirun, "-n", str(ranks), str(self.program), *map(str, words)]
        env = {**os.environ, **MPI, "LD_LIBRARY_PATH": str(self.libraries)}
        done = subprocess.run(call, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(call)}: {done.stderr[-3000:]}")
        return [json.loads(line) for line in done.stdout.splitlines()]


def on_hosts(load: Load, hosts: Sequence[Host], folder: Path, ranks: int) -> Load:
    """Returns the load as `mpirun` on the first host starts it, with `ranks` on each host."""
    agent = folder / "start-on-host"
    names = "\n".join(f"{host.address}) name={host.name} ;;" for host in hosts)
    agent.write_text(
        # Each host gets a name of its own, or Open MPI takes all of them for one.
        f"""#!/bin/sh
case "$1" in
{names}
*) echo "no host $1" >&2; exit 1 ;;
esac
shift
exec ip netns exec "$name" unshare --uts sh -c 'hostname "$0" && eval "$*"' "$name" "$@"
"""
    )
    agent.chmod(0o755)
    network = f"{hosts[0].address.rpartition('.')[0]}.0/24"
    settings = {
        "plm_rsh_agent": str(agent), "oob_tcp_if_include": network, "btl": "self,tcp",
        "btl_tcp_if_include": network,
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--mca", name, value)]
    places = ",".join(f"{host.address}:{ranks}" for host in hosts)
    exported = [word for name in ("LD_LIBRARY_PATH", *MPI) for word in ("-x", name)]
    named = 'hostname head && exec "$@"'
    return replace(
        load,
        before=tuple(hosts[0].words("unshare", "--uts", "sh", "-c", named, "")),
        mpirun=("mpirun", "--prefix", mpi_prefix(), *words, *exported, "--host", places),
    )


def mpi_prefix() -> str:
    """Returns the folder below which Open MPI is installed."""
    return str(Path(command("sh", "-c", "readlink -f $(command -v mpirun)")).parent.parent)


def build(folder: Path, prefix: Path | None) -> tuple[Load, Path]:
    """Installs outlive, unless it is, and builds the load; returns the path of the command, too."""
    program = folder / "plate"
    if prefix is None:
        prefix = folder / "prefix"
        subprocess.run([ROOT / "scripts/install", prefix], check=True, stdout=subprocess.DEVNULL)
    paths = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    flags = ["pkg-config", "--cflags", "--libs", "outlive"]
    found = subprocess.run(flags, env=paths, check=True, capture_output=True, text=True)
    command("mpicc", "-std=c99", "-O2", HERE / "plate.c", "-o", program, *found.stdout.split())
    return Load(program, prefix / "lib"), prefix / "bin/outlive"


@contextlib.contextmanager
def hpl_beside(rows: int, wanted: bool) -> Iterator[None]:
    """Runs HPL with a matrix of `rows` rows, again and again, on a core beside the measurement."""
    if not wanted:
        yield
        return
    if not hpl.is_here():
        raise SystemExit(f"{hpl.HOW_TO_GET_IT}, or give --no-hpl")
    library = hpl.build_library()
    over = threading.Event()
    running: list[subprocess.Popen[bytes]] = []

    def work() -> None:
        while not over.is_set():
            folder = Path(tempfile.mkdtemp())
            (folder / "hpccinf.txt").write_text(hpl.INPUT.format(rows=rows, columns=64))
            size = rows * rows * 8
            settings = {"refuse": f"{size // 8}-{size}", "from_bytes": size + 1, "interval_ms": 0}
            env = hpl.environment(library, folder / "report.json", **settings) | MPI
            env |= {"OMPI_MCA_ess_singleton_isolated": "1"}
            env |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                ["hpcc"], cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            running.append(process)
            process.wait()
            running.remove(process)
            shutil.rmtree(folder)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        for process in list(running):
            process.kill()
        thread.join()


def plate_rows(state_bytes: int) -> int:
    """Returns the rows and columns of a plate with at least this many bytes."""
    return math.isqrt((state_bytes + 7) // 8 - 1) + 1
