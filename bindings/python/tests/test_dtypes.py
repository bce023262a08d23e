"""Arrays of dtypes that NumPy lacks: bfloat16, eight and four bits, of any package."""

import gc
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive
from fake_dlpack import (
    BFLOAT16,
    CUDA,
    FLOAT4_X2,
    FLOAT8_E5M2,
    Array,
    Buffered,
    Early,
    Parameter,
    Tensor,
)

Run = Callable[..., str]
SIZES = {BFLOAT16: 2, FLOAT8_E5M2: 1, FLOAT4_X2: 1}


def noise(shape: tuple[int, ...], itemsize: int, seed: int = 1) -> "np.ndarray[Any, Any]":
    count = int(np.prod(shape))
    raw = np.random.default_rng(seed).integers(0, 256, count * itemsize, dtype=np.uint8)
    return raw.view(f"u{itemsize}").reshape(shape)


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("kind", [Array, Tensor, Parameter])
@pytest.mark.parametrize("shape", [(300, 200), (3,), (), (0, 4)])
def test_arrays_of_any_dtype_are_filled(
    job: outlive.Job,
    dtype: tuple[int, int, int],
    kind: type[Array],
    shape: tuple[int, ...],
) -> None:
    want = noise(shape, SIZES[dtype])
    saved = kind(want, dtype)
    job.save({"w": saved, "step": 3}, wait=True)
    state = {"w": kind(np.zeros_like(want), dtype), "step": 0}
    filled = state["w"]
    assert job.restore(into=state)
    assert state["w"] is filled
    assert state["step"] == 3
    assert np.array_equal(filled.memory, want)
    # No reference to the memory is left.
    del state
    gc.collect()
    assert (saved.lent, filled.lent) == (0, 0)


@pytest.mark.parametrize("kind", [Array, Tensor, Parameter])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("<i8", (0, 64, 1)), ("<f4", (2, 32, 1)), ("|b1", (6, 8, 1)), ("<c8", (5, 64, 1))],
)
def test_arrays_of_dtypes_that_numpy_has(
    job: outlive.Job, name: str, dtype: tuple[int, int, int], kind: type[Array]
) -> None:
    """Before version 1 of DLPack a capsule could not say that its memory is read-only."""
    for want in (np.arange(6_000).reshape(60, 100).astype(name), np.array(True).astype(name)):
        job.save({"w": kind(want, dtype)}, wait=True)
        for base in (
            np.zeros_like(want),
            np.zeros_like(want.T).T,
            np.zeros((2, *want.shape), name)[0, ...],
        ):
            state = {"w": kind(base, dtype)}
            filled = state["w"]
            assert job.restore(into=state)
            assert state["w"] is filled
            assert np.array_equal(filled.memory, want)
        # A new tree has this dtype.
        assert np.array_equal(job.restore()["w"], want)
        assert job.restore()["w"].dtype == np.dtype(name)
    kept = Array(np.zeros_like(want), dtype, version=(1, 0), read_only=True)
    with pytest.raises(outlive.InvalidError, match="is read-only"):
        job.restore(into={"w": kept})
    assert not kept.memory


@pytest.mark.parametrize("dtype", [(0, 64, 1), BFLOAT16])
def test_memory_that_is_not_declared_writable_is_not_written(
    job: outlive.Job, tmp_path: Path, dtype: tuple[int, int, int]
) -> None:
    """An example is Arrow's memory, which is immutable and may be a mapped file: a write would end
    the process.
    """
    path = tmp_path / "mapped"
    path.write_bytes(bytes(80_000))
    mapped = np.memmap(path, f"u{dtype[1] // 8}", "r")
    want = noise(mapped.shape, mapped.itemsize)
    job.save({"w": Array(want, dtype), "n": 1}, wait=True)
    state = {"w": Early(mapped, dtype), "n": 0}
    with pytest.raises(outlive.InvalidError, match=r"'w' is read-only.*put `numpy\.array` of it"):
        job.restore(into=state)
    assert (state["n"], mapped.any()) == (0, False)
    # It is saved like any other, and a restore replaces it by a writable array.
    job.save(state, wait=True)
    copy = np.ones_like(mapped)
    state["w"] = Array(copy, dtype)
    job.restore(into=state)
    assert not copy.any()


def test_a_buffer_says_whether_memory_may_be_written(job: outlive.Job) -> None:
    want = np.arange(3_000)
    job.save({"w": want}, wait=True)
    memory = Buffered(-1, want.nbytes)
    state = {"w": memory}
    job.restore(into=state)
    assert state["w"] is memory
    assert bytes(memory) == want.tobytes()
    state["w"] = Buffered(-1, want.nbytes, access=mmap.ACCESS_READ)
    with pytest.raises(outlive.InvalidError, match="'w' is read-only"):
        job.restore(into=state)


def test_any_order_of_memory(job: outlive.Job) -> None:
    want = noise((60, 40), 2)
    for seen in (want.T, want[::2, ::3], want[::-1], want[:, :0]):
        job.save({"w": Array(seen)}, wait=True)
        for base in (np.zeros(seen.shape, "u2"), np.zeros(seen.shape[::-1], "u2").T):
            into = {"w": Array(base)}
            job.restore(into=into)
            assert np.array_equal(base, seen)
        into = {"w": Array(np.zeros(seen.shape, "u2")[::-1])}
        job.restore(into=into)
        assert np.array_equal(into["w"].memory, seen)


def test_arrays_that_cannot_be_filled_are_refused(job: outlive.Job) -> None:
    want = noise((50,), 2)
    job.save({"w": Array(want)}, wait=True)
    wrong = {
        "is read-only": Array(np.zeros(50, "u2"), version=(1, 1), read_only=True),
        "has shape": Array(np.zeros(51, "u2")),
        "has dtype <f8": np.zeros(50),
        "has dtype ext:float8_e5m2": Array(np.zeros(50, "u1"), FLOAT8_E5M2),
        "copy it to the host": Array(np.zeros(50, "u2"), device=CUDA),
        "DLPack 2": Array(np.zeros(50, "u2"), version=(2, 0)),
        "4 bits, which are no bytes": Array(np.zeros(50, "u1"), (0, 4, 1)),
    }
    for message, array in wrong.items():
        state = {"w": array}
        with pytest.raises(outlive.InvalidError, match=message):
            job.restore(into=state)
    del state
    gc.collect()
    assert [array.lent for array in wrong.values() if isinstance(array, Array)] == [0] * 6


def test_a_new_tree_has_the_dtypes_of_ml_dtypes(job: outlive.Job) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    halves, bytes_ = noise((300, 200), 2), noise((7,), 1)
    job.save({"h": Array(halves), "b": Array(bytes_, FLOAT8_E5M2)}, wait=True)
    tree = job.restore()
    assert tree["h"].dtype == ml_dtypes.bfloat16
    assert tree["b"].dtype == ml_dtypes.float8_e5m2
    assert tree["h"].tobytes() == halves.tobytes()
    assert tree["b"].tobytes() == bytes_.tobytes()
    # NumPy's array and that of the other package are the same to a checkpoint.
    job.restore(into=tree)
    job.save(tree, wait=True)
    state = {"h": Array(np.zeros_like(halves)), "b": Array(np.zeros_like(bytes_), FLOAT8_E5M2)}
    job.restore(into=state)
    assert np.array_equal(state["h"].memory, halves)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4", "float4_e2m1fn"])
def test_arrays_of_ml_dtypes(job: outlive.Job, name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    want = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name))
    job.save({"a": want, "scalar": want[1, 2]}, wait=True)
    tree = job.restore()
    assert (tree["a"].dtype, tree["scalar"].dtype) == (want.dtype, want.dtype)
    assert tree["a"].tobytes() == want.tobytes()
    assert tree["scalar"] == want[1, 2]


def test_without_ml_dtypes_the_way_out_is_named(folder: Path, run: Run, tmp_path: Path) -> None:
    # There is also an array that can be restored.
    job = outlive.open(folder).job("a")
    job.save({"w": Array(noise((300, 200), 2)), "x": np.arange(3)}, wait=True)
    out = run(
        """
        sys.modules["ml_dtypes"] = None
        job = outlive.open(sys.argv[1]).job("a")
        try:
            job.restore()
        except outlive.InvalidError as error:
            assert "'w' of checkpoint 1" in str(error), error
            assert "install the package ml_dtypes" in str(error), error
        else:
            sys.exit("it was restored")
        print(job.restore(only="x"))
        """,
        folder,
    )
    assert out == "{'x': array([0, 1, 2])}"


def test_dtypes_that_numpy_lacks_are_restored_only_into_arrays(job: outlive.Job) -> None:
    job.save({"w": Array(noise((50,), 1), FLOAT4_X2)}, wait=True)
    with pytest.raises(outlive.InvalidError, match=r"'w' of checkpoint 1.*restore with `into`"):
        job.restore()


def test_torch(job: outlive.Job) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        want = torch.randint(0, 255, (300, 64), dtype=torch.uint8).view(dtype)
        job.save({"w": want, "t": want.t()}, wait=True)
        state = {"w": torch.empty_like(want), "t": torch.empty_like(want).t()}
        job.restore(into=state)
        for name, tensor in {"w": want, "t": want.t()}.items():
            got = state[name].contiguous().view(torch.uint8)
            assert torch.equal(got, tensor.contiguous().view(torch.uint8))
    model = torch.nn.Linear(300, 200).to(torch.bfloat16)
    for parts in (model.state_dict(), dict(model.named_parameters())):
        job.save({"model": parts}, wait=True)
        other = torch.nn.Linear(300, 200).to(torch.bfloat16)
        job.restore(into={"model": other.state_dict()})
        assert all(map(torch.equal, model.parameters(), other.parameters()))
    with pytest.raises(outlive.InvalidError, match="state_dict"):
        job.save({"x": model})


def test_jax(job: outlive.Job) -> None:
    jax = pytest.importorskip("jax")
    for name in ("bfloat16", "float8_e5m2", "int4"):
        want = jax.numpy.arange(6).astype(getattr(jax.numpy, name))
        job.save({"a": want}, wait=True)
        state = {"a": jax.numpy.zeros_like(want)}
        job.restore(into=state)
        assert state["a"].dtype == want.dtype
        assert bool((state["a"] == want).all())
    with pytest.raises(outlive.InvalidError, match=r"jax\.random\.key_data"):
        job.save({"key": jax.random.key(1)})
