"""Useful work under a killer: the model, and a small run of everything."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from useful import model, runs

COSTS = model.Costs(
    pause_s=1.0,
    restart_s=2.0,
    first_s=0.8,
    costs=[(1.0, 0.11), (11.0, 0.21)],
    latencies=[(1.0, 0.52), (11.0, 0.72)],
    full_s=50.0,
    overhead=0.002,
)


@pytest.mark.parametrize("work_s", [0.1, 3.0, 20.0, 90.0])
@pytest.mark.parametrize("mean_s", [30.0, 600.0])
def test_the_model_is_that_of_a_simulated_program(work_s: float, mean_s: float) -> None:
    chance = random.Random(1)
    simulated = model.simulated(COSTS, work_s, lambda: chance.expovariate(1 / mean_s), 20_000)
    assert model.share(COSTS, work_s, mean_s) == pytest.approx(simulated, rel=0.03)


def test_the_sweep_finds_the_least_loss() -> None:
    work_s, share = model.best(COSTS, 600.0)
    assert share >= max(model.share(COSTS, work, 600.0) for work in (5.0, 8.0, 11.0, 15.0, 60.0))
    # To first order, the optimum is that of the part of the cost that does not grow.
    assert work_s == pytest.approx((2 * 0.1 * 600) ** 0.5, rel=0.1)


def test_a_fixed_interval_includes_the_save() -> None:
    work_s = model.fixed_work(COSTS, 60.0)
    assert work_s + COSTS.cost(work_s) == pytest.approx(60.0)


def test_without_checkpoints_the_work_since_the_last_kill_is_left() -> None:
    assert model.none_share(0.0, 0.0, 600.0, 1e-3) == pytest.approx(1.0, rel=1e-3)
    assert model.none_share(0.0, 0.0, 600.0, 6000.0) == pytest.approx(0.1, rel=1e-3)


def test_costs_lie_on_lines_between_the_measured_ones() -> None:
    points = [(1.0, 0.2), (2.0, 0.1), (4.0, 0.5)]
    assert [model.between(points, t) for t in (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)] == pytest.approx(
        [0.2, 0.15, 0.1, 0.3, 0.5, 0.9]
    )
    # Below the first point costs do not rise, and none is negative.
    assert model.between(points, 0.5) == pytest.approx(0.2)
    assert model.between([(2.0, 0.1), (3.0, 0.3)], 1.0) == 0.0
    assert model.between([(2.0, 0.1)], 50.0) == 0.1


def test_lost_steps_count_from_the_next_restore() -> None:
    lines = [
        {"event": "start", "at": 0.0, "pid": 1},
        {"event": "restored", "at": 2.0, "step": 0},
        {"event": "save", "work_s": 1.0, "is_first": True},
        {"event": "save", "work_s": 5.0, "is_first": False},
        {"event": "start", "at": 12.0, "pid": 2},
        {"event": "start", "at": 14.0, "pid": 3},
        {"event": "restored", "at": 16.0, "step": 80},
        {"event": "end", "at": 22.0, "step": 150},
    ]
    # The second kill comes before the restore is over.
    it = runs.told(lines, [(11.0, 100), (13.0, 100)], 0.25)
    assert (it.seconds, it.steps, it.kills, it.saves, it.every_s) == (20.0, 150, 2, 2, 5.0)
    assert (it.pauses_s, it.restarts_s, it.lost_steps) == ([1.0, 1.0], [4.0, 2.0], [20, 20])


def test_a_save_counts_from_its_commit_on() -> None:
    # A helper would complete a save that has returned.
    assert "--no-helper" in runs.command(Path("x"), {}, "auto")


@pytest.mark.parametrize("pattern", ["scattered", "dense"])
def test_everything_runs_and_leaves_nothing(tmp_path: Path, pattern: str) -> None:
    words = ["--state", "8MiB", "--mean", "40", "--compress", "10", "--minutes", "0.1", "--json"]
    words += ["--works", "0.1,0.3", "--lives", "2", "--learn", "0.5", "--reference", "0.5"]
    words += ["--pattern", pattern]
    script = Path(__file__).parents[1] / "useful_work.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["real"]) == {"auto", "fixed", "whole", "none"}
    assert all(row["steps"] > 0 for row in found["real"].values())
    assert 0 < found["modelled"]["auto"]["share"] <= found["modelled"]["best fixed"]["share"] + 1e-3
    assert 0 < found["modelled"]["auto"]["of_best"] < 1.001
    assert list(tmp_path.iterdir()) == []
