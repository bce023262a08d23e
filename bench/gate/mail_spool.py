"""A small mail server, and clients that send to it: many users, one Maildir each.

    python bench/gate/mail_spool.py serve FOLDER          prints its port, serves until SIGTERM
    python bench/gate/mail_spool.py send PORT [--seconds 5] [--clients 8]

The server writes each message to `tmp`, syncs it, renames it to `new`, syncs that directory, and
replies. A third of the requests read a user's newest message. A request is one line: `MAIL user
bytes` and the message, or `READ user`.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import socketserver
import sys
import threading
import time
from pathlib import Path

USERS = 200


class Delivery(socketserver.BaseRequestHandler):
    """One connection."""

    folder = Path()

    def handle(self) -> None:
        """Serves requests until the client closes the connection."""
        connection: socket.socket = self.request
        pending = b""
        number = 0
        while True:
            while b"\n" not in pending:
                received = connection.recv(65536)
                if not received:
                    return
                pending += received
            line, _, pending = pending.partition(b"\n")
            words = line.decode().split()
            maildir = self.folder / words[1]
            if words[0] == "READ":
                newest = max((maildir / "new").iterdir(), default=None, key=lambda path: path.name)
                message = newest.read_bytes() if newest else b""
                connection.sendall(b"%d\n" % len(message) + message)
                continue
            while len(pending) < int(words[2]):
                pending += connection.recv(65536)
            message, pending = pending[: int(words[2])], pending[int(words[2]) :]
            number += 1
            deliver(maildir, f"{time.monotonic_ns()}.{threading.get_native_id()}.{number}", message)
            connection.sendall(b"250\n")


def deliver(maildir: Path, name: str, message: bytes) -> None:
    """Stores a message, which is durable when this returns."""
    with (maildir / "tmp" / name).open("wb", buffering=0) as file:
        file.write(message)
        os.fsync(file.fileno())
    (maildir / "tmp" / name).rename(maildir / "new" / name)
    directory = os.open(maildir / "new", os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def serve(folder: Path) -> None:
    """Serves on a free port until SIGTERM."""
    for user in range(USERS):
        for part in ("tmp", "new"):
            (folder / f"user{user}" / part).mkdir(parents=True)
    Delivery.folder = folder
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Delivery)
    server.daemon_threads = True
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    print(server.server_address[1], flush=True)
    server.serve_forever()


def send(port: int, seconds: float, clients: int) -> None:
    """Sends and reads messages until the time is over."""
    ends = time.monotonic() + seconds

    def client(number: int) -> None:
        chance = random.Random(number)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            replies = connection.makefile("rb")
            while time.monotonic() < ends:
                user = f"user{chance.randrange(USERS)}"
                if chance.random() < 1 / 3:
                    connection.sendall(f"READ {user}\n".encode())
                    replies.read(int(replies.readline()))
                else:
                    message = b"x" * int(min(chance.lognormvariate(8, 1), 200_000))
                    connection.sendall(f"MAIL {user} {len(message)}\n".encode() + message)
                    replies.readline()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Runs one of the two parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    server = parts.add_parser("serve")
    server.add_argument("folder", type=Path)
    client = parts.add_parser("send")
    client.add_argument("port", type=int)
    client.add_argument("--seconds", type=float, default=5.0)
    client.add_argument("--clients", type=int, default=8)
    args = parser.parse_args()
    if args.part == "serve":
        serve(args.folder)
    else:
        send(args.port, args.seconds, args.clients)


if __name__ == "__main__":
    main()
