"""Labels, pins and metrics; pruning and collecting; the picture of a job."""

import contextlib
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive


def state(seed: int) -> dict[str, Any]:
    return {"a": np.random.default_rng(seed).random(50_000), "step": seed}


def filled(location: Path, count: int = 6) -> outlive.Pool:
    pool = outlive.open(location)
    with pool.job("run") as job:
        for number in range(1, count + 1):
            job.save(state(number), wait=True, metrics={"loss": abs(number - 3)})
    return pool


def stored_bytes(location: Path) -> int:
    return sum(path.stat().st_size for path in location.rglob("*.shard"))


def test_remarks_are_kept_with_a_checkpoint(tmp_path: Path) -> None:
    pool = outlive.open(tmp_path)
    job = pool.job("run")
    job.save(state(1), wait=True, label="first", pin=True, metrics={"loss": 0.5, "acc": 1})
    job.save(state(2), wait=True)
    first, second = job.epochs()
    assert (first.label, first.pinned, first.metrics) == ("first", True, {"acc": 1.0, "loss": 0.5})
    assert (second.label, second.pinned, second.metrics) == ("", False, {})
    assert first.raw_bytes > 0
    assert first.drain_s > 0
    assert first.stall_s > 0
    job.note(2, label="besser")
    job.note(1, pin=False)
    assert [(e.label, e.pinned) for e in job.epochs()] == [("first", False), ("besser", False)]
    # Notes do not disturb the program that saves.
    assert job.save(state(3), wait=True).epoch == 3
    with pytest.raises(outlive.InvalidError, match="no checkpoint 9"):
        job.note(9, pin=True)


def test_bad_metrics_are_refused_and_nothing_is_saved(tmp_path: Path) -> None:
    job = outlive.open(tmp_path).job("run")
    with pytest.raises(outlive.InvalidError, match="must be a number"):
        job.save(state(1), metrics={"loss": "low"})  # type: ignore[dict-item]
    with pytest.raises(outlive.InvalidError, match="name"):
        job.save(state(1), metrics={"": 1.0})
    with pytest.raises(outlive.InvalidError, match="label"):
        job.save(state(1), label="x" * 70_000)
    assert job.epochs() == []


def test_prunes_and_notes_wait_for_the_save_before_them(tmp_path: Path) -> None:
    job = outlive.open(tmp_path).job("run")
    for number in range(4):
        large = {"a": np.random.default_rng(number).random(2_000_000)}
        save = job.save(large, metrics={"loss": abs(number - 1)})
        pruned = job.prune(keep_best="loss")
        assert save.epoch in pruned.kept
        assert save.epoch is not None
        save = job.save(large, metrics={"loss": 9})
        assert save.epoch is not None
        job.note(save.epoch, label=f"after {number}")
    assert [epoch.label for epoch in job.epochs()][-1] == "after 3"


def test_pruning_follows_the_rules(tmp_path: Path) -> None:
    pool = filled(tmp_path)
    job = pool.job("run")
    before = stored_bytes(tmp_path)
    plan = job.prune(keep_last=1, keep_best="loss", dry_run=True)
    assert (sorted(plan.kept), plan.dropped) == ([3, 6], [1, 2, 4, 5])
    assert plan.kept[3] == "best by loss"
    assert len(job.epochs()) == 6
    assert stored_bytes(tmp_path) == before
    done = job.prune(keep_last=1, keep_best="loss")
    assert [epoch.epoch for epoch in job.epochs()] == [3, 6]
    assert done.collected.deleted_packs > 0
    assert stored_bytes(tmp_path) < before / 2
    for number in (3, 6):
        restored = job.restore(epoch=number)
        np.testing.assert_array_equal(restored["a"], state(number)["a"])
    assert job.prune(keep_within=timedelta(hours=1)).dropped == []
    # The newest of the remaining ones is kept.
    assert job.prune(keep_last=1, drop=[6], dry_run=True).dropped == [6]
    assert job.prune(drop=[3]).dropped == [3]
    assert job.prune(everything=True).dropped == [6]
    assert pool.gc().live_bytes == 0
    assert stored_bytes(tmp_path) == 0


@pytest.mark.parametrize(
    ("rules", "part"),
    [
        ({}, "no rule"),
        ({"keep_every": 0}, "every 0th"),
        ({"keep_best": "accuracy"}, "accuracy"),
        ({"keep_best": "loss:best"}, "NAME:max"),
        ({"drop": [77]}, "no checkpoint 77"),
        ({"keep_last": 1, "everything": True}, "no other rules"),
        ({"drop": [1, 2]}, "everything=True"),
        ({"drop": [1, 2], "keep_last": 1}, "everything=True"),
        ({"keep_last": 1, "max_unused": 2.0}, "a share from 0 to 1"),
        ({"keep_within": timedelta(days=-1)}, "must be 0 or longer"),
    ],
)
def test_bad_rules_drop_nothing(tmp_path: Path, rules: dict[str, Any], part: str) -> None:
    job = filled(tmp_path, 2).job("run")
    with pytest.raises(outlive.InvalidError, match=part):
        job.prune(**rules)
    assert len(job.epochs()) == 2


def test_a_program_saves_on_while_it_prunes_itself(tmp_path: Path) -> None:
    pool = outlive.open(tmp_path)
    job = pool.job("run")
    for number in range(1, 31):
        job.save(state(number), wait=True)
        if number % 5 == 0:
            job.prune(keep_last=2)
    # The program's own session holds no pack.
    collected = job.prune(keep_last=2).collected
    assert not collected.held_packs
    assert not collected.held_by
    assert stored_bytes(tmp_path) < 3 * 50_000 * 8
    assert [epoch.epoch for epoch in job.epochs()] == [29, 30]
    np.testing.assert_array_equal(job.restore()["a"], state(30)["a"])
    assert stored_bytes(tmp_path) < 3 * 50_000 * 8


def test_the_rules_of_a_job_hold_behind_its_commits(tmp_path: Path) -> None:
    pool = outlive.open(tmp_path)
    job = pool.job("run", keep_last=3, keep="best loss | newer than 0s")
    for number in range(1, 41):
        pin = number == 11
        job.save(state(number), wait=True, pin=pin, metrics={"loss": abs(number - 7)})
    # The thread drops checkpoints after the commits, whether the job is closed or not.
    while len(job.epochs()) > 6:
        job.save(state(40), wait=True, metrics={"loss": 99})
        time.sleep(0.2)  # programs compute between saves
    last = job.epochs()[-1].epoch
    job.close()
    assert [epoch.epoch for epoch in job.epochs()] == [7, 11, last - 2, last - 1, last]
    assert stored_bytes(tmp_path) < 6 * 400_000
    np.testing.assert_array_equal(job.restore(epoch=7)["a"], state(7)["a"])
    for rules in [{"keep_last": 0}, {"keep": "last"}, {"keep_last": 2, "keep": "last 3"}]:
        with pytest.raises(outlive.InvalidError):
            pool.job("other", **rules)  # type: ignore[arg-type]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_program_prunes_itself_on_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(disk)], check=True)
    try:
        job = outlive.open(disk / "pool").job("run")
        number, is_full = 0, False
        while not is_full:
            number += 1
            try:
                job.save({"a": np.random.default_rng(number).random(1_000_000)}, wait=True)
            except outlive.FullError:
                is_full = True
        with (disk / "filler").open("wb", buffering=0) as filler:
            for size in [1 << 20, 4096, 1]:
                with contextlib.suppress(OSError):
                    while filler.write(bytes(size)):
                        pass
        done = job.prune(keep_last=1).collected
        assert not done.held_by
        assert done.freed_bytes > 8_000_000
        job.save({"a": np.random.default_rng(0).random(1_000_000)}, wait=True)
        assert [epoch.epoch for epoch in job.epochs()] == [number - 1, number]
        job.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_an_age_may_be_text(tmp_path: Path) -> None:
    job = filled(tmp_path).job("run")
    assert job.prune(keep_within="7d", dry_run=True).dropped == []
    assert job.prune(keep_last=1, keep_within="0s", dry_run=True).dropped == [1, 2, 3, 4, 5]
    for wrong in ["7 days", 7]:
        with pytest.raises(outlive.InvalidError):
            job.prune(keep_within=wrong)  # type: ignore[arg-type]
    with outlive.open(tmp_path).job("label") as other:
        other.save(state(1), label=None, wait=True)


def test_an_open_job_is_not_given_up_unless_it_is_fenced(tmp_path: Path) -> None:
    pool = outlive.open(tmp_path)
    job = pool.job("run")
    job.save(state(1), wait=True)
    command = [sys.executable, "-m", "outlive", "prune", str(tmp_path), "run", "--all"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2, refused
    assert "--fence" in refused.stderr, refused
    subprocess.run([*command, "--fence", "run"], check=True)
    with pytest.raises(outlive.FencedError):
        job.save(state(2), wait=True)


def test_a_picture_of_a_job(tmp_path: Path) -> None:
    pool = filled(tmp_path / "pool", 3)
    picture = outlive.plot(pool.job("run"))
    with pytest.raises(outlive.InvalidError, match="SVG or PNG"):
        picture.save("picture.pdf")
    assert picture._repr_svg_() == picture.svg
    assert picture.svg.startswith("<svg")
    assert "run: 3 checkpoints" in picture.svg
    picture.save(tmp_path / "run.svg")
    assert (tmp_path / "run.svg").read_text() == picture.svg


def test_rules_in_one_text(tmp_path: Path) -> None:
    job = filled(tmp_path).job("run")
    pruned = job.prune("last 2 | best loss | every 4", dry_run=True)
    assert sorted(pruned.kept) == [3, 4, 5, 6]
    for text in ("last", "newer 3d", "last 2 | last 3"):
        with pytest.raises(outlive.InvalidError, match="rule"):
            job.prune(text)
    with pytest.raises(outlive.InvalidError, match="no rule"):
        job.prune()
    config = tmp_path / "pool.toml"
    config.write_text(config.read_text().replace('keep = ""', 'keep = "last 1"'))
    assert outlive.open(tmp_path).job("run").prune().dropped == [1, 2, 3, 4, 5]
