"""Starts the programs that are recorded, with the preloaded library, in folders of their own.

All servers listen on the loopback, or on a socket in their folder, and end with the context.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gate import tpcc

HERE = Path(__file__).resolve().parent
WAIT_S = 30.0
TPCB_SCALE = 10


def command(words: Sequence[object], env: Mapping[str, str] | None = None) -> str:
    """Returns the output of a command; raises SystemExit with its errors if it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.stdout}")
    return done.stdout


def find(name: str, package: str) -> str:
    """Returns the path of a program; raises SystemExit if it is not installed."""
    servers = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, servers), "/usr/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise SystemExit(f"bench/gate needs {name}: install the Debian package {package}")
    return found


def build_shim(folder: Path) -> Path:
    """Compiles the preloaded library into a folder that all users can read."""
    library = folder / "shim.so"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command(["cc", *flags, "-o", library, HERE / "shim.c", "-ldl", "-lpthread"])
    library.chmod(0o755)
    return library


def recorded(shim: Path, recording: Path) -> dict[str, str]:
    """Returns the variables that record a program into a folder."""
    return {"LD_PRELOAD": str(shim), "OUTLIVE_SHIM_FOLDER": str(recording)}


def delayed(shim: Path, delay_ms: float) -> dict[str, str]:
    """Returns the variables that make each sync of a program take longer."""
    return {"LD_PRELOAD": str(shim), "OUTLIVE_SHIM_DELAY_US": str(round(delay_ms * 1000))}


def free_port() -> int:
    """Returns a free port of the loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert isinstance(port, int)
        return port


class Postgres:
    """A cluster of PostgreSQL in a folder. As root, the user `postgres` owns and runs it."""

    def __init__(self, folder: Path) -> None:
        """Makes the cluster."""
        self.folder = folder
        self.data = folder / "data"
        folder.mkdir()
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        initdb = find("initdb", "postgresql")
        command([*self._as_owner({}), initdb, "-D", self.data, "-U", "postgres", "-A", "trust"])

    def _as_owner(self, variables: Mapping[str, str]) -> list[str]:
        words = ["env", *(f"{name}={value}" for name, value in variables.items())]
        return ["runuser", "-u", "postgres", "--", *words] if os.geteuid() == 0 else words

    @contextlib.contextmanager
    def running(self, variables: Mapping[str, str]) -> Iterator[None]:
        """Runs the server with these variables in its environment."""
        control = find("pg_ctl", "postgresql")
        options = f"-c listen_addresses= -c unix_socket_directories={self.folder}"
        start = [control, "-D", self.data, "-w", "-l", self.folder / "log", "-o", options, "start"]
        command([*self._as_owner(variables), *start])
        try:
            yield
        finally:
            command([*self._as_owner({}), control, "-D", self.data, "-w", "-m", "fast", "stop"])

    def pgbench(self, *words: object) -> str:
        """Returns what pgbench prints."""
        pgbench = find("pgbench", "postgresql-contrib")
        where = ["-h", self.folder, "-U", "postgres"]
        return command([pgbench, *where, *words, "postgres"])

    def tpcb_tables(self) -> None:
        """Makes the tables of TPC-B, while the server is stopped."""
        with self.running({}):
            self.pgbench("-i", "-q", "-s", TPCB_SCALE)

    def tpcb(self, clients: int, seconds: float) -> float:
        """Runs TPC-B, and returns the transactions per second."""
        output = self.pgbench("-n", "-c", clients, "-j", 1, "-T", max(1, round(seconds)))
        line = next(line for line in output.splitlines() if line.startswith("tps ="))
        return float(line.split()[2])

    def tpcc_tables(self) -> None:
        """Makes the tables of the load like TPC-C."""
        where = ["-h", self.folder, "-U", "postgres", "-v", "ON_ERROR_STOP=1"]
        script = self.folder / "schema.sql"
        script.write_text(tpcc.SCHEMA)
        command([find("psql", "postgresql-client"), *where, "-q", "-f", script, "postgres"])

    def tpcc(self, clients: int, seconds: float) -> None:
        """Runs the load like TPC-C. Transactions that a deadlock ended are run again."""
        length = ["-c", clients, "-j", 1, "-T", max(1, round(seconds)), "--max-tries", 10]
        self.pgbench("-n", *length, *tpcc.write(self.folder))


@contextlib.contextmanager
def child(words: Sequence[object], variables: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Runs a server, which SIGTERM ends."""
    environment = {**os.environ, **variables}
    process = subprocess.Popen(
        [str(word) for word in words], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)


NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
{user}
events {{ worker_connections 64; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000;
    server {{ listen 127.0.0.1:{port}; root {folder}/html; }}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path, port: int, variables: Mapping[str, str]) -> Iterator[str]:
    """Runs nginx with an access log, and yields the address of a file of 8 KiB."""
    (folder / "html").mkdir(parents=True)
    (folder / "html" / "page").write_bytes(b"x" * 8192)
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "conf").write_text(NGINX.format(folder=folder, port=port, user=user))
    with child([find("nginx", "nginx"), "-c", folder / "conf"], variables):
        address = f"http://127.0.0.1:{port}/page"
        ends = time.monotonic() + WAIT_S
        while True:
            try:
                urllib.request.urlopen(address, timeout=WAIT_S).close()
                break
            except OSError:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.05)
        yield address


@contextlib.contextmanager
def mail(folder: Path, variables: Mapping[str, str]) -> Iterator[int]:
    """Runs the mail server of this bench, and yields its port."""
    with child([sys.executable, HERE / "mail_spool.py", "serve", folder], variables) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline())


SQLITE_ACCOUNTS = 1000


def sqlite(database: Path, transactions: int, variables: Mapping[str, str]) -> None:
    """Runs transactions of SQLite with its defaults, each of an update and an insert."""
    tool = find("sqlite3", "sqlite3")
    lines = ["CREATE TABLE a(id INTEGER PRIMARY KEY, n INTEGER); CREATE TABLE h(id, n);", "BEGIN;"]
    lines += [f"INSERT INTO a VALUES({number}, 0);" for number in range(SQLITE_ACCOUNTS)]
    lines += ["COMMIT;"]
    for number in range(transactions):
        account = number * 7919 % SQLITE_ACCOUNTS
        lines.append(
            f"BEGIN; UPDATE a SET n = n + 1 WHERE id = {account};"
            f" INSERT INTO h VALUES({account}, {number}); COMMIT;"
        )
    script = "\n".join(lines)
    environment = {**os.environ, **variables}
    subprocess.run([tool, str(database)], input=script, text=True, check=True, env=environment)
