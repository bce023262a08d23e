"""Measures storage nodes on slow disks, as the paper on staging I/O measures its own.

Four nodes and four client machines are network namespaces on one bridge. Each node has a loop
device. First nothing is throttled, which shows the rate of the path. Then the kernel limits the
devices, so that their sum is half of that. Eight processes, two on each client machine, save and
restore at once:

- `raw`: plain writes and reads past the page cache, on the nodes themselves;
- `files`: each process writes a file of its own over the same network;
- `outlive`: they are the ranks of one job, which saves to a pool of the four nodes.

With `--restarts`, 1 to 16 programs restart at once from one checkpoint, lazily or not.
With `--often`, one process then saves 1 GiB of which 1 % changes, five times a second. With
`--clients N`, N processes save and restore at once, and the memory of nodes and clients is shown.

    .venv/bin/python bench/nodes.py DIR [--mib 64] [--rounds 3] [--often S] [--clients 32]
        [--restarts] [--json]

Run it as root, with cgroup v1's blkio. DIR has the devices.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from staging import hosts
from staging.client import rss_bytes
from striped import devices

NODES = 4
CLIENT_HOSTS = 4
PORT = 7410
COPIES_PORT = 7411
BENCH = Path(__file__).resolve().parent.parent


def set_limits(folders: Sequence[Path], bytes_per_s: int) -> None:
    """Limits the devices of these folders; 0 lifts the limit."""
    for folder in folders:
        device = folder.stat().st_dev
        for way in ("read", "write"):
            limit = devices.THROTTLE / f"blkio.throttle.{way}_bps_device"
            limit.write_text(f"{os.major(device)}:{os.minor(device)} {bytes_per_s}")


class Cluster:
    """Nodes and client machines."""

    def __init__(self, folder: Path, nodes: Sequence[hosts.Host], clients: Sequence[hosts.Host]):
        """Knows the machines; starts nothing."""
        self.folder, self.nodes, self.clients = folder, nodes, clients
        self.outlive = shutil.which(
            "outlive", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        )
        self.served: list[subprocess.Popen[str]] = []

    def start_nodes(self, disks: Sequence[Path], staging: str) -> None:
        """Starts a node and a server of plain files on each disk."""
        for host, disk in zip(self.nodes, disks, strict=True):
            (disk / "node").mkdir(exist_ok=True)
            at = f"{host.address}:{PORT}"
            words = ["node", "serve", "--data", disk / "node", "--listen", at, "--insecure"]
            served = host.start(self.outlive, *words, "--staging", staging)
            self.served.append(served)
            assert served.stdout is not None
            assert served.stdout.readline().startswith("The node")
            copies = host.start(
                sys.executable, BENCH / "staging" / "copies.py", host.address, COPIES_PORT, disk
            )
            self.served.append(copies)
            assert copies.stdout is not None
            assert copies.stdout.readline() == "ready\n"

    def stop(self) -> None:
        """Ends all that was started."""
        for served in self.served:
            served.kill()
            served.communicate()
        self.served = []

    def node_rss(self) -> int:
        """Returns the most memory that a node has had."""
        return max(rss_bytes(str(served.pid)) for served in self.served[::2])

    def make_pool(self, name: str) -> Path:
        """Makes a pool on all nodes; its log is on a disk that is not throttled."""
        pool = self.folder / name
        shutil.rmtree(pool, ignore_errors=True)
        words: list[object] = []
        for host in self.nodes:
            words += ["--target", f"node://{host.address}:{PORT}/{name}"]
        # From a machine that reaches the nodes.
        devices.command(*self.clients[0].words(self.outlive, "pool", "init", pool, *words))
        return pool

    @contextlib.contextmanager
    def programs(
        self, pool: Path, count: int, mib: int, *, together: bool = True
    ) -> Iterator[list[subprocess.Popen[str]]]:
        """Yields programs that wait for lines: the ranks of one job, or each by itself."""
        started = []
        environment = ["env", f"PYTHONPATH={BENCH}:{os.environ.get('PYTHONPATH', '')}"]
        for number in range(count):
            host = self.clients[number % len(self.clients)]
            server = f"{self.nodes[number % len(self.nodes)].address}:{COPIES_PORT}"
            words = [*environment, sys.executable, BENCH / "staging" / "client.py"]
            started.append(host.start(*words, pool, number, count if together else 1, mib, server))
        try:
            for program in started:
                answer(program)
            yield started
        finally:
            for program in started:
                program.kill()
                program.communicate()


def answer(program: subprocess.Popen[str]) -> dict[str, Any]:
    """Waits for the reply of a program."""
    assert program.stdout is not None
    line = program.stdout.readline()
    if not line:
        raise SystemExit("a program has ended early; its error is above")
    reply: dict[str, Any] = json.loads(line)
    return reply


def at_once(programs: Sequence[subprocess.Popen[str]], line: str) -> list[dict[str, Any]]:
    """Lets all programs do the same at once; returns their replies."""
    for program in programs:
        assert program.stdin is not None
        program.stdin.write(line + "\n")
        program.stdin.flush()
    return [answer(program) for program in programs]


def rate(replies: Sequence[dict[str, Any]], bytes_each: int) -> float:
    """Returns the bytes per second of all together, from the first begin to the last end."""
    seconds = float(max(it["ended"] for it in replies) - min(it["began"] for it in replies))
    return len(replies) * bytes_each / seconds


def raw_read(folders: Sequence[Path], seconds: float, bytes_per_s: int) -> float:
    """Returns the bytes per second that plain reads of all devices take together."""
    count = max(1, int(seconds * bytes_per_s / devices.UNIT_BYTES))
    # Written without a limit, and read with it.
    set_limits(folders, 0)
    for folder in folders:
        with (folder / "bound").open("wb") as file:
            file.write(os.urandom(count * devices.UNIT_BYTES))
            os.fsync(file.fileno())
    set_limits(folders, bytes_per_s)
    words = ["dd", "of=/dev/null", "bs=4M", "iflag=direct", "status=none"]
    began = time.perf_counter()
    reads = [subprocess.Popen([*words, f"if={folder / 'bound'}"]) for folder in folders]
    for read in reads:
        read.wait()
    seconds = time.perf_counter() - began
    set_limits(folders, 0)
    for folder in folders:
        (folder / "bound").unlink()
    return len(folders) * count * devices.UNIT_BYTES / seconds


def rounds_of(
    programs: Sequence[subprocess.Popen[str]], lines: Sequence[str], rounds: int, mib: int
) -> dict[str, list[float]]:
    """Measures each line in turns."""
    found: dict[str, list[float]] = {line: [] for line in lines}
    for _ in range(rounds):
        at_once(programs, "prepare")
        for line in lines:
            if line in ("restore", "get"):
                at_once(programs, "wipe")
            found[line].append(rate(at_once(programs, line), mib << 20) / 1e6)
    return found


def measure(cluster: Cluster, disks: Sequence[Path], args: argparse.Namespace) -> dict[str, Any]:
    """Measures the path, then the throttled disks."""
    cluster.start_nodes(disks, args.staging)
    lines = ("save", "restore", "put", "get")
    with cluster.programs(cluster.make_pool("path"), args.processes, args.mib) as programs:
        path = rounds_of(programs, lines, args.rounds, args.mib)
    carried = statistics.median(path["save"])
    limit = int(carried * 1e6 / 2 / NODES)
    set_limits(disks, limit)
    seconds = args.processes * (args.mib << 20) / NODES / limit
    raw = {"write": [], "read": []}  # type: dict[str, list[float]]
    for _ in range(args.rounds):
        raw["write"].append(devices.bound(disks, seconds, limit) / 1e6)
    with cluster.programs(cluster.make_pool("slow"), args.processes, args.mib) as programs:
        slow = rounds_of(programs, lines, args.rounds, args.mib)
        replies = at_once(programs, "prepare")
    for _ in range(args.rounds):
        raw["read"].append(raw_read(disks, seconds, limit) / 1e6)
    return {
        "path": path,
        "limit_mb_per_s": limit / 1e6,
        "raw": raw,
        "slow": slow,
        "node_rss": cluster.node_rss(),
        "client_rss": max(it["rss"] for it in replies),
    }


def many(cluster: Cluster, disks: Sequence[Path], args: argparse.Namespace) -> dict[str, Any]:
    """Measures the memory with many clients at once."""
    set_limits(disks, 0)
    cluster.stop()
    cluster.start_nodes(disks, args.staging)
    idle = cluster.node_rss()
    with cluster.programs(cluster.make_pool("many"), args.clients, args.mib_many) as programs:
        before = max(it["rss"] for it in at_once(programs, "prepare"))
        save = at_once(programs, "save")
        at_once(programs, "wipe")
        restore = at_once(programs, "restore")
    return {
        "clients": args.clients,
        "save_mb_per_s": rate(save, args.mib_many << 20) / 1e6,
        "restore_mb_per_s": rate(restore, args.mib_many << 20) / 1e6,
        "node_rss_idle": idle,
        "node_rss": cluster.node_rss(),
        "client_rss_before": before,
        "client_rss": max(it["rss"] for it in [*save, *restore]),
    }


def often(cluster: Cluster, disks: Sequence[Path], args: argparse.Namespace) -> dict[str, Any]:
    """Measures saves several times a second."""
    set_limits(disks, 0)
    with cluster.programs(cluster.make_pool("often"), 1, 1024) as programs:
        at_once(programs, "save")
        found = at_once(programs, f"often 1 5 {args.often}")[0]
        at_once(programs, "wipe")
        at_once(programs, "restore")
        lazy = at_once(programs, "restart lazy")[0]
    return {**found, "lazy_first_s": lazy["first_s"], "lazy_all_s": lazy["all_s"]}


def restarts(cluster: Cluster, disks: Sequence[Path], args: argparse.Namespace) -> list[Any]:
    """Measures programs that restart at once from one checkpoint, on limited devices."""
    rows = []
    set_limits(disks, 0)
    pool = cluster.make_pool("restarts")
    with cluster.programs(pool, 1, args.mib) as programs:
        at_once(programs, "save")
    set_limits(disks, args.limit)
    for count in (1, 2, 4, 8, 16):
        for way in ("eager", "lazy"):
            with cluster.programs(pool, count, args.mib, together=False) as programs:
                replies = at_once(programs, f"restart {way}")
            assert len({it["sum"] for it in replies}) == 1
            first, whole = (max(it[name] for it in replies) for name in ("first_s", "all_s"))
            rows.append({"clients": count, "way": way, "first_s": first, "all_s": whole})
    set_limits(disks, 0)
    return rows


def mib(count: int) -> str:
    """Returns bytes as text."""
    return f"{count / 2**20:.0f} MiB"


def table(found: dict[str, Any]) -> str:
    """Returns the figures as text."""
    path, slow, raw = found["path"], found["slow"], found["raw"]
    median = statistics.median

    def row(name: str, rates: Sequence[float], bound: Sequence[float] | None = None) -> str:
        share = f"{median(rates) / median(bound):8.3f}" if bound else ""
        return f"{name:34}{median(rates):8.0f} MB/s  {min(rates):6.0f} to {max(rates):6.0f}{share}"

    rows = [
        "Nothing throttled (what the path carries):",
        *(row(f"  {line}", path[line]) for line in path),
        f"Devices limited to {found['limit_mb_per_s']:.0f} MB/s each; the last column is by raw:",
        row("  raw writes", raw["write"]),
        row("  save", slow["save"], raw["write"]),
        row("  own files, written", slow["put"], raw["write"]),
        row("  raw reads", raw["read"]),
        row("  restore", slow["restore"], raw["read"]),
        row("  own files, read", slow["get"], raw["read"]),
        f"Most memory: node {mib(found['node_rss'])}, client {mib(found['client_rss'])}",
    ]
    if "many" in found:
        many = found["many"]
        rows.append(
            f"{many['clients']} clients: node {mib(many['node_rss_idle'])} idle, "
            f"{mib(many['node_rss'])} at most; client {mib(many['client_rss_before'])} "
            f"before, {mib(many['client_rss'])} at most; "
            f"{many['save_mb_per_s']:.0f} and {many['restore_mb_per_s']:.0f} MB/s"
        )
    rows += [
        f"{it['clients']:4} restart at once, {it['way']:6} first {it['first_s']:.3f} s, "
        f"all {it['all_s']:.2f} s"
        for it in found.get("restarts", [])
    ]
    if "often" in found:
        rows.append(f"Five saves a second: {found['often']}")
    return "\n".join(rows)


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--staging", default="64MiB")
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--mib-many", type=int, default=32)
    parser.add_argument("--often", type=float, default=0)
    parser.add_argument("--restarts", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    devices.check()
    # Gives devices, hosts and the folder back, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="nodes-", dir=args.dir))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        # No limit at first.
        disks = undo.enter_context(devices.throttled(folder, NODES, 0))
        machines = undo.enter_context(hosts.network(NODES + CLIENT_HOSTS))
        cluster = Cluster(folder, machines[:NODES], machines[NODES:])
        undo.callback(cluster.stop)
        found = measure(cluster, disks, args)
        if args.clients:
            found["many"] = many(cluster, disks, args)
        if args.restarts:
            args.limit = int(found["limit_mb_per_s"] * 1e6)
            found["restarts"] = restarts(cluster, disks, args)
        if args.often:
            found["often"] = often(cluster, disks, args)
    print(json.dumps(found) if args.json else table(found))


if __name__ == "__main__":
    main()
