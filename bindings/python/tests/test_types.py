"""States as people have them: objects of many classes come back, and none is pickled."""

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import pickle
import random
import types
import typing
import uuid
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import outlive

Same = Callable[[Any, Any], None]


@pytest.fixture(autouse=True)
def without_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing may be pickled or unpickled")

    for name in ("dumps", "loads", "dump", "load"):
        monkeypatch.setattr(pickle, name, refuse)


Point = collections.namedtuple("Point", "x y")


class Pair(typing.NamedTuple):
    first: Any
    second: Any = None


@dataclasses.dataclass
class Config:
    rate: float
    weights: Any
    names: list[str] = dataclasses.field(default_factory=list)
    made: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.made += 1

    @functools.cached_property
    def doubled(self) -> float:
        return 2 * self.rate


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any = 1


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: Any = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Both:
    a: Any
    b: Any = 1


class Loud:
    """Fails if a restore calls it."""

    calls = 0

    def __init__(self) -> None:
        Loud.calls += 1


@dataclasses.dataclass(init=False)
class Heir(Config, Loud):
    more: Any = None

    def __init__(self) -> None:
        Loud.__init__(self)
        super().__init__(1.0, np.ones(2))
        self.beside = {"no": "field"}


T = typing.TypeVar("T")


@dataclasses.dataclass
class Box(typing.Generic[T]):
    inside: T


@attrs.define
class Defined:
    a: Any
    _b: Any = 2


@attrs.frozen
class Solid:
    a: Any = attrs.field(converter=lambda given: given)


@attrs.define(slots=False)
class Open:
    a: Any


class Colour(enum.Enum):
    RED = "r"
    CRIMSON = "r"
    BLUE = object()


class Level(enum.IntEnum):
    LOW = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Settings(dict):  # type: ignore[type-arg]
    pass


class Attributed(dict):  # type: ignore[type-arg]
    """The keys are attributes, and no other method of it may run."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(**entries)
        self.__dict__ = self

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("a restore calls no method")

    update = __setitem__  # type: ignore[assignment]


class Vector(list):  # type: ignore[type-arg]
    def append(self, value: Any) -> None:
        raise AssertionError("a restore calls no method")


class Tally(collections.Counter):  # type: ignore[type-arg]
    pass


class Registry(collections.defaultdict):  # type: ignore[type-arg]
    pass


class Bag(set):  # type: ignore[type-arg]
    def update(self, *_: Any) -> None:
        raise AssertionError("a restore calls no method")

    def __iter__(self) -> Any:
        raise AssertionError("a save calls no method")


class Frost(frozenset):  # type: ignore[type-arg]
    pass


class Reduced(dict):  # type: ignore[type-arg]
    """Its entries and attributes are saved, whatever it says to `pickle`."""

    def __reduce__(self) -> Any:
        raise AssertionError("a save calls no method")


@dataclasses.dataclass
class Output(collections.OrderedDict):  # type: ignore[type-arg]
    """As the outputs of models in Transformers: the fields are entries, too."""

    logits: Any = None
    loss: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            self[field.name] = getattr(self, field.name)


class Ordered(collections.OrderedDict):  # type: ignore[type-arg]
    __slots__ = ("note",)


def with_attributes(value: Any, **attributes: Any) -> Any:
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


def cached(config: Config) -> Config:
    assert config.doubled == 2 * config.rate
    return config


def a_list(many: int) -> list[Any]:
    return [i if i % 3 else str(i) for i in range(many)]


berlin = zoneinfo.ZoneInfo("Europe/Berlin")
utc = datetime.UTC
moment = datetime.datetime(2026, 10, 25, 2, 30, 1, 7)
objects = np.empty((2, 3), object)
objects[:] = [[1, "a", None], [2.5, [1, 2], np.arange(3)]]
records = np.zeros(3, [("n", "<i4"), ("x", "<f8", (2,))])
mixed = np.array([(1, "a"), (2, None)], [("n", "<i8"), ("what", "O")])

VALUES: dict[str, Any] = {
    "namedtuple": Point(1, np.arange(3)),
    "typed tuple": Pair(Pair(1), {"a": Pair([])}),
    "namedtuple of many": Point(a_list(99), 2),
    "dataclass": Config(0.5, np.ones(3), ["a"]),
    "frozen dataclass": Frozen(np.ones(3), Frozen(())),
    "slotted dataclass": Slotted(np.ones(3)),
    "frozen slotted dataclass": Both({"a": [np.ones(3)]}),
    "dataclass with more": Heir(),
    "generic dataclass": Box[int](5),
    "dataclass of many": Config(0.5, a_list(500), ["a"]),
    "attrs": Defined(np.ones(3), [1]),
    "frozen attrs": Solid(np.ones(3)),
    "open attrs": with_attributes(Open(1), more=2),
    "set": {3, 1, 2},
    "set of many": set(a_list(999)),
    "empty set": set(),
    "set of objects": {Pair(1, 2), frozenset({1}), Both(1), decimal.Decimal(1), None, 1.5, b"x"},
    "frozenset": frozenset("abc"),
    "deque": collections.deque([1, np.ones(2), "x"], maxlen=5),
    "deque of many": collections.deque(a_list(999)),
    "empty deque": collections.deque(maxlen=0),
    "defaultdict": collections.defaultdict(list, a=[1], b=np.ones(2)),
    "defaultdict of many": collections.defaultdict(int, {i: i for i in range(999)}),
    "defaultdict without": collections.defaultdict(None, {"a": 1}),
    "defaultdict of a class": collections.defaultdict(Settings, a=Settings(b=1)),
    "counter": collections.Counter("abracadabra"),
    "counter of tuples": collections.Counter({("a", 1): 3, 2.5: 1}),
    "enum": [Colour.RED, Colour.CRIMSON, Colour.BLUE, Level.LOW],
    "flags": [Right.READ, Right.READ | Right.WRITE, Right(0)],
    "datetime": moment,
    "datetime in a zone": moment.replace(tzinfo=berlin),
    "datetime in a fold": moment.replace(tzinfo=berlin, fold=1),
    "datetime with an offset": moment.replace(
        tzinfo=datetime.timezone(datetime.timedelta(hours=-3, seconds=7), "odd")
    ),
    "datetime in UTC": moment.replace(tzinfo=utc),
    "date": moment.date(),
    "time": datetime.time(1, 2, 3, 4, tzinfo=utc, fold=1),
    "timedelta": datetime.timedelta(-5, 3, 1),
    "timezone": [utc, datetime.timezone(datetime.timedelta(minutes=90))],
    "zone": berlin,
    "path": Path("/a/b\udc80"),
    "pure paths": [pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("c:/a")],
    "decimal": [decimal.Decimal(text) for text in ("1.50", "-0", "sNaN12", "Infinity", "1E+999")],
    "fraction": fractions.Fraction(-(7**99), 3),
    "range": [range(5), range(10, -3, -2), range(2**70)],
    "slice": [slice(None), slice(1, 9, 2)],
    "uuid": uuid.UUID(int=2**100),
    "namespace": types.SimpleNamespace(a=1, b=np.ones(2)),
    "arguments": argparse.Namespace(rate=0.1, names=["a"]),
    "dict subclass": Settings(a=1, b=np.ones(2)),
    "dict subclass with attributes": with_attributes(Settings(a=1), b=np.ones(2)),
    "dict subclass of itself": Attributed(a=1, b=np.ones(2)),
    "ordered subclass": with_attributes(Ordered(z=1, a=np.ones(2)), note="x"),
    "counter subclass": Tally("aab"),
    "defaultdict subclass": Registry(list, a=[1]),
    "list subclass": with_attributes(Vector([1, np.ones(2)]), unit="km"),
    "list subclass of many": Vector(a_list(500)),
    "set subclass": Bag([3, 1]),
    "set subclass with attributes": with_attributes(Bag("ab"), weights=np.ones(2)),
    "empty set subclass": Bag(),
    "frozenset subclass": with_attributes(Frost([1, (2, "a")]), note="x"),
    "dict subclass with a `__reduce__`": with_attributes(Reduced(a=np.ones(2)), note=[1]),
    "dataclass on a dict": Output(np.ones(2), 0.5),
    "objects": objects,
    "objects of many": np.array(a_list(5_000), object),
    "objects without axes": np.array(None, object),
    "no objects": np.empty((3, 0, 2), object),
    "objects in Fortran's order": np.asfortranarray(objects),
    "objects of a class": np.array([Colour.RED, Colour.BLUE], object),
    "masked": np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0], fill_value=7, hard_mask=True),
    "masked without a mask": np.ma.masked_array(np.arange(100_000.0)),
    "masked records": np.ma.masked_array(records, False),
    "records": np.rec.array(records),
    "records with objects": mixed,
    "records with objects, as such": mixed.view(np.recarray),
    "strings": np.array([["a", "bcd"], ["", "é"]], np.dtypes.StringDType()),
    "strings that may be missing": np.array(["a", None], np.dtypes.StringDType(na_object=None)),
    "matrix": np.arange(4.0).reshape(2, 2).view(np.matrix),
    "keys": {
        1.5: np.ones(1),
        -0.0: 1,
        float("inf"): 2,
        None: 3,
        (1, ("a", None)): 4,
        Colour.BLUE: 5,
        b"\0/~": 6,
        True: 7,
        "s/~": 8,
        2**80: 9,
        3j: 10,
        moment.date(): 11,
        np.int64(12): 12,
        Pair(1, b"x"): 13,
        frozenset({5}): 14,
        "": 15,
        Path("/x"): 16,
    },
    "plain keys": {1.5: 1, None: 2, (1, "a"): 3},
    "keys of one class": {Level.LOW: np.ones(1)},
}


@pytest.mark.parametrize("name", VALUES)
def test_round_trip(job: outlive.Job, same: Same, name: str) -> None:
    value = VALUES[name]
    calls = Loud.calls
    state = {"before": 1, "value": value, "in": [(value, "x"), {"y": value}], "after": np.ones(2)}
    job.save(state, wait=True)
    same(job.restore(), state)
    same(job.restore(only="value")["value"], value)
    # In place of an equal one, and of a value; containers and arrays replace no value.
    is_strict = type(value) in (dict, list, np.recarray, np.matrix)
    for other in (value,) if is_strict else (None, value):
        into = {"before": 0, "value": other, "in": [(other, 0), {"y": other}], "after": np.ones(2)}
        assert job.restore(into=into)
        same(into, state)
    # The object may be the whole state.
    job.save(value, wait=True)
    same(job.restore(), value)
    plain_only(job.restore(as_plain=True))
    assert Loud.calls == calls
    job.save(state, wait=True)
    assert job.save(state, force=True, wait=True)


def plain_only(tree: Any) -> None:
    """Asserts that no class is needed for a tree."""
    if type(tree) is dict:
        for key, entry in tree.items():
            plain_key(key)
            plain_only(entry)
    elif type(tree) in (list, tuple):
        list(map(plain_only, tree))
    elif isinstance(tree, np.ndarray | np.generic):
        assert type(tree) is np.ndarray or type(tree).__module__ == "numpy"
        assert not tree.dtype.hasobject
    else:
        assert type(tree) in (int, float, str, bool, bytes, complex, type(None)), type(tree)


def plain_key(key: Any) -> None:
    if type(key) is tuple:
        list(map(plain_key, key))
    else:
        assert type(key) in (int, float, str, bool, bytes, complex, type(None)), type(key)


def test_a_second_save_writes_nothing(job: outlive.Job) -> None:
    state = dict(VALUES, config=Config(0.5, np.ones(100_000)), random=np.random.default_rng(1))
    job.save(state, wait=True)
    save = job.save(state, force=True)
    save.wait()
    assert save.changed_bytes == 0
    state["config"].weights[50_000] = 2
    save = job.save(state, force=True)
    save.wait()
    assert 0 < (save.changed_bytes or 0) <= 4096


def test_a_cache_of_a_method_is_no_part_of_the_state(job: outlive.Job) -> None:
    job.save({"c": cached(Config(0.5, 1))}, wait=True)
    assert "doubled" not in vars(job.restore()["c"])
    into = {"c": cached(Config(3.0, 1))}
    held = into["c"]
    job.restore(into=into)
    assert into["c"] is held
    assert (held.rate, held.doubled) == (0.5, 1.0)


def test_fields_that_are_not_set(job: outlive.Job) -> None:
    config, slotted = Config(0.5, 1), Slotted(1)
    del config.weights, slotted.b
    job.save({"c": config, "s": slotted}, wait=True)
    there = job.restore()
    assert vars(there["c"]) == vars(config)
    assert not hasattr(there["s"], "b")


def test_sets_are_the_same_bytes_in_each_run(folder: Path, run: Callable[..., str]) -> None:
    program = """
        job = outlive.open(sys.argv[1]).job("a")
        state = {"s": {f"name {i}" for i in range(50_000)}}
        save = job.save(state, force=True)
        save.wait()
        print(save.stats.new_bytes)
    """
    assert int(run(program, folder)) > 200_000
    assert int(run(program, folder)) < 100_000


def random_key(luck: random.Random) -> Any:
    return luck.choice(
        [
            lambda: luck.choice("abcdefg/~"),
            lambda: luck.randrange(-9, 9),
            lambda: luck.random(),
            lambda: None,
            lambda: luck.randbytes(2),
            lambda: (luck.randrange(3), luck.choice("xyz")),
            lambda: luck.choice([Colour.RED, Colour.BLUE, Right.READ]),
            lambda: Pair(luck.randrange(3), None),
        ]
    )()


def random_tree(luck: random.Random, depth: int = 0) -> Any:
    kind = luck.randrange(14 if depth < 5 else 3)
    if kind < 2:
        return luck.choice(list(VALUES.values()))
    if kind == 2:
        shape = [luck.randrange(4) for _ in range(luck.randrange(3))]
        return np.frombuffer(luck.randbytes(int(np.prod(shape)) * 8), np.int64).reshape(shape)
    entries = [random_tree(luck, depth + 1) for _ in range(luck.randrange(5))]
    two = [random_tree(luck, depth + 1) for _ in range(2)]
    make: list[Callable[[], Any]] = [
        lambda: Config(luck.random(), *two),
        lambda: Both(*two),
        lambda: Defined(*two),
        lambda: Pair(*two),
        lambda: collections.deque(entries),
        lambda: with_attributes(Vector(entries), of=two[0]),
        lambda: Settings((f"k{at}", entry) for at, entry in enumerate(entries)),
        lambda: collections.defaultdict(list, without_twins(luck, entries)),
        lambda: tuple(entries),
        lambda: entries,
        lambda: without_twins(luck, entries),
    ]
    return make[kind - 3]()


def without_twins(luck: random.Random, entries: list[Any]) -> dict[Any, Any]:
    """Makes a dict in which no two keys have the same name."""
    keys = {str(key): key for key in (random_key(luck) for _ in entries)}
    return dict(zip(keys.values(), entries, strict=False))


@pytest.mark.parametrize("seed", range(60))
def test_random_trees(job: outlive.Job, same: Same, seed: int) -> None:
    luck = random.Random(seed)
    state = {"tree": random_tree(luck), "more": [random_tree(luck) for _ in range(3)]}
    job.save(state, wait=True)
    same(job.restore(), state)
    plain_only(job.restore(as_plain=True))
    # A state of the same form, whose values and arrays are others.
    other = job.restore()
    spoil(other)
    assert job.restore(into=other)
    same(other, state)


def spoil(tree: Any) -> None:
    """Changes the values and arrays of a tree where they are."""
    if isinstance(tree, np.ndarray):
        if tree.flags.writeable and not tree.dtype.hasobject and tree.dtype.kind in "iuf":
            tree[...] = 99
    elif type(tree) is dict or type(tree) is list:
        for key in list(tree) if type(tree) is dict else range(len(tree)):
            spoil(tree[key])
            if type(tree[key]) in (int, float, str):
                tree[key] = None
    elif isinstance(tree, collections.deque | set):
        tree.clear()
    elif isinstance(tree, tuple):
        list(map(spoil, tree))
    elif type(tree) is Config:
        spoil(tree.weights)
        tree.rate = -1.0
