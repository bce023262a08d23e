"""Records traces of real programs for `outlive-bench gate`.

    python bench/gate/record.py all [FOLDER]                 every trace in bench/gate/traces
    python bench/gate/record.py one OUT -- COMMAND WORD…     any program and its children

A preloaded library (`shim.c`) writes down each write, sync, read, send and receive. `all` starts
PostgreSQL, nginx, a mail server and SQLite in a temporary folder, under load, and needs Debian's
packages postgresql, postgresql-contrib, nginx, apache2-utils and sqlite3. Statically linked
programs cannot be recorded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gate import programs, trace

TRACES = Path(__file__).resolve().parent / "traces"
# Time of a load before the part that is kept.
WARM_UP_S = 1.0
LOAD_S = 4.0
CLIENTS = 8
SQLITE_TRANSACTIONS = 400


class Recorder:
    """Records one program after the other into a folder of traces."""

    def __init__(self, work: Path, out: Path, operations_max: int) -> None:
        """Compiles the library."""
        self.work, self.out, self.operations_max = work, out, operations_max
        self.shim = programs.build_shim(work)
        out.mkdir(parents=True, exist_ok=True)

    def folder(self, name: str) -> Path:
        """Returns a new folder for a recording, which servers of other users can write."""
        folder = self.work / f"{name}-recording"
        folder.mkdir()
        folder.chmod(0o1777)
        return folder

    def write(self, name: str, program: str, recording: Path, from_ns: int, **how: bool) -> None:
        """Writes a trace of what was recorded since `from_ns`."""
        text = trace.trace(
            trace.read_folder(recording),
            program,
            from_ns=from_ns,
            operations_max=self.operations_max,
            root=str(self.work),
            **how,
        )
        file = self.out / f"{name}.trace"
        file.write_text(text, encoding="utf-8")
        print(f"{file}: {text.count(chr(10))} lines, {file.stat().st_size} bytes", file=sys.stderr)

    def under_load(self, load: Callable[[float], object]) -> int:
        """Runs a load twice: to warm up, then to be kept. Returns the start of the second one."""
        load(WARM_UP_S)
        begin_ns = time.monotonic_ns()
        load(LOAD_S)
        return begin_ns

    def tpcb(self, server: programs.Postgres, clients: int, name: str) -> None:
        """PostgreSQL under TPC-B, on a cluster that `tpcb_tables` has made."""
        recording = self.folder(name)
        with server.running(programs.recorded(self.shim, recording)):
            begin = self.under_load(lambda seconds: server.tpcb(clients, seconds))
        self.write(name, f"PostgreSQL, pgbench (TPC-B), clients: {clients}", recording, begin)

    def tpcc(self) -> None:
        """PostgreSQL under TPC-C."""
        recording = self.folder("postgresql-tpcc")
        server = programs.Postgres(self.work / "postgresql-tpcc")
        with server.running({}):
            server.tpcc_tables()
        with server.running(programs.recorded(self.shim, recording)):
            begin = self.under_load(lambda seconds: server.tpcc(CLIENTS, seconds))
        what = f"PostgreSQL, a load like TPC-C, clients: {CLIENTS}"
        self.write("postgresql-tpcc", what, recording, begin)

    def nginx(self) -> None:
        """Nginx with an access log."""
        recording = self.folder("nginx")
        port = programs.free_port()
        bench = programs.find("ab", "apache2-utils")
        variables = programs.recorded(self.shim, recording)
        with programs.nginx(self.work / "nginx", port, variables) as address:
            begin = self.under_load(
                lambda seconds: programs.command(
                    [bench, "-q", "-k", "-c", CLIENTS, "-t", round(seconds), address]
                )
            )
        what = f"nginx, 8 KiB files and an access log, clients: {CLIENTS}"
        self.write("nginx", what, recording, begin, connections=True)

    def mail(self) -> None:
        """A mail server with a Maildir for each user."""
        recording = self.folder("mail")
        tool = Path(programs.HERE / "mail_spool.py")
        with programs.mail(self.work / "mail", programs.recorded(self.shim, recording)) as port:
            begin = self.under_load(
                lambda seconds: programs.command(
                    [sys.executable, tool, "send", port, "--seconds", seconds]
                )
            )
        self.write("mail", f"mail server, Maildirs, clients: {CLIENTS}", recording, begin)

    def sqlite(self) -> None:
        """SQLite with a rollback journal."""
        recording = self.folder("sqlite")
        variables = programs.recorded(self.shim, recording)
        programs.sqlite(self.work / "sqlite.db", SQLITE_TRANSACTIONS, variables)
        self.write("sqlite", "SQLite, one update and one insert each", recording, 0)


def record_all(out: Path, operations_max: int) -> None:
    """Makes every trace again."""
    with tempfile.TemporaryDirectory(prefix="outlive-gate-") as name:
        work = Path(name)
        # Servers of other users reach their own folders in it.
        work.chmod(0o755)
        recorder = Recorder(work, out, operations_max)
        server = programs.Postgres(work / "postgresql-tpcb")
        server.tpcb_tables()
        for clients in (1, CLIENTS):
            recorder.tpcb(server, clients, f"postgresql-tpcb-{clients}")
        recorder.tpcc()
        recorder.nginx()
        recorder.mail()
        recorder.sqlite()


def record_one(out: Path, words: list[str], operations_max: int, connections: bool) -> int:
    """Records a command, and returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="outlive-gate-") as name:
        work = Path(name)
        recording = work / "recording"
        recording.mkdir()
        variables = programs.recorded(programs.build_shim(work), recording)
        code = subprocess.run(words, env={**os.environ, **variables}).returncode
        text = trace.trace(
            trace.read_folder(recording),
            " ".join(words),
            operations_max=operations_max,
            connections=connections,
        )
        out.write_text(text, encoding="utf-8")
    return code


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--operations", type=int, default=8000, help="number of operations to keep (default: 8000)"
    )
    parser.add_argument(
        "--connections", action="store_true", help="take connections as flows, not threads"
    )
    what = parser.add_subparsers(dest="what", required=True)
    every = what.add_parser("all", help="record every program of this bench")
    every.add_argument("folder", type=Path, nargs="?", default=TRACES)
    one = what.add_parser("one", help="record a command")
    one.add_argument("out", type=Path)
    one.add_argument("words", nargs="+")
    args = parser.parse_args()
    if args.what == "all":
        record_all(args.folder, args.operations)
    else:
        sys.exit(record_one(args.out, args.words, args.operations, args.connections))


if __name__ == "__main__":
    main()
