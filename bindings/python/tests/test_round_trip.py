"""Every kind of state comes back, to the last bit."""

import array
import random
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive

Same = Callable[[Any, Any], None]


def nan(bits: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<Q", bits))
    return float(value)


def advanced(generator: Any) -> Any:
    generator.integers(100, size=7) if hasattr(generator, "integers") else generator.random()
    return generator


structured = np.zeros(5, [("a", "<f4"), ("b", ">i2", (3,)), ("when", "<M8[s]"), ("name", "S3")])
structured["b"] = 7
structured["name"] = b"ab"
aligned = np.ones(3, np.dtype([("a", "u1"), ("b", "f8")], align=True))
big = np.arange(100_000, dtype=">f8")

LEAVES: dict[str, Any] = {
    "float": 1.5,
    "minus zero": -0.0,
    "nan": nan(0x7FF8_0000_DEAD_BEEF),
    "signalling nan": nan(0xFFF0_0000_0000_0001),
    "infinity": float("inf"),
    "int": -3,
    "int64 least": -(2**63),
    "int beyond": 2**63,
    "int 1000 bits": -(3**631),
    "bool": True,
    "none": None,
    "complex": complex(-0.0, nan(0x7FF8_0000_0000_0007)),
    "str": "grüße\0\n",
    "str surrogate": "file\udc80name",
    "str empty": "",
    "str long": "x" * 70_000 + "ü",
    "bytes": b"\0\xff",
    "bytes empty": b"",
    "bytes long": bytes(range(256)) * 1000,
    "bytearray": bytearray(b"abc"),
    "bytearray long": bytearray(b"abc" * 30_000),
    "f8": np.linspace(0, 1, 10),
    "f8 big endian": big,
    "nan payloads": np.array([nan(0x7FF8_0000_0000_0000 | n) for n in range(1, 9)]),
    "f2": np.ones(3, np.float16),
    "longdouble": np.ones(3, np.longdouble) / 3,
    "complex64": np.full((2, 2), 1j, np.complex64),
    "bool array": np.array([True, False]),
    "unicode": np.array(["a", "bcd"]),
    "byte strings": np.array([b"a", b"bcd"]),
    "void": np.zeros(2, "V5"),
    "dates": np.array(["2020-01-01", "NaT"], "M8[ns]"),
    "spans": np.arange(3).astype("m8[25us]"),
    "structured": structured,
    "structured aligned": aligned,
    "zero dimensions": np.array(5.0),
    "no elements": np.empty((3, 0, 2), np.int8),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "fortran large": np.asfortranarray(np.arange(90_000.0).reshape(300, 300)),
    "strided": np.arange(20)[::3],
    "backwards": np.arange(20_000)[::-1],
    "transposed": np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
    "broadcast": np.broadcast_to(np.arange(3), (2, 3)),
    "zeros": np.zeros(300_000),
    "just packed": np.arange(65_535, dtype=np.uint8),
    "just alone": np.arange(65_536, dtype=np.uint32).view(np.uint8)[:65_536].copy(),
    "np float": np.float32(1.1),
    "np int": np.int8(-3),
    "np bool": np.bool_(True),
    "np date": np.datetime64("2020-01-01T00:00", "m"),
    "np str": np.str_("abc"),
    "np void": structured[0],
    "random": advanced(random.Random(3)),
    "generator": advanced(np.random.default_rng(3)),
    "philox": advanced(np.random.Generator(np.random.Philox(3))),
    "mt19937": advanced(np.random.Generator(np.random.MT19937(3))),
    "sfc64": advanced(np.random.Generator(np.random.SFC64(3))),
    "pcg64dxsm": advanced(np.random.Generator(np.random.PCG64DXSM(3))),
    "random state": advanced(np.random.RandomState(3)),
    "bit generator": np.random.PCG64(3),
    "empty dict": {},
    "empty list": [],
    "empty tuple": (),
    "nested": {"a": [1, (2, {"b": [np.arange(3), ()]}), []], "": {"": 0}},
    "int keys": {1: "a", -5: "b", 0: {}},
    "mixed keys": {1: "a", "b": 2, "~1": 3, "/": 4},
    "ordered": OrderedDict([("z", 1), ("a", np.arange(2))]),
}


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=LEAVES.keys())
def test_leaf_round_trip(job: outlive.Job, same: Same, leaf: Any) -> None:
    state = {"before": 1, "leaf": leaf, "after": "x"}
    job.save(state, wait=True)
    same(job.restore(), state)
    # The leaf may be the whole state, too.
    job.save(leaf, wait=True)
    same(job.restore(), leaf)


def test_all_at_once_in_another_job_object(folder: Path, same: Same) -> None:
    outlive.open(folder).job("all").save(LEAVES, wait=True)
    job = outlive.open(folder, create=False).job("all")
    same(job.restore(), LEAVES)
    assert job.last_restore is not None
    assert job.last_restore.epoch == 1
    assert job.last_restore.skipped == ()


def test_fortran_order_is_kept(job: outlive.Job) -> None:
    job.save({"a": LEAVES["fortran"], "b": LEAVES["fortran large"]}, wait=True)
    tree = job.restore()
    assert all(array.flags.f_contiguous and not array.flags.c_contiguous for array in tree.values())


def test_restored_generators_go_on(job: outlive.Job) -> None:
    rng = np.random.default_rng(1)
    rng.standard_normal(5)
    job.save({"rng": rng}, wait=True)
    want = rng.standard_normal(100)
    assert np.array_equal(job.restore()["rng"].standard_normal(100), want)


class Foreign:
    """An array of another package, as NumPy sees it."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


def test_buffers_and_dlpack(job: outlive.Job) -> None:
    values = np.arange(10.0)
    for leaf in [array.array("d", values), memoryview(values), Foreign(values)]:
        job.save({"a": leaf}, wait=True)
        restored = job.restore()["a"]
        assert type(restored) is np.ndarray
        assert np.array_equal(restored, values)
        assert restored.dtype == np.float64
    typed = array.array("d", [0.0] * 10)
    foreign = Foreign(np.zeros(10))
    for into in [{"a": typed}, {"a": foreign}]:
        assert job.restore(into=into)
    assert list(typed) == list(values)
    assert np.array_equal(foreign.values, values)


def test_an_array_twice_and_views_of_one(job: outlive.Job, same: Same) -> None:
    one = np.arange(50_000.0)
    state = {"a": one, "b": one, "c": one[:20_000], "small": one[:5], "again": one[:5]}
    job.save(state, wait=True)
    want = one.copy()
    one[:] = 0
    assert job.restore(into=state)
    assert np.array_equal(one, want)
    same(job.restore(), state)
    # Arrays that share memory in `into` may have shared none in the save.
    job.save({"a": want, "b": want + 1}, wait=True)
    other = np.zeros(50_000)
    with pytest.raises(outlive.InvalidError, match="share memory"):
        job.restore(into={"a": other, "b": other})
    assert np.array_equal(other, want)
    # The tracker must not believe that "b" has its content of the last save.
    job.save({"a": other, "b": other}, wait=True)
    same(job.restore(), {"a": want, "b": want})


def random_tree(luck: random.Random, depth: int = 0) -> Any:
    kind = luck.randrange(8 if depth < 4 else 4)
    if kind < 2:
        return luck.choice(list(LEAVES.values()))
    if kind < 4:
        shape = [luck.randrange(6) for _ in range(luck.randrange(4))]
        return np.frombuffer(luck.randbytes(int(np.prod(shape)) * 8), np.int64).reshape(shape)
    entries = [random_tree(luck, depth + 1) for _ in range(luck.randrange(6))]
    if kind < 6:
        letters = "ab/~ \n\x01é"
        return {"".join(luck.choices(letters, k=luck.randrange(5))): entry for entry in entries}
    return entries if kind == 6 else tuple(entries)


@pytest.mark.parametrize("seed", range(30))
def test_random_trees(job: outlive.Job, same: Same, seed: int) -> None:
    luck = random.Random(seed)
    for _ in range(3):
        state = random_tree(luck)
        job.save(state, wait=True)
        same(job.restore(), state)


@pytest.mark.parametrize(
    "key", ["a/b", "/", "~", "~0", "", ".", "..", "\0\x01\n", "ключ", "x" * 10_000, "*", "[a]"]
)
def test_any_key(job: outlive.Job, same: Same, key: str) -> None:
    state = {key: np.arange(3), "deep": {key: {key: 1}}, "wide": {key: np.arange(10_000)}}
    job.save(state, wait=True)
    same(job.restore(), state)


def test_page_aligned_arrays(job: outlive.Job) -> None:
    for shape in [(), 3, (0, 5), (300, 300), (1024, 1024)]:
        zeros = outlive.zeros(shape)
        plain = np.zeros(shape)
        assert (zeros.shape, zeros.dtype) == (plain.shape, plain.dtype)
        assert not zeros.any()
        assert zeros.flags.writeable
        if zeros.nbytes >= 65_536:
            assert zeros.ctypes.data % 4096 == 0
    copied = outlive.array(np.asfortranarray(np.arange(90_000).reshape(300, 300)), order="F")
    assert copied.flags.f_contiguous
    assert copied[3, 4] == 904
    assert outlive.empty(100_000, np.int8).dtype == np.int8
    view = outlive.zeros(100_000)[10:20]
    view += 1  # the memory lives as long as the view
    assert view.sum() == 10


def generators(seed: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        name: np.random.Generator(getattr(np.random, name)(seed))
        for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
    }
    return {**made, "bits": np.random.Philox(seed)}


def children(generator: Any) -> list[bytes]:
    """Returns numbers of the next generators that one spawns."""
    return [child.bytes(64) for child in map(np.random.Generator, spawned(generator))]


def spawned(generator: Any) -> list[Any]:
    if isinstance(generator, np.random.BitGenerator):
        return list(generator.spawn(2))
    return [child.bit_generator for child in generator.spawn(2)]


SEEDS = [3, 0, 2**200 + 1, [1, 2**40], (5, [6, 7]), np.arange(4, dtype=np.uint32)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("spawned_before", [0, 3])
def test_restored_generators_spawn_the_same(
    job: outlive.Job, seed: Any, spawned_before: int
) -> None:
    state = generators(seed)
    for generator in state.values():
        generator.spawn(spawned_before)
    job.save(state, wait=True)
    # Generators of the same seed, of another one, ahead, and behind; and new ones.
    into = [generators(seed), generators(99), generators([1, 2, 3]), state, generators(seed)]
    for generator in into[4].values():
        generator.spawn(7)
    same = generators(seed)
    for generator in same.values():
        generator.spawn(spawned_before)
    want = {name: children(generator) for name, generator in same.items()}
    for target in into:
        job.restore(into=target)
        assert {name: children(generator) for name, generator in target.items()} == want
    fresh = job.restore()
    assert {name: children(generator) for name, generator in fresh.items()} == want


def test_a_seed_sequence_that_the_program_shares_is_not_cut_off(job: outlive.Job) -> None:
    seeds = np.random.SeedSequence(5)
    rng = np.random.default_rng(seeds)
    rng.spawn(3)
    job.save({"rng": rng}, wait=True)
    again = np.random.SeedSequence(5)
    state = {"rng": np.random.default_rng(again)}
    job.restore(into=state)
    assert again.n_children_spawned == 3
    assert state["rng"].bit_generator.seed_seq is again


def test_seed_sequences_of_spawned_and_legacy_generators(job: outlive.Job) -> None:
    child = np.random.default_rng(1).spawn(2)[1].spawn(1)[0]
    legacy = np.random.RandomState(np.random.PCG64(4))
    seeded = np.random.RandomState(4)
    job.save({"child": child, "legacy": legacy, "seeded": seeded}, wait=True)
    tree = job.restore()
    assert children(tree["child"]) == children(child)
    assert children(tree["legacy"]._bit_generator) == children(legacy._bit_generator)
    assert tree["seeded"]._bit_generator.seed_seq is None
    assert tree["seeded"].bytes(64) == seeded.bytes(64)


def test_a_seed_sequence_of_another_class_is_refused(job: outlive.Job) -> None:
    class Seeds(np.random.bit_generator.ISeedSequence):
        def generate_state(self, words: int, dtype: Any = np.uint32) -> Any:
            return np.ones(words, dtype)

    rng = np.random.Generator(np.random.PCG64(Seeds()))  # type: ignore[arg-type]
    with pytest.raises(outlive.InvalidError, match=r"'a/rng' cannot be saved.*Seeds"):
        job.save({"a": {"rng": rng}})
    seedless = np.random.bit_generator.SeedlessSeedSequence()
    rng.bit_generator.__setstate__((rng.bit_generator.state, seedless))  # type: ignore[attr-defined]
    job.save({"rng": rng}, wait=True)
    assert type(job.restore()["rng"].bit_generator.seed_seq) is type(seedless)
