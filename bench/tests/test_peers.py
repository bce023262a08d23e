"""Tests of the harness of `make bench`, small: states, adapters, files, figures, the page."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peers import durable, figures, main, measure, measure_files, report, state, svg, trees, verdict
from peers.adapters import PEERS, Peer
from peers.backups import BACKUPS
from peers.raw import LAYOUTS, Raw

MIB = 1 << 20


@pytest.mark.parametrize("kind", state.KINDS)
def test_state_is_a_function_of_its_seed(kind: str) -> None:
    one, other = state.make(MIB, 1, kind), state.make(MIB, 1, kind)
    assert len(one) == 16
    assert state.total_bytes(one) == MIB
    assert state.same(one, other)
    assert not state.same(one, state.make(MIB, 2, kind))
    state.change(other, 2)
    changed = [name for name in one if not state.same({name: one[name]}, {name: other[name]})]
    assert changed == ["layer14", "layer15"]
    assert not np.any(one["layer15"].view(np.uint32) == other["layer15"].view(np.uint32))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", ["outlive", "outlive-none", "outlive-copy", "savez", "pickle"])
def test_adapters_save_and_restore(name: str, keep: bool, tmp_path: Path) -> None:
    def opened() -> Peer:
        return PEERS[name](tmp_path, keep=keep)

    peer = opened()
    arrays = state.make(MIB, 1, "random", peer.allocate)
    held = peer.adopt(arrays)
    for _ in range(3):
        state.change(arrays)
        held = peer.changed(held, arrays, list(arrays))
        peer.save(held)()
        durable.sync(tmp_path)
    peer.close()
    assert state.same(opened().restore(), arrays)
    if peer.in_place:
        into = state.make(MIB, 5)
        assert state.same(opened().restore(into), arrays)
        assert state.same(into, arrays)


def test_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    for name in ("outlive", "savez"):
        with pytest.raises(FileNotFoundError):
            PEERS[name](tmp_path / name, keep=False).restore()


def test_an_interruption_keeps_the_rounds_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask(plan: measure.Plan, **task: Any) -> measure.Result:
        asked.append(task["task"])
        if len(asked) == 4:  # the restore of the second round
            raise KeyboardInterrupt
        return {}

    monkeypatch.setattr(measure, "ask", ask)
    plan = measure.Plan(("pickle",), tmp_path, MIB, MIB, "random", rounds=2, flips=1, kills=1)
    kept: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        measure.save_and_restore(plan, lambda found: kept.append(json.dumps(found)))
    assert asked == ["save", "restore"] * 2
    (only,) = map(json.loads, kept)
    assert only["rounds"] == 1
    assert [row["round"] for row in only["rows"]] == [0]


def test_raw_device_writes_everything(tmp_path: Path) -> None:
    raw = Raw(tmp_path / "raw", 6 * MIB)
    for layout in LAYOUTS:
        assert raw.write_s(layout) > 0
        assert durable.size_bytes(tmp_path / "raw") == 8 * MIB
        assert raw.read_s(layout) > 0


def test_a_small_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "--gib 0.001 --rounds 1 --kills 1 --flips 1 --only outlive,pickle"
    words += f" --what save,flip,kill --dir {tmp_path} --results {tmp_path / 'results'}"
    monkeypatch.setattr(sys, "argv", ["compare.py", *words.split()])
    assert main.main() == 0
    results = tmp_path / "results" / "some"
    page = (results / "benchmarks.md").read_text()
    assert "{{" not in page
    assert str(tmp_path) not in page
    assert "What did not work" not in page
    found = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    flips = figures.flips(found["flip"])
    assert flips == {"outlive": {"detected": 1}, "pickle": {"silent": 1}}
    # Such a small save may end before each kill; then nothing is counted.
    assert set(figures.kills(found["kill"]).get("outlive", {})) <= {"previous", "new"}
    save = figures.saves(found["save"])
    assert save["outlive"]["part_bytes"] < 0.2
    assert save["pickle"]["part_bytes"] >= 1
    # No other file stays.
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    plan = measure.Plan(("savez",), tmp_path, MIB, MIB, "random", 1, 1, 1)
    with pytest.raises(measure.WorkerError, match="no such task"):
        measure.ask(plan, task="no such task", peer="savez", root=tmp_path)


def _small_tree(tree: Path, *_: object, **__: object) -> None:
    (tree / "data").mkdir(parents=True)
    (tree / "data" / "random.bin").write_bytes(np.random.default_rng(1).bytes(40960))
    (tree / "data" / "link").symlink_to("random.bin")
    for number in range(40):
        (tree / "data" / f"note-{number}.txt").write_text("note")


def test_files_are_put_and_got(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "build", _small_tree)
    plan = measure_files.FilePlan(("cp",), tmp_path, tmp_path, MIB, True, 1)
    (row,) = measure_files.files(plan)["rows"]
    assert row["right"]
    assert row["again"]["repository_bytes"] == 2 * row["first"]["repository_bytes"]
    # The memory of a program does not include that of the interpreter that started it.
    assert row["first"]["memory_bytes"] < 20 * MIB
    assert not list(tmp_path.iterdir())


def test_a_failing_program_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "build", _small_tree)
    monkeypatch.setattr(BACKUPS["cp"], "options", ("--no-such-option",))
    plan = measure_files.FilePlan(("cp",), tmp_path, tmp_path, MIB, True, 1)
    (row,) = measure_files.files(plan)["rows"]
    assert "no-such-option" in row["error"]


def test_trees_are_compared(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for tree in (one, other):
        _small_tree(tree)
    assert not trees.same(one, other)  # times
    durable.empty(other).rmdir()
    backup = BACKUPS["cp"](tmp_path)
    measure_files._run(backup, backup.run("-a", one, other), tmp_path)
    assert trees.same(one, other)
    durable.flip_bit(other / "data" / "random.bin", 100)
    assert not trees.same(one, other)


# --- The page, from invented measurements ---------------------------------------------------------


def _saved(scale: float) -> dict[str, Any]:
    keys = ("blocked_s", "durable_s", "cpu_s", "memory_bytes", "bytes")
    return dict.fromkeys(keys, scale) | {"bytes": 1 << 30}


def _row(peer: str, number: int, scale: float) -> dict[str, Any]:
    parts = {part: _saved(scale) for part in ("first", "part", "all")}
    times = dict.fromkeys(("cold_s", "warm_s", "cold_cpu_s", "warm_cpu_s"), scale)
    return {
        "peer": peer,
        "round": number,
        "raw": {"write_s": 0.5, "read_s": 1.0, "bytes": 1 << 30},
        "save": {**parts, "state_bytes": 1 << 30},
        "restore": {**times, "right": True},
    }


FACTS = {
    "options": "",
    "gib": 1.0,
    "small_gib": 0.125,
    "state": "random",
    "rounds": 3,
    "machine": {
        "date": "2030-01-01",
        "cores": 2,
        "processor": "a processor",
        "memory_gib": 24,
        "kernel": "7.0",
        "file_system": "ext4",
        "disk": "one virtual disk",
        "outlive_commit": "abc1234",
    },
    "versions": {"torch": "not installed", "numpy": "2", "outlive": "0.1.0"},
    "programs": {"restic": "0.14.0", "borg": "not installed"},
}


def test_the_page_shows_the_measurements(tmp_path: Path) -> None:
    rows = [_row("outlive", n, 1.0 + n) for n in range(3)]
    rows += [_row("savez", n, 1.0 + n / 10) for n in range(3)]
    rows.append({"peer": "pickle", "round": 0, "raw": rows[0]["raw"], "error": "a\nno space"})
    rows[0]["restore"]["right"] = False
    save = {"what": "save", **FACTS, "rows": rows, "others_share": 0.5}
    (tmp_path / "save.json").write_text(json.dumps(save))
    (tmp_path / "unrelated.json").write_text("{}")
    page, *pictures = report.write(tmp_path, tmp_path / "docs")
    text = page.read_text()
    assert "| first save, checksums on: share of raw | 25 % | >= 95 % | **no** |" in text
    assert "a first save is durable, s/GiB: outlive 2.00, `numpy.savez` 1.10" in text
    assert "| `torch.save` | not installed |" in text
    assert "outlive: what came back was not what was saved" in text
    assert "pickle: no space" in text
    assert "    make bench\n" in text
    assert "on 2030-01-01, at commit abc1234." in text
    assert "Others used up to 50 %" in text
    assert text.count("*Not measured in this run.*") == 3
    assert sorted(path.stem for path in pictures) == ["restore", "save"]
    assert all(path.read_text().endswith("</svg>\n") for path in pictures)


def test_the_page_says_at_which_commit(tmp_path: Path) -> None:
    for name, options, commit in [
        ("flip", "--what save,flip,kill", "0ldf1a9"),
        ("kill", "--what save,flip,kill", "0ldf1a9"),
        ("save", "--what save", "abc1234"),
    ]:
        machine = FACTS["machine"] | {"outlive_commit": commit}
        facts = FACTS | {"options": options, "machine": machine}
        (tmp_path / f"{name}.json").write_text(json.dumps({"what": name, **facts, "rows": []}))
    text = report.write(tmp_path, tmp_path / "docs")[0].read_text()
    for line in (
        'make bench ARGS="--what save,flip,kill"  # flip, kill; at commit 0ldf1a9\n',
        'make bench ARGS="--what save"  # save; at commit abc1234\n',
        "on 2030-01-01, at those commits.",
    ):
        assert line in text


def test_nothing_measured_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="nothing has been measured"):
        report.write(tmp_path, tmp_path)
    assert verdict.losses({}, {}, {}) == "*Not measured in this run.*"


def test_bars_are_as_long_as_values() -> None:
    groups = [svg.Group("a<b", [1.0, None]), svg.Group("ours", [2.0, 0.5], ours=True)]
    picture = svg.bars("title", ["x", "y"], groups, str, line=("raw", 4.0))
    assert "a&lt;b" in picture
    assert picture.count("<rect") == 1 + 2 + 3
    assert "raw: 4.0" in picture
