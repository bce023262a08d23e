"""Tags of checkpoints: given with a save, changed later, and used to choose."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from commands import command

import outlive


def filled(location: Path) -> outlive.Job:
    job = outlive.open(location).job("run")
    tags: list[list[str]] = [["warmup"], ["train", "best"], ["train"], []]
    for number, given in enumerate(tags, start=1):
        job.save({"x": np.full(50_000, number)}, wait=True, tags=given)
    return job


def listed(location: Path, *words: object) -> list[int]:
    return [
        one["epoch"]
        for one in json.loads(command("ls", location, "run", "--json", *words))["checkpoints"]
    ]


def test_tags_are_kept_and_changed(tmp_path: Path) -> None:
    job = filled(tmp_path)
    assert [epoch.tags for epoch in job.epochs()] == [
        ("warmup",),
        ("best", "train"),
        ("train",),
        (),
    ]
    assert job.tag(4, ["b", "a"]) == ("a", "b")
    assert job.tag(-1, "c", remove="a") == ("b", "c")
    assert job.tag(4, remove="nothing") == ("b", "c")
    assert job.tag(4, set=["z"]) == ("z",)
    assert job.tag(4, set=()) == ()
    job.note(2, label="kept")
    assert job.epochs()[1].tags == ("best", "train"), "a label changes no tag"
    job.mark(2, "good")
    assert job.epochs()[1].tags == ("best", "train")
    job.close()
    # Other programs read and change them, too.
    assert command("tag", tmp_path, "run@3", "--add", "x,y", "--remove", "train") == (
        "checkpoint 3 of job run: the tags x, y\n"
    )
    assert json.loads(command("tag", tmp_path, "run@3", "--set", "one", "--json"))["tags"] == [
        "one"
    ]
    assert "no tags" in command("tag", tmp_path, "run@3", "--clear")
    assert outlive.open(tmp_path).job("run").epochs()[2].tags == ()


def test_impossible_tags_are_refused_and_nothing_is_saved(tmp_path: Path) -> None:
    job = filled(tmp_path)
    for wrong in ("a b", "a,b", "", "x" * 256, 7, [7], b"x"):
        with pytest.raises(outlive.InvalidError, match=r"tag"):
            job.save({"x": 1}, tags=wrong)  # type: ignore[arg-type]
    assert len(job.epochs()) == 4
    with pytest.raises(outlive.InvalidError, match="no checkpoint 9"):
        job.tag(9, "a")
    assert "cannot be both added and removed" in command(
        "tag", tmp_path, "run@1", "--add", "a", "--remove", "a", code=2
    )
    command("tag", tmp_path, "run@1", code=2)
    command("tag", tmp_path, "run", "--add", "a", code=2)


def test_tags_choose_checkpoints(tmp_path: Path) -> None:
    job = filled(tmp_path)
    assert job.restore(tag="best")["x"][0] == 2
    assert job.last_restore is not None
    assert job.last_restore.epoch == 2
    assert job.restore(tag="train")["x"][0] == 3
    state = {"x": np.zeros(50_000, dtype=int)}
    assert job.restore(state, tag=["train", "best"]).epoch == 2
    assert state["x"][0] == 2
    job.mark(3, "bad")
    assert job.restore(tag="train")["x"][0] == 2
    for wrong in ("none", ["warmup", "train"]):
        with pytest.raises(outlive.InvalidError, match="has the tags"):
            job.restore(tag=wrong)
    with pytest.raises(outlive.InvalidError, match="give one of them"):
        job.restore(tag="best", epoch=1)
    job.close()
    assert listed(tmp_path, "--tag", "train") == [2, 3]
    assert listed(tmp_path, "--tag", "train", "--tag", "best") == [2]
    assert "no checkpoint with the tag nothing" in command(
        "ls", tmp_path, "run", "--tag", "nothing"
    )
    assert "Checkpoint 1 of job run" in command("show", tmp_path, "run", "--tag", "warmup")
    assert "tags         best, train" in command("show", tmp_path, "run@2")
    assert "#best, #train" in command("ls", tmp_path, "run")
    found = json.loads(command("find", tmp_path, "x", "--tag", "train", "--json"))["found"]
    assert [one["epoch"] for one in found] == [2, 3]
    assert "no checkpoint of job run has the tag no" in command(
        "show", tmp_path, "run", "--tag", "no", code=2
    )


def test_a_damaged_checkpoint_with_a_tag_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = outlive.open(tmp_path)
    job = pool.job("run")
    for number in (1, 2):
        job.save({"x": np.random.default_rng(number).random(200_000)}, wait=True, tags="t")
    job.close()
    newest = max((tmp_path / "packs").rglob("*.shard"), key=lambda path: path.stat().st_mtime_ns)
    with newest.open("r+b") as shard:
        shard.seek(8192)
        shard.write(bytes(200_000))
    with caplog.at_level(logging.WARNING, logger="outlive"):
        tree = outlive.open(tmp_path).job("run").restore(tag="t")
    assert np.array_equal(tree["x"], np.random.default_rng(1).random(200_000))
    assert "passed over checkpoint 2" in caplog.text


def test_prunes_keep_tags(tmp_path: Path) -> None:
    job = filled(tmp_path)
    plan = job.prune(keep_tag="best", keep_last=1, dry_run=True)
    assert plan.dropped == [1, 3]
    assert plan.kept[2] == "tagged best"
    with pytest.raises(outlive.InvalidError, match="no checkpoint has the tag"):
        job.prune(keep_tag="bset")
    assert job.prune("tag warmup | tag best").dropped == [3]
    job.close()
    command("prune", tmp_path, "run", "--keep-tag", "warmup", "--keep-last", "1")
    assert listed(tmp_path) == [1, 4]


def test_files_have_tags(tmp_path: Path) -> None:
    source = tmp_path / "files"
    source.mkdir()
    outlive.open(tmp_path / "pool")
    for text, tag in (("old", "draft"), ("new", "final"), ("newer", "draft")):
        (source / "a.txt").write_text(text)
        command("put", tmp_path / "pool", "docs", source, "--tag", f"{tag},all", "--reread")
    for tag, text in (("final", "new"), ("draft", "newer")):
        to = tmp_path / tag
        command("get", tmp_path / "pool", "docs", "--tag", tag, "--to", to)
        assert (to / "a.txt").read_text() == text
    assert "no checkpoint of job docs has the tags all, none" in command(
        "get", tmp_path / "pool", "docs", "--tag", "all,none", "--to", tmp_path / "x", code=2
    )
    job = outlive.open(tmp_path / "pool").job("docs")
    job.put_files(source, tags=["python"])
    assert job.epochs()[-1].tags == ("python",)


def test_copies_and_gcs_keep_tags(tmp_path: Path) -> None:
    filled(tmp_path / "a").close()
    command("pool", "init", tmp_path / "b")
    command("copy", tmp_path / "a", tmp_path / "b")
    command("prune", tmp_path / "b", "run", "--drop", "1")
    assert [e.tags for e in outlive.open(tmp_path / "b").job("run").epochs()] == [
        ("best", "train"),
        ("train",),
        (),
    ]
