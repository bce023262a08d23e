"""`outlive.rng()`: the global random generators in a state."""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive


def draw() -> list[Any]:
    numbers = [random.random(), random.gauss(0, 1), random.randrange(10**30)]
    return [
        *numbers,
        np.random.rand(3).tolist(),
        np.random.randn(),
        np.random.permutation(9).tolist(),
    ]


@pytest.fixture(autouse=True)
def _own_generators() -> Any:
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


def restore_fresh(job: outlive.Job) -> None:
    assert repr(job.restore()["rng"]) == "<outlive.rng()>"


def restore_into(job: outlive.Job) -> None:
    state = {"rng": outlive.rng(), "step": 0}
    mine = state["rng"]
    job.restore(into=state)
    assert state["rng"] is mine
    assert state["step"] == 1


@pytest.mark.parametrize("restore", [restore_fresh, restore_into])
def test_a_restore_sets_the_generators(
    job: outlive.Job, restore: Callable[[outlive.Job], None]
) -> None:
    random.seed(5)
    np.random.seed(5)
    draw()  # leaves a second normal number in both
    job.save({"rng": outlive.rng(), "step": 1}, wait=True)
    want = draw()
    assert draw() != want
    restore(job)
    assert draw() == want
    restore(job)
    assert draw() == want


def test_it_may_be_the_whole_state_and_lie_anywhere(job: outlive.Job) -> None:
    job.save(outlive.rng(), wait=True)
    want = draw()
    job.restore()
    assert draw() == want
    job.restore(into=[outlive.rng()][0])
    assert draw() == want
    job.save({"a": [1, (outlive.rng(), np.ones(3))]}, wait=True)
    want = draw()
    assert isinstance(job.restore()["a"][1][0], outlive.Rng)
    assert draw() == want


def test_a_restore_of_other_leaves_sets_nothing(job: outlive.Job) -> None:
    job.save({"rng": outlive.rng(), "step": 1}, wait=True)
    random.seed(9)
    want = random.getstate()
    assert job.restore(only="step") == {"step": 1}
    assert random.getstate() == want
    state = {"step": 0}
    with pytest.raises(outlive.InvalidError, match="'rng"):
        job.restore(into=state)
    assert random.getstate() == want
    with pytest.raises(outlive.InvalidError, match="'rng/numpy' selects nothing"):
        job.restore(only="rng/numpy")  # only as a whole
    assert random.getstate() == want
    job.restore(only="rng")
    assert random.getstate() != want


def test_a_state_without_generators_does_not_match(job: outlive.Job) -> None:
    job.save({"step": 1}, wait=True)
    with pytest.raises(outlive.InvalidError, match="'rng' is not in the checkpoint"):
        job.restore(into={"step": 0, "rng": outlive.rng()})


def test_numpy_may_have_another_generator(job: outlive.Job) -> None:
    set_bit_generator: Any = np.random.set_bit_generator  # type: ignore[attr-defined]
    before = np.random.get_bit_generator()  # type: ignore[attr-defined]
    try:
        set_bit_generator(np.random.PCG64(7))
        job.save({"rng": outlive.rng()}, wait=True)
        want = draw()
        set_bit_generator(np.random.MT19937(3))
        job.restore()
        assert draw() == want
    finally:
        set_bit_generator(before)


def test_damage_is_no_crash(job: outlive.Job) -> None:
    job.save({"rng": {"python": b"{}"}}, wait=True)
    from outlive import _rng

    for python in (b"", b"{}", b"[3,[1,2],null]", b"[9,[1],null]"):
        with pytest.raises(outlive.InvalidError, match="generators cannot be set"):
            _rng.give({"python": python, "numpy": b"{}", "torch": None, "cuda": None})


def test_a_killed_program_draws_the_same_numbers(folder: Path) -> None:
    code = f"""
import os, random, sys
import numpy as np
import outlive

job = outlive.open({str(folder)!r}).job("job")
state = {{"rng": outlive.rng(), "drawn": ""}}
random.seed(1)
np.random.seed(1)
job.restore(into=state)
while len(state["drawn"].split()) < 60:
    state["drawn"] += f" {{random.gauss(0, 1)}} {{np.random.randn()}}"
    job.save(state, wait=True)
    if sys.argv[1] == "die" and random.Random(len(state["drawn"])).random() < 0.2:
        os.kill(os.getpid(), 9)
print(state["drawn"])
"""
    deaths = 0
    while True:
        done = subprocess.run(
            [sys.executable, "-c", code, "die"], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stderr
        deaths += 1
    assert deaths > 0
    undisturbed = code.replace(str(folder), f"{folder}-2")
    again = subprocess.run(
        [sys.executable, "-c", undisturbed, "live"], capture_output=True, text=True, check=True
    )
    assert done.stdout == again.stdout
