"""Confirms the simulator on PostgreSQL, whose syncs a preloaded library really delays.

    python bench/gate/confirm.py target/release/outlive-bench [--seconds 5] [--rounds 5]

In each round and for each number of clients it runs pgbench (TPC-B) without and with each delay.
From a trace of the run without one, `outlive-bench gate` predicts the slowdown of the others.

A sleep ends late on a busy machine. So there are two predictions: one for the delay that was asked
for, and one for the delay that the syncs had. The second one shows the error of the simulator
alone. The command prints medians over the rounds, and keeps nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gate import programs, trace

DELAYS_MS = [1.0, 4.0]
CLIENTS = [1, 8]
WARM_UP_S = 1.0
OPERATIONS_MAX = 50_000


class Run(NamedTuple):
    """One run of pgbench."""

    tps: float
    sync_ms: float
    trace: str


def measure(
    server: programs.Postgres,
    shim: Path,
    recording: Path,
    clients: int,
    delay: float,
    seconds: float,
) -> Run:
    """Runs pgbench behind a delay."""
    recording.mkdir()
    recording.chmod(0o1777)
    variables = {**programs.recorded(shim, recording), **programs.delayed(shim, delay)}
    with server.running(variables):
        server.tpcb(clients, WARM_UP_S)
        begin_ns = time.monotonic_ns()
        tps = server.tpcb(clients, seconds)
    recorded = trace.read_folder(recording)
    took = [
        operation.took_ns / 1e6
        for operation in recorded.operations
        if operation.what == "sync" and operation.start_ns >= begin_ns
    ]
    text = trace.trace(recorded, "pgbench", from_ns=begin_ns, operations_max=OPERATIONS_MAX)
    return Run(tps, fmean(took), text)


def predict(bench: Path, work: Path, text: str, delays: list[float]) -> list[float]:
    """Returns the slowdown that the simulator predicts for each delay."""
    file = work / "one.trace"
    file.write_text(text, encoding="utf-8")
    listed = ",".join(f"{max(delay, 0.0):.6f}" for delay in delays)
    words = [bench, "--json", "gate", "--no-synthetic", "--trace", file, "--delays-ms", listed]
    (study,) = json.loads(programs.command(words))["traces"]
    return [row["slowdown"] for row in study["delayed"]]


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench", type=Path, help="the program outlive-bench")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each run")
    parser.add_argument("--rounds", type=int, default=5, help="number of runs with each delay")
    args = parser.parse_args()
    bench = args.bench.resolve()
    print("| clients | delay | delay had | slowdown | predicted | predicted for the delay had |")
    print("|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="outlive-gate-") as name:
        work = Path(name)
        work.chmod(0o755)
        shim = programs.build_shim(work)
        server = programs.Postgres(work / "postgresql")
        server.tpcb_tables()
        for clients in CLIENTS:
            # By delay, then by round: the delay that syncs had, the slowdown, both predictions.
            rows: list[list[tuple[float, ...]]] = [[] for _ in DELAYS_MS]
            for number in range(args.rounds):
                runs = [
                    measure(
                        server,
                        shim,
                        work / f"{clients}-{number}-{delay}",
                        clients,
                        delay,
                        args.seconds,
                    )
                    for delay in [0.0, *DELAYS_MS]
                ]
                alone = runs[0]
                had = [run.sync_ms - alone.sync_ms for run in runs[1:]]
                asked_for = predict(bench, work, alone.trace, DELAYS_MS)
                as_had = predict(bench, work, alone.trace, had)
                for row, run, *found in zip(rows, runs[1:], had, asked_for, as_had, strict=True):
                    row.append((found[0], alone.tps / run.tps, *found[1:]))
            for delay, row in zip(DELAYS_MS, rows, strict=True):
                delay_had, *ratios = [median(column) for column in zip(*row, strict=True)]
                shown = " | ".join(f"{ratio:.2f}" for ratio in ratios)
                print(f"| {clients} | {delay:g} ms | {delay_had:.2f} ms | {shown} |", flush=True)


if __name__ == "__main__":
    main()
