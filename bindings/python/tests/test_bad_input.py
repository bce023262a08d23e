"""Bad input gets a clear error, and loses nothing."""

import collections
import dataclasses
import datetime
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive
from outlive import _core
from outlive._tree import Flat, Node, flatten

Same = Callable[[Any, Any], None]

# Label, pin and metrics of a save.


def save_raw(job: outlive.Job, flat: Flat, attachment: bytes) -> None:
    """Saves regions as another binding could."""
    regions = {key: getattr(flat, key) for key in ("names", "dtypes", "shapes", "leaves")}
    notes = _core.Notes(label="", tags=[], pin=False, metrics={})
    saving = job._core.save(
        job._tick, **regions, distributions={}, attachment=attachment, notes=notes
    )
    saving.wait(60, job._tick)


class Plain:
    def __eq__(self, other: object) -> bool:
        return type(other) is Plain

    __hash__ = None


@dataclasses.dataclass
class OddError(Exception):
    x: int


@dataclasses.dataclass
class Data:
    x: Any


class Numbered(int):
    pass


class Point(collections.namedtuple("Point", "x y")):
    pass


class Row(tuple):  # type: ignore[type-arg]
    pass


class Away(datetime.tzinfo):
    pass


def attributed() -> Point:
    point = Point(1, 2)
    point.name = "P"
    return point


class Tagged(np.ndarray):  # type: ignore[type-arg]
    pass


class Broken:
    def __dlpack__(self, **options: Any) -> Any:
        raise RuntimeError("the array is on a device")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class Unpicklable:
    def __reduce__(self) -> str:
        raise RuntimeError("not me")


cycle: dict[str, Any] = {"a": [1]}
cycle["a"].append(cycle)
own = Data(None)
own.x = [own]
chain: Any = None
for _ in range(300):
    chain = Data(chain)
deep: list[Any] = []
for _ in range(100_000):
    deep = [deep]

BAD: dict[str, tuple[Any, str]] = {
    "object": ({"a": {"b": Plain()}}, r"'a/b' is of type .*Plain.*allow_pickle=True"),
    "class": ({"a": Plain}, r"'a' is of type builtins\.type"),
    "function": ({"a": len}, r"'a' is of type"),
    "dataclass": ({"a": OddError(1)}, r"'a' is of type .*OddError, .* built on Exception"),
    "in a dataclass": ({"a": Data([1, Plain()])}, r"'a/x/1' is of type .*Plain.*allow_pickle=True"),
    "number": ({"a": Numbered(1)}, r"'a' is of type .*Numbered, a class of its own"),
    "namedtuple": ({"a": [attributed()]}, r"'a/0' is of type .*Point, .*attributes beside its f"),
    "tuple": ({"a": Row([1])}, r"'a' is of type .*Row, a class of its own.*outlive\.register"),
    "zone": (
        {"a": datetime.datetime(2020, 1, 1, tzinfo=Away())},
        r"'a' .*its time zone is .*Away.*use a `zoneinfo\.ZoneInfo`",
    ),
    "in a set": ({"a": {Plain}}, r"'a/0' is of type builtins\.type"),
    "defaultdict": ({"a": collections.defaultdict(lambda: 0)}, r"'a' .*which no name leads to"),
    "objects": ({"a": np.array([None, Plain()])}, r"'a/1' is of type .*Plain"),
    "strings": (
        {"a": np.array(["x"], np.dtypes.StringDType(na_object=Plain))},
        r"'a' .*missing values are <class .*Plain",
    ),
    "masked": ({"a": np.ma.masked_array(np.ones((1, 2)).view(np.matrix))}, r"'a' .*`mask`"),
    "subclass": ({"a": np.arange(3).view(Tagged)}, r"'a' .*asarray"),
    "device": ({"a": Broken()}, r"'a' .*on a device"),
    "memory with gaps": ({"a": memoryview(b"")[::2], "b": Plain()}, r"'b' is of type"),
    "object key": (
        {(1, Plain): np.ones(1)},
        r"key .*the state itself is of type .*tuple: keys must",
    ),
    "class key": ({"a": {int: np.ones(1)}}, r"key .*int.* of 'a' is of type builtins\.type: keys"),
    "two keys, one part": (
        {"a": {1.5: 1, "1.5": np.ones(1)}},
        r"both the key 1\.5 and the key '1\.5'",
    ),
    "two keys, one name": (
        {"a": {1: np.ones(1), "1": 2}},
        r"'a' has both the key 1 and the key '1'",
    ),
    "surrogate key": ({"a\udc80": 1}, r"udc80"),
    "cycle": (cycle, r"'a/1' contains itself"),
    "cycle of an object": ({"a": own}, r"'a/x/0' contains itself"),
    "depth": (deep, r"nested"),
    "depth of objects": ({"a": chain}, r"nested more than 200 deep"),
    "long key": ({"a" * 70_000: 1}, r"70000 bytes"),
    "the state": (Plain(), r"Plain"),
    "nothing like a state": (lambda: 1, r"function"),
}


@pytest.mark.parametrize(("state", "message"), BAD.values(), ids=BAD.keys())
def test_no_state(job: outlive.Job, same: Same, state: Any, message: str) -> None:
    good = {"x": np.arange(5)}
    job.save(good, wait=True)
    with pytest.raises(outlive.InvalidError, match=message):
        job.save(state)
    same(job.restore(), good)
    good["x"][0] = 9
    assert job.save(good, wait=True).epoch == 2
    with pytest.raises(outlive.InvalidError):
        job.restore(into=state)
    same(job.restore(), good)


def test_pickle_only_if_allowed(folder: Path, same: Same) -> None:
    state = {"a": Plain(), "b": 1, "objects": np.array([1, "x", None], object)}
    careful = outlive.open(folder).job("a")
    trusting = outlive.open(folder).job("a", allow_pickle=True)
    trusting.save(state, wait=True)
    restored = trusting.restore()
    assert restored["a"] == Plain()
    assert restored["objects"].tolist() == [1, "x", None]
    into = {"a": None, "b": 0, "objects": 0}
    trusting.restore(into=into)
    assert into["a"] == Plain()
    with pytest.raises(outlive.InvalidError, match=r"\('a'\).*allow_pickle=True"):
        careful.restore()
    with pytest.raises(outlive.InvalidError, match="allow_pickle=True"):
        careful.restore(into={"a": None, "b": 0, "objects": 0})
    assert careful.restore(only="b") == {"b": 1}
    with pytest.raises(outlive.InvalidError, match="not me"):
        trusting.save({"a": Unpicklable()})


ran: list[str] = []


def evil() -> str:
    ran.append("evil")
    return ""


class Evil:
    def __reduce__(self) -> Any:
        return evil, ()


def test_nothing_is_unpickled_unasked(folder: Path) -> None:
    outlive.open(folder).job("a", allow_pickle=True).save({"a": Evil()}, wait=True)
    with pytest.raises(outlive.InvalidError):
        outlive.open(folder).job("a").restore()
    assert ran == []
    outlive.open(folder).job("a", allow_pickle=True).restore()
    assert ran == ["evil"]
    assert pickle.loads(pickle.dumps(Evil())) == ""


@pytest.mark.parametrize("dtype", ["|O", "[('a', '|O')]", "scalar:|O", "T", "what?", "[(", "ext:x"])
def test_a_checkpoint_cannot_make_objects_of_bytes(job: outlive.Job, dtype: str) -> None:
    skeleton = Flat(nodes=[Node(0, "", "dict")]).skeleton()
    save_raw(job, Flat(["a"], [dtype], [(1,)], [b"12345678"]), skeleton)
    with pytest.raises(outlive.InvalidError, match="'a' of checkpoint 1"):
        job.restore()
    with pytest.raises(outlive.InvalidError):
        job.restore(into={"a": np.zeros(1)})


def test_a_checkpoint_of_another_language(job: outlive.Job, same: Same) -> None:
    # Without a skeleton, regions come back by name.
    array = np.arange(20_000.0)
    names, dtypes, shapes = ["x/y", "n", "text"], ["<f8", "<i4", "py:str"], [(20_000,), (), ()]
    leaves = [array, np.int32(5).tobytes(), "abc"]
    save_raw(job, Flat(names, dtypes, shapes, leaves), b"")
    same(job.restore(), {"x/y": array, "n": np.array(5, np.int32), "text": "abc"})
    same(job.restore(only="n"), {"n": np.array(5, np.int32)})

    # And they fill the program's leaves of the same names.
    into = {"n": np.array(0, np.int32), "more": [np.zeros(2), 7], "x": [1, 2]}
    assert job.restore(into=into, only="n")
    same(into, {"n": np.array(5, np.int32), "more": [np.zeros(2), 7], "x": [1, 2]})
    by_key: Any = {"text": "", "n": np.array(0, np.int32), "x/y": np.zeros(20_000)}
    by_path: Any = {"x": {"y": np.zeros(20_000)}, "text": "", "n": np.array(0, np.int32)}
    kept = by_path["x"]["y"]
    assert job.restore(into=by_key)
    assert job.restore(into=by_path)
    same(by_key, {"text": "abc", "n": np.array(5, np.int32), "x/y": array})
    same(by_path, {"x": {"y": array}, "text": "abc", "n": np.array(5, np.int32)})
    assert by_path["x"]["y"] is kept
    for only in ("x/y", "x", "x*"):
        for some in ({"x/y": np.zeros(20_000)}, {"x": {"y": np.zeros(20_000)}}):
            assert job.restore(into=some, only=only)
            same(flatten(some).leaves, [array])
    with pytest.raises(outlive.InvalidError, match=r"'z' selects nothing .* 'x/y', 'n', 'text'"):
        job.restore(into=by_key, only="z")
    for wrong, told in [
        ({"n": np.array(0, np.int32)}, "'text' is missing from `into`"),
        ({**by_key, "m": np.zeros(3)}, "'m' is not in the checkpoint"),
        ({**by_key, "hist": [1.0, 2.0]}, "'hist' is not in the checkpoint"),
        ({**by_key, "deep": {"hist": [[1.0]]}}, "'deep/hist/0' is not in the checkpoint"),
        ({**by_key, "x/y": np.zeros(3)}, r"shape \(3,\) in `into`"),
        ({"m": np.zeros(3)}, "(?s)'m' is not in the checkpoint.*'x/y' is missing from `into`"),
        ({**by_key, "n": 5}, "'n' is a value in `into`, an array in the checkpoint: put an array"),
        (np.zeros(20_000), "'.' is not in the checkpoint"),
    ]:
        with pytest.raises(outlive.InvalidError, match=told):
            job.restore(into=wrong)
        assert not isinstance(wrong, dict) or wrong.get("hist", [1.0, 2.0]) == [1.0, 2.0]


@pytest.mark.parametrize("nodes", [[Node(0, "b", "dict")], [Node(0, "", "list")], []])
def test_a_skeleton_that_does_not_fit(job: outlive.Job, nodes: list[Node]) -> None:
    skeleton = Flat(nodes=nodes).skeleton()
    names, dtypes = ["a/b", "a/c"], ["py:int", "py:int"]
    save_raw(job, Flat(names, dtypes, [(), ()], [1, 2]), skeleton)
    with pytest.raises(outlive.DamagedError, match="cannot be put together"):
        job.restore()


@pytest.mark.parametrize(
    "name", ["a/b", "../../up", ".", "..", ".hidden", "a b%0A\\n", "%2F", "имя", "x" * 200]
)
def test_any_job_name(folder: Path, tmp_path: Path, name: str) -> None:
    pool = outlive.open(folder)
    pool.job(name).save({"n": name}, wait=True)
    assert pool.jobs() == [name]
    assert outlive.open(folder).job(name).restore() == {"n": name}
    assert [path.name for path in tmp_path.iterdir()] == ["pool"]


def test_impossible_jobs(folder: Path) -> None:
    pool = outlive.open(folder)
    for name in ["", "x" * 10_000, "имя" * 100]:
        with pytest.raises(outlive.InvalidError, match="name"):
            pool.job(name)
    for name in ["two\nlines", "a\0b", "\x1b[31m", "\x85"]:
        with pytest.raises(outlive.InvalidError, match="control character") as caught:
            pool.job(name)
        assert str(caught.value).isprintable()
    for every_s in [-1.0, float("nan"), float("inf"), 1e300]:
        with pytest.raises(outlive.InvalidError, match="every_s"):
            pool.job("a", every_s=every_s)
    for wrong in ["30s", True, [1]]:
        with pytest.raises(outlive.InvalidError, match=r"every_s.* give a number"):
            pool.job("a", every_s=wrong)  # type: ignore[arg-type]
    for option in [1.5, [1], "64 MB", -1]:
        with pytest.raises(outlive.InvalidError, match='such as "64MiB"'):
            outlive.open(folder, staging_bytes=option)  # type: ignore[arg-type]


def test_locations_that_are_no_pool_are_refused(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "thesis.tex").write_text("text")
    with pytest.raises(outlive.InvalidError, match=r"thesis\.tex"):
        outlive.open(thesis)
    assert [path.name for path in thesis.iterdir()] == ["thesis.tex"]
    with pytest.raises(outlive.InvalidError):
        outlive.open(thesis / "thesis.tex")
    with pytest.raises(outlive.InvalidError, match="not a pool"):
        outlive.open(tmp_path / "new", create=False)
    assert not (tmp_path / "new").exists()
    with pytest.raises(outlive.InvalidError, match="this build has no scheme"):
        outlive.open("gs://bucket/prefix")
    for place in ["", "a\0b"]:
        with pytest.raises(ValueError, match=r"empty|NUL|nul"):
            outlive.open(place)


def test_a_pool_of_another_format(folder: Path) -> None:
    outlive.open(folder).job("a").save({"x": 1}, wait=True)
    descriptor = folder / "pool.toml"
    text = descriptor.read_text()
    descriptor.write_text(text.replace("version = 0", "version = 9"))
    with pytest.raises(outlive.InvalidError, match=r"format 9\."):
        outlive.open(folder)
    descriptor.write_text("[format")
    with pytest.raises(outlive.InvalidError, match="not a pool descriptor"):
        outlive.open(folder)
    descriptor.write_text(text)
    assert outlive.open(descriptor).job("a").restore() == {"x": 1}


def test_tuning_is_checked(folder: Path) -> None:
    outlive.open(folder, threads=2, staging_bytes=32 << 20, freeze_bytes_max=0, index_bytes_max=0)
    with pytest.raises(outlive.InvalidError, match=r"thaw.*auto, copy, fork, precopy or helper"):
        outlive.open(folder, freeze="thaw")
    for wrong in [{"staging_bytes": 1}, {"threads": 1000}, {"threads": -1}, {"threads": 2**70}]:
        with pytest.raises(outlive.InvalidError, match=next(iter(wrong))):
            outlive.open(folder, **wrong)  # type: ignore[arg-type]


def test_another_shape_or_dtype_than_last_time(job: outlive.Job, same: Same) -> None:
    for array in [
        np.arange(100_000.0),
        np.arange(200_000.0),
        np.arange(50_000.0),
        np.arange(100_000, dtype=np.int16),
        np.arange(100_000, dtype=np.int16).reshape(100, 1000),
        np.arange(3),
        np.zeros(0),
        np.arange(100_000.0),
    ]:
        state = {"a": array, "step": 1}
        job.save(state, wait=True)
        same(job.restore(), state)
    for value in [5, "five", None, {"x": 1}, [1, 2]]:
        job.save({"a": value}, wait=True)
        same(job.restore(), {"a": value})


def test_wrong_arguments_raise_invalid_error(folder: Path) -> None:
    pool = outlive.open(folder)
    job = pool.job("sim")
    job.save({"a": 1}, wait=True)
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("'loss'.*'low'", lambda: job.save({"a": 1}, force=True, metrics={"loss": "low"})),  # type: ignore[dict-item]
        ("name of a metric", lambda: job.save({"a": 1}, force=True, metrics={1: 2.0})),  # type: ignore[dict-item]
        ("figures by name", lambda: job.save({"a": 1}, force=True, metrics=[1])),  # type: ignore[arg-type]
        ("keep_last = -1", lambda: job.prune(keep_last=-1)),
        ("keep_every = 'x'", lambda: job.prune(keep_every="x")),  # type: ignore[arg-type]
        ("no checkpoint -3", lambda: job.prune(drop=[-3])),
        ("no checkpoint -2", lambda: job.note(-2, pin=True)),
        ("one job", lambda: outlive.plot(pool)),  # type: ignore[arg-type]
        ("one job", lambda: outlive.plot([job])),  # type: ignore[arg-type]
        ("leave one out", lambda: job.restore(into={"a": 1}, as_plain=True)),  # type: ignore[call-overload]
        ("give the class", lambda: outlive.register("Data", vars, Data)),  # type: ignore[arg-type]
        ("to_tree=1", lambda: outlive.register(Data, 1, Data)),  # type: ignore[arg-type]
        ("fill='x'", lambda: outlive.register(Data, vars, Data, fill="x")),  # type: ignore[arg-type]
        ("part of every state", lambda: outlive.register(dict, list, dict)),
        ("part of every state", lambda: outlive.register(np.float64, float, np.float64)),
        ("/proc/nowhere", lambda: outlive.open("/proc/nowhere")),
    ]
    for match, call in wrong:
        with pytest.raises(outlive.InvalidError, match=match):
            call()
    assert [epoch.epoch for epoch in job.epochs()] == [1]


def test_sizes_have_units_and_options_types(folder: Path) -> None:
    outlive.open(folder, freeze_bytes_max="8MiB", staging_bytes=64 << 20, index_bytes_max="1 g")
    wrong: list[dict[str, Any]] = [
        {"freeze_bytes_max": "64 MB"},
        {"freeze_bytes_max": "MiB"},
        {"freeze_bytes_max": 1.5},
        {"freeze_bytes_max": -1},
        {"staging_bytes": "999999999999GiB"},
        {"threads": "two"},
        {"threads": -1},
        {"tracker": 3},
        {"freeze": b"fork"},
    ]
    for options in wrong:
        with pytest.raises(outlive.InvalidError, match=next(iter(options))):
            outlive.open(folder, **options)
