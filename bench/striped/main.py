"""Measures when each rank should write: the experiment of a paper on striped checkpointing.

Chang, Cho and Kim (2003) save a program of 16 ranks in problems of growing size, by a coordinated,
a staggered and a striped schedule. They use one server, and eight disks that form one. This does
the same with outlive, on:

- eight loop devices, throttled alike, as the targets of one pool;
- one such device ("central server");
- a disk with one arm, which loses time when many ranks write at once;
- four storage nodes with a throttled device each. Nodes and four machines of the ranks are network
  namespaces on one bridge. Their devices carry half of what the path carried without limits.

The program is a heat solver under MPI; HPL runs beside it.

    .venv/bin/python bench/schedules.py DIR [--quick] [--no-hpl] [--mbps 25] [--docs docs]

Run it as root, with Open MPI, Debian's hpcc and libfuse3-dev. DIR has the devices and pools.
DIR/striped.json has the measurements; --docs writes pictures and a page from them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from staging import hosts
from staging.main import Cluster, set_limits
from striped import devices, report, runs

RANKS = 16
DEVICES = 8
FIXED = ("coordinated", "staggered", "striped(2)", "striped(4)", "striped(8)")
# Saves that train the adaptive schedule, before those that count.
LEARNING = 12
# Saves that need the devices for less than this vary more, so they are repeated more often.
SHORT_S = 1.2
SHORT_TIMES = 2
# Without its arm, this disk would be faster.
ARM_SPEED = 2
SEEK_MS = 12.0
ARM_SIDES = (2000, 4000)
NODES = 4
RANK_HOSTS = 4
# Size by which the rate of the path is measured.
PATH_SIDE = 4000
HOST_SIDES = (1000, 3000, 5000)
# One device is slow.
CENTRAL_SIDES = (1000, 3000, 5000)


class Bench:
    """All measurements."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        """Builds the load."""
        self.folder, self.args = folder, args
        self.rounds = args.rounds
        self.bytes_per_s = int(args.mbps * 1e6)
        self.load, self.outlive = runs.build(folder, args.prefix)
        self.path = args.dir / "striped.json"
        self.found: dict[str, Any] = {"mbps": args.mbps, "ranks": RANKS, "hpl": args.hpl}
        if args.only and self.path.exists():
            self.found = json.loads(self.path.read_text())
            if [self.found["mbps"], self.found["hpl"]] != [args.mbps, args.hpl]:
                raise SystemExit(f"{self.path} was measured with other devices or another load")
            self.forget(args.only)

    def pool(self, targets: Sequence[Path]) -> Path:
        """Makes a new pool on these targets; its log is elsewhere, as on a server of its own."""
        pool = self.folder / "pool"
        for folder in [pool, *(target / "packs" for target in targets)]:
            shutil.rmtree(folder, ignore_errors=True)
        words: list[object] = []
        for target in targets:
            words += ["--target", target / "packs"]
        devices.command(self.outlive, "pool", "init", pool, *words)
        return pool

    def saves(
        self, pool: Path, rows: int, schedule: str, rounds: int, learning: int = 0
    ) -> dict[str, Any]:
        """Returns medians of saves, without the first, which creates everything."""
        skipped = 1 + learning
        saves = skipped + rounds
        lines = self.load.run(RANKS, pool, "heat", rows, schedule, saves)[skipped:]
        return {
            "seconds": median(line["seconds"] for line in lines),
            "each_s": [line["seconds"] for line in lines],
            "bytes": lines[0]["bytes"],
            "stood_s": median(line["stood_s"] for line in lines),
            "barrier_s": median(line["barrier_s"] for line in lines),
        }

    def schedules(self, name: str, make_pool: Callable[[], Path], sides: Sequence[int]) -> None:
        """Measures every schedule at every size, each on a new pool."""
        for rows in sides:
            bound_s = 8 * rows**2 / report.bound_of(self.found, name)
            rounds = self.rounds * (SHORT_TIMES if bound_s < SHORT_S else 1)
            # There, ranks and nodes share the cores already.
            with runs.hpl_beside(rows, self.args.hpl and name != "hosts"):
                for schedule in (*FIXED, "adaptive"):
                    learning = LEARNING if schedule == "adaptive" else 0
                    saved = self.saves(make_pool(), rows, schedule, rounds, learning)
                    self.keep("schedules", {"on": name, "rows": rows, "by": schedule, **saved})

    def on_hosts(self, sides: Sequence[int]) -> None:
        """Measures every schedule with ranks and storage nodes on hosts of their own."""
        with contextlib.ExitStack() as undo:
            # Without a limit at first.
            disks = undo.enter_context(devices.throttled(self.folder, NODES, 0))
            machines = undo.enter_context(hosts.network(NODES + RANK_HOSTS))
            cluster = Cluster(self.folder, machines[:NODES], machines[NODES:])
            undo.callback(cluster.stop)
            cluster.start_nodes(disks, "64MiB")
            ranks = machines[NODES:]
            here, self.load = (
                self.load,
                runs.on_hosts(self.load, ranks, self.folder, RANKS // RANK_HOSTS),
            )
            undo.callback(setattr, self, "load", here)
            pools = itertools.count()

            def make_pool() -> Path:
                number = next(pools)
                shutil.rmtree(self.folder / f"pool{number - 1}", ignore_errors=True)
                for disk in disks:
                    shutil.rmtree(disk / "node" / f"pool{number - 1}", ignore_errors=True)
                return cluster.make_pool(f"pool{number}")

            carried = self.saves(make_pool(), PATH_SIDE, "coordinated", self.rounds)
            path = carried["bytes"] / carried["seconds"]
            limit = int(path / 2 / NODES)
            set_limits(disks, limit)
            bound = devices.bound(disks, 3, limit)
            self.keep("bounds", {"on": "hosts", "bytes_per_s": bound, "path_bytes_per_s": path})
            self.schedules("hosts", make_pool, sides)

    def forget(self, part: str) -> None:
        """Drops the measurements of a part, which will be measured again."""
        if part in ("large", "rollback"):
            self.found[part] = []
        rows = self.found.get("schedules", [])
        self.found["schedules"] = [row for row in rows if row["on"] != part]

    def keep(self, part: str, row: dict[str, Any]) -> None:
        """Stores a row, so that it survives a failure of the next one."""
        self.found.setdefault(part, []).append(row)
        print(part, {key: value for key, value in row.items() if key != "each_s"}, flush=True)
        self.path.write_text(json.dumps(self.found, indent=1) + "\n")

    def large(self, targets: Sequence[Path], each_bytes: int) -> None:
        """Saves large states on all ranks: measures the speed and the stall."""
        rows = runs.plate_rows(RANKS * each_bytes)
        for schedule in ("alone", "coordinated", "striped(8)"):
            saved = self.saves(self.pool(targets), rows, schedule, self.rounds)
            self.keep("large", {"rows": rows, "by": schedule, **saved})

    def rollback(self, targets: Sequence[Path], each_bytes: int) -> None:
        """Restores by 1 to 16 ranks, with this state each, and with this state in total."""
        for what, bytes_of in ROLLBACKS.items():
            for ranks in (1, 2, 4, 8, 16):
                rows = runs.plate_rows(bytes_of(ranks, each_bytes))
                pool = self.pool(targets)
                self.load.run(ranks, pool, "heat", rows, "coordinated", 1)
                lines = []
                for _ in range(self.rounds):
                    lines += self.load.run(ranks, pool, "heat", rows, "restore")
                took = median(line["seconds"] for line in lines)
                row = {"of": what, "ranks": ranks, "bytes": lines[0]["bytes"], "seconds": took}
                self.keep("rollback", row)


ROLLBACKS: dict[str, Callable[[int, int], int]] = {
    "each": lambda ranks, each_bytes: ranks * each_bytes,
    "all": lambda _, each_bytes: RANKS * each_bytes,
}


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dir", type=Path, help="where devices and pools are made; must exist")
    parser.add_argument("--mbps", type=float, default=25, help="MB/s of each device")
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="saves of which the median counts; twice as many of short ones",
    )
    parser.add_argument("--no-hpl", dest="hpl", action="store_false", help="nothing runs beside")
    parser.add_argument("--quick", action="store_true", help="two sizes, to see that it works")
    parser.add_argument(
        "--only",
        help="measure this part again, and keep the others that DIR/striped.json has",
        choices=["pool", "central", "arm", "hosts", "large", "rollback"],
    )
    parser.add_argument("--prefix", type=Path, help="where `make install` has put outlive")
    parser.add_argument("--docs", type=Path, help="folder to write striped.md and pictures to")
    args = parser.parse_args()
    devices.check()
    # Then the devices are removed again, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sides = (1000, 2000) if args.quick else (1000, 2000, 3000, 4000, 5000)
    with tempfile.TemporaryDirectory(dir=args.dir) as name:
        folder = Path(name)
        bench = Bench(args, folder)

        def wanted(part: str) -> bool:
            return args.only in (None, part)

        with devices.throttled(folder, DEVICES, bench.bytes_per_s) as targets:
            for name, some in (("pool", targets), ("central", targets[:1])):
                bound = devices.bound(some, 3, bench.bytes_per_s)
                bench.keep("bounds", {"on": name, "bytes_per_s": bound})
            if wanted("pool"):
                bench.schedules("pool", lambda: bench.pool(targets), sides)
            if wanted("large"):
                bench.large(targets, (8 if args.quick else 64) << 20)
            if wanted("rollback"):
                bench.rollback(targets, (4 if args.quick else 16) << 20)
            if wanted("central"):
                some_sides = sides if args.quick else CENTRAL_SIDES
                bench.schedules("central", lambda: bench.pool(targets[:1]), some_sides)
        if wanted("arm"):
            bytes_per_s = ARM_SPEED * bench.bytes_per_s
            with devices.one_arm(folder, bytes_per_s, SEEK_MS) as target:
                bound = devices.bound([target], 3, bytes_per_s)
                bench.keep("bounds", {"on": "arm", "bytes_per_s": bound})
                some_sides = sides if args.quick else ARM_SIDES
                bench.schedules("arm", lambda: bench.pool([target]), some_sides)
        if wanted("hosts"):
            bench.on_hosts(sides if args.quick else HOST_SIDES)
    for line in report.verdict(bench.found):
        print(line)
    if args.docs:
        report.write(bench.found, args.docs)
