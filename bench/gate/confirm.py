"""Confirms the simulator on PostgreSQL, whose syncs a preloaded library really delays.

    python bench/gate/confirm.py target/release/outlive-bench [--seconds 6] [--rounds 3]

In each round and for each number of clients it records a trace of pgbench (TPC-B), and lets
`outlive-bench gate` predict the slowdown. Then it runs pgbench without and with each delay. It
prints medians over the rounds, and keeps nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gate import programs
from gate.record import Recorder

DELAYS_MS = [1.0, 4.0]
CLIENTS = [1, 8]


def predicted(bench: Path, trace: Path) -> dict[float, float]:
    """Returns the slowdown that the simulator predicts for each delay."""
    delays = ",".join(str(delay) for delay in DELAYS_MS)
    words = [bench, "--json", "gate", "--no-synthetic", "--trace", trace, "--delays-ms", delays]
    (study,) = json.loads(programs.command(words))["traces"]
    return {row["delay_ms"]: row["slowdown"] for row in study["delayed"]}


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench", type=Path, help="the program outlive-bench")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each run")
    parser.add_argument("--rounds", type=int, default=3, help="number of runs with each delay")
    args = parser.parse_args()
    bench = args.bench.resolve()
    print("| clients | delay | transactions/s | slowdown | predicted | predicted / measured |")
    print("|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="outlive-gate-") as name:
        work = Path(name)
        work.chmod(0o755)
        recorder = Recorder(work, work / "traces", operations_max=50_000)
        server = programs.Postgres(work / "postgresql")
        server.tpcb_tables()
        for clients in CLIENTS:
            tps: dict[float, list[float]] = {delay: [] for delay in [0.0, *DELAYS_MS]}
            forecasts: dict[float, list[float]] = {delay: [] for delay in DELAYS_MS}
            for number in range(args.rounds):
                # Beside the runs without a delay, under the same load of the machine.
                trace = f"tpcb-{clients}-{number}"
                recorder.tpcb(server, clients, trace)
                for delay, slowdown in predicted(bench, recorder.out / f"{trace}.trace").items():
                    forecasts[delay].append(slowdown)
                for delay, found in tps.items():
                    with server.running(programs.delayed(recorder.shim, delay)):
                        found.append(server.tpcb(clients, args.seconds))
            print(f"| {clients} | none | {median(tps[0.0]):.0f} | 1 | 1 | |")
            for delay in DELAYS_MS:
                rounds = zip(tps[0.0], tps[delay], strict=True)
                slower = median(alone / slow for alone, slow in rounds)
                forecast = median(forecasts[delay])
                print(
                    f"| {clients} | {delay:g} ms | {median(tps[delay]):.0f} | {slower:.2f} "
                    f"| {forecast:.2f} | {forecast / slower:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
