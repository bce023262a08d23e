"""How changed pages are held still, seen from a program."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive

MIB = 1 << 20
Run = Callable[..., str]


@pytest.mark.parametrize("make", [np.empty, outlive.empty])
def test_a_fork_holds_memory_beyond_the_budget(folder: Path, make: Callable[..., Any]) -> None:
    job = outlive.open(folder, freeze_bytes_max=MIB).job("a")
    state = {"u": make(64 * MIB, dtype=np.uint8), "step": 1}
    then = np.random.default_rng(1).integers(0, 256, 64 * MIB, dtype=np.uint8)
    state["u"][:] = then
    save = job.save(state)
    state["u"][:] = 0
    stats = save.wait()
    assert stats is not None
    assert stats.freeze.startswith("fork: 64.0 MiB exceed freeze_bytes_max = 1.0 MiB")
    assert (stats.forked_bytes, stats.copied_bytes, stats.live_bytes) == (64 * MIB, 0, 0)
    restored = outlive.open(folder).job("a").restore()
    assert np.array_equal(restored["u"], then)


def test_the_word_in_the_descriptor_counts_unless_the_program_has_its_own(folder: Path) -> None:
    state = {"u": np.ones(3 * MIB, dtype=np.uint8)}
    outlive.open(folder).job("a").save(state, wait=True)
    descriptor = folder / "pool.toml"
    text = descriptor.read_text()
    assert 'freeze = "auto"' in text
    descriptor.write_text(text.replace('freeze = "auto"', 'freeze = "fork"'))
    for word, beginning in [(None, 'fork: as freeze = "fork" asks'), ("copy", "copy: as freeze")]:
        state["u"] += 1
        job = outlive.open(folder, freeze=word).job(f"job {word}")
        stats = job.save(state, wait=True).stats
        assert stats is not None
        assert stats.freeze.startswith(beginning)


def test_ahead_of_a_freeze_nothing_is_copied_without_a_tracker(folder: Path) -> None:
    job = outlive.open(folder, freeze="precopy").job("a")
    stats = job.save({"u": np.ones(3 * MIB, dtype=np.uint8)}, wait=True).stats
    assert stats is not None
    assert stats.freeze.startswith("precopy: nothing had been copied ahead; copy: 3.0 MiB fit")


def test_a_program_waits_for_its_children_and_sees_only_its_own(folder: Path) -> None:
    job = outlive.open(folder, freeze="fork").job("a")
    state = {"u": np.ones(40 * MIB, dtype=np.uint8)}
    save = job.save(state)
    child = os.fork()
    if child == 0:
        os._exit(7)
    pid, status = os.wait()
    assert (pid, os.waitstatus_to_exitcode(status)) == (child, 7)
    with pytest.raises(ChildProcessError):
        os.wait()
    save.wait()


def test_a_program_that_ends_completes_its_drain_from_the_fork(folder: Path, run: Run) -> None:
    out = run(
        """
        job = outlive.open(sys.argv[1], freeze="fork").job("a")
        state = {"u": np.full(60 << 20, 5, dtype=np.uint8), "n": 3}
        state["u"][:] = np.arange(60 << 20, dtype=np.uint32).astype(np.uint8)
        job.save(state)
        state["u"][:] = 0
        print("ends")
        """,
        folder,
    )
    assert out == "ends"
    restored = outlive.open(folder).job("a").restore()
    assert restored["n"] == 3
    assert np.array_equal(restored["u"], np.arange(60 << 20, dtype=np.uint32).astype(np.uint8))
