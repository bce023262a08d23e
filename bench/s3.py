"""Saves to and restores from a real S3 server, against plain concurrent requests of 8 MiB to it.

Starts versitygw on this machine, with its data in DIR, and takes turns: plain PUTs, a first save to
a new pool, plain GETs, a restore. Prints the medians, and of the ratios those within a round.

    .venv/bin/python bench/s3.py DIR [--gib 1] [--rounds 5] [--threads 16]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import hmac
import http.client
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

import outlive

ROOT = Path(__file__).parents[1]
ACCESS, SECRET, REGION, BUCKET = "outlive", "outlive-secret", "us-east-1", "ckpt"
REQUEST_BYTES = 8 << 20


@contextlib.contextmanager
def server(folder: Path) -> Iterator[int]:
    """A server with an empty bucket; answers its port."""
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
            while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
                assert process.poll() is None, "the server ended"
                time.sleep(0.01)
            yield port
        finally:
            process.kill()


def headers(method: str, port: int, path: str, body: memoryview | bytes) -> dict[str, str]:
    """Of a request, signed with its body as AWS describes (Signature Version 4)."""
    body_digest = hashlib.sha256(body).hexdigest()
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


def plain(method: str, port: int, count: int, threads: int, body: memoryview | None) -> None:
    """So many requests, each with a body of its own or for one, a connection for each thread."""
    numbers, lock, failed = iter(range(count)), threading.Lock(), []

    def work() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        into = bytearray(REQUEST_BYTES)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return connection.close()
            path = f"/{BUCKET}/plain/{number}"
            part = None
            if body is not None:
                part = body[number * REQUEST_BYTES : (number + 1) * REQUEST_BYTES]
            connection.request(method, path, part, headers(method, port, path, part or b""))
            answer = connection.getresponse()
            read = answer.readinto(into) if body is None else len(answer.read())
            if answer.status != 200 or (body is None and read == 0):
                failed.append(f"{method} {path}: {answer.status}")
            while answer.readinto(into):
                pass

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed, failed[0]


def timed(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Runs the rounds and prints what they took."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dir", type=Path, help="directory for the server's data")
    parser.add_argument("--gib", type=float, default=1.0, help="state size in GiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=16, help="of the plain requests")
    args = parser.parse_args()
    count = max(1, round(args.gib * (1 << 30) / REQUEST_BYTES))
    state = {"array": outlive.zeros((count * REQUEST_BYTES // 8,), dtype=np.uint64)}
    random = np.random.default_rng(1)
    for part in np.array_split(state["array"], count):
        part[:] = random.integers(1 << 63, size=part.size, dtype=np.uint64)
    wanted = hashlib.blake2b(state["array"]).digest()
    body = memoryview(state["array"]).cast("B")
    names = ("plain PUTs", "saves", "plain GETs", "restores")
    took: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(dir=args.dir) as folder, server(Path(folder)) as port:
        os.environ.update(
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
            AWS_ACCESS_KEY_ID=ACCESS,
            AWS_SECRET_ACCESS_KEY=SECRET,
            AWS_REGION=REGION,
        )
        for number in range(args.rounds):
            pool = outlive.open(f"s3://{BUCKET}/pool-{number}")
            job = pool.job("bench")
            os.sync()
            took["plain PUTs"].append(timed(lambda: plain("PUT", port, count, args.threads, body)))
            os.sync()
            took["saves"].append(timed(lambda: job.save(state, wait=True)))  # noqa: B023
            os.sync()
            took["plain GETs"].append(timed(lambda: plain("GET", port, count, args.threads, None)))
            took["restores"].append(timed(lambda: job.restore(into=state)))  # noqa: B023
            assert hashlib.blake2b(state["array"]).digest() == wanted
            print(f"round {number + 1} of {args.rounds} is done", flush=True)
    for name, seconds in took.items():
        print(f"{name}: {count * REQUEST_BYTES / median(seconds) / 1e6:.0f} MB/s")
    for ours, theirs in (("saves", "plain PUTs"), ("restores", "plain GETs")):
        shares = [b / a for a, b in zip(took[ours], took[theirs], strict=True)]
        print(f"{ours}, share of {theirs}: {median(shares):.2f}")


if __name__ == "__main__":
    main()
