"""A training run that outlives `kill -9`: a small neural network learns handwritten digits.

The data are scikit-learn's digits (1797 pictures of 8 x 8 pixels; Alpaydin and Kaynak, 1998). Two
layers, trained with Adam (Kingma and Ba, "Adam: a method for stochastic optimization", 2015). One
state has everything that the next step needs. It holds the weights, both moments of Adam, the order
of the pictures in this epoch, the random generator that will draw the next order, and the counters.

    python examples/train_digits.py --dir ckpt

Kill it, start it again with the same command, and it continues from its newest checkpoint, to the
same bits. Lines for outlive are marked with "outlive:" in `main`.
"""

import argparse
import gzip
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

# More threads would add up the same numbers in another order.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt

import outlive

HIDDEN, CLASSES, PIXELS = 512, 10, 64
BATCH, RATE, BETA1, BETA2, EPSILON = 64, 1e-3, 0.9, 0.999, 1e-8
TESTED = 297  # the last pictures are not learnt from

Floats = npt.NDArray[np.float32]
State = dict[str, Any]


def digits() -> tuple[Floats, npt.NDArray[np.int64]]:
    """Returns the pictures, one a row with values from 0 to 1, and their digits."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        sys.exit("The digits come with scikit-learn: pip install --no-deps scikit-learn")
    # The package needs SciPy for its import; its data do not.
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    pictures: Floats = (table[:, :PIXELS] / 16).astype(np.float32)
    return pictures, table[:, PIXELS].astype(np.int64)


def fresh(seed: int) -> State:
    """Returns the state before the first step."""
    rng = np.random.default_rng(seed)
    shapes = {"w1": (PIXELS, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
    weights: dict[str, Floats] = {}
    for name, shape in shapes.items():
        weights[name] = outlive.zeros(shape, np.float32)
        if len(shape) == 2:
            # He et al., "Delving deep into rectifiers", 2015.
            weights[name][...] = rng.standard_normal(shape) * np.sqrt(2 / shape[0])
    return {
        "weights": weights,
        "first": {name: outlive.zeros(shape, np.float32) for name, shape in shapes.items()},
        "second": {name: outlive.zeros(shape, np.float32) for name, shape in shapes.items()},
        "order": np.zeros(0, np.int64),
        "at": 0,
        "step": 0,
        "rng": rng,
    }


def advance(state: State, pictures: Floats, shown: npt.NDArray[np.int64]) -> float:
    """Learns from one batch, in place; returns its mean loss (cross-entropy, in nats)."""
    if state["at"] + BATCH > len(state["order"]):
        state["order"], state["at"] = state["rng"].permutation(len(pictures)), 0
    chosen = state["order"][state["at"] : state["at"] + BATCH]
    state["at"] += BATCH
    state["step"] += 1
    x, y, weights = pictures[chosen], shown[chosen], state["weights"]
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0)
    logits = hidden @ weights["w2"] + weights["b2"]
    logits -= logits.max(axis=1, keepdims=True)
    chances = np.exp(logits)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(BATCH)
    loss = -float(np.log(chances[rows, y]).mean())
    chances[rows, y] -= 1
    back = chances / BATCH
    back_hidden = (back @ weights["w2"].T) * (hidden > 0)
    slopes = {
        "w1": x.T @ back_hidden,
        "b1": back_hidden.sum(axis=0),
        "w2": hidden.T @ back,
        "b2": back.sum(axis=0),
    }
    for name, slope in slopes.items():
        first, second = state["first"][name], state["second"][name]
        first += (1 - BETA1) * (slope - first)
        second += (1 - BETA2) * (slope * slope - second)
        fair1, fair2 = 1 - BETA1 ** state["step"], 1 - BETA2 ** state["step"]
        weights[name] -= RATE * (first / fair1) / (np.sqrt(second / fair2) + EPSILON)
    return loss


def accuracy(state: State, pictures: Floats, shown: npt.NDArray[np.int64]) -> float:
    """Returns the share of the pictures that the network reads right."""
    weights = state["weights"]
    hidden = np.maximum(pictures @ weights["w1"] + weights["b1"], 0)
    guessed = (hidden @ weights["w2"] + weights["b2"]).argmax(axis=1)
    return float((guessed == shown).mean())


def main() -> None:
    """Trains from the command line."""
    args = arguments()
    pictures, shown = digits()
    learnt = slice(None, len(pictures) - TESTED)
    state = fresh(args.seed)
    job = None
    if args.dir:
        pool = outlive.open(args.dir)  # outlive: a directory, made on first use
        job = pool.job("digits", every_s=args.every)  # outlive: a series of checkpoints
        # outlive: a new tree, since the order of the pictures changes its length
        state = job.restore() or state
    print(f"from step {state['step']}", flush=True)
    while state["step"] < args.steps:
        loss = advance(state, pictures[learnt], shown[learnt])
        if job:
            job.save(state, metrics={"loss": loss})  # outlive: goes on at once
        if state["step"] % 100 == 0:
            print(f"step {state['step']} loss {loss:.4f}", flush=True)
    right = accuracy(state, pictures[-TESTED:], shown[-TESTED:])
    print(f"end {right:.4f}", flush=True)
    if job:
        job.save(state, force=True, metrics={"accuracy": right})
        job.prune(keep_last=1)  # outlive: drops the older checkpoints
        job.close()  # outlive: waits until the last checkpoint is safe
    if args.out:
        whole = {
            f"{kind}-{name}": value
            for kind in ("weights", "first", "second")
            for name, value in state[kind].items()
        }
        rng = str(state["rng"].bit_generator.state)
        np.savez(
            args.out, order=state["order"], at=state["at"], step=state["step"], rng=rng, **whole
        )


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Learns digits, checkpointed with outlive.")
    parser.add_argument("--steps", type=int, default=12000, help="total number of batches")
    parser.add_argument("--dir", default="", help="directory of the pool (default: no checkpoints)")
    parser.add_argument("--every", type=float, default=0.2, help="seconds between checkpoints")
    parser.add_argument("--seed", type=int, default=7, help="seed of the random numbers")
    parser.add_argument("--out", default="", metavar="FILE.npz", help="file for the final state")
    return parser.parse_args()


if __name__ == "__main__":
    main()
