"""Measures the share of machine time that becomes finished work while a killer kills a program.

The program has a state of `--state` bytes, and changes `--changed` of its pages a second. Failures
are SIGKILLs at exponential times. The contenders are

- `auto`: `outlive run --no-helper --every auto`;
- a fixed minute: `outlive run --no-helper --every 60s`;
- whole saves at their best interval: all bytes to a new file by plain writes, `fsync` and a rename.
  This is the I/O of `torch.save`, without its walk through Python objects;
- no checkpoints: the program begins again after each kill.

It works in two ways:

- It measures stalls, slowdown, latency, restarts and restores. From these it computes the share at
  `--mean` seconds between failures, and a sweep of all fixed intervals.
- It runs every contender for `--minutes`, with a mean that is `--compress` times shorter. The fixed
  interval is shorter by the same factor; the costs are not.

The prior of `auto` is one failure a day, and a job's history holds at most 1,000 failures. So the
compressed run begins with a full history of failures at its mean, and the prior still weighs there.

    .venv/bin/python bench/useful_work.py DIR --state 4GiB --minutes 5 --json
"""

import argparse
import dataclasses
import json
import random
import shutil
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from sizes import PAGE_BYTES, size
from useful import model, runs

DAY_S = 86_400.0
GOAL_SHARE = 0.995
GOAL_OF_BEST = 0.99
# Pages from one changed page to the next. Both orders come to each page once in each round.
STRIDES = {"scattered": 1_000_003, "dense": 1}


class Bench:
    """All measurements."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        """Takes the options, and a folder for everything."""
        self.args, self.folder = args, folder
        pages = args.state // PAGE_BYTES
        self.settings: dict[str, Any] = {
            "way": "outlive",
            "state_bytes": pages * PAGE_BYTES,
            # Until a reference has measured the time of a step.
            "pages_per_step": 1,
            "stride": STRIDES[args.pattern],
            "every_s": args.fixed,
            "lazy": not args.eager,
            "keep_last": args.keep,
            "freeze_bytes_max": args.freeze_bytes_max,
        }
        self.references: list[dict[str, float]] = []
        self.found: dict[str, Any] = {}

    def say(self, text: str) -> None:
        """Tells the user what goes on."""
        print(text, file=sys.stderr, flush=True)

    def refer(self) -> None:
        """Measures the undisturbed program once more."""
        path = self.folder / "reference"
        self.references.append(runs.reference(path, self.settings, self.args.reference))
        self.say(f"a step takes {self.references[-1]['step_s'] * 1e3:.2f} ms undisturbed")

    def step_s(self) -> float:
        """Returns the time of an undisturbed step."""
        return statistics.median(it["step_s"] for it in self.references)

    def components(self) -> tuple[model.Costs, model.Costs]:
        """Measures the costs of outlive's saves and of whole ones, and what `auto` chooses."""
        args = self.args
        pages_per_s = self.settings["pages_per_step"] / self.step_s()
        full_s = self.settings["state_bytes"] / PAGE_BYTES / pages_per_s
        cpu_s = statistics.median(it["cpu_s"] for it in self.references)
        folder = self.folder / "measured"
        folder.mkdir()
        # The first save, and the first of changes, cost more: they pay for memory.
        works = {"works_s": [*args.works[:1] * 2, *(it for it in args.works for _ in range(2))]}
        each = runs.lives(folder, self.settings | works, args.lives)
        ours, rows = runs.costs_of(each, cpu_s, full_s, saves_first=True)
        self.found["outlive"] = {**dataclasses.asdict(ours), **rows}
        self.say(f"outlive: {ours}")
        chance = random.Random(args.seed)
        for name, failures in (("day", round(DAY_S / args.mean)), ("none", 0)):
            runs.write_history(folder, failures, args.mean, chance)
            choice = runs.chosen(folder, self.settings, args.learn)
            self.found[f"chosen_{name}"] = choice
            self.say(f"auto, {failures} failures seen: {choice['why']}")
        shutil.rmtree(folder)
        folder.mkdir()
        whole = self.settings | {"way": "whole", "works_s": [2.0, 2.0, 2.0]}
        theirs, rows = runs.costs_of(runs.lives(folder, whole, 3), cpu_s, full_s, saves_first=False)
        # Whole saves track nothing, so steps that are slower beside them tell of the machine.
        overhead = max(self.found["outlive"]["overhead_measured"] - rows["overhead_measured"], 0.0)
        ours = dataclasses.replace(ours, overhead=overhead)
        theirs = dataclasses.replace(theirs, overhead=0.0)
        self.found["whole"] = {**dataclasses.asdict(theirs), **rows}
        self.say(f"whole: {theirs}")
        shutil.rmtree(folder)
        return ours, theirs

    def compressed(self, name: str, every: str | None, every_s: float, mean_s: float) -> Any:
        """Runs one contender under the killer; returns its share, and details."""
        folder = self.folder / "killed"
        folder.mkdir()
        way = name if name in ("whole", "none") else "outlive"
        settings = self.settings | {"way": way, "every_s": every_s}
        if way == "outlive":
            runs.init_pool(folder)
            chance = random.Random(self.args.seed + 1)
            runs.write_history(folder, runs.ATTEMPTS_MAX, mean_s, chance)
        chance = random.Random(self.args.seed)
        window_s = self.args.minutes * 60
        it = runs.killed(folder, settings, every, mean_s, window_s, chance)
        shutil.rmtree(folder)
        self.refer()
        around = statistics.mean(one["step_s"] for one in self.references[-2:])
        share = it.steps * around / it.seconds
        self.say(f"{name}: {it.kills} kills, {it.saves} saves, share {share:.4f}")
        return {"share": share, "step_s": around, **dataclasses.asdict(it)}

    def run(self) -> dict[str, Any]:
        """Measures everything; returns the figures."""
        args = self.args
        self.refer()
        pages = self.settings["state_bytes"] / PAGE_BYTES
        pages_per_step = round(pages * args.changed * self.step_s())
        self.settings["pages_per_step"] = max(1, pages_per_step)
        # The steps of the others change as many pages as those of the contenders.
        self.references.clear()
        self.refer()
        ours, theirs = self.components()
        self.refer()
        mean_s = args.mean / args.compress
        fixed_s = args.fixed / args.compress
        whole_s = model.best(theirs, mean_s)[0]
        real: dict[str, Any] = {}
        if args.minutes > 0:
            real["auto"] = self.compressed("auto", "auto", fixed_s, mean_s)
            real["fixed"] = self.compressed("fixed", f"{fixed_s:g}s", fixed_s, mean_s)
            real["whole"] = self.compressed("whole", None, whole_s, mean_s)
            real["none"] = self.compressed("none", None, fixed_s, mean_s)
            ours = dataclasses.replace(
                ours, pause_s=statistics.median(real["auto"]["pauses_s"] or [runs.PAUSE_S])
            )
        self.found["real"] = real
        self.found["modelled"] = self.modelled(ours, theirs, args.mean, args.fixed)
        seen_s = real["auto"]["every_s"] if real else None
        self.found["modelled_compressed"] = self.modelled(ours, theirs, mean_s, fixed_s, seen_s)
        self.found["references"] = self.references
        self.found["options"] = {k: str(v) for k, v in vars(args).items()}
        self.found["changed_per_s"] = 1 / ours.full_s
        return self.found

    def modelled(
        self, ours: model.Costs, theirs: model.Costs, mean_s: float, fixed_s: float,
        auto_s: float | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Computes the share of each contender at a mean time between failures."""
        best_s, best = model.best(ours, mean_s)
        whole_s, whole = model.best(theirs, mean_s)
        args = self.args
        # The same number of failures as in the real runs.
        window_s = mean_s * (args.minutes * 60 * args.compress / args.mean or 5.0)
        rows = {
            "best fixed": (best_s, best),
            "fixed": (fixed_s, model.share(ours, model.fixed_work(ours, fixed_s), mean_s)),
            "whole": (whole_s, whole),
            "whole, fixed": (fixed_s, model.share(theirs, fixed_s, mean_s)),
            "none": (None, model.none_share(theirs.pause_s, theirs.restart_s, mean_s, window_s)),
        }
        if auto_s is None:
            for name in ("day", "none"):
                seconds = self.found[f"chosen_{name}"]["seconds"]
                label = "auto" if name == "day" else "auto, no history"
                rows[label] = (seconds, model.share(ours, seconds, mean_s))
        else:
            rows["auto"] = (auto_s, model.share(ours, auto_s, mean_s))
        return {
            name: {"every_s": every_s, "share": share, "of_best": share / best}
            for name, (every_s, share) in rows.items()
        }


def table(found: dict[str, Any], args: argparse.Namespace) -> str:
    """Returns the figures as text."""
    mean_s = args.mean / args.compress
    lines = [
        f"Failures every {args.mean:g} s, from measured costs:",
        f"  {'':18} {'interval':>9} {'useful':>8} {'of best':>8}",
    ]
    for name, row in found["modelled"].items():
        every = "" if row["every_s"] is None else f"{row['every_s']:.1f} s"
        lines.append(f"  {name:18} {every:>9} {row['share']:8.4f} {row['of_best']:8.4f}")
    if found["real"]:
        lines += [
            f"Real kills every {mean_s:g} s ({args.compress:g} times compressed), "
            f"{args.minutes:g} min each:",
            f"  {'':18} {'interval':>9} {'useful':>8} {'model':>8} {'kills':>6} {'others':>7}",
        ]
        for name, row in found["real"].items():
            every = "" if row["every_s"] is None else f"{row['every_s']:.1f} s"
            said = found["modelled_compressed"][name]["share"]
            lines.append(
                f"  {name:18} {every:>9} {row['share']:8.4f} {said:8.4f} {row['kills']:6} "
                f"{row['others']:7.2f}"
            )
    auto = found["modelled"]["auto"]
    for what, value, goal in (
        ("useful work with auto", auto["share"], GOAL_SHARE),
        ("auto, as a share of the best fixed interval", auto["of_best"], GOAL_OF_BEST),
    ):
        lines.append(f"{what}: {value:.4f}, goal {goal}: {'met' if value >= goal else 'MISSED'}")
    return "\n".join(lines)


def main() -> None:
    """Reads the options, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dir", type=Path, help="directory for a temporary folder")
    parser.add_argument("--state", type=size, default=4 << 30, help="size of the state [4GiB]")
    parser.add_argument(
        "--changed", type=float, default=0.01, help="share of the pages that change a second [0.01]"
    )
    parser.add_argument(
        "--pattern", choices=STRIDES, default="scattered",
        help="changed pages lie next to each other, or scattered [scattered]",
    )  # fmt: skip
    parser.add_argument("--mean", type=float, default=600.0, help="seconds between failures [600]")
    parser.add_argument(
        "--compress", type=float, default=10.0, help="factor by which real kills come faster [10]"
    )
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="length of each real run; 0 for none [5]"
    )
    parser.add_argument("--fixed", type=float, default=60.0, help="fixed interval in seconds [60]")
    parser.add_argument(
        "--works", type=lambda text: [*map(float, text.split(","))],
        default=[0.7, 1.3, 1.45, 2.0, 8.0, 20.0],
        help="seconds of work before measured saves [0.7,1.3,1.45,2,8,20]",
    )  # fmt: skip
    parser.add_argument("--lives", type=int, default=4, help="processes that measure costs [4]")
    parser.add_argument(
        "--learn", type=float, default=120.0, help="seconds for which `auto` learns [120]"
    )
    parser.add_argument(
        "--reference", type=float, default=20.0, help="seconds of each undisturbed run [20]"
    )
    parser.add_argument(
        "--keep", type=int, default=2, help="number of checkpoints to keep; 0 for all [2]"
    )
    parser.add_argument(
        "--freeze-bytes-max",
        type=size,
        default=0,
        help="memory for copies of changed pages [that of a pool]",
    )
    parser.add_argument(
        "--eager", action="store_true", help="restore everything before the first step"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the kills [1]")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    args = parser.parse_args()
    # Ends the programs and removes the folder, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="outlive-useful-", dir=args.dir))
    try:
        found = Bench(args, folder).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found, indent=2) if args.json else table(found, args))


if __name__ == "__main__":
    main()
