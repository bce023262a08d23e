"""Shows that a pool of six directories survives the loss of two, while a simulation saves into it.

    python examples/demo_pool.py            (or: make demo)

`gray_scott.py` runs from start to end without checkpoints: the reference. Then it runs with
checkpoints in a pool of six directories, any two of which may be lost. Two are deleted while it
saves. It continues, is killed by SIGKILL, and is started again: it restores from the four that are
left. While it runs, two new directories replace the lost ones, and get the missing data. At the
end every bit of the final state must be as in the undisturbed run.
"""

import argparse
import random
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

from demo import MIB, DemoError, Life, Progress, compare, living

# The command of the package that the simulation uses.
OUTLIVE = (sys.executable, "-m", "outlive")
TARGETS = 6


def outlive(*words: str, codes: tuple[int, ...] = (0,)) -> str:
    """Runs the command line; returns its output, or raises `DemoError` at any other exit code."""
    done = subprocess.run([*OUTLIVE, *words], capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        told = (done.stdout + done.stderr).strip()
        raise DemoError(f"`outlive {' '.join(words)}` failed (exit {done.returncode}):\n  {told}")
    return done.stdout


def durable(life: Life) -> int:
    """Returns the number of safe checkpoints of this life."""
    return len(life.all("durable"))


def first_life(args: argparse.Namespace, work: Path, arguments: list[str]) -> list[int]:
    """Deletes two directories while the simulation saves, then kills it; returns which."""
    luck = random.Random(args.seed)
    lost = sorted(luck.sample(range(1, TARGETS + 1), 2))
    show = Progress("life 1", args.steps)
    with living(work, "life-1", arguments) as life:
        if not life.watch(lambda: durable(life) >= 2, show):
            raise DemoError("the simulation ended too soon: give it more --steps")
        for number in lost:
            shutil.rmtree(work / f"disk{number}")
        before = durable(life)
        show.clear()
        print(f"  {before} checkpoints are safe; directories {lost[0]} and {lost[1]} are deleted")
        if not life.watch(lambda: durable(life) >= before + 2, show):
            raise DemoError("the simulation ended too soon: give it more --steps")
        life.kill()
        show.clear()
        steps = life.all("step")
        print(
            f"  {durable(life) - before} more checkpoints are safe without them; kill -9 at step "
            f"{steps[-1]['step']}"
        )
    return lost


def second_life(
    args: argparse.Namespace, work: Path, arguments: list[str], lost: list[int]
) -> None:
    """Starts the simulation again; gives the pool new directories while it runs to its end."""
    pool = str(work / "pool")
    show = Progress("life 2", args.steps)
    with living(work, "life-2", arguments) as life:
        if not life.watch(lambda: bool(life.all("loop")), show):
            raise DemoError("the simulation did not come back")
        show.clear()
        loop = life.all("loop")[0]
        took_s = float(loop["t_s"]) - float(life.all("restore")[0]["t_s"])
        if loop["step"] == 0:
            raise DemoError("the simulation started over: this is a bug in outlive")
        print(
            f"  restored from {TARGETS - 2} directories in {took_s:.2f} s; it goes on from step "
            f"{loop['step']}"
        )
        # The first may end with 6: shards of the other lost directory are still missing.
        for number, codes in zip(lost, [(0, 6), (0,)], strict=True):
            outlive("pool", "replace", pool, str(number), f"../new{number}", codes=codes)
        repaired = outlive("pool", "repair", pool).strip().splitlines()[0]
        still = "while it runs" if life.child.poll() is None else "and it has ended"
        print(f"  two new directories take their places {still}; {repaired}")
        life.watch(lambda: False, show)
        show.clear()


def demo(args: argparse.Namespace) -> None:
    """Runs the demo; raises `DemoError` if it does not end as it should."""
    work = args.dir / "pool"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    state_bytes = 2 * 8 * args.size**2
    common = ["--size", str(args.size), "--steps", str(args.steps)]
    print(f"A pool of {TARGETS} directories, 4 + 2; Gray-Scott with {state_bytes / MIB:.0f} MiB")
    print(f"\n1. Undisturbed: {args.steps} steps without checkpoints, the reference", flush=True)
    show = Progress("reference", args.steps)
    reference = [*common, "--out", str(work / "reference.npz")]
    with living(work, "reference", reference) as life:
        life.watch(lambda: False, show)
        show.clear()

    print(
        f"\n2. Two directories are lost (drawn with --seed {args.seed}), then kill -9", flush=True
    )
    pool = work / "pool"
    targets = [f"--target=../disk{number}" for number in range(1, TARGETS + 1)]
    outlive("pool", "init", str(pool), "--erasure", "4+2", *targets)
    arguments = [*common, "--dir", str(pool), "--every", str(args.every)]
    arguments += ["--out", str(work / "attacked.npz")]
    lost = first_life(args, work, arguments)
    second_life(args, work, arguments, lost)

    print("\n3. Is the result the same, bit for bit, and the pool whole again?", flush=True)
    compare(work)
    outlive("gc", str(pool))
    outlive("pool", "repair", str(pool))
    outlive("verify", str(pool))
    told = [line for line in outlive("pool", "status", str(pool)).splitlines() if "have it" in line]
    if not told:
        raise DemoError(f"the pool lacks redundancy after the repair; everything is kept in {work}")
    print("  every checkpoint is whole, and two directories may be lost again")
    shutil.rmtree(work)
    print("\n  Lost two directories of six and killed once, and not one bit is different.")


def main() -> None:
    """Runs the demo from the command line."""
    parser = argparse.ArgumentParser(
        description="Deletes two of the six directories of a pool while a simulation saves into it."
    )
    parser.add_argument(
        "--size", type=int, default=2048, help="number of cells per side (2048: 64 MiB)"
    )
    parser.add_argument("--steps", type=int, default=400, help="number of steps of the simulation")
    parser.add_argument("--every", type=float, default=0.3, help="seconds between checkpoints")
    parser.add_argument("--seed", type=int, help="seed of what is lost (default: random)")
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
        shutil.rmtree(args.dir / "pool", ignore_errors=True)
        sys.exit("\nStopped; its files have been removed.")


if __name__ == "__main__":
    main()
