"""Shows that a simulation survives `kill -9`: runs it without and with kills, and compares.

    python examples/demo.py            (or: make demo)

First `gray_scott.py` runs from start to end without checkpoints: the reference. Then the same
program runs with checkpoints and is killed by SIGKILL again and again: at random moments, in the
middle of writing a checkpoint, and during a restore. Each time it is started again with the same
command. At the end every bit of both final states must be the same, random generator included.
"""

import argparse
import contextlib
import hashlib
import json
import random
import secrets
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

PROGRAM = Path(__file__).with_name("gray_scott.py")
MIB = 1 << 20
PICTURE_SIZE = 1024
# The order of the moments of death.
MOMENTS = ("any moment", "saving", "any moment", "restoring", "saving")
Event = dict[str, Any]


class DemoError(Exception):
    """The demo cannot continue, or its result is wrong; the text gives the reason."""


# --- The simulation as a child process ------------------------------------------------------------


class Life:
    """One life of the simulation, from its start to its end or death, seen through its journal."""

    def __init__(self, folder: Path, name: str, arguments: list[str]) -> None:
        """Starts the program; `folder` has its journal and its output."""
        self.journal = folder / f"{name}.jsonl"
        self.output = folder / f"{name}.txt"
        self.events: list[Event] = []
        self.read_bytes = 0
        self.began_s = time.monotonic()
        command = [sys.executable, str(PROGRAM), *arguments, "--stats", str(self.journal)]
        with self.output.open("wb") as output:
            self.child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def look(self) -> None:
        """Reads new lines of the journal, except one that a kill cut off."""
        if not self.journal.exists():
            return
        with self.journal.open("rb") as journal:
            journal.seek(self.read_bytes)
            new = journal.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.read_bytes += len(whole)
        self.events += [json.loads(line) for line in whole.splitlines()]

    def all(self, kind: str) -> list[Event]:
        """Returns the events of one kind."""
        return [event for event in self.events if event["event"] == kind]

    def watch(self, until: Callable[[], bool], show: "Progress") -> bool:
        """Waits until the condition holds (True) or the program has ended well (False)."""
        while True:
            code = self.child.poll()
            self.look()
            steps = self.all("step")
            if steps:
                show(steps[-1]["step"])
            if code is not None and code != 0:
                tail = self.output.read_text(errors="replace").strip().splitlines()[-15:]
                raise DemoError(f"the simulation failed (exit {code}):\n  " + "\n  ".join(tail))
            if until():
                return True
            if code == 0:
                return False
            time.sleep(0.01)

    def kill(self) -> float:
        """Kills the program at once, at any point; returns when, on the monotonic clock."""
        now_s = time.monotonic()
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()
        self.look()
        return now_s

    def seconds_to(self, kind: str) -> float:
        """Returns the seconds from the start of the process to the first event of a kind."""
        return float(self.all(kind)[0]["t_s"]) - self.began_s


@contextlib.contextmanager
def living(folder: Path, name: str, arguments: list[str]) -> Iterator[Life]:
    """Yields a life that ends with this block in any case."""
    life = Life(folder, name, arguments)
    try:
        yield life
    finally:
        if life.child.poll() is None:
            life.child.kill()
            life.child.wait()


# --- Killing --------------------------------------------------------------------------------------


@dataclass
class Death:
    """One death, and the restart after it."""

    moment: str
    at_s: float  # on the monotonic clock
    lived_s: float
    at_step: int | None  # None: it died before its first step
    safe_step: int  # of the newest checkpoint that was known to be safe; 0 for none
    open_step: int | None  # of the one that was being written, if any
    from_step: int = 0
    lost_s: float = 0.0
    restart_s: float = 0.0
    restore_s: float = 0.0

    def row(self, number: int) -> list[str]:
        """Returns the death as a row of the table."""
        newest = "-"
        if self.open_step is not None:
            newest = "just in time" if self.from_step >= self.open_step else "cut off"
        lost = "nothing"
        if self.at_step is not None:
            steps = self.at_step - self.from_step
            lost = f"{steps} step{'s' * (steps != 1)}, {self.lost_s:.2f} s"
        return [
            str(number),
            self.moment,
            f"{self.lived_s:.2f} s",
            "before the first" if self.at_step is None else str(self.at_step),
            newest,
            str(self.from_step),
            lost,
            f"{self.restart_s:.2f} s",
            f"{self.restore_s:.2f} s",
        ]


def run_until_killed(
    life: Life, moment: str, delay_s: float, luck: random.Random, show: "Progress"
) -> Death | None:
    """Runs one life until its moment of death; None if it ended before."""
    if moment == "restoring":
        reached = life.watch(lambda: bool(life.all("restore")), show)
        time.sleep(luck.uniform(0.0, 0.15))
    else:

        def looped_long_enough() -> bool:
            loop = life.all("loop")
            return bool(loop) and time.monotonic() >= loop[0]["t_s"] + delay_s

        reached = life.watch(looped_long_enough, show)
        if reached and moment == "saving":
            saves = len(life.all("save"))
            reached = life.watch(lambda: len(life.all("save")) > saves, show)
            time.sleep(luck.uniform(0.0, 0.10))
    if not reached or life.child.poll() is not None:
        return None
    at_s = life.kill()
    if life.child.returncode == 0:
        return None
    steps = life.all("step")
    at_step = int(steps[-1]["step"]) if steps else None
    durable = {event["epoch"] for event in life.all("durable")}
    safe = [event["step"] for event in life.all("save") if event["epoch"] in durable]
    still_open = [event["step"] for event in life.all("save") if event["epoch"] not in durable]
    return Death(
        moment,
        at_s,
        lived_s=at_s - life.began_s,
        at_step=at_step,
        safe_step=max(safe, default=0),
        open_step=max(still_open, default=None),
    )


def note_return(death: Death, reached_s: dict[int, float], life: Life) -> None:
    """Completes a death's record from the life that followed it."""
    loop = life.all("loop")[0]
    death.from_step = int(loop["step"])
    if death.from_step < death.safe_step:
        raise DemoError(
            f"the checkpoint of step {death.safe_step} was reported safe, but after the kill the "
            f"simulation went on from step {death.from_step}: this is a bug in outlive"
        )
    death.restart_s = life.seconds_to("loop")
    death.restore_s = float(loop["t_s"]) - float(life.all("restore")[0]["t_s"])
    if death.at_step is not None:
        # The program computes the work after the restored step again.
        death.lost_s = death.at_s - reached_s.get(death.from_step, death.at_s - death.lived_s)


@dataclass
class Attack:
    """The run with kills."""

    deaths: list[Death]
    lives: list[Life]
    took_s: float


def attack(args: argparse.Namespace, work: Path, common: list[str], reference_s: float) -> Attack:
    """Runs the simulation with checkpoints, and kills it `args.kills` times."""
    luck = random.Random(args.seed)
    arguments = [*common, "--dir", str(work / "checkpoints"), "--every", str(args.every)]
    arguments += ["--out", str(work / "attacked.npz")]
    moments = [MOMENTS[i % len(MOMENTS)] for i in range(args.kills)]
    looping = sum(moment != "restoring" for moment in moments)
    # All kills must fit into the run, even if each comes as late as possible.
    longest_s = 0.8 * reference_s / max(looping, 1)
    began_s = time.monotonic()
    deaths: list[Death] = []
    lives: list[Life] = []
    reached_s: dict[int, float] = {}  # when each step was last reached
    waiting: list[Death] = []  # deaths without a later life so far
    while True:
        number = len(deaths)
        moment = moments[number] if number < args.kills else ""
        show = Progress(f"life {number + 1}", args.steps)
        with living(work, f"life-{number + 1}", arguments) as life:
            lives.append(life)
            if moment:
                delay_s = luck.uniform(0.3 * longest_s, longest_s)
                death = run_until_killed(life, moment, delay_s, luck, show)
            else:
                life.watch(lambda: False, show)
                death = None
            show.clear()
            if life.all("loop"):
                for earlier in waiting:
                    note_return(earlier, reached_s, life)
                waiting = []
            for step in life.all("step"):
                reached_s[step["step"]] = step["t_s"]
        if death is None:
            break
        deaths.append(death)
        waiting.append(death)
        where = "before its first step" if death.at_step is None else f"at step {death.at_step}"
        tail = ", a checkpoint being written" if death.open_step is not None else ""
        print(f"  kill -9 number {number + 1} ({death.moment}): died {where}{tail}", flush=True)
    return Attack(deaths, lives, time.monotonic() - began_s)


# --- Results --------------------------------------------------------------------------------------


def report(run: Attack, args: argparse.Namespace, work: Path, reference_s: float) -> None:
    """Prints the tables."""
    head = ["kill", "moment", "lived", "at step", "open checkpoint", "went on from"]
    head += ["done again", "restart", "of it restore"]
    print()
    print_table(head, [death.row(number) for number, death in enumerate(run.deaths, 1)])

    saves = [event for life in run.lives for event in life.all("save")]
    durable = [event for life in run.lives for event in life.all("durable")]
    state_bytes = 2 * 8 * args.size**2
    disk_bytes = sum(p.stat().st_size for p in (work / "checkpoints").rglob("*") if p.is_file())
    lost_s = sum(death.lost_s for death in run.deaths)
    restart_s = sum(death.restart_s for death in run.deaths)
    rows = [
        ["State", f"{state_bytes / MIB:.0f} MiB: two fields of {args.size} x {args.size} numbers"],
        ["Checkpoints", f"{len(saves)} begun, {len(durable)} known safe before the next kill"],
    ]
    if saves:
        took = [event["took_ms"] for event in saves]
        rows.append(
            [
                "Program stood still",
                f"{statistics.median(took):.1f} ms a checkpoint (median), "
                f"{max(took):.1f} ms at most",
            ]
        )
    if durable:
        changed = sum(event["changed_bytes"] for event in durable) / len(durable)
        new = sum(event["new_bytes"] for event in durable) / len(durable)
        part = new / state_bytes
        rows.append(
            [
                "Written",
                f"{new / MIB:.1f} MiB a checkpoint (mean) for {changed / MIB:.1f} MiB changed: "
                f"{part:.0%} of the state",
            ]
        )
    rows += [
        ["On disk at the end", f"{disk_bytes / MIB:.0f} MiB in all"],
        [
            "Time",
            f"{run.took_s:.1f} s with {len(run.deaths)} kills, {reference_s:.1f} s undisturbed",
        ],
        ["  of it", f"{lost_s:.1f} s work done again, {restart_s:.1f} s restarting"],
    ]
    print()
    for name, value in rows:
        print(f"  {name:<20}{value}")


def compare(work: Path) -> npt.NDArray[np.float64]:
    """Compares the two final states bit by bit; returns the field V, or raises `DemoError`."""
    print()
    differing = []
    with (
        np.load(work / "reference.npz") as reference,
        np.load(work / "attacked.npz") as attacked,
    ):
        for name in ("u", "v", "step", "rng"):
            ours, theirs = attacked[name], reference[name]
            same = ours.dtype == theirs.dtype and ours.shape == theirs.shape
            same = same and ours.tobytes() == theirs.tobytes()
            digest = hashlib.sha256(ours.tobytes()).hexdigest()[:16]
            verdict = "identical" if same else "DIFFERENT"
            print(f"  {name:<6}{verdict}   sha256 {digest}...")
            if not same:
                differing.append(name)
        if differing:
            raise DemoError(
                f"the final states differ in {', '.join(differing)}: this is a bug in outlive. "
                f"Everything is kept in {work}"
            )
        v: npt.NDArray[np.float64] = reference["v"]
        return v


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Prints a table with columns as wide as they need to be."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, ["-" * width for width in widths], *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  " + "  ".join(cells).rstrip())


class Progress:
    """A line that shows the progress of a run; silent if the output is no terminal."""

    def __init__(self, name: str, steps: int) -> None:
        """Shows a run of `steps` steps."""
        self.name, self.steps, self.shown = name, steps, -1

    def __call__(self, step: int) -> None:
        """Shows that `step` is done."""
        if step != self.shown and sys.stdout.isatty():
            self.shown = step
            done = 30 * step // self.steps
            bar = "#" * done + "." * (30 - done)
            print(f"\r  {self.name:<10} [{bar}] step {step} of {self.steps}", end="", flush=True)

    def clear(self) -> None:
        """Removes the line."""
        if self.shown >= 0:
            print("\r\x1b[K", end="", flush=True)


# --- The picture ----------------------------------------------------------------------------------

# Ten colours from dark to light, evenly spaced to the eye (after Matplotlib's "inferno", CC0).
COLOURS = "000004 1b0c41 4a0c6b 781c6d a52c60 cf4446 ed6925 fb9b06 f7d13d fcffa4"


def write_picture(path: Path, field: npt.NDArray[np.float64]) -> None:
    """Writes the middle of a square field as a PNG picture."""
    size = len(field)
    middle = field[size // 4 : size - size // 4, size // 4 : size - size // 4]
    cells = max(1, len(middle) // PICTURE_SIZE)
    pixels = len(middle) // cells
    middle = middle[: pixels * cells, : pixels * cells]
    shrunk = middle.reshape(pixels, cells, pixels, cells).mean(axis=(1, 3))
    shade = (shrunk - shrunk.min()) / max(float(np.ptp(shrunk)), 1e-300)
    colours = np.array([list(bytes.fromhex(colour)) for colour in COLOURS.split()])
    steps = np.linspace(0, 1, len(colours))
    rgb = np.stack([np.interp(shade, steps, colours[:, k]) for k in range(3)], axis=-1)
    # Each row of a PNG begins with the number of its filter: none.
    rows = np.concatenate([np.zeros((pixels, 1)), rgb.reshape(pixels, -1)], axis=1).astype(np.uint8)

    def part(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", pixels, pixels, 8, 2, 0, 0, 0)
    parts = (
        part(b"IHDR", header) + part(b"IDAT", zlib.compress(rows.tobytes())) + part(b"IEND", b"")
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)


# --- The whole ------------------------------------------------------------------------------------


def demo(args: argparse.Namespace) -> None:
    """Runs the demo; raises `DemoError` if it does not end as it should."""
    work = args.dir / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    state_bytes = 2 * 8 * args.size**2
    free_bytes = shutil.disk_usage(work).free
    # Both final states, a first whole checkpoint, and the changes after it.
    needed_bytes = 20 * state_bytes
    if free_bytes < needed_bytes:
        raise DemoError(
            f"{work} has {free_bytes / MIB:.0f} MiB free, and the demo may take "
            f"{needed_bytes / MIB:.0f} MiB: choose another location with --dir, or a smaller --size"
        )
    common = ["--size", str(args.size), "--steps", str(args.steps)]

    print(f"Gray-Scott, {args.size} x {args.size} cells, {state_bytes / MIB:.0f} MiB of state")
    print(f"\n1. Undisturbed: {args.steps} steps without checkpoints, the reference", flush=True)
    show = Progress("reference", args.steps)
    arguments = [*common, "--out", str(work / "reference.npz")]
    with living(work, "reference", arguments) as life:
        life.watch(lambda: False, show)
        show.clear()
        reference_s = float(life.all("end")[0]["t_s"]) - float(life.all("loop")[0]["t_s"])
    print(f"  done in {reference_s:.1f} s")

    print(
        f"\n2. With kills: a checkpoint every {args.every:g} s, {args.kills} times kill -9 "
        f"(moments drawn with --seed {args.seed})",
        flush=True,
    )
    run = attack(args, work, common, reference_s)
    if len(run.deaths) < args.kills:
        print(f"  it ended before kill {len(run.deaths) + 1}: give it more --steps")
    if not run.deaths:
        raise DemoError("the simulation ended before it could be killed: give it more --steps")
    print("  no more kills: it ran to the end")
    report(run, args, work, reference_s)

    print("\n3. Is the result the same, bit for bit?", flush=True)
    v = compare(work)
    picture = args.dir / "gray_scott.png"
    write_picture(picture, v)
    if args.keep:
        print(f"\n  Checkpoints, journals and final states: {work}")
    else:
        shutil.rmtree(work)
    print(f"\n  Killed {len(run.deaths)} times, and not one bit is different.")
    print(f"  The middle of the final field V: {picture}")


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Kills a simulation again and again, and compares its result with that of an "
        "undisturbed one."
    )
    parser.add_argument(
        "--size", type=int, default=4096, help="number of cells per side (4096: 256 MiB)"
    )
    parser.add_argument("--steps", type=int, default=300, help="number of steps of the simulation")
    parser.add_argument("--kills", type=int, default=5, help="number of kills")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between checkpoints")
    parser.add_argument(
        "--seed", type=int, help="seed for the moments of the kills (default: random)"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path("demo-out"), help="directory for all files"
    )
    parser.add_argument("--keep", action="store_true", help="keep checkpoints, journals and states")
    args = parser.parse_args()
    if args.kills < 1 or args.steps < 1 or args.every < 0:
        parser.error("--kills and --steps must be at least 1, --every at least 0")
    if args.seed is None:
        args.seed = secrets.randbelow(1_000_000)
    return args


def main() -> None:
    """Runs the demo from the command line."""

    def stop(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)  # as Ctrl-C: the child is ended on the way out
    args = arguments()
    try:
        demo(args)
    except DemoError as error:
        sys.exit(f"\nThe demo failed: {error}")
    except KeyboardInterrupt:
        shutil.rmtree(args.dir / "work", ignore_errors=True)
        sys.exit("\nStopped; the simulation has been ended and its files removed.")


if __name__ == "__main__":
    main()
