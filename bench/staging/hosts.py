"""Hosts of a small network: network namespaces on one bridge."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from striped.devices import command

# Addresses that other networks of a machine hardly use.
NETWORK = "10.213.77"


@dataclass(frozen=True)
class Host:
    """A network namespace with an address of its own."""

    name: str
    address: str

    def words(self, *words: object) -> list[str]:
        """Returns the words of a command that runs a program on this host."""
        return ["ip", "netns", "exec", self.name, *map(str, words)]

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Starts a program whose input and output are pipes."""
        pipe = subprocess.PIPE
        return subprocess.Popen(self.words(*words), stdin=pipe, stdout=pipe, text=True)

    def link(self, state: str) -> None:
        """Sets the host's link "up" or "down"."""
        command("ip", "link", "set", f"{self.name}b", state)


@contextlib.contextmanager
def network(count: int) -> Iterator[list[Host]]:
    """Yields hosts that reach each other."""
    base = f"ol{os.getpid() % 10_000}"
    bridge = f"{base}br"
    with contextlib.ExitStack() as undo:
        command("ip", "link", "add", bridge, "type", "bridge")
        undo.callback(command, "ip", "link", "del", bridge)
        command("ip", "link", "set", bridge, "up")
        hosts = []
        for number in range(count):
            host = Host(f"{base}n{number}", f"{NETWORK}.{number + 1}")
            command("ip", "netns", "add", host.name)
            undo.callback(command, "ip", "netns", "del", host.name)
            outer, inner = f"{host.name}b", f"{host.name}a"
            command("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
            command("ip", "link", "set", outer, "master", bridge, "up")
            command("ip", "link", "set", inner, "netns", host.name)
            command(*host.words("ip", "addr", "add", f"{host.address}/24", "dev", inner))
            for device in (inner, "lo"):
                command(*host.words("ip", "link", "set", device, "up"))
            hosts.append(host)
        yield hosts
