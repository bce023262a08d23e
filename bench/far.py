"""A proxy on loopback that simulates a far server: late requests, slow connections."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

PIECE_BYTES = 256 << 10


class Far:
    """Passes connections on to a port of this machine.

    Each request comes `late_s` late, and a connection passes at most `bytes_per_s` each way. So the
    rate depends on the number of requests under way. The kernel passes the bytes on, so the proxy
    takes little of the processor. Its threads end with the program.
    """

    def __init__(self, to_port: int, late_s: float, bytes_per_s: float) -> None:
        """Starts to accept connections, at `port`."""
        self._to_port, self._late_s, self._bytes_per_s = to_port, late_s, bytes_per_s
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client = self._listener.accept()[0]
            server = socket.create_connection(("127.0.0.1", self._to_port))
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answered = threading.Event()
            answered.set()
            for work in (
                lambda c=client, s=server, a=answered: self._pass(c, s, a, to_server=True),
                lambda c=client, s=server, a=answered: self._pass(s, c, a, to_server=False),
            ):
                threading.Thread(target=work, daemon=True).start()

    def _pass(
        self, from_: socket.socket, to: socket.socket, answered: threading.Event, *, to_server: bool
    ) -> None:
        out, into = os.pipe()
        free_at = 0.0
        with contextlib.suppress(OSError):
            while count := os.splice(from_.fileno(), into, PIECE_BYTES):
                if not to_server:
                    answered.set()
                elif answered.is_set():
                    # The first bytes of the next request.
                    answered.clear()
                    time.sleep(self._late_s)
                now = time.perf_counter()
                free_at = max(free_at, now) + count / self._bytes_per_s
                left = count
                while left:
                    left -= os.splice(out, to.fileno(), left)
                if free_at > now:
                    time.sleep(free_at - now)
        os.close(out)
        os.close(into)
        for end in (from_, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
