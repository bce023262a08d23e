"""Heat in a plate, in blocks of rows over the ranks of MPI: saved as one checkpoint of all ranks.

If you kill it at any moment and start it again, it continues where it was, on any number of ranks,
and ends with the same temperatures, bit for bit.

    mpirun -n 4 python examples/heat_mpi4py.py POOL [--rows 1024] [--columns 1024] [--steps 2000]
"""

import argparse
import hashlib
from typing import Any

import numpy as np
from mpi4py import MPI

import outlive


def exchange(comm: MPI.Comm, cells: "np.ndarray[Any, Any]") -> None:
    """Fills the rows around a rank's own with those of its neighbours."""
    above = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
    below = comm.rank + 1 if comm.rank < comm.size - 1 else MPI.PROC_NULL
    comm.Sendrecv(cells[1], dest=above, recvbuf=cells[-1], source=below)
    comm.Sendrecv(cells[-2], dest=below, recvbuf=cells[0], source=above)


def advance(cells: "np.ndarray[Any, Any]", first: int, rows: int) -> None:
    """One step of Jacobi's method. The edge of the plate keeps its temperature."""
    inner = cells[1:-1, 1:-1]
    around = cells[:-2, 1:-1] + cells[2:, 1:-1] + cells[1:-1, :-2] + cells[1:-1, 2:]
    new = inner + 0.2 * (around - 4.0 * inner)
    begin = 1 if first == 0 else 0
    end = len(new) - 1 if first + len(new) == rows else len(new)
    inner[begin:end] = new[begin:end]


def main() -> None:
    """Runs the program of one rank."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pool")
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every-s", type=float, default=0.5)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    first = args.rows * comm.rank // comm.size
    count = args.rows * (comm.rank + 1) // comm.size - first

    cells = np.zeros((count + 2, args.columns))  # with a row of each neighbour
    own = cells[1:-1]
    if first == 0:
        own[0] = 100.0
    own[:, 0] = np.linspace(100.0, 0.0, args.rows)[first : first + count]
    state: dict[str, Any] = {
        "cells": outlive.sharded(own, (args.rows, args.columns), (first, 0)),
        "step": 0,
    }

    job = outlive.open(args.pool).job("heat", every_s=args.every_s, group=comm, replicated="step")
    restored = job.restore(into=state)
    if comm.rank == 0:
        print(f"{comm.size} ranks begin at step {state['step']}, with {restored}", flush=True)
    while state["step"] < args.steps:
        exchange(comm, cells)
        advance(cells, first, args.rows)
        state["step"] += 1
        job.save(state)
    job.save(state, force=True)
    job.close()

    whole = comm.gather(own.tobytes())
    if whole is not None:
        digest = hashlib.blake2b(b"".join(whole), digest_size=16).hexdigest()
        print(f"step {state['step']}: {digest}", flush=True)


if __name__ == "__main__":
    main()
