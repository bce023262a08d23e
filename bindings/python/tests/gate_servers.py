"""PostgreSQL, Redis and RabbitMQ as sinks of the gate, in the way that docs/gate.md describes."""

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import psycopg
import redis

# It reports each attempt to connect to a server that starts.
logging.getLogger("pika").setLevel(logging.CRITICAL)
# Addresses of the servers: "postgres", "redis" and "rabbit".
WHERE: dict[str, Any] = {}
INSERT = "insert into lines (number) values (%s)"
QUEUE = "lines"
# Sets the key and pushes the line in one step, unless the key is there.
PUSH = """
if redis.call("set", KEYS[1], 1, "NX") then redis.call("rpush", KEYS[2], ARGV[1]) end
"""


def are_installed() -> bool:
    """Returns whether this machine has the servers."""
    programs = ["/usr/lib/rabbitmq/bin/rabbitmq-server", shutil.which("redis-server") or ""]
    has_postgres = any(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return has_postgres and all(Path(program).is_file() for program in programs)


def connect() -> psycopg.Connection[Any]:
    """Connects to PostgreSQL."""
    return psycopg.connect(WHERE["postgres"])


def push(number: int, *, key: str) -> None:
    """Appends a number to a list in Redis, once for each key."""
    try:
        with redis.Redis(unix_socket_path=WHERE["redis"]) as server:
            server.eval(PUSH, 2, key, "lines", str(number))
    except redis.exceptions.ConnectionError as error:
        raise ConnectionError(str(error)) from error


def rabbit() -> pika.BlockingConnection:
    """Connects to RabbitMQ."""
    where = pika.ConnectionParameters("127.0.0.1", WHERE["rabbit"])
    return pika.BlockingConnection(where)


def publish(number: int, *, key: str) -> None:
    """Publishes a number with its key as the id of the message, and waits for the broker."""
    try:
        with rabbit() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish(
                "",
                QUEUE,
                str(number).encode(),
                pika.BasicProperties(message_id=key, delivery_mode=2),
                mandatory=True,
            )
    except pika.exceptions.AMQPConnectionError as error:
        raise ConnectionError(repr(error)) from error


def received() -> dict[str, list[int]]:
    """Returns the numbers that each server has got."""
    with contextlib.closing(connect()) as database:
        rows = database.execute("select number from lines order by id").fetchall()
    with redis.Redis(unix_socket_path=WHERE["redis"]) as server:
        pushed = [int(value) for value in server.lrange("lines", 0, -1)]
    seen: dict[str, int] = {}
    with rabbit() as connection:
        channel = connection.channel()
        while (found := channel.basic_get(QUEUE, auto_ack=True))[0] is not None:
            seen.setdefault(found[1].message_id, int(found[2]))
    return {
        "postgres": [row[0] for row in rows],
        "redis": pushed,
        "rabbit": list(seen.values()),
    }


def wait_until(answers: Callable[[], object], server: "subprocess.Popen[bytes]", log: Path) -> None:
    """Waits until a server answers, or has ended; pytest ends a test that hangs."""
    while True:
        with contextlib.suppress(Exception):
            answers()
            return
        assert server.poll() is None, log.read_text()
        time.sleep(0.01)


@contextlib.contextmanager
def started(
    command: list[str], log: Path, answers: Callable[[], object], **options: Any
) -> Iterator[None]:
    """Starts a server, and ends it and its children."""
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, stdout=out, stderr=out, start_new_session=True, **options
        )
    try:
        wait_until(answers, server, log)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def free_port() -> int:
    """Returns a port of this host that no process uses now."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        port: int = there.getsockname()[1]
    return port


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[dict[str, Any]]:
    """Runs the three servers of Debian, with their data in `folder`."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(postgres(folder / "postgres"))
        stack.enter_context(redis_server(folder / "redis"))
        stack.enter_context(rabbit_server(folder / "rabbit"))
        with contextlib.closing(connect()) as database, database:
            database.execute("create table lines (id serial, number integer)")
        with rabbit() as connection:
            connection.channel().queue_declare(QUEUE, durable=True)
        yield WHERE


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[None]:
    """Runs PostgreSQL, which refuses to run as root."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"))
    folder.mkdir(parents=True)
    user = {}
    if os.getuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
        for parent in folder.parents:
            if parent.stat().st_mode & 0o005 != 0o005 and str(parent).startswith("/tmp/"):
                parent.chmod(parent.stat().st_mode | 0o005)
        user = {"user": "postgres", "group": "postgres"}
    data = folder / "data"
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "lines", "-A", "trust", "--no-sync"],
        check=True,
        capture_output=True,
        cwd=folder,
        **user,
    )
    WHERE["postgres"] = f"host={folder} user=lines dbname=postgres"
    command = [programs / "postgres", "-D", data, "-h", "", "-k", folder]
    log, text = folder.parent / "postgres.log", list(map(str, command))
    with started(text, log, lambda: connect().close(), cwd=folder, **user):
        yield


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[None]:
    """Runs Redis on a socket of the file system."""
    folder.mkdir(parents=True)
    WHERE["redis"] = str(folder / "s")
    command = ["redis-server", "--port", "0", "--unixsocket", WHERE["redis"], "--dir", str(folder)]

    def answers() -> None:
        with redis.Redis(unix_socket_path=WHERE["redis"]) as server:
            server.ping()

    with started([*command, "--appendonly", "yes"], folder.parent / "redis.log", answers):
        yield


@contextlib.contextmanager
def rabbit_server(folder: Path) -> Iterator[None]:
    """Runs RabbitMQ as a single node, without the daemon that finds other nodes."""
    folder.mkdir(parents=True)
    WHERE["rabbit"] = free_port()
    options = {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": "lines@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(WHERE["rabbit"]),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "none"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false",
    }

    def answers() -> None:
        rabbit().close()

    command = ["/usr/lib/rabbitmq/bin/rabbitmq-server"]
    with started(command, folder.parent / "rabbit.log", answers, env={**os.environ, **options}):
        yield
