"""Shows that a training run survives `kill -9`: runs it without and with kills, and compares.

    python examples/demo_training.py            (or: make demo)

`train_digits.py` learns from start to end without checkpoints: the reference. Then it learns with
checkpoints and is killed by SIGKILL at random moments; each time it is started again with the same
command. Weights, both moments of Adam, the order of the data and the random generator must end the
same to the last bit.
"""

import argparse
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

PROGRAM = Path(__file__).with_name("train_digits.py")


class DemoError(Exception):
    """The result of the demo is wrong; the text gives the reason."""


def run(arguments: list[str], kill_after_s: float | None) -> tuple[list[str], bool, float]:
    """Runs one life; returns its lines, whether it was killed, and how many seconds it lived."""
    began_s = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        lines, _ = child.communicate(timeout=kill_after_s)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        lines, _ = child.communicate()
    finally:
        child.kill()
        child.wait()
    lived_s = time.monotonic() - began_s
    if child.returncode not in (0, -signal.SIGKILL):
        raise DemoError(f"the program failed (exit {child.returncode})")
    return lines.splitlines(), child.returncode != 0, lived_s


def number_after(word: str, lines: list[str]) -> float:
    """Returns the number after a word, in the last line that begins with it; 0 if there is none."""
    found = [line for line in lines if line.startswith(word)]
    return float(found[-1].removeprefix(word).split()[0]) if found else 0.0


def demo(args: argparse.Namespace) -> None:
    """Runs the demo; raises `DemoError` if it does not end as it should."""
    work = args.dir / "training"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    luck = random.Random(args.seed)
    steps = ["--steps", str(args.steps)]

    print(f"Digits: {args.steps} steps of Adam, 0.4 MiB of state")
    print("\n1. Undisturbed: without checkpoints, the reference", flush=True)
    lines, _, peace_s = run([*steps, "--out", str(work / "reference.npz")], None)
    print(
        f"  done in {peace_s:.1f} s; {number_after('end', lines):.1%} of unseen digits read right"
    )

    print(
        f"\n2. With kills: a checkpoint every 0.2 s, {args.kills} times kill -9 "
        f"(moments drawn with --seed {args.seed})",
        flush=True,
    )
    arguments = [*steps, "--dir", str(work / "checkpoints"), "--out", str(work / "attacked.npz")]
    deaths = 0
    while True:
        moment_s = luck.uniform(0.12, 0.25) * peace_s if deaths < args.kills else None
        lines, killed, lived_s = run(arguments, moment_s)
        began, reached = number_after("from step", lines), number_after("step", lines)
        if not killed:
            break
        deaths += 1
        reached = max(reached, began)
        print(
            f"  kill -9 number {deaths}: went on from step {began:.0f}, lived {lived_s:.2f} s, "
            f"died past step {reached:.0f}"
        )
    print(f"  no more kills: from step {began:.0f} to the end")
    if deaths < args.kills:
        raise DemoError(f"it ended after {deaths} kills: give it more --steps")

    print("\n3. Is the result the same, bit for bit?", flush=True)
    with np.load(work / "reference.npz") as ours, np.load(work / "attacked.npz") as theirs:
        names = sorted(ours.files)
        differing = [n for n in names if ours[n].tobytes() != theirs[n].tobytes()]
        if differing or names != sorted(theirs.files):
            raise DemoError(f"{', '.join(differing)} differ: this is a bug in outlive")
        print(f"  {len(names)} arrays and values, all identical: {', '.join(names)}")
    shutil.rmtree(work)
    print(f"\n  Killed {deaths} times, and not one bit is different.")


def main() -> None:
    """Runs the demo from the command line."""
    parser = argparse.ArgumentParser(description="Kills a training run again and again.")
    parser.add_argument("--steps", type=int, default=12000, help="number of steps of the training")
    parser.add_argument("--kills", type=int, default=4, help="number of kills")
    parser.add_argument(
        "--seed", type=int, help="seed for the moments of the kills (default: random)"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path("demo-out"), help="directory for all files"
    )
    args = parser.parse_args()
    if args.seed is None:
        args.seed = secrets.randbelow(1_000_000)
    try:
        demo(args)
    except DemoError as error:
        sys.exit(f"\nThe demo failed: {error}")
    except KeyboardInterrupt:
        shutil.rmtree(args.dir / "training", ignore_errors=True)
        sys.exit("\nStopped; its files have been removed.")


if __name__ == "__main__":
    main()
