"""Arrays of JAX on several devices of one process, and on those of several processes."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import outlive

# JAX counts its devices at its first use, so each program is a process.
HEAD = """
import os, json
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=%d"
import jax, jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import outlive
"""


def test_divided_and_replicated_arrays(run: Callable[..., str], folder: Path) -> None:
    out = run(
        HEAD % 4
        + """
mesh = jax.make_mesh((2, 2), ("x", "y"))
def on(values, *axes):
    return jax.device_put(values, NamedSharding(mesh, P(*axes)))

def state(factor):
    grid = jnp.arange(64 * 96.0).reshape(64, 96) * factor
    return {
        "rows": on(grid, "x"),
        "boxes": on(grid, "x", "y"),
        "both": on(grid, ("x", "y")),
        "columns": on(grid.astype(jnp.bfloat16), None, "y"),
        "copies": on(grid.astype(jnp.float8_e4m3fn)),
        "small": on((grid % 7).astype(jnp.int4), "y"),
        "scalar": on(jnp.float32(factor)),
        "keys": on(jax.random.split(jax.random.key(int(factor)), 4), "x"),
        "one": jax.device_put(grid, jax.devices()[3]),
        "free": grid,
        "weak": jnp.asarray(0.5 * factor),
        "step": int(factor),
    }

def bits(value):
    if jnp.issubdtype(getattr(value, "dtype", np.dtype(int)), jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value).tobytes()

job = outlive.open(sys.argv[1]).job("job")
want = state(3.0)
job.save(want, wait=True)
# A copy on the host does not stay.
assert want["rows"]._npy_value is None
into = state(1.0)
assert job.restore(into=into)
for name, value in want.items():
    got = into[name]
    assert bits(got) == bits(value), name
    if hasattr(value, "sharding"):
        assert got.sharding.is_equivalent_to(value.sharding, value.ndim), (name, got.sharding)
        assert got.committed == value.committed, name
        assert got.aval.weak_type == value.aval.weak_type, name
        assert got.dtype == value.dtype, name
# The restored arrays go on in a compiled function, without another compilation.
step = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 2, tree))
part = lambda tree: {name: tree[name] for name in ("rows", "boxes", "copies", "weak", "free")}
for name, value in step(part(want)).items():
    assert bits(step(part(into))[name]) == bits(value), name
assert step._cache_size() == 1
fresh = job.restore()
assert type(fresh["boxes"]) is np.ndarray and fresh["boxes"].tobytes() == bits(want["boxes"])
# An unchanged state costs nothing.
assert job.save(want, force=True).wait().new_bytes < 10_000
print("done")
""",
        folder,
    )
    assert out.split()[-1] == "done"


def test_a_donated_buffer_is_held_until_it_is_persisted(
    run: Callable[..., str], folder: Path
) -> None:
    out = run(
        HEAD % 1
        + """
job = outlive.open(sys.argv[1]).job("job")
advance = jax.jit(lambda w: w + 1, donate_argnums=0)
w = jax.block_until_ready(jnp.zeros((2048, 2048)))
for step in range(5):
    save = job.save({"w": w, "step": step}, force=True)
    # The program gives the memory away while the save reads it.
    for _ in range(3):
        w = jax.block_until_ready(advance(w))
    save.wait()
for step, epoch in enumerate(job.epochs()):
    tree = job.restore(epoch=epoch)
    assert tree["step"] == step
    assert (tree["w"] == 3 * step).all(), step
assert float(w[0, 0]) == 15
print("done")
""",
        folder,
    )
    assert out.split()[-1] == "done"


PROCESSES = """
import sys
rank, size, port, where, what = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
import warnings
warnings.simplefilter("ignore")
if size > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", size, rank)
mesh = jax.make_mesh((2 * size,), ("x",))

def on(values, *axes):
    values = np.asarray(values)
    sharding = NamedSharding(mesh, P(*axes))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

def state(factor):
    grid = np.arange(64 * 48.0, dtype="f4").reshape(64, 48) * factor
    return {
        "rows": on(grid, "x"),
        "columns": on(grid.astype(jnp.bfloat16), None, "x"),
        "copies": on(grid),
        "scalar": on(np.float32(factor)),
        "step": int(factor),
    }

group = outlive.ranks(rank, size, run=what + port) if size > 1 else None
job = outlive.open(where).job("job", group=group, replicated=["step"] if group else [])
want = state(3.0)
if what == "save":
    job.save(want, force=True).wait()
    job.close()
else:
    into = state(1.0)
    assert job.restore(into=into)
    assert into["step"] == 3
    for name, value in want.items():
        if name == "step":
            continue
        got = into[name]
        assert got.sharding == value.sharding and got.dtype == value.dtype, name
        for one, two in zip(got.addressable_shards, value.addressable_shards, strict=True):
            assert np.asarray(one.data).tobytes() == np.asarray(two.data).tobytes(), name
print(json.dumps([rank, "done"]))
"""


@pytest.mark.timeout(400)
def test_arrays_of_several_processes(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(HEAD % 2 + PROCESSES)

    def run(size: int, what: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, str(script)]
        children = [
            subprocess.Popen(
                [*command, str(rank), str(size), str(port), str(folder), what],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        for rank, child in enumerate(children):
            out, errors = child.communicate(timeout=300)
            assert child.returncode == 0, errors
            assert json.loads(out.splitlines()[-1]) == [rank, "done"]

    run(2, "save")
    # On as many processes, on more, and on one.
    for size in (2, 4, 1):
        run(size, "load")
    tree = outlive.open(folder).job("job").restore()
    assert tree["rows"].shape == (64, 48)
    assert tree["rows"][1, 0] == 3 * 48
