"""Restores of checkpoints that differ from `into`: `strict`, `rename` and `shapes`."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive
from outlive import _core

Same = Callable[[Any, Any], None]


def restored(job: outlive.Job, saved: Any, into: Any, **options: Any) -> outlive.Restored:
    job.save(saved, force=True, wait=True)
    return job.restore(into=into, **options)


def test_leaves_that_only_one_side_has(job: outlive.Job, same: Same) -> None:
    saved = {"w": np.arange(3.0), "old": {"b": np.ones(2), "n": 1}, "step": 7, "gone": []}
    into = {"w": np.zeros(3), "new": {"c": np.full(4, 9.0)}, "step": 0, "lr": 0.5, "more": {}}
    kept = into["new"]["c"], into["w"]
    report = restored(job, saved, into, strict=False)
    same(
        into,
        {"w": np.arange(3.0), "new": {"c": np.full(4, 9.0)}, "step": 7, "lr": 0.5, "more": {}},
    )
    assert into["new"]["c"] is kept[0]
    assert into["w"] is kept[1]
    assert report.missing == ("new/c", "lr", "more")
    assert report.left_over == ("old/b", "old/n", "gone")
    assert report.partly == ()
    assert job.last_restore == report


def test_a_checkpoint_that_matches_reports_nothing(job: outlive.Job, same: Same) -> None:
    saved = {"w": np.arange(3.0), "rng": np.random.default_rng(1), "list": [1, 2], "e": {}}
    into = {"w": np.zeros(3), "rng": np.random.default_rng(2), "list": [], "e": {}}
    report = restored(job, saved, into, strict=False)
    same(into, saved)
    assert (report.missing, report.left_over, report.partly) == ((), (), ())


def test_lists_of_another_length(job: outlive.Job, same: Same) -> None:
    saved = {
        "layers": [{"w": np.full(2, float(n))} for n in range(3)],
        "losses": [1.0, 2.0, 3.0],
        "pair": (np.ones(1), 2, 3),
        "empty": [],
    }
    into: dict[str, Any] = {
        "layers": [{"w": np.zeros(2)} for _ in range(2)],
        "losses": [0.5],
        "pair": (np.zeros(1), 0),
        "empty": [np.zeros(1)],
    }
    layers = [layer["w"] for layer in into["layers"]]
    report = restored(job, saved, into, strict=False)
    assert into["losses"] == [1.0, 2.0, 3.0]
    same(into["layers"], saved["layers"][:2])
    assert all(a["w"] is b for a, b in zip(into["layers"], layers, strict=True))
    same(into["pair"], (np.ones(1), 2))
    same(into["empty"], [np.zeros(1)])
    assert report.left_over == ("layers/2/w", "pair/2")
    assert report.missing == ("empty/0",)
    more = {"layers": [{"w": np.zeros(2)} for _ in range(5)]}
    report = job.restore(into=more, strict=False)
    same(more["layers"][:3], saved["layers"])
    same(more["layers"][3:], [{"w": np.zeros(2)}] * 2)
    assert report.missing == ("layers/3/w", "layers/4/w")
    assert report.left_over == ("losses", "pair/0", "pair/1", "pair/2", "empty")


def test_kinds_and_shapes_must_match_even_so(job: outlive.Job, same: Same) -> None:
    saved = {
        "shape": np.zeros(3),
        "dtype": np.zeros(3),
        "kind": np.zeros(1),
        "leaf": 1,
        "tree": {"x": 1},
        "list": [np.zeros(1)],
        "rng": np.random.default_rng(1),
        "fine": np.ones(1),
    }
    into = {
        "shape": np.zeros(4),
        "dtype": np.zeros(3, np.float32),
        "kind": 1.0,
        "leaf": {"x": 1},
        "tree": 1,
        "list": {"0": np.zeros(1)},
        "rng": np.random.Generator(np.random.MT19937(1)),
        "fine": np.zeros(1),
    }
    before = copy.deepcopy(into)
    job.save(saved, wait=True)
    with pytest.raises(outlive.InvalidError) as caught:
        job.restore(into=into, strict=False)
    named = {line.split("'")[1].partition("/")[0] for line in caught.value.differences}
    assert named == {"shape", "dtype", "kind", "leaf", "tree", "list", "rng"}
    same(into, before)


def test_nothing_in_common_is_an_error(job: outlive.Job) -> None:
    job.save({"a": np.zeros(1), "b": 1}, wait=True)
    with pytest.raises(outlive.InvalidError, match=r"nothing of checkpoint 1 is in `into`.*'a'"):
        job.restore(into={"c": np.zeros(1)}, strict=False)
    with pytest.raises(outlive.InvalidError, match="nothing of checkpoint 1"):
        job.restore(into={}, strict=False)
    job.save({}, force=True, wait=True)
    assert job.restore(into={"c": 1}, strict=False).missing == ("c",)


def test_a_part_of_the_state(job: outlive.Job, same: Same) -> None:
    saved = {"m": {"a": np.ones(1), "b": 2}, "o": {"a": 3}}
    into = {"m": {"a": np.zeros(1), "c": 0}, "o": {"x": 0}}
    report = restored(job, saved, into, only="m", strict=False)
    same(into, {"m": {"a": np.ones(1), "c": 0}, "o": {"x": 0}})
    assert (report.missing, report.left_over) == (("m/c",), ("m/b",))
    # A pattern may select what only the checkpoint has, and a wrong one is an error.
    assert job.restore(into=into, only=["m/b", "m/a"], strict=False).left_over == ("m/b",)
    with pytest.raises(outlive.InvalidError, match="'n' selects nothing"):
        job.restore(into=into, only=["m", "n"], strict=False)


def test_generators_are_whole_or_missing(job: outlive.Job, same: Same) -> None:
    saved = {"a": np.random.default_rng(1), "b": random.Random(1), "n": 1}
    into: dict[str, Any] = {"a": random.Random(5), "c": np.random.default_rng(7), "n": 0}
    job.save(saved, wait=True)
    with pytest.raises(outlive.InvalidError, match="'a' is a random in `into`"):
        job.restore(into=into, strict=False)
    into["a"] = np.random.default_rng(4)
    report = job.restore(into=into, strict=False)
    same(into, {"a": saved["a"], "c": np.random.default_rng(7), "n": 1})
    assert (report.missing, report.left_over) == (("c",), ("b",))


@pytest.mark.parametrize("count", [5, 100])
def test_containers_of_plain_values(job: outlive.Job, same: Same, count: int) -> None:
    saved = {"config": {f"k{n}": n for n in range(count)}, "list": list(range(count)), "x": 1}
    into = {
        "config": {f"k{n}": -n for n in range(2, count + 2)},
        "list": [1, 2],
        "own": {f"k{n}": -n for n in range(count)},
        "x": 0,
    }
    want = copy.deepcopy(into)
    want["config"].update({f"k{n}": n for n in range(2, count)})
    want.update(list=list(range(count)), x=1)
    report = restored(job, saved, into, strict=False)
    same(into, want)
    assert report.left_over == ("config/k0", "config/k1")
    own = tuple(f"own/k{n}" for n in range(count))
    assert report.missing == (f"config/k{count}", f"config/k{count + 1}", *own)


def test_plain_containers_with_keys_that_no_path_names(job: outlive.Job, same: Same) -> None:
    table = {0.5 * n: n for n in range(100)}
    mine = {n / 3: n for n in range(100)}
    into = {"t": dict.fromkeys(table, 0), "mine": dict(mine), "x": np.zeros(1)}
    report = restored(job, {"t": table, "x": np.ones(1)}, into, strict=False)
    same(into, {"t": table, "mine": mine, "x": np.ones(1)})
    assert report.missing == ("mine",)
    # Other keys cannot be compared one by one.
    into["t"][0.7] = 0  # type: ignore[index]
    with pytest.raises(outlive.InvalidError, match="keys that no path names"):
        job.restore(into=into, strict=False)


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict | list):
        return {path: tree}
    if isinstance(tree, list) and not any(isinstance(value, dict | np.ndarray) for value in tree):
        return {path: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found: dict[str, Any] = {}
    for key, value in items:
        found |= leaves(value, f"{path}/{key}" if path else str(key))
    return found


def random_tree(source: random.Random, depth: int = 0) -> Any:
    """Returns a tree whose leaves of one path have one kind and shape, whatever the values."""
    tree: dict[str, Any] = {}
    for name in "abcdefg":
        if source.random() < 0.4:
            continue
        if name in "ab":
            tree[name] = np.full(ord(name), source.random())
        elif name == "c":
            tree[name] = source.randrange(100)
        elif name == "d":
            tree[name] = [source.random() for _ in range(source.choice([1, 3, 100]))]
        elif name == "e":
            tree[name] = {f"k{n}": n * source.random() for n in range(source.choice([2, 70, 80]))}
        elif name == "f":
            tree[name] = [{"w": np.full(2, source.random())} for _ in range(source.randrange(1, 4))]
        elif depth < 3:
            tree[name] = random_tree(source, depth + 1)
    return tree


@pytest.mark.parametrize("seed", range(40))
def test_any_two_trees(job: outlive.Job, same: Same, seed: int) -> None:
    source = random.Random(seed)
    saved, into = random_tree(source), random_tree(source)
    saved["same"], into["same"] = 1, 0
    theirs, mine = leaves(saved), leaves(copy.deepcopy(into))
    report = restored(job, saved, into, strict=False)
    now = leaves(into)
    assert list(now) == list(mine)
    for name, value in now.items():
        same(value, theirs.get(name, mine[name]))
    missing = [name for name in report.missing if name in mine]
    assert missing == [name for name in mine if name not in theirs]
    left = [name for name in report.left_over if name in theirs]
    assert left == [name for name in theirs if name not in mine]


# --- Names ----------------------------------------------------------------------------------------


def test_wildcards_take_their_text_along(job: outlive.Job, same: Same) -> None:
    saved = {
        "model": {"old.0.weight": np.ones(2), "old.1.weight": np.full(2, 2.0), "head": np.ones(1)},
        "opt": [{"lr": 0.1}],
        "step": 3,
    }
    into = {
        "model": {"new.0.w": np.zeros(2), "new.1.w": np.zeros(2), "head": np.zeros(1)},
        "optimizer": {"groups": [{"lr": 0.0}]},
        "step": 0,
    }
    rename = {"model/old.*.weight": "model/new.*.w", "opt": "optimizer/groups"}
    assert restored(job, saved, into, rename=rename)
    want = {
        "model": {"new.0.w": np.ones(2), "new.1.w": np.full(2, 2.0), "head": np.ones(1)},
        "optimizer": {"groups": [{"lr": 0.1}]},
        "step": 3,
    }
    same(into, want)
    # The program saves under the new names, is killed, and starts again with the same call.
    into["step"] = 4
    job.save(into, force=True, wait=True)
    into["step"] = 0
    assert job.restore(into=into, rename=rename).epoch == 2
    same(into, want | {"step": 4})


@pytest.mark.parametrize(
    ("rename", "name", "new"),
    [
        ({"module.*": "*"}, "module.a.b", "a.b"),
        ({"*": "net.*"}, "a.b", "net.a.b"),
        ({"*/*": "*.*"}, "a/b/c", "a.b/c"),
        ({"l?/[wb]": "l?/x*"}, "l1/w", None),
        ({"l?/[wb]": "*/*"}, "l1/w", "1/w"),
        ({"l[!1]": "m*"}, "l2", "m2"),
        ({"l[!1]": "m*"}, "l1", "l1"),
        ({"l[]x]": "m*"}, "l]", "m]"),
        ({"l[": "m"}, "l[", "m"),
        ({"a(b)+": "c"}, "a(b)+", "c"),
        ({"a": "b", "b": "c"}, "a", "b"),
        ({"a": "b", "a*": "c*"}, "ab", "cb"),
        ({"a": "x/y/z"}, "a/b", "x/y/z/b"),
    ],
)
def test_the_new_name(job: outlive.Job, rename: dict[str, str], name: str, new: str | None) -> None:
    def tree(name: str) -> Any:
        found: Any = np.ones(1)
        for key in reversed(name.split("/")):
            found = {key: found}
        return found | {"other": 1}

    job.save(tree(name), wait=True)
    if new is None:
        with pytest.raises(outlive.InvalidError, match="wildcard"):
            job.restore(into=tree("x"), rename=rename)
        return
    rename = {"other": "other", **rename}
    into = tree(new)
    assert job.restore(into=into, rename=rename)


def test_wrong_rules(job: outlive.Job) -> None:
    job.save({"a": np.zeros(1), "b": np.ones(1), "c": 1}, wait=True)
    into = {"a": np.zeros(1), "x": np.zeros(1), "c": 0}
    wrong: list[tuple[Any, str]] = [
        ({"b*": "x"}, "1 wildcards, and 'x' has 0"),
        ({"b": "x*"}, "no wildcard whose text"),
        ({"b": 1}, "must consist of names"),
        ({"": "x"}, "must consist of names"),
        ("b", "give {"),
        ({"a": "b"}, "same name, 'b'"),
        ({"b": "x/"}, "no name"),
    ]
    for rename, message in wrong:
        with pytest.raises(outlive.InvalidError, match=message):
            job.restore(into=into, rename=rename)
    with pytest.raises(outlive.InvalidError) as caught:
        job.restore(into=into, rename={"b": "y"})
    assert caught.value.differences == (
        "'y' is missing from `into`",
        "'x' is not in the checkpoint",
    )
    for option in ({"rename": {"a": "b"}}, {"strict": False}, {"shapes": "grow"}):
        with pytest.raises(outlive.InvalidError, match="give `into`"):
            job.restore(**option)  # type: ignore[call-overload]
    with pytest.raises(outlive.InvalidError, match="`shapes` = 'larger'"):
        job.restore(into=into, shapes="larger")  # type: ignore[call-overload]
    assert into["c"] == 0


def test_a_swap_is_refused_since_it_may_be_done(job: outlive.Job) -> None:
    job.save({"a": np.zeros(1), "b": np.ones(1)}, wait=True)
    into = {"a": np.zeros(1), "b": np.zeros(1)}
    with pytest.raises(outlive.InvalidError, match="before and after `rename`"):
        job.restore(into=into, rename={"a": "b", "b": "a"})


def test_a_rule_that_fits_nothing_is_no_error(job: outlive.Job, same: Same) -> None:
    into = {"a": np.zeros(1)}
    assert restored(job, {"a": np.ones(1)}, into, rename={"old.*": "new.*"})
    same(into, {"a": np.ones(1)})


def test_renamed_and_not_strict(job: outlive.Job, same: Same) -> None:
    saved = {"layers": {"0": np.full(1, 1.0), "1": np.full(1, 2.0)}, "old": 1}
    into = {"layers": {str(n): np.zeros(1) for n in range(3)}, "step": 5}
    shift = {"layers/0": "layers/1", "layers/1": "layers/2"}
    report = restored(job, saved, into, rename=shift, strict=False)
    want = {"layers": {str(n): np.full(1, float(n)) for n in range(3)}, "step": 5}
    same(into, want)
    assert (report.missing, report.left_over) == (("layers/0", "step"), ("old",))
    job.save(into, force=True, wait=True)
    report = job.restore(into=into, rename=shift, strict=False)
    same(into, want)
    assert (report.missing, report.left_over) == ((), ())


@pytest.mark.parametrize("count", [3, 100])
def test_names_inside_plain_containers(job: outlive.Job, same: Same, count: int) -> None:
    values = {f"k{n}": n for n in range(count)}
    saved = {"config": values | {"lr": 0.1}, "history": list(range(count)), "w": np.ones(1)}
    into: dict[str, Any] = {
        "settings": dict.fromkeys(values, 0) | {"rate": 0.0},
        "losses": [],
        "w": np.zeros(1),
    }
    rename = {"config/lr": "settings/rate", "config": "settings", "hist*": "losse*"}
    with pytest.raises(outlive.InvalidError):
        restored(job, saved, into, rename=rename)
    rename["history"] = rename.pop("hist*").replace("*", "s")
    assert job.restore(into=into, rename=rename)
    want = {
        "settings": values | {"rate": 0.1},
        "losses": list(range(count)),
        "w": np.ones(1),
    }
    same(into, want)
    job.save(into, force=True, wait=True)
    into["losses"] = [1]
    assert job.restore(into=into, rename=rename)
    same(into, want)


def test_renamed_generators_and_pickles(folder: Path, same: Same) -> None:
    job = outlive.open(folder).job("job", allow_pickle=True)
    saved = {"rng": np.random.default_rng(1), "tag": {3}, "f": np.asfortranarray(np.eye(3) + 1)}
    saved["f"][0, 2] = 5  # type: ignore[index]
    into = {"random": np.random.default_rng(2), "set": set(), "g": np.zeros((3, 3))}
    assert restored(job, saved, into, rename={"rng": "random", "tag": "set", "f": "g"})
    same(into["random"], saved["rng"])
    assert into["set"] == {3}
    assert np.array_equal(into["g"], saved["f"])  # type: ignore[arg-type]


def test_an_older_checkpoint_after_damage(folder: Path, same: Same) -> None:
    pool = outlive.open(folder)
    job = pool.job("job")
    job.save({"old": np.arange(100_000.0), "gone": 1}, wait=True)
    packs = set(folder.rglob("*"))
    job.save({"new": np.arange(100_000.0) + 1, "here": 1}, force=True, wait=True)
    job.close()
    for path in set(folder.rglob("*")) - packs:
        if path.is_file() and path.stat().st_size > 100_000:
            path.write_bytes(bytes(path.stat().st_size))
    into = {"new": np.zeros(100_000), "here": 0}
    report = outlive.open(folder).job("job").restore(into=into, rename={"old": "new"}, strict=False)
    assert report.epoch == 1
    assert (report.missing, report.left_over) == (("here",), ("gone",))
    same(into, {"new": np.arange(100_000.0), "here": 0})


# --- Shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_grown_arrays_are_filled_as_far_as_they_go(
    job: outlive.Job, order: Any, lazy: bool
) -> None:
    saved = {
        "rows": np.arange(30_000.0).reshape(100, 300),
        "both": np.arange(20_000.0).reshape(100, 200),
        "same": np.ones(4),
    }
    saved = {name: np.array(array, order=order) for name, array in saved.items()}
    job.save(saved, wait=True)
    into = {
        "rows": np.full((150, 300), -1.0, order=order),
        "both": np.full((101, 201), -1.0, order=order),
        "same": np.zeros(4),
    }
    kept = dict(into)
    report = job.restore(into=into, shapes="grow", lazy=lazy)
    if isinstance(report, outlive.LazyRestored):
        report.wait()
    assert report.partly == ("rows", "both")
    assert all(into[name] is array for name, array in kept.items())
    for name in saved:
        want = np.full(kept[name].shape, -1.0)
        want[tuple(map(slice, saved[name].shape))] = saved[name]
        assert np.array_equal(into[name], want)
    # The next save stores the whole of them.
    into["rows"][120, 7] = 5
    job.save(into, force=True, wait=True)
    back = job.restore()
    assert all(np.array_equal(back[name], into[name]) for name in into)
    assert np.array_equal(into["same"], saved["same"])


def test_smaller_arrays_only_with_overlap(job: outlive.Job) -> None:
    saved = {"a": np.arange(12.0).reshape(3, 4), "b": np.arange(3)}
    into = {"a": np.full((2, 5), -1.0), "b": np.zeros(3, int)}
    job.save(saved, wait=True)
    for shapes in ("exact", "grow"):
        with pytest.raises(outlive.InvalidError, match=r"'a' has shape \(2, 5\)"):
            job.restore(into=into, shapes=shapes)  # type: ignore[call-overload]
    report = job.restore(into=into, shapes="overlap")
    assert report.partly == ("a",)
    assert into["a"].tolist() == [[0, 1, 2, 3, -1], [4, 5, 6, 7, -1]]
    with pytest.raises(outlive.InvalidError, match="'b' has shape"):
        job.restore(into={"a": np.zeros((3, 4)), "b": np.zeros((3, 1), int)}, shapes="overlap")
    assert job.restore(into={"a": np.zeros((0, 4)), "b": np.zeros(3, int)}, shapes="overlap")


def test_grown_arrays_that_share_memory(job: outlive.Job) -> None:
    memory, tied = np.full(6, -1.0), np.arange(3.0)
    job.save({"a": tied, "b": tied, "c": tied + 1}, wait=True)
    report = job.restore(into={"a": memory, "b": memory}, only=["a", "b"], shapes="grow")
    assert report.partly == ("a", "b")
    assert memory.tolist() == [0, 1, 2, -1, -1, -1]
    with pytest.raises(outlive.InvalidError, match="share memory"):
        job.restore(into={"a": memory, "c": memory}, only=["a", "c"], shapes="grow")


def test_all_options_at_once(job: outlive.Job, same: Same) -> None:
    into = {"new": np.zeros(4), "own": 1}
    report = restored(
        job,
        {"old": np.arange(1.0, 3.0), "gone": 2},
        into,
        strict=False,
        rename={"old": "new"},
        shapes="grow",
    )
    same(into, {"new": np.array([1.0, 2.0, 0.0, 0.0]), "own": 1})
    assert (report.missing, report.left_over, report.partly) == (("own",), ("gone",), ("new",))


# --- Checkpoints of other bindings ----------------------------------------------------------------


def test_regions_of_another_binding(job: outlive.Job, same: Same) -> None:
    names = ["grid/u", "grid/v", "old", "gone"]
    job._core.save(
        lambda: None,
        names=names,
        dtypes=["<f8"] * 4,
        shapes=[(3,)] * 4,
        leaves=[np.full(3, float(n)) for n in range(4)],
        distributions={},
        attachment=b"",
        notes=_core.Notes(label="", tags=[], pin=False, metrics={}),
    ).wait(None, lambda: None)
    into = {"grid": {"u": np.zeros(3), "w": np.zeros(3)}, "grid/v": np.zeros(3), "new": np.zeros(5)}
    report = job.restore(into=into, strict=False, rename={"old": "new"}, shapes="grow")
    want = {
        "grid": {"u": np.zeros(3), "w": np.zeros(3)},
        "grid/v": np.ones(3),
        "new": np.array([2.0, 2, 2, 0, 0]),
    }
    same(into, want)
    assert (report.missing, report.left_over, report.partly) == (("grid/w",), ("gone",), ("new",))
    layers = {"grid": [np.ones(3)], "grid/v": np.zeros(3)}
    report = job.restore(into=layers, strict=False, rename={"grid/u": "grid/0"})
    same(layers, {"grid": [np.zeros(3)], "grid/v": np.ones(3)})
    assert report.left_over == ("old", "gone")


def test_in_a_group(folder: Path, same: Same) -> None:
    group = outlive.ranks(0, 1, run="run")
    cells, part = np.arange(12.0).reshape(4, 3), (slice(1, 3), slice(None))
    with outlive.open(folder).job("job", group=group) as job:
        u = outlive.sharded(cells[part].copy(), (4, 3), (1, 0))
        job.save({"old": u, "list": list(range(100)), "n": 1, "gone": np.ones(2)}, wait=True)
        mine = outlive.sharded(np.zeros((2, 3)), (4, 3), (1, 0))
        into = {"new": mine, "list": [0], "n": 0, "more": np.zeros(3)}
        report = job.restore(into=into, strict=False, rename={"old": "new"})
        assert np.array_equal(mine.array, cells[part])
        same(into["list"], list(range(100)))
        assert (report.missing, report.left_over) == (("more",), ("gone",))
        # Shapes of sharded arrays must be the same.
        wrong = {"old": outlive.sharded(np.zeros((2, 3)), (5, 3), (1, 0))}
        with pytest.raises(outlive.InvalidError, match="'old' is part of an array of shape"):
            job.restore(into=wrong, only="old", shapes="grow")
