"""A network that bounds each connection, as those of public clouds do: how much outlive gets.

    .venv/bin/python bench/staging/flows.py DIR [--mib 1024] [--mb-per-s 25] [--json]

A node and a machine with a command are network namespaces. Files are in a folder in DIR, which
should be in memory, and are deleted at the end. `tc` gives each connection `--mb-per-s` in each
direction. `outlive put` and `get` of a file of noise, with two and with eight connections, follow
plain connections that send for some seconds, one and eight of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH))

from staging import hosts  # noqa: E402
from staging.main import PORT, Cluster  # noqa: E402
from striped import devices  # noqa: E402

# Connections are told apart by the client's port, which Linux chooses among the even ones.
CLASSES = 128
MOST = 8
SECONDS = 3

SENDER = """
import socket, sys, threading, time
address, count, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
sent, block = [0] * count, bytes(256 << 10)
streams = [socket.create_connection((address, 9000)) for _ in range(count)]
ends = time.monotonic() + seconds
def send(number):
    while time.monotonic() < ends:
        sent[number] += streams[number].send(block)
threads = [threading.Thread(target=send, args=(number,)) for number in range(count)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(sent) / seconds / 1e6)
"""

RECEIVER = """
import socket, sys, threading
server = socket.create_server((sys.argv[1], 9000))
print("ready", flush=True)
def receive(stream):
    block = bytearray(1 << 20)
    while stream.recv_into(block): pass
while True:
    threading.Thread(target=receive, args=(server.accept()[0],), daemon=True).start()
"""


def bound(host: hosts.Host, client_port: str, mb_per_s: float) -> None:
    """Gives each connection through the device of a host this rate, in the direction out of it."""
    device, rate = f"{host.name}a", f"{mb_per_s * 8:.0f}mbit"
    most = ["burst", "256k", "cburst", "256k", "quantum", "60000"]
    lines = [f"qdisc add dev {device} root handle 1: htb r2q 1000"]
    for number in range(CLASSES):
        flow = f"1:{number + 16:x}"
        parent = f"dev {device} parent 1:"
        lines.append(f"class add {parent} classid {flow} htb rate {rate} {' '.join(most)}")
        match = f"u32 match ip {client_port} {2 * number} {2 * (CLASSES - 1):#x}"
        lines.append(f"filter add {parent} protocol ip prio 1 {match} flowid {flow}")
    for line in lines:
        devices.command(*host.words("tc", *line.split()))


def plain(node: hosts.Host, client: hosts.Host, count: int) -> float:
    """Returns what this many plain connections carry, in MB/s."""
    words = client.words(sys.executable, "-c", SENDER, node.address, count, SECONDS)
    return float(devices.command(*words))


def timed(*words: object) -> float:
    """Runs a command; returns its seconds."""
    begun = time.perf_counter()
    devices.command(*words)
    return time.perf_counter() - begun


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Returns all figures, in MB/s."""
    noise, back, disk = folder / "noise", folder / "back", folder / "disk"
    disk.mkdir()
    with hosts.network(2) as (node, client):
        cluster = Cluster(folder, [node], [client])
        receiver = node.start(sys.executable, "-c", RECEIVER, node.address)
        try:
            cluster.start_nodes([disk], "64MiB")
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "ready\n"
            bound(client, "sport", args.mb_per_s)
            bound(node, "dport", args.mb_per_s)
            found: dict[str, Any] = {"each_mb_per_s": args.mb_per_s, "mib": args.mib}
            for count in (1, MOST):
                found[f"plain_{count}_mb_per_s"] = plain(node, client, count)
            pool = f"node://{node.address}:{PORT}/pool"
            devices.command(*client.words(cluster.outlive, "pool", "init", pool))
            for count in (2, MOST):
                outlive = ["env", f"OUTLIVE_NODE_CONNECTIONS={count}", cluster.outlive]
                job = f"noise-{count}"
                noise.write_bytes(os.urandom(args.mib << 20))
                seconds = {
                    "put": timed(*client.words(*outlive, "put", pool, job, noise)),
                    "get": timed(*client.words(*outlive, "get", pool, job, "--to", back)),
                }
                assert (back / "noise").read_bytes() == noise.read_bytes()
                (back / "noise").unlink()
                for name, took in seconds.items():
                    found[f"{name}_{count}_mb_per_s"] = (args.mib << 20) / took / 1e6
            return found
        finally:
            receiver.kill()
            receiver.communicate()
            cluster.stop()


def main() -> None:
    """Runs the bench from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir", type=Path, help="directory, in memory")
    parser.add_argument("--mib", type=int, default=1024, help="size of the file")
    parser.add_argument("--mb-per-s", type=float, default=25, help="bound of a connection")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        found = measure(Path(folder), args)
    if args.json:
        print(json.dumps(found))
        return
    print(f"each connection: {found['each_mb_per_s']:.0f} MB/s; a file of {found['mib']} MiB")
    for count in (1, MOST):
        print(f"plain connections, {count}: {found[f'plain_{count}_mb_per_s']:.0f} MB/s")
    for name, count in itertools.product(("put", "get"), (2, MOST)):
        rate = found[f"{name}_{count}_mb_per_s"]
        print(f"outlive {name} with {count} connections, from begin to end: {rate:.0f} MB/s")


if __name__ == "__main__":
    main()
