"""Runs a program with outputs, kills it at random moments, and compares what every sink has got.

usage: gate_nursery.py FOLDER KILLS SEED gate|bare [SERVERS]

Each life is a fork of this process, which has no threads. A receiver process takes lines by a
socket, and ignores keys that it knows. The last line of the output is a JSON object with the
faults: lines that a sink lacks, has twice, or has out of order. With SERVERS, the JSON object of
gate_servers.py, the program also sends to PostgreSQL, Redis and RabbitMQ.
"""

import json
import os
import random
import signal
import socket
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import event_files
import gate_servers
import numpy as np

import outlive

EVERY_PUBLISH = 7


def receive(server: socket.socket, path: Path) -> None:
    """Takes lines "KEY NUMBER" from one program at a time, and writes the numbers to a file."""
    seen: set[str] = set()
    with path.open("a") as out:
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("r") as lines:
                try:
                    for line in lines:
                        key, _, number = line.strip().partition(" ")
                        if not number:  # a program that was killed inside a line
                            break
                        if key not in seen:
                            seen.add(key)
                            out.write(f"{number}\n")
                            out.flush()
                        connection.sendall(b"ok\n")
                except OSError:
                    continue


PORT = 0


def post(number: int, *, key: str) -> None:
    """Sends a number to the receiver, and waits until it has it."""
    with socket.create_connection(("127.0.0.1", PORT)) as connection:
        connection.sendall(f"{key} {number}\n".encode())
        if connection.recv(16) != b"ok\n":
            raise ConnectionError("the receiver has not answered")


def connect(folder: Path) -> sqlite3.Connection:
    """Connects to the database."""
    return sqlite3.connect(folder / "lines.db", timeout=60)


INSERT = "insert into lines (number) values (?)"


def gated(folder: Path, state: dict[str, Any], last: int | None) -> None:
    """Runs with the gate, until step `last` or forever."""
    job = outlive.open(folder / "pool").job("lines", keep_last=3)
    job.restore(into=state)
    gate = job.gate()
    lines = gate.open(folder / "lines.txt")
    writer = gate.summary_writer(folder / "runs")
    database = gate.transaction(lambda: connect(folder))
    postgres = None
    if gate_servers.WHERE:
        postgres = gate.transaction(gate_servers.connect, name="postgres")
    while last is None or state["step"] < last:
        advance(state)
        step = state["step"]
        print(step, file=lines)
        writer.add_scalar("step", step, step)
        writer.add_scalars("both", {"step": step, "half": step / 2}, step)
        gate.call(post, step, key=True)
        with database as transaction:
            transaction.execute(INSERT, (step,))
        if postgres is not None:
            with postgres as transaction:
                transaction.execute(gate_servers.INSERT, (step,))
            gate.call(gate_servers.push, step, key=True)
            gate.call(gate_servers.publish, step, key=True)
        if step % EVERY_PUBLISH == 0:
            (folder / "tmp").write_text(str(step))
            gate.publish(folder / "tmp", folder / "published")
        job.save(state)
    if last is not None:
        gate.flush(state)
        job.close()


def bare(folder: Path, state: dict[str, Any], last: int | None) -> None:
    """Runs without a gate, in the same way."""
    job = outlive.open(folder / "pool").job("lines", keep_last=3)
    job.restore(into=state)
    database = connect(folder)
    with (folder / "lines.txt").open("a") as lines:
        while last is None or state["step"] < last:
            advance(state)
            step = state["step"]
            print(step, file=lines, flush=True)
            post(step, key=f"{os.getpid()}-{step}")
            database.execute(INSERT, (step,))
            database.commit()
            if step % EVERY_PUBLISH == 0:
                (folder / "tmp").write_text(str(step))
                (folder / "tmp").rename(folder / "published")
            job.save(state)
        job.save(state, wait=True)
        job.close()


def advance(state: dict[str, Any]) -> None:
    state["step"] += 1
    state["u"][state["step"] % len(state["u"])] = state["step"]


def live(run: Any, folder: Path, last: int | None) -> int:
    """Runs the program in a forked child; returns its id."""
    child = os.fork()
    if child:
        return child
    try:
        run(folder, {"step": 0, "u": np.zeros(1 << 14)}, last)
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        code = 1
    # Exit functions of this process are not the child's.
    os._exit(code)


def faults(folder: Path, last: int) -> dict[str, int]:
    """Counts, by sink, the lines that differ from those of an undisturbed run."""
    want = [*range(1, last + 1)]
    rows = connect(folder).execute("select number from lines order by rowid").fetchall()
    got = {
        "file": [int(line) for line in (folder / "lines.txt").read_text().split()],
        "socket": [int(line) for line in (folder / "received").read_text().split()],
        "database": [row[0] for row in rows],
        "published": [int((folder / "published").read_text())],
    }
    if gate_servers.WHERE:
        got |= gate_servers.received()
    runs = {"events": ".", "events below": "both_half"} if (folder / "runs").exists() else {}
    for name, below in runs.items():
        entries = event_files.read(folder / "runs" / below / event_files.NAME)
        got[name] = [event.step for event in entries if event.version is None]
        # The first event says the version, and no other.
        got[name] += [0] * ([event.version for event in entries].count(event_files.VERSION) - 1)
    counts = {}
    for sink, numbers in got.items():
        right = [last // EVERY_PUBLISH * EVERY_PUBLISH] if sink == "published" else want
        wrong = sum(1 for a, b in zip(numbers, right, strict=False) if a != b)
        counts[sink] = wrong + abs(len(numbers) - len(right))
    return counts


def main() -> None:
    """Kills again and again, lets the program end, and prints the faults."""
    global PORT
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    run = {"gate": gated, "bare": bare}[sys.argv[4]]
    gate_servers.WHERE.update(json.loads(sys.argv[5]) if len(sys.argv) > 5 else {})
    folder.mkdir(parents=True, exist_ok=True)
    with connect(folder) as database:
        database.execute("create table lines (number integer)")
    server = socket.create_server(("127.0.0.1", 0))
    PORT = server.getsockname()[1]
    receiver = os.fork()
    if receiver == 0:
        receive(server, folder / "received")
    server.close()
    chance = random.Random(seed)
    alive = 0
    for _ in range(kills):
        child = live(run, folder, None)
        time.sleep(chance.choice((0.02, 0.1, 0.2)) * chance.random())
        alive += os.waitpid(child, os.WNOHANG) == (0, 0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    state = {"step": 0, "u": np.zeros(1 << 14)}
    # In a child: the parent of a fork has no threads.
    child = os.fork()
    if child == 0:
        outlive.open(folder / "pool").job("lines").restore(into=state)
        (folder / "reached").write_text(str(state["step"]))
        os._exit(0)
    os.waitpid(child, 0)
    # Leftovers go with the second publication, after a commit.
    last = int((folder / "reached").read_text()) + 3 * EVERY_PUBLISH
    status = os.waitpid(live(run, folder, last), 0)[1]
    os.kill(receiver, signal.SIGKILL)
    os.waitpid(receiver, 0)
    result = {"code": os.waitstatus_to_exitcode(status), "alive": alive, "last": last}
    left = [entry.name for entry in folder.iterdir() if entry.name.endswith(".gate")]
    print(json.dumps({**result, "faults": faults(folder, last), "left": left}))


if __name__ == "__main__":
    main()
