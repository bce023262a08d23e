"""The command line of `bench/compare.py`."""

import argparse
import functools
import json
import platform
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from peers import machine, measure, measure_files, report, state
from peers.adapters import PEERS
from peers.backups import BACKUPS
from peers.measure import Result

WHAT = ("save", "flip", "kill", "slowdown", "files")
GIB = 1 << 30


def main() -> int:
    """Measures the chosen parts, then writes the page."""
    args = _arguments().parse_args()
    if platform.system() != "Linux":
        print("error: the bench runs on Linux only", file=sys.stderr)
        return 2
    if args.quick or args.only:
        # A partial run replaces neither the figures of a whole run nor the documentation.
        args.results /= "quick" if args.quick else "some"
        args.docs = None
    args.results.mkdir(parents=True, exist_ok=True)
    # After a `kill` it cleans up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if not args.report_only:
            _measure(args)
    except KeyboardInterrupt:
        print("interrupted; what was measured before is kept", file=sys.stderr)
        return 130
    for path in report.write(args.results, args.docs or args.results):
        print(path)
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/compare.py", description="Compares outlive with its peers on this machine."
    )
    names = ",".join(dict.fromkeys([*PEERS, *BACKUPS]))
    parser.add_argument("--only", help=f"peers to measure, separated by commas: {names}")
    parser.add_argument("--what", help=f"measurements, separated by commas: {','.join(WHAT)}")
    parser.add_argument("--gib", type=float, default=2.0, help="size of the state, in GiB (2)")
    parser.add_argument("--small-gib", type=float, help="its size for flips and kills (--gib / 8)")
    parser.add_argument("--state", choices=state.KINDS, default=state.KINDS[0])
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (3)")
    parser.add_argument("--kills", type=int, default=6, help="number of kills of each peer (6)")
    parser.add_argument("--flips", type=int, default=4, help="number of flipped bits (4)")
    parser.add_argument(
        "--large-mib", type=float, default=128, help="size of the tree's largest file"
    )
    parser.add_argument(
        "--quick", action="store_true", help="only show that it works, in about a minute"
    )
    parser.add_argument(
        "--dir", type=Path, help="directory on the device to measure (that of --results)"
    )
    parser.add_argument("--results", type=Path, default=Path("target/bench-peers"))
    parser.add_argument("--wheels", type=Path, default=Path("target/bench-peers/wheels"))
    parser.add_argument(
        "--docs",
        type=Path,
        help="directory for benchmarks.md and its pictures after a whole run (default, and after "
        "other runs: beside the results)",
    )
    parser.add_argument(
        "--report-only", action="store_true", help="measure nothing, only write the page"
    )
    return parser


def _names(text: str | None, known: list[str], what: str) -> tuple[str, ...]:
    if text is None:
        return tuple(known)
    names = tuple(name for name in text.split(",") if name)
    for name in names:
        if name not in known:
            raise SystemExit(f"error: no {what} is called {name!r}; there are {', '.join(known)}")
    return names


def _measure(args: argparse.Namespace) -> None:
    only = _names(args.only, list(dict.fromkeys([*PEERS, *BACKUPS])), "peer")
    what = _names(args.what, list(WHAT), "measurement")
    if args.quick:
        args.gib, args.rounds, args.kills, args.flips, args.large_mib = 1 / 32, 1, 1, 1, 4
    small = args.small_gib if args.small_gib is not None else args.gib / 8
    _say_missing(only)
    folder = Path(tempfile.mkdtemp(prefix="outlive-bench-peers-", dir=args.dir or args.results))
    try:
        plan = measure.Plan(
            only,
            folder.resolve(),
            int(args.gib * GIB),
            max(1 << 20, int(small * GIB)),
            args.state,
            args.rounds,
            args.flips,
            args.kills,
        )
        of_files = measure_files.FilePlan(
            only,
            folder.resolve(),
            args.wheels,
            int(args.large_mib * (1 << 20)),
            args.quick,
            args.rounds,
        )
        tasks: dict[str, Callable[[], Result]] = {
            "save": lambda: measure.save_and_restore(plan, keep),
            "flip": lambda: measure.flips(plan),
            "kill": lambda: measure.kills(plan),
            "slowdown": lambda: measure.slowdowns(plan),
            "files": lambda: measure_files.files(of_files),
        }
        facts = {"machine": machine.describe(folder), "versions": machine.versions()}
        facts["programs"] = {
            name: backup.version() or "not installed" for name, backup in BACKUPS.items()
        }
        options = shlex.join(_without_places(sys.argv[1:]))
        for name in what:
            print(f"== {name}", file=sys.stderr, flush=True)
            began = time.monotonic()
            head: Result = {
                "what": name,
                "options": options,
                "gib": args.gib,
                "small_gib": plan.small_bytes / GIB,
                "state": args.state,
                "rounds": args.rounds,
                **facts,
            }
            suffix = "" if args.state == state.KINDS[0] or name == "files" else f"-{args.state}"
            path = args.results / f"{name}{suffix}.json"
            keep = functools.partial(_keep, path, head, began)
            keep(tasks[name]())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _say_missing(only: tuple[str, ...]) -> None:
    for name in only:
        both = (known[name] for known in (PEERS, BACKUPS) if name in known)
        for peer in both:
            if peer.version() is None:
                print(f"note: {peer.title}: not installed here, so left out", file=sys.stderr)


def _without_places(words: list[str]) -> list[str]:
    """Returns the options, without those that name directories."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("--dir", "--results", "--wheels", "--docs"):
            skip = True
        elif not word.startswith(("--dir=", "--results=", "--wheels=", "--docs=")):
            kept.append(word)
    return kept


def _keep(path: Path, head: Result, began: float, found: Result) -> None:
    _write(path, {**head, **found, "took_s": time.monotonic() - began})


def _write(path: Path, result: Result) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    part.replace(path)
