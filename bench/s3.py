"""Saves to and restores from a real S3 server, against plain concurrent requests of 8 MiB to it.

It starts versitygw on this machine, with its data in DIR, and takes turns: plain PUTs, a first save
to a new pool, plain GETs, a restore. It prints the medians of the figures, and the medians of the
ratios within a round.

    .venv/bin/python bench/s3.py DIR [--gib 1] [--rounds 5] [--threads 16]

A server on the same cores takes most of the processor from its client, unlike a separate server.
These options show other limits than the processor:

- `--apart`: the server has the last core for itself; plain requests and outlive the others.
- `--mbit 2000`: the network passes no more than 2000 Mbit/s (a network namespace, `tc`).
- `--far 20,25`: each request comes 20 ms late, and a connection passes 25 MB/s (bench/far.py).

These options change the requests, outlive's and the plain ones alike:

- `--unsigned`: no request is signed together with its body; outlive sends a CRC along instead.
- `--ranges`: the plain GETs get ranges of 8 MiB of objects of 64 MiB, as a restore does.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import hmac
import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import outlive
from far import Far

ROOT = Path(__file__).parents[1]
ACCESS, SECRET, REGION, BUCKET = "outlive", "outlive-secret", "us-east-1", "ckpt"
REQUEST_BYTES = 8 << 20
# Set where the network is limited already.
WITHIN = "OUTLIVE_BENCH_WITHIN"


@contextlib.contextmanager
def server(folder: Path, cores: set[int]) -> Iterator[tuple[int, int]]:
    """Starts a server with an empty bucket on these cores; yields its port and its process."""
    program = subprocess.run(
        [ROOT / "scripts/versitygw"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    (folder / BUCKET).mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--access", ACCESS, "--secret", SECRET, "--quiet", "--keep-alive"]
    place = ["--port", f"127.0.0.1:{port}", "posix", str(folder)]
    with subprocess.Popen([program, *words, *place], stdout=subprocess.DEVNULL) as process:
        try:
            os.sched_setaffinity(process.pid, cores)
            while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
                assert process.poll() is None, "the server ended"
                time.sleep(0.01)
            yield port, process.pid
        finally:
            process.kill()


def headers(
    method: str, port: int, path: str, body: memoryview | bytes, unsigned: bool
) -> dict[str, str]:
    """Returns a request's headers, signed by AWS Signature Version 4, with its body or without."""
    body_digest = "UNSIGNED-PAYLOAD" if unsigned else hashlib.sha256(body).hexdigest()
    now = datetime.datetime.now(datetime.UTC)
    day, second = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ")
    named = {"host": f"127.0.0.1:{port}", "x-amz-content-sha256": body_digest, "x-amz-date": second}
    names = ";".join(named)
    lines = "".join(f"{name}:{value}\n" for name, value in named.items())
    request = f"{method}\n{path}\n\n{lines}\n{names}\n{body_digest}"
    scope = f"{day}/{REGION}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{SECRET}".encode()
    for word in [*scope.split("/"), f"AWS4-HMAC-SHA256\n{second}\n{scope}\n{digest}"]:
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    credential = f"Credential={ACCESS}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    return {**named, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}


class Plain(NamedTuple):
    """Form of the plain requests."""

    port: int
    requests: int
    threads: int
    unsigned: bool
    # Number of objects; one request gets a range of one.
    objects: int

    def path(self, number: int) -> str:
        """Path of the object of a request."""
        return f"/{BUCKET}/plain/{number * self.objects // self.requests}"

    def run(self, method: str, body: memoryview | None) -> None:
        """Makes all requests, with a body each or one for all, and a connection for each thread."""
        numbers, lock, failed = iter(range(self.requests)), threading.Lock(), []
        each = self.requests // self.objects

        def work() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port)
            into = bytearray(REQUEST_BYTES)
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return connection.close()
                path, part = self.path(number), None
                if body is not None:
                    path = f"/{BUCKET}/plain/{number}"
                    part = body[number * REQUEST_BYTES : (number + 1) * REQUEST_BYTES]
                signed = headers(method, self.port, path, part or b"", self.unsigned)
                if body is None and each > 1:
                    at = number % each * REQUEST_BYTES
                    signed["Range"] = f"bytes={at}-{at + REQUEST_BYTES - 1}"
                connection.request(method, path, part, signed)
                answer = connection.getresponse()
                length = 0
                while got := answer.readinto(into):
                    length += got
                if answer.status not in (200, 206) or (body is None and length != REQUEST_BYTES):
                    failed.append(f"{method} {path}: {answer.status}, {length} bytes")

        workers = [threading.Thread(target=work) for _ in range(self.threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not failed, failed[0]


def processor_s(process: int) -> float:
    """Returns the processor seconds that a process has used so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Took(NamedTuple):
    """Cost of one run: seconds, and processor seconds of this process and of the server."""

    wall: float
    ours: float
    servers: float


def timed(server_process: int, work: Callable[[], object]) -> Took:
    """Measures a call."""
    servers, ours, started = processor_s(server_process), time.process_time(), time.perf_counter()
    work()
    wall = time.perf_counter() - started
    return Took(wall, time.process_time() - ours, processor_s(server_process) - servers)


def behind_a_slow_network(mbit: int) -> None:
    """Starts this program again in a network namespace whose loopback is limited."""
    limit = f"tc qdisc add dev lo root tbf rate {mbit}mbit burst 2mb latency 100ms"
    script = f'ip link set lo up && {limit} && exec "$@"'
    again = [sys.executable, *sys.argv]
    os.environ[WITHIN] = "1"
    os.execvp("unshare", ["unshare", "-rn", "sh", "-c", script, "sh", *again])


def main() -> None:
    """Runs the rounds and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dir", type=Path, help="directory for the server's data")
    parser.add_argument("--gib", type=float, default=1.0, help="state size in GiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=16, help="of the plain requests")
    parser.add_argument("--apart", action="store_true", help="a core for the server alone")
    parser.add_argument("--mbit", type=int, help="what the network passes, Mbit/s")
    parser.add_argument("--far", metavar="MS,MBPS", help="a far server: see above")
    parser.add_argument("--freeze", default="copy", help="how the state is held still")
    parser.add_argument("--unsigned", action="store_true", help="sign no request's body")
    parser.add_argument("--ranges", action="store_true", help="get ranges of longer objects")
    args = parser.parse_args()
    if args.mbit and WITHIN not in os.environ:
        behind_a_slow_network(args.mbit)
    cores = os.sched_getaffinity(0)
    servers_cores = {max(cores)} if args.apart else cores
    if args.apart:
        os.sched_setaffinity(0, cores - servers_cores)
    count = max(8, round(args.gib * (1 << 30) / REQUEST_BYTES) // 8 * 8)
    state: dict[str, Any] = {"array": outlive.zeros((count * REQUEST_BYTES // 8,), dtype=np.uint64)}
    random = np.random.default_rng(1)
    for part in np.array_split(state["array"], count):
        part[:] = random.integers(1 << 63, size=part.size, dtype=np.uint64)
    wanted = hashlib.blake2b(state["array"]).digest()
    body = memoryview(state["array"]).cast("B")
    names = ("plain PUTs", "saves", "plain GETs", "restores")
    took: dict[str, list[Took]] = {name: [] for name in names}
    with (
        tempfile.TemporaryDirectory(dir=args.dir) as folder,
        server(Path(folder), servers_cores) as (port, process),
    ):
        if args.far:
            late_ms, each_mb = (float(word) for word in args.far.split(","))
            port = Far(port, late_ms / 1e3, each_mb * 1e6).port
        config = Path(folder, "config")
        config.write_text("[default]\ns3 =\n  payload_signing_enabled = false\n")
        os.environ.update(
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
            AWS_ACCESS_KEY_ID=ACCESS,
            AWS_SECRET_ACCESS_KEY=SECRET,
            AWS_REGION=REGION,
        )
        if args.unsigned:
            os.environ["AWS_CONFIG_FILE"] = str(config)
        bucket = Path(folder, BUCKET)
        longer = count // 8 if args.ranges else count
        puts = Plain(port, count, args.threads, args.unsigned, count)
        gets = puts._replace(objects=longer)
        for number in range(args.rounds):
            pool = outlive.open(f"s3://{BUCKET}/pool-{number}", freeze=args.freeze)
            job = pool.job("bench")
            os.sync()
            took["plain PUTs"].append(timed(process, partial(puts.run, "PUT", body)))
            os.sync()
            took["saves"].append(timed(process, partial(job.save, state, wait=True)))
            if args.ranges:
                for at in range(longer):
                    eight = body[at * 8 * REQUEST_BYTES : (at + 1) * 8 * REQUEST_BYTES]
                    (bucket / "plain" / str(at)).write_bytes(eight)
            os.sync()
            took["plain GETs"].append(timed(process, partial(gets.run, "GET", None)))
            took["restores"].append(timed(process, partial(job.restore, into=state)))
            assert hashlib.blake2b(state["array"]).digest() == wanted
            # Then both runs find the same memory for the server's files: memory that was used
            # before.
            pool.close()
            for name in ("plain", f"pool-{number}"):
                shutil.rmtree(bucket / name)
            print(f"round {number + 1} of {args.rounds} is done", flush=True)
    gib = count * REQUEST_BYTES / (1 << 30)
    for name, all_took in took.items():
        rate = count * REQUEST_BYTES / median(each.wall for each in all_took) / 1e6
        ours = median(each.ours for each in all_took) / gib
        servers = median(each.servers for each in all_took) / gib
        print(f"{name}: {rate:.0f} MB/s; processor s/GiB: {ours:.2f}, the server's {servers:.2f}")
    for ours_name, theirs in (("saves", "plain PUTs"), ("restores", "plain GETs")):
        pairs = zip(took[ours_name], took[theirs], strict=True)
        shares = sorted(b.wall / a.wall for a, b in pairs)
        each = " ".join(f"{share:.2f}" for share in shares)
        print(f"{ours_name}, share of {theirs}: {median(shares):.2f} ({each})")


if __name__ == "__main__":
    main()
