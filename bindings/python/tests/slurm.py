"""A cluster of Debian's Slurm on this machine, with three nodes, for tests."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from test_documents import blocks

# Debian has the daemons in /usr/sbin, which the search path of a user need not have.
SEARCH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
NODES = ("node1", "node2", "node3")
# Beginnings of variables that steer Slurm's commands, or tell a program of its job.
OF_SLURM = ("SLURM", "SBATCH", "SRUN", "SQUEUE", "SCANCEL")

# Seconds for which no test waits: KillWait, between SIGTERM and SIGKILL; cred_expire, before a
# requeued job starts. NoInAddrAny, NoCtldInAddrAny: all listen on the loopback interface only.
CONFIGURATION = """
ClusterName=outlive
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=1200
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MailProg=/bin/true
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
KillWait=60
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16
NodeName=node3 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs=16
PartitionName=normal Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2
"""


def _are_installed() -> bool:
    """Returns whether this machine has Slurm and MUNGE."""
    return all(shutil.which(program, path=SEARCH) for program in PROGRAMS)


def program_of_ranks(given: dict[str, str], work: str) -> str:
    """Returns the program for ranks in docs/groups.md with other words for some, and its work."""
    text = blocks()["docs/groups.md", "import os"]
    for old, new in given.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    return f"import pathlib, sys, time\nimport numpy as np\n{text}{work}"


def until(condition: Callable[[], object]) -> None:
    """Waits for a condition; pytest ends a test that hangs."""
    while not condition():
        time.sleep(0.05)


class Slurm:
    """A cluster.

    Attributes:
        folder: Folder of its configuration, state and logs.
        environment: Variables for its commands and jobs.
    """

    def __init__(self, folder: Path) -> None:
        """Writes the configuration."""
        self.folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        text = CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            user=getpass.getuser(),
            folder=folder,
            ports=_free_ports(1 + len(NODES)),
        )
        (folder / "slurm.conf").write_text(text, "utf-8")
        (folder / "munge.key").write_bytes(secrets.token_bytes(64))
        (folder / "munge.key").chmod(0o400)
        for name in ("state", "bin", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        # The scripts of the jobs find the package that the tests run against.
        command = folder / "bin" / "outlive"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m outlive "$@"\n', "utf-8")
        command.chmod(0o755)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(OF_SLURM)}
        own = {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": f"{folder}/bin:{SEARCH}"}
        self.environment = kept | own

    def command(self, *words: object, **variables: object) -> str:
        """Runs a command of Slurm with more variables; returns its standard output."""
        given = {name: str(value) for name, value in variables.items()}
        done = subprocess.run(
            list(map(str, words)),
            capture_output=True,
            text=True,
            check=False,
            env=self.environment | given,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """Returns what `scontrol` shows of a job."""
        shown = self.command("scontrol", "--oneliner", "show", "job", job)
        return dict(word.partition("=")[::2] for word in shown.split())

    def state(self, job: str) -> str:
        """Returns the state of a job, such as `RUNNING`."""
        return self.job(job)["JobState"]

    def until_over(self, job: str) -> str:
        """Waits until a job is over; returns its state."""
        over = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")
        until(lambda: self.state(job) in over)
        return self.state(job)

    def until_requeued(self, job: str) -> None:
        """Waits until a job waits for its next start."""
        until(lambda: self.state(job) == "PENDING")

    def start_again(self, job: str) -> None:
        """Lets a requeued job start soon, and run for an hour.

        In the second of its end, a node takes a job's new credential for the old one.
        """
        self.until_requeued(job)
        update = [f"JobId={job}", "StartTime=now+2", "TimeLimit=60"]
        self.command("scontrol", "update", *update)

    def start_all(self) -> None:
        """Starts all daemons, and waits until the nodes are ready."""
        names = {"socket": "munge.socket", "key-file": "munge.key", "seed-file": "munge.seed"}
        names |= {"pid-file": "munge.pid", "log-file": "munge.log"}
        paths = [f"--{option}={self.folder / name}" for option, name in names.items()]
        self._start("munged", "munged", "--foreground", *paths)
        self._until(lambda: (self.folder / "munge.socket").exists())
        self._start("slurmctld", "slurmctld", "-D", "-f", self.folder / "slurm.conf")
        for node in NODES:
            self._start_node(node)
        self._until(lambda: all(self._state_of_node(node) == "idle" for node in NODES))

    def lose_node(self, node: str) -> None:
        """Kills all processes of a node, as a loss of power does, and starts the node again."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        mark = f"SLURMD_NODENAME={node}".encode()
        while victims := [pid for pid in self._processes() if mark in _environment_of(pid)]:
            for pid in victims:
                parent = int(_status_of(pid).get("PPid", "0"))
                # The one that watches them hides its variables.
                if _status_of(parent).get("Name") == "slurmstepd":
                    _kill(parent)
                _kill(pid)
            time.sleep(0.01)
        # The controller finds that out by itself after some minutes.
        self.command("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")
        self._start_node(node)
        self.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self._until(lambda: self._state_of_node(node) in ("idle", "mixed", "allocated"))

    def end(self) -> None:
        """Kills all processes of the cluster and of its jobs."""
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        # Some may start others meanwhile.
        while left := self._processes():
            for pid in left:
                _kill(pid)
            time.sleep(0.01)

    def _start(self, name: str, program: str, *words: object) -> None:
        path = shutil.which(program, path=SEARCH)
        assert path is not None
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                [path, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def _start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node, "-f", self.folder / "slurm.conf")

    def _state_of_node(self, node: str) -> str:
        """Returns the state of a node; empty while the controller does not answer."""
        words = ["sinfo", "--noheader", "--nodes", node, "--partition=normal", "--format=%T"]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env=self.environment
        )
        return done.stdout.strip()

    def _until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition, or fails if a daemon has ended."""

        def holds() -> bool:
            for name, daemon in self._daemons.items():
                said = (self.folder / f"{name}.out").read_text("utf-8", "replace")
                assert daemon.poll() is None, f"{name} has ended:\n{said}"
            return bool(condition())

        until(holds)

    def _processes(self) -> list[int]:
        """Returns the processes of the cluster and of its jobs that run."""
        mark = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        found = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
        return [pid for pid in found if mark in _environment_of(pid) and _is_running(pid)]


def _free_ports(count: int) -> list[int]:
    """Returns ports of this host that no process uses now."""
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", 0)
        servers = [stack.enter_context(socket.create_server(address)) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


def _environment_of(pid: int) -> list[bytes]:
    """Returns the variables with which a process began; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _status_of(pid: int) -> dict[str, str]:
    """Returns the status of a process; empty if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _is_running(pid: int) -> bool:
    """Returns whether a process runs, and is not only unreaped."""
    return _status_of(pid).get("State", "Z")[0] not in "ZX"


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def cluster() -> Iterator[Slurm]:
    """Runs a cluster, and leaves nothing running. Skips the test on a machine without Slurm."""
    if not _are_installed():
        assert "CI" not in os.environ, "CI needs slurmctld, slurmd, slurm-client and munge"
        pytest.skip("this machine has no Slurm")
    # MUNGE refuses a folder that is closed to others, as those of pytest are.
    with tempfile.TemporaryDirectory(prefix="outlive-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        slurm = Slurm(folder)
        try:
            slurm.start_all()
            yield slurm
        finally:
            slurm.end()
