"""`outlive node local` under `srun`: the disks of a job are one pool, of which a node is lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import slurm
from commands import command
from slurm import NODES, Slurm, program_of_ranks, until

import outlive

SAVED, HELD, STEPS = 20, 25, 40
SIZE = len(NODES)

# Each rank has a part of an array. In the first run, all stay at a step until they are killed.
RANKS = f"""
trail = pathlib.Path(sys.argv[1]).parent / "trail"

def note(*words):
    with trail.open("a") as file:
        print(rank, *words, file=file)

part = outlive.sharded(np.zeros(50_000), (size * 50_000,), (rank * 50_000,))
state = {{"part": part, "step": 0}}
job.restore(into=state)
note("start", state["step"])
holds = state["step"] == 0
while state["step"] < {STEPS}:
    part.array += rank + state["step"]
    state["step"] += 1
    job.save(state, force=state["step"] == {SAVED}, wait=state["step"] == {SAVED})
    if holds and state["step"] == {HELD}:
        note("held")
        while True:
            time.sleep(1)
job.save(state, force=True, wait=True)
job.close()
note("end", state["step"])
"""

# All nodes of the cluster are this machine, so they have the names that Slurm gives them.
SCRIPT = """#!/bin/sh
srun --kill-on-bad-exit --ntasks-per-node=1 sh -c '
    export OUTLIVE_HOST=$SLURMD_NODENAME
    exec outlive node local --pool pool --data "disk-$OUTLIVE_HOST" --give-up 1s -- "$@"
' sh "$@"
"""


@pytest.fixture
def cluster() -> Iterator[Slurm]:
    with slurm.cluster() as found:
        yield found


@pytest.mark.timeout(300)  # Slurm starts twice, and the nodes that are left leave their seats.
def test_a_job_goes_on_after_one_of_its_nodes_is_lost(cluster: Slurm, tmp_path: Path) -> None:
    pool, trail = tmp_path / "pool", tmp_path / "trail"
    command("pool", "init", pool, "--seats", SIZE, "--mirror", 2, "--slow", tmp_path / "slow")
    (tmp_path / "job.sh").write_text(SCRIPT, "utf-8")
    given = {'"/shared/ckpt"': "sys.argv[1]", "every_s=60": "every_s=1e6"}
    (tmp_path / "ranks.py").write_text(program_of_ranks(given, RANKS), "utf-8")

    def said(*texts: str) -> bool:
        lines = trail.read_text("utf-8").splitlines() if trail.exists() else []
        return sorted(lines) == sorted(f"{rank} {text}" for rank in range(SIZE) for text in texts)

    def out() -> str:
        return (tmp_path / "out").read_text("utf-8")

    options = ["--parsable", "--requeue", f"--nodes={SIZE}", f"--chdir={tmp_path}", "--output=out"]
    words = [sys.executable, tmp_path / "ranks.py", pool]
    job = cluster.command("sbatch", *options, "--open-mode=append", tmp_path / "job.sh", *words)
    until(lambda: said("start 0", "held"))
    cluster.lose_node(NODES[-1])
    cluster.start_again(job)
    assert cluster.until_over(job) == "COMPLETED", out()
    assert cluster.job(job)["Restarts"] == "1"
    assert said("start 0", "held", f"start {SAVED}", f"end {STEPS}"), trail.read_text("utf-8")
    # The nodes are gone, and so is their data; the slow tier has all of it.
    for name in NODES:
        left = [path for path in (tmp_path / f"disk-{name}").iterdir() if path.is_dir()]
        assert not left, out()
    command("verify", pool)
    tree = outlive.open(pool).job("heat").restore()
    whole = np.repeat([sum(range(STEPS)) + STEPS * float(rank) for rank in range(SIZE)], 50_000)
    assert (tree["step"], tree["part"].tobytes()) == (STEPS, whole.tobytes())
