"""Several ranks of PyTorch, connected by gloo: `dcp`, FSDP2, and restarts with other numbers."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import outlive

Ranks = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("saved", "kind", "loads"),
    [
        ((2, "rows"), "save", [(2, "rows"), (4, "columns"), (1, "rows")]),
        ((4, "grid"), "async", [(4, "grid"), (2, "rows"), (3, "columns")]),
        ((1, "rows"), "save", [(2, "rows"), (4, "grid")]),
        ((2, "copies"), "async", [(2, "columns"), (1, "copies")]),
    ],
)
def test_a_load_on_another_number_of_ranks_and_other_parts(
    ranks: Ranks, tmp_path: Path, saved: tuple[int, str], kind: str, loads: list[tuple[int, str]]
) -> None:
    size, how = saved
    ranks(size, "save", tmp_path / "pool", how, kind)
    for count, parts in loads:
        ranks(count, "load", tmp_path / "pool", parts)


def test_a_rank_reads_only_the_rows_of_its_part(ranks: Ranks, tmp_path: Path) -> None:
    ranks(2, "save", tmp_path / "pool", "large", "save")
    for size in (1, 4):
        told = ranks(size, "load", tmp_path / "pool", "large")
        for line in told:
            restored, read, whole = map(int, line.split())
            # Chunks at the edges of a part, and small tensors, are read as a whole.
            assert restored < whole / size + 20_000
            assert read < whole / size + 400_000


def test_each_rank_has_values_of_its_own(ranks: Ranks, tmp_path: Path) -> None:
    ranks(2, "save", tmp_path / "pool", "rows", "save")
    told = ranks(2, "of_ranks", tmp_path / "pool")
    assert told == ["value of rank 0", "value of rank 1"]


def test_one_process_reads_whole_tensors(ranks: Ranks, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    ranks(2, "save", tmp_path / "pool", "rows", "save")
    tree = outlive.open(tmp_path / "pool").job("job").restore()
    generator = torch.Generator().manual_seed(len("rows"))
    assert torch.equal(tree["tensors"]["parts.rows"], torch.randn(1001, 300, generator=generator))


@pytest.mark.parametrize("how", ["dcp", "capture"])
def test_a_killed_run_of_fsdp_ends_with_the_same_bits(
    ranks: Ranks, tmp_path: Path, how: str
) -> None:
    (want, other) = ranks(2, "train", tmp_path / "undisturbed", how, 9, 0)
    assert want == other
    pool = tmp_path / "killed"
    ranks(2, "train", pool, how, 9, 3, code=-9)
    ranks(4, "train", pool, how, 9, 5, code=-9)
    told = ranks(2, "train", pool, how, 9, 0)
    _, digest = want.split()
    assert told == [f"5 {digest}"] * 2
    if how == "dcp":
        assert len(outlive.open(pool).job("job").epochs()) == 9


def test_a_run_of_ddp_goes_on_with_another_number_of_ranks(ranks: Ranks, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    (want, _) = ranks(2, "train", tmp_path / "undisturbed", "ddp", 9, 0)
    ranks(2, "train", pool, "ddp", 9, 4, code=-9)
    told = ranks(4, "train", pool, "ddp", 9, 0)
    assert told == [want.replace("0 ", "4 ", 1)] * 4


@pytest.mark.parametrize("how", ["save", "async"])
def test_a_rank_that_fails_fails_the_save_of_all(ranks: Ranks, tmp_path: Path, how: str) -> None:
    told = ranks(2, "fail", tmp_path / "pool", how)
    assert all("this cannot be pickled" in each for each in told)
    assert all(re.search(r"\[1\]$", each) for each in told)


def test_a_rank_that_fails_fails_the_load_of_all(ranks: Ranks, tmp_path: Path) -> None:
    ranks(2, "save", tmp_path / "pool", "rows", "save")
    for told in ranks(2, "fail_load", tmp_path / "pool", "1"):
        resolve, load, commit, name = told.splitlines()
        assert "rank 1 is unwilling to resolve" in resolve
        assert "rank 1 is unwilling to load bytes" in load
        assert "rank 1 is unwilling to commit" in commit
        assert "has the label 'another'" in name


def test_a_killed_rank_leaves_the_checkpoint_before(
    lives: Callable[..., list[Any]], ranks: Ranks, tmp_path: Path
) -> None:
    first, second = lives("ranks", 2, "lone_death", tmp_path / "pool")
    assert second.code == -9, second.err
    assert first.code != 0
    assert first.out == "saved 1"
    ranks(2, "load", tmp_path / "pool", "rows")


def test_the_same_ranks_must_save(ranks: Ranks, tmp_path: Path) -> None:
    told = ranks(2, "wrong", tmp_path / "pool")
    assert all("is rank 0 of 1 in the job 'job', and not the first one" in each for each in told)
    assert all("use_collectives=False saves each rank for itself" in each for each in told)
    assert all("ranks that meet in the pool cannot plan" in each for each in told)
