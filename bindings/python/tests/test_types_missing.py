"""Classes that are missing or have changed, checkpoints that lie, and those of other builds."""

import collections
import dataclasses
import enum
import json
import logging
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_bad_input import save_raw

import outlive
from outlive._flat import Flat, Node

Same = Callable[[Any, Any], None]

MODELS = """
import collections, dataclasses, enum
import numpy as np

@dataclasses.dataclass
class Config:
    rate: float
    weights: object

Point = collections.namedtuple("Point", "x y")

class Colour(enum.Enum):
    RED = 1

class Settings(dict):
    pass

def make():
    return 7

class Mesh:
    pass
"""
PLAIN = {
    "config": {"rate": 0.5, "weights": np.ones(3)},
    "many": {"rate": 0.5, "weights": list(range(500))},
    "point": {"x": 1, "y": [2]},
    "colour": "RED",
    "settings": {"a": 1},
    "default": {"a": 1},
    "keys": {"Colour.RED": np.ones(1), 1: 2},
    "w": np.ones(2),
}


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Makes a module `models_of_test` of a text, in place of the one before; "" for none."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(text: str) -> Any:
        sys.modules.pop("models_of_test", None)
        if not text:
            return None
        module = types.ModuleType("models_of_test")
        exec(text, module.__dict__)
        monkeypatch.setitem(sys.modules, "models_of_test", module)
        return module

    return make


def state_of(models: Any) -> dict[str, Any]:
    return {
        "config": models.Config(0.5, np.ones(3)),
        "many": models.Config(0.5, list(range(500))),
        "point": models.Point(1, [2]),
        "colour": models.Colour.RED,
        "settings": models.Settings(a=1),
        "default": collections.defaultdict(models.Settings, a=1),
        "keys": {models.Colour.RED: np.ones(1), 1: 2},
        "w": np.ones(2),
    }


CHANGES: dict[str, tuple[str, str, str]] = {
    "no module": (MODELS, "", "the module models_of_test cannot be imported"),
    "no dataclass": ("class Config", "class Other", "has no Config"),
    "no longer one": ("@dataclasses.dataclass", "", "Config is neither a dataclass nor a class of"),
    "a new field": (
        "weights: object",
        "weights: object; new: int = 1",
        "in addition 'new'",
    ),
    "a field less": ("    rate: float\n", "", "changed its fields since the save, lacks 'rate'"),
    "a renamed field": ("rate: float", "speed: float", "lacks 'rate', has in addition 'speed'"),
    "another layout": ("class Config:", "class Config(dict):", "Config is built on dict now"),
    "fields of a tuple": ('"x y"', '"x z"', "Point has changed its fields"),
    "no tuple": ('Point = collections.namedtuple("Point", "x y")', "Point = print", "is no class"),
    "another class": ("Point = c", "Point = Config; Other = c", "Point is no namedtuple any more"),
    "members": ("RED = 1", "BLUE = 1", "Colour has no member 'RED'"),
    "no enum": ("class Colour(enum.Enum)", "class Colour", "Colour is no Enum"),
    "no dict": ("Settings(dict)", "Settings(list)", "Settings is no subclass of dict any more"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_class_that_is_missing_or_has_changed(
    job: outlive.Job, same: Same, models: Callable[[str], Any], what: str
) -> None:
    old, new, told = CHANGES[what]
    job.save(state_of(models(MODELS)), wait=True)
    assert old in MODELS
    models(MODELS.replace(old, new))
    for _ in range(2):
        with pytest.raises(outlive.InvalidError, match=told) as caught:
            job.restore()
        assert "`job.restore(as_plain=True)` returns plain dicts" in str(caught.value)
        assert "of checkpoint 1 cannot be made again" in str(caught.value)
        same(job.restore(as_plain=True), PLAIN)
        # The rest is there.
        same(job.restore(only="w"), {"w": np.ones(2)})
        same(job.restore(only="config/rate"), {"config": {"rate": 0.5}})
    # An error changes nothing in `into`.
    into = {"w": np.zeros(2), **dict.fromkeys(["config", "point", "colour", "settings", "many"])}
    into |= {"default": None, "keys": {1: 0}}
    with pytest.raises(outlive.InvalidError) as caught:
        job.restore(into=into, only=["w", *into])
    assert not caught.value.into_changed
    assert not into["w"].any()
    models(MODELS)
    with pytest.raises(outlive.InvalidError, match="as_plain"):
        job.restore(into={"a": 1}, as_plain=True)  # type: ignore[call-overload]
    assert type(job.restore()["config"]).__name__ == "Config"


def test_the_class_of_into_is_enough(
    job: outlive.Job, same: Same, models: Callable[[str], Any]
) -> None:
    """For classes in functions and notebooks: the state itself has them."""
    module = models(MODELS)
    state, into = state_of(module), state_of(module)
    job.save(state, wait=True)
    into["config"].weights[:] = 0
    into["point"] = module.Point(9, [9])
    models("")
    job.restore(into=into)
    same(into, state)


def test_a_class_in_a_function_is_told_once(
    job: outlive.Job, caplog: pytest.LogCaptureFixture
) -> None:
    @dataclasses.dataclass
    class Inner:
        a: int

    with caplog.at_level(logging.WARNING, "outlive"):
        for _ in range(2):
            job.save({"i": Inner(1), "j": [Inner(2)]}, force=True, wait=True)
    (told,) = [line.getMessage() for line in caplog.records if "in a function" in line.getMessage()]
    assert "'i' is of the class" in told
    with pytest.raises(outlive.InvalidError, match=r"Inner is defined in a function.*as_plain"):
        job.restore()
    into = {"i": Inner(0), "j": [Inner(0)]}
    assert job.restore(into=into)
    assert into == {"i": Inner(1), "j": [Inner(2)]}


def test_a_function_as_a_factory(folder: Path, same: Same, models: Callable[[str], Any]) -> None:
    make = models(MODELS).make
    default = collections.defaultdict
    job, trusting = (outlive.open(folder).job("a", allow_pickle=trusts) for trusts in (False, True))
    job.save({"d": default(make, a=1)}, wait=True)
    with pytest.raises(outlive.InvalidError, match=r"the function models_of_test:make.*plain"):
        job.restore()
    same(job.restore(as_plain=True), {"d": {"a": 1}})
    assert trusting.restore()["d"]["new"] == 7
    held = default(make, b=1)
    with pytest.raises(outlive.InvalidError, match="calls the function"):
        job.restore(into={"d": held})


def test_a_registered_class_needs_its_module(
    job: outlive.Job, tmp_path: Path, models: Callable[[str], Any]
) -> None:
    text = """
import outlive

class Mesh:
    pass

def mesh(tree):
    made = Mesh()
    vars(made).update(tree)
    return made

outlive.register(Mesh, vars, mesh)
"""
    (tmp_path / "module_of_mesh.py").write_text(text)
    mesh = __import__("module_of_mesh").Mesh()
    mesh.a = 1
    job.save({"m": mesh}, wait=True)
    assert job.restore()["m"].a == 1
    job.save({"m": mesh}, wait=True)
    # In a new process the restore imports the module, which registers the class.
    from outlive._kinds import _registered

    _registered._by_ref.clear()
    del sys.modules["module_of_mesh"]
    assert job.restore()["m"].a == 1
    _registered._by_ref.clear()
    with pytest.raises(outlive.InvalidError, match=r"Mesh is not registered: call `outlive.reg"):
        job.restore()
    assert job.restore(as_plain=True) == {"m": {"a": 1}}


# --- Checkpoints that lie -------------------------------------------------------------------------


def raw(job: outlive.Job, wraps: list[Any], entries: dict[str, Any]) -> None:
    """Saves a dict that stands for objects."""
    flat = Flat(
        [f"x/{name}" for name in entries], nodes=[Node(0, "", "dict"), Node(0, "x", "dict")]
    )
    flat.dtypes = ["py:str" if type(entry) is str else "py:int" for entry in entries.values()]
    flat.shapes, flat.leaves = [()] * len(entries), list(entries.values())
    skeleton = json.loads(flat.skeleton())
    skeleton |= {"outlive.python": 3, "objects": wraps}
    skeleton["nodes"][1] += [None, None, list(range(len(wraps)))]
    save_raw(job, flat, json.dumps(skeleton).encode())


class Flag(enum.Enum):
    UP = 1


@dataclasses.dataclass
class Bomb:
    fuse: int

    def __post_init__(self) -> None:
        raise AssertionError("no code of a class runs")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("no code of a class runs")


LIES: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "function": ([["dataclass", ["os:system", ["a"], [], [], ["a"]]]], {"a": 1}, "is no class"),
    "other class": (
        [["dataclass", ["subprocess:Popen", ["args"], [], [], ["args"]]]],
        {"args": 1},
        "neither a dataclass nor a class of attrs",
    ),
    "tuple": ([["namedtuple", ["builtins:tuple", ["a"]]]], {"a": 1}, "is no namedtuple"),
    "enum": ([["enum", "os:system"]], {"a": 1}, "is no class"),
    "enum of another value": ([["enum", f"{__name__}:Flag"]], {"a": 1}, "cannot be made again"),
    "subclass": (
        [["subclass", ["builtins:dict", "dict", "none", None]]],
        {},
        "no subclass of dict",
    ),
    "base": ([["subclass", ["subprocess:Popen", "dict", "none", None]]], {}, "no subclass of dict"),
    "no base": ([["subclass", ["builtins:dict", "x", "none", None]]], {}, "no subclass of x"),
    "factory": ([["defaultdict", ["class", "os:system"]]], {}, "is no class"),
    "function of a factory": ([["defaultdict", ["function", "os:abort"]]], {}, "only classes"),
    "registered": ([["registered", "os:system"]], {"a": 1}, "is no class"),
    "not registered": ([["registered", "builtins:int"]], {"a": 1}, "int is not registered"),
    "no name": ([["registered", "os"]], {}, "'os' is no name of a class"),
    "number": ([["registered", 5]], {}, "5 is no name of a class"),
    "relative": ([["registered", "..x:y"]], {}, "is no name of a class"),
    "attribute": ([["registered", "os:path.join.__globals__"]], {}, "has no path.join.__globals__"),
    "namespace": ([["namespace", "subprocess:Popen"]], {"a": 1}, "is no namespace"),
    "unknown": ([["of the future", None]], {"a": 1}, "a newer outlive has saved it"),
    "details": ([["dataclass", None]], {"a": 1}, "cannot be made again"),
    "unhashable": ([["set", None]], {"a": 1}, ""),
    "text": ([["decimal", None]], {"a": 1}, "cannot be made again"),
    "missing part": ([["numpy.masked", False]], {"data": 1}, "cannot be made again"),
    "shape": ([["numpy.objects", [[-1], False]]], {"a": 1}, ""),
    "object dtype": ([["numpy.fields", [[2], "[('a', 'O')]", False]]], {"b": 1}, "KeyError"),
}


@pytest.mark.parametrize("what", LIES)
def test_a_checkpoint_that_lies_about_an_object(job: outlive.Job, folder: Path, what: str) -> None:
    wraps, entries, told = LIES[what]
    raw(job, wraps, entries)
    if told:
        with pytest.raises(outlive.InvalidError, match=told):
            job.restore()
        with pytest.raises(outlive.InvalidError):
            job.restore(into={"x": None})
    else:
        assert type(job.restore()["x"]) in (set, np.ndarray)
    assert job.restore(as_plain=True) == {"x": entries}


def test_no_code_of_a_class_runs(job: outlive.Job) -> None:
    raw(job, [["dataclass", [f"{__name__}:Bomb", ["fuse"], [], [], ["fuse"]]]], {"fuse": 3})
    assert vars(job.restore()["x"]) == {"fuse": 3}
    into = {"x": job.restore()["x"]}
    assert job.restore(into=into)


@pytest.mark.parametrize(
    "change",
    [
        {"objects": [["set"]]},
        {"objects": 5},
        {"nodes": [[0, "", "dict", None, None, [7]]]},
        {"nodes": [[0, "", "dict", None, None, "x"]]},
        {"wrapped": [[[0], ["x"]]]},
        {"wrapped": [[0]]},
    ],
)
def test_a_skeleton_that_cannot_be_read(job: outlive.Job, change: dict[str, Any]) -> None:
    flat = Flat(["a"], ["py:int"], [()], [1], [Node(0, "", "dict")])
    skeleton = json.loads(flat.skeleton()) | {"outlive.python": 3} | change
    save_raw(job, flat, json.dumps(skeleton).encode())
    # As without a skeleton, regions come back by name.
    assert job.restore() == {"a": 1}


# --- Other builds ---------------------------------------------------------------------------------


def test_a_checkpoint_of_an_earlier_build(job: outlive.Job, same: Same) -> None:
    # The skeletons that builds before this one wrote.
    first = (
        b'{"outlive.python":1,"nodes":[[0,"","dict"],[0,"a","dict",["1"]],[2,"t","tuple"],'
        b'[3,"o","ordered",null,{"v":1}],[4,"i","dict",true]],"fortran":[5]}'
    )
    names = ["a/1", "a/b", "t/0", "o/k", "i/-3", "f"]
    array = np.arange(6.0).reshape(2, 3)
    leaves = [1, "x", None, 2.5, True, array]
    dtypes = ["py:int", "py:str", "py:none", "py:float", "py:bool", "<f8"]
    save_raw(job, Flat(names, dtypes, [*[()] * 5, (3, 2)], leaves), first)
    ordered: Any = collections.OrderedDict(k=2.5)
    ordered._metadata = collections.OrderedDict(v=1)
    there = job.restore()
    assert there.pop("f").tolist() == array.T.tolist()
    assert vars(there["o"]) == vars(ordered)
    assert there == {"a": {1: 1, "b": "x"}, "t": (None,), "o": ordered, "i": {-3: True}}
    second = b'{"outlive.python":2,"nodes":[[0,"","dict"]],"fortran":[]}'
    save_raw(job, Flat(["l", "n"], ["py:tree", "py:int"], [(), ()], [[1] * 99, 5]), second)
    same(job.restore(), {"l": [1] * 99, "n": 5})
    into: dict[str, Any] = {"l": [0], "n": 0}
    assert job.restore(into=into)
    same(into, {"l": [1] * 99, "n": 5})


def test_the_version_grows_only_with_what_is_new(job: outlive.Job) -> None:
    from outlive._tree import flatten

    def version(state: Any) -> int:
        return int(json.loads(flatten(state).skeleton())["outlive.python"])

    assert version({"a": 1, 2: np.ones(1), "r": np.random.default_rng(1)}) == 1
    assert version({"l": [1] * 99, "k": {1.5: 2}}) == 2
    for new in ({1}, Flag.UP, {1.5: np.ones(1)}, np.ma.masked_array([1]), range(3)):
        assert version({"a": new}) == 3


def test_a_checkpoint_of_a_later_build(job: outlive.Job) -> None:
    flat = Flat(["a"], ["py:int"], [()], [1], [Node(0, "", "dict")])
    save_raw(job, flat, b'{"outlive.python":4,"nodes":[],"fortran":[]}')
    with pytest.raises(outlive.InvalidError, match=r"a newer outlive has saved.*reads up to 3"):
        job.restore()
