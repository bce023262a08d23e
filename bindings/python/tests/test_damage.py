"""Damaged checkpoints are skipped, with a warning."""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive

Same = Callable[[Any, Any], None]


def image(step: int) -> dict[str, Any]:
    return {"a": np.random.default_rng(step).random(200_000), "b": np.arange(step), "step": step}


def packs(folder: Path) -> list[Path]:
    """Returns the pack files, oldest first."""
    files = list((folder / "packs").rglob("*.shard"))
    return sorted(files, key=lambda path: path.stat().st_mtime_ns)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("fresh", [True, False])
def test_the_newest_good_one_is_taken(
    folder: Path, same: Same, caplog: pytest.LogCaptureFixture, fresh: bool
) -> None:
    with outlive.open(folder).job("a") as job:
        for step in range(1, 5):
            job.save(image(step), wait=True)
    # Damages the data of the newest checkpoint, and all of the one before it.
    newest = packs(folder)
    flip(newest[-1], 900_000)
    newest[-2].unlink()
    job = outlive.open(folder).job("a")
    state = image(2)
    state["a"][:] = 0
    state["b"] = state["b"].copy()
    with caplog.at_level(logging.WARNING, "outlive"):
        if fresh:
            state = job.restore()
        else:
            del state["b"]
            state["step"] = 0
            report = job.restore(into=state, only=["a", "step"])
            assert report.epoch == 2
    same(state["a"], image(2)["a"])
    assert state["step"] == 2
    report = job.last_restore
    assert report is not None
    assert [epoch for epoch, _ in report.skipped] == [4, 3]
    assert all(reason for _, reason in report.skipped)
    assert sum("passed over" in record.getMessage() for record in caplog.records) == 2
    # The next save leaves a good newest one.
    assert job.save(image(9), wait=True).epoch == 5
    same(outlive.open(folder).job("a").restore(), image(9))


def test_none_is_good(folder: Path) -> None:
    with outlive.open(folder).job("a") as job:
        job.save(image(3), wait=True)
    for path in packs(folder):
        flip(path, 900_000)
    job = outlive.open(folder).job("a")
    with pytest.raises(outlive.DamagedError, match="no whole checkpoint"):
        job.restore()
    state = image(3)
    state["step"] = 77
    with pytest.raises(outlive.DamagedError, match="may hold parts") as caught:
        job.restore(into=state)
    assert caught.value.into_changed
    assert state["step"] == 77
    with pytest.raises(outlive.DamagedError):
        job.restore(epoch=1)


def test_any_flipped_byte_is_noticed_or_harmless(folder: Path, same: Same) -> None:
    with outlive.open(folder).job("a") as job:
        for step in range(1, 3):
            job.save(image(step), wait=True)
    luck = np.random.default_rng(1)
    for _ in range(60):
        # Locks are empty files.
        files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 0]
        files = [path for path in files if path.name != ".reserve"]  # has no content
        files = [path for path in files if path.suffix != ".toml"]
        path = files[luck.integers(len(files))]
        before = path.read_bytes()
        flip(path, int(luck.integers(len(before))))
        try:
            tree = outlive.open(folder).job("a").restore()
        except outlive.DamagedError:
            tree = None
        if tree is not None:
            same(tree, image(tree["step"]))
        path.write_bytes(before)
    same(outlive.open(folder).job("a").restore(), image(2))


@pytest.mark.parametrize("only", [None, "l", "l/3"])
def test_of_a_damaged_tree_of_values_the_one_before_is_taken(
    folder: Path, only: str | None
) -> None:
    luck = np.random.default_rng(3)
    lists = [luck.random(100_000).tolist() for _ in range(2)]
    with outlive.open(folder).job("a") as job:
        job.save({"l": lists[0], "w": np.ones(3)}, wait=True, force=True)
        before = set(packs(folder))
        job.save({"l": lists[1], "w": np.zeros(3)}, wait=True, force=True)
    for path in set(packs(folder)) - before:
        flip(path, 300_000)
    state = {"l": [0.0], "w": np.zeros(3)}
    for _ in range(2):
        job = outlive.open(folder).job("a")
        if only != "l/3":
            assert job.restore(into=state, only=only).epoch == 1
            assert state["l"] == lists[0]
        else:
            assert job.restore(only=only)["l"][3] == lists[0][3]
        assert job.last_restore is not None
        assert [epoch for epoch, _ in job.last_restore.skipped] == [2]
        if only is None:
            assert state["w"].all()


def test_packs_that_a_scratch_file_system_has_purged_are_stored_anew(
    folder: Path, same: Same, caplog: pytest.LogCaptureFixture
) -> None:
    job = outlive.open(folder).job("a")
    state = {"mesh": np.random.default_rng(0).random(500_000), "u": np.zeros(1000), "step": 0}
    job.save(state, force=True, wait=True)
    purged = packs(folder)
    for path in purged:
        path.unlink()
    told = False
    with caplog.at_level(logging.WARNING, "outlive"):
        for step in range(1, 200):
            state["u"] += 1
            state["step"] = step
            # A save that finds the pack missing fails; the next one stores everything again.
            with contextlib.suppress(outlive.DamagedError):
                job.save(state, force=True, wait=True)
            if told:
                break
            told = "stores everything again" in caplog.text
    assert told
    last = state["step"]
    job.close()
    restored = outlive.open(folder).job("a").restore()
    assert restored["step"] == last
    same(restored["mesh"], state["mesh"])
