"""One process that saves and restores a state, told by lines on its standard input.

    python client.py POOL RANK SIZE MIB SERVER

The lines are "prepare", "save", "wipe", "restore", "put", "get" (by `copies`), "restart lazy",
"restart eager", or "often PERCENT PER_S SECONDS". Each reply is one line of JSON: when it began and
ended, by the clock that all processes share, and the memory of the process.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import outlive
from staging.copies import receive

PAGE_WORDS = 512


def rss_bytes(of: str = "self") -> int:
    """Returns the most memory that a process has had, without what it maps of files."""
    text = Path(f"/proc/{of}/status").read_text("utf-8")
    fields = dict(line.split(":", 1) for line in text.splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


class Client:
    """A program with a state."""

    def __init__(self, pool: str, rank: int, size: int, mib: int, server: str) -> None:
        """Opens the job of all ranks."""
        self.pool, self.name, self.server = pool, f"rank{rank}", server
        self.rng = np.random.default_rng(rank)
        self.state = {"a": outlive.zeros(mib << 17)}
        self.words = self.state["a"].view(np.uint64)
        self.size = size
        group = outlive.ranks(rank, size, run=pool) if size > 1 else None
        self.job = outlive.open(pool).job("job", group=group)
        self.stream: socket.socket | None = None

    def prepare(self) -> None:
        """Makes another state of the same length."""
        self.words[:] = self.rng.integers(0, 2**64, len(self.words), dtype=np.uint64)
        self.sum = int(np.bitwise_xor.reduce(self.words))

    def check(self) -> None:
        """Raises unless the state is the one that was saved."""
        if int(np.bitwise_xor.reduce(self.words)) != self.sum:
            raise SystemExit("the state that came back is another one")

    def save(self) -> None:
        """Saves all of it, and waits until it is durable."""
        self.job.save(self.state, wait=True)

    def wipe(self) -> None:
        """Loses the state: what follows brings all of it back."""
        self.words[:] = 0

    def restore(self) -> None:
        """Restores into the same memory."""
        self.job.restore(into=self.state)

    def restart(self, lazy: str) -> dict[str, Any]:
        """Opens the pool and restores as a program that starts, and reads all of it."""
        began = time.monotonic()
        pool = outlive.open(self.pool)
        with pool.job("job") as job:
            tree = job.restore(lazy=lazy == "lazy")
            first = tree["a"][0]
            first_s = time.monotonic() - began
            total = int(np.bitwise_xor.reduce(tree["a"].view(np.uint64)))
            all_s = time.monotonic() - began
        del first
        return {"first_s": first_s, "all_s": all_s, "sum": total}

    def copy(self, way: str) -> None:
        """Sends the state to a file of a server, or gets it from there."""
        if self.stream is None:
            host, port = self.server.split(":")
            self.stream = socket.create_connection((host, int(port)))
        view = self.words.view(np.uint8).data
        self.stream.sendall(f"{way} {self.name} {len(view)}\n".encode())
        if way == "get":
            receive(self.stream, view)
        else:
            self.stream.sendall(view)
            receive(self.stream, memoryview(bytearray(1)))

    def often(self, percent: float, per_s: float, seconds: float) -> dict[str, Any]:
        """Changes a part of the pages and saves, several times a second."""
        pages = len(self.words) // PAGE_WORDS
        changed = max(1, int(pages * percent / 100))
        stalls: list[float] = []
        durable: list[float] = []
        saves: list[tuple[float, Any]] = []

        def note(began: float, _: object) -> None:
            durable.append(time.monotonic() - began)

        ends = time.monotonic() + seconds
        due = time.monotonic()
        while time.monotonic() < ends:
            at = self.rng.integers(0, pages, changed) * PAGE_WORDS
            self.words[at] += np.uint64(1)
            began = time.monotonic()
            save = self.job.save(self.state)
            stalls.append(time.monotonic() - began)
            saves.append((began, save))
            save.add_done_callback(partial(note, began))
            due += 1 / per_s
            time.sleep(max(0.0, due - time.monotonic()))
        late = max(0.0, time.monotonic() - due)
        saves[-1][1].wait()
        self.sum = int(np.bitwise_xor.reduce(self.words))
        half = len(durable) // 2
        return {
            "saves": len(saves),
            "late_s": late,
            "stall_ms": 1000 * float(np.median(stalls)),
            "durable_ms": 1000 * float(np.median(durable)),
            "durable_ms_first_half": 1000 * float(np.median(durable[:half])),
            "durable_ms_last_half": 1000 * float(np.median(durable[half:])),
        }

    def do(self, line: str) -> dict[str, Any]:
        """Does what a line says."""
        word, *rest = line.split()
        began = time.monotonic()
        more: dict[str, Any] = {}
        if word in ("put", "get"):
            self.copy(word)
        elif word == "often":
            more = self.often(*map(float, rest))
        elif word == "restart":
            more = self.restart(*rest)
        else:
            more = getattr(self, word)() or {}
        ended = time.monotonic()
        if word in ("restore", "get"):
            self.check()
        return {"began": began, "ended": ended, "rss": rss_bytes(), **more}


def main() -> None:
    """Does each line, and says when."""
    pool, rank, size, mib, server = sys.argv[1:]
    client = Client(pool, int(rank), int(size), int(mib), server)
    client.prepare()
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        print(json.dumps(client.do(line)), flush=True)


if __name__ == "__main__":
    main()
