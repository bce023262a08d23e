"""A simulation that outlives `kill -9`: Gray-Scott reaction and diffusion on a square.

Two substances react as U + 2 V -> 3 V and diffuse; U is fed in, V decays (J. E. Pearson, "Complex
Patterns in a Simple System", Science 261, 1993). Drops of V fall at random while it runs, so the
state is more than two arrays: it includes the later random numbers.

    python examples/gray_scott.py --dir ckpt

Kill it, start it again with the same command, and it continues from its newest checkpoint. Lines
for outlive are marked with "outlive:" in `main`; the rest is an ordinary NumPy program.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import outlive

# Fractions of powers of two, so that a cell of pure U stays exactly 1 and its page unchanged.
FEED, KILL = 1 / 32, 7 / 128  # rates per step at which U is fed in, and V is also taken out
DIFFUSE_U, DIFFUSE_V = 27 / 128, 27 / 256  # cells^2 per step: Pearson's 2e-5 and 1e-5 on his grid
DROPS_AT_START, STEPS_PER_DROP = 120, 4
BLOCK_ROWS = 8  # rows treated at a time, so that the scratch below stays in the processor's cache

Field = npt.NDArray[np.float64]
State = dict[str, Any]


def drop(state: State) -> None:
    """Drops V at a random place: a disc, more likely in the middle than at the edge."""
    u, v, rng = state["u"], state["v"], state["rng"]
    size = len(u)
    radius = int(rng.integers(4, 40))
    row, column = rng.normal(size / 2, size / 12, 2).astype(int)
    rows = np.arange(row - radius, row + radius + 1)
    columns = np.arange(column - radius, column + radius + 1)
    disc = np.hypot(rows[:, None] - row, columns - column) <= radius
    at = np.ix_(rows % size, columns % size)
    # Pearson's values, with his one per cent of noise.
    u[at] = np.where(disc, 0.50 * (1 + 0.01 * rng.standard_normal(disc.shape)), u[at])
    v[at] = np.where(disc, 0.25 * (1 + 0.01 * rng.standard_normal(disc.shape)), v[at])


def seed(state: State) -> None:
    """Sets the initial state: U everywhere, V only in the first drops."""
    state["u"].fill(1.0)
    state["v"].fill(0.0)
    for _ in range(DROPS_AT_START):
        drop(state)


class Stepper:
    """Moves the fields on by one time step, in place, with scratch allocated once."""

    def __init__(self, size: int) -> None:
        """Takes scratch for fields of `size` x `size` cells."""
        self.around_u = np.empty((BLOCK_ROWS, size))
        self.around_v = np.empty((BLOCK_ROWS, size))
        self.reaction = np.empty((BLOCK_ROWS, size))

    def advance(self, state: State) -> None:
        """Advances `state` by one step, and lets a drop fall on every `STEPS_PER_DROP`-th."""
        u, v = state["u"], state["v"]
        size = len(u)
        # The square is a torus: its last row is above its first. Blocks are overwritten on the way
        # down, so the old rows that are still needed are kept: the first, and the one above.
        first_u, first_v = u[0].copy(), v[0].copy()
        above_u, above_v = u[-1].copy(), v[-1].copy()
        for top in range(0, size, BLOCK_ROWS):
            end = top + BLOCK_ROWS
            block_u, block_v = u[top:end], v[top:end]
            below_u, below_v = (u[end], v[end]) if end < size else (first_u, first_v)
            around_u = add_neighbours(above_u, block_u, below_u, out=self.around_u)
            around_v = add_neighbours(above_v, block_v, below_v, out=self.around_v)
            above_u[:], above_v[:] = block_u[-1], block_v[-1]
            reaction = np.multiply(block_v, block_v, out=self.reaction)
            reaction *= block_u
            # u += Du (around - 4 u) - u v^2 + F (1 - u)
            block_u *= 1 - 4 * DIFFUSE_U - FEED
            around_u *= DIFFUSE_U
            block_u += around_u
            block_u -= reaction
            block_u += FEED
            # v += Dv (around - 4 v) + u v^2 - (F + K) v
            block_v *= 1 - 4 * DIFFUSE_V - FEED - KILL
            around_v *= DIFFUSE_V
            block_v += around_v
            block_v += reaction
        state["step"] += 1
        if state["step"] % STEPS_PER_DROP == 0:
            drop(state)


def add_neighbours(above: Field, block: Field, below: Field, *, out: Field) -> Field:
    """Sums each cell's four neighbours in `block` (n x m), between the rows `above` and `below`."""
    np.add(above, block[1], out=out[0])
    np.add(block[:-2], block[2:], out=out[1:-1])
    np.add(block[-2], below, out=out[-1])
    out[:, 1:] += block[:, :-1]
    out[:, 0] += block[:, -1]
    out[:, :-1] += block[:, 1:]
    out[:, -1] += block[:, 0]
    return out


class Journal:
    """Appends events to a file, one JSON object a line, for the demo; the path "" is off."""

    def __init__(self, path: str) -> None:
        """Opens the file at `path` for appending."""
        self.file = Path(path).open("a", encoding="utf-8") if path else None  # noqa: SIM115

    def __call__(self, event: str, **fields: Any) -> None:
        """Writes one line; `t_s` is the machine's monotonic clock, the same in every process."""
        if self.file:
            self.file.write(json.dumps({"event": event, "t_s": time.monotonic(), **fields}) + "\n")
            self.file.flush()


def main() -> None:
    """Runs the simulation from the command line."""
    args = arguments()
    note = Journal(args.stats)
    note("start")
    # Without --dir the program does not use outlive, and its memory is ordinary.
    zeros = outlive.zeros if args.dir else np.zeros
    shape = (args.size, args.size)
    rng = np.random.default_rng(args.seed)
    state: State = {"u": zeros(shape), "v": zeros(shape), "step": 0, "rng": rng}
    job = None
    if args.dir:
        pool = outlive.open(args.dir)  # outlive: a directory, made on first use
        job = pool.job("gray-scott", every_s=args.every)  # outlive: a series of checkpoints
        note("restore")
        job.restore(into=state)  # outlive: the newest whole checkpoint, if there is one
    if state["step"] == 0:
        seed(state)
    note("loop", step=state["step"])

    stepper = Stepper(args.size)
    pending = None
    while state["step"] < args.steps:
        stepper.advance(state)
        note("step", step=state["step"])
        if job:
            began_s = time.perf_counter()
            saved = job.save(state)  # outlive: at most every `every_s`; goes on at once
            took_ms = (time.perf_counter() - began_s) * 1e3
            # The rest of the loop only keeps records for the demo.
            if pending and pending.done():
                note_durable(note, pending)
                pending = None
            if saved:
                note("save", step=state["step"], epoch=saved.epoch, took_ms=took_ms)
                pending = saved
        if state["step"] % 50 == 0:
            print(f"step {state['step']} of {args.steps}", file=sys.stderr)
    if job:
        job.close()  # outlive: waits until the last checkpoint is safe; raises if it is not
        if pending:
            note_durable(note, pending)

    note("end", step=state["step"])
    if args.out:
        rng_state = json.dumps(state["rng"].bit_generator.state)
        np.savez(args.out, u=state["u"], v=state["v"], step=state["step"], rng=rng_state)


def note_durable(note: Journal, saved: Any) -> None:
    """Notes that a checkpoint is safe, and its cost."""
    note(
        "durable",
        epoch=saved.epoch,
        stall_ms=saved.stall_ms,
        changed_bytes=saved.changed_bytes,
        new_bytes=saved.new_bytes,
    )


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Gray-Scott, checkpointed with outlive.")
    parser.add_argument(
        "--size", type=int, default=4096, help="number of cells per side (4096: 256 MiB)"
    )
    parser.add_argument("--steps", type=int, default=300, help="total number of steps")
    parser.add_argument("--dir", default="", help="directory of the pool (default: no checkpoints)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between checkpoints")
    parser.add_argument("--seed", type=int, default=1993, help="seed of the random numbers")
    parser.add_argument("--out", default="", metavar="FILE.npz", help="file for the final state")
    parser.add_argument(
        "--stats", default="", metavar="FILE", help="file for the journal, one JSON value a line"
    )
    args = parser.parse_args()
    if args.size < 128 or args.size % BLOCK_ROWS:
        parser.error(f"--size must be at least 128, and a multiple of {BLOCK_ROWS}")
    return args


if __name__ == "__main__":
    main()
