"""The adapter for Orbax: `outlive.orbax`."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint.experimental.v1 as ocp
import pytest

import outlive
import outlive.orbax
import trained
from outlive._adapters import _pointers

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # Each start of such a program takes many seconds on a busy machine.
    pytest.mark.timeout(600),
]


def tree() -> dict[str, Any]:
    weights = {"w": jnp.arange(12.0).reshape(3, 4), "b": jnp.ones(4, jnp.bfloat16)}
    return {
        "params": weights,
        "optimizer": optax.adam(0.1).init(weights),
        "host": np.arange(5, dtype=np.int16),
        "step": 7,
        "rate": 0.5,
        "name": "model",
        "layers": [jnp.zeros((2, 0)), jnp.int32(3)],
    }


def same(mine: Any, want: Any) -> None:
    assert jax.tree.structure(mine) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(want), strict=True):
        assert isinstance(a, type(b)), (a, b)
        if hasattr(b, "dtype"):
            assert a.dtype == b.dtype
        assert np.array_equal(np.asarray(a), np.asarray(b))


def abstract(of: Any) -> Any:
    return jax.tree.map(
        lambda leaf: (
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            if isinstance(leaf, jax.Array)
            else leaf
        ),
        of,
    )


def test_a_killed_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    want = trained.trained("orbax", tmp_path / "whole")
    pool = tmp_path / "killed"
    # The save of step 50 began when that of step 40 was complete.
    for first, last, least in ((1, 57, 40), (41, 121, 110)):
        training = trained.Training("orbax", pool)
        try:
            assert int(training.read_until("step").split()[1]) >= first
            training.read_until(f"step {last}")
        finally:
            training.kill()
        complete = [int(path.name) for path in Path(f"{pool}-steps").iterdir() if path.suffix == ""]
        assert max(complete) >= least
    assert trained.trained("orbax", pool) == want
    # Orbax leaves the folder of a step at which it was killed.
    steps = sorted(int(path.name) for path in Path(f"{pool}-steps").glob("*[0-9]"))
    assert steps == [180, 190, 200]
    # All is done.
    assert trained.trained("orbax", pool) == want
    # No array is in the directories.
    files = [path for path in Path(f"{pool}-steps").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 20_000
    # A program drops checkpoints behind its saves, and may end before it has dropped all. The
    # three programs have made more than 20.
    assert 4 <= len(outlive.open(pool).job("orbax").epochs()) < 20


def test_a_tree_comes_back_as_it_was_and_as_wanted(folder: Path, tmp_path: Path) -> None:
    state, path = tree(), tmp_path / "step"
    with outlive.orbax.context(folder, "job"):
        ocp.save(path, state)
        same(ocp.load(path), state)
        same(ocp.load(path, abstract(state)), state)
        seen = ocp.metadata(path).metadata
    assert seen["params"]["b"].dtype == jnp.bfloat16
    assert seen["params"]["w"].shape == (3, 4)
    assert seen["step"] is int


def test_arrays_may_change_and_be_donated_once_a_save_has_begun(
    folder: Path, tmp_path: Path
) -> None:
    host, device = np.arange(1 << 20), jnp.arange(1 << 20)
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    with outlive.orbax.context(folder, "job"):
        response = ocp.save_async(tmp_path / "step", {"host": host, "device": device})
        host[:] = 0
        for _ in range(5):
            device = step(device)
        response.result()
        got = ocp.load(tmp_path / "step")
    assert np.array_equal(got["host"], np.arange(1 << 20))
    assert np.array_equal(got["device"], np.arange(1 << 20))


def test_parts_and_other_types(folder: Path, tmp_path: Path) -> None:
    state, path = tree(), tmp_path / "step"
    with outlive.orbax.context(folder, "job") as context:
        ocp.save(path, state)
        wanted = abstract(state)
        wanted["params"]["w"] = jax.ShapeDtypeStruct((3, 4), jnp.float16)
        wanted["step"] = float
        wanted["host"] = ...
        got = ocp.load(path, wanted)
        assert got["params"]["w"].dtype == jnp.float16
        assert got["step"] == 7.0
        assert got["host"] is ...
        with pytest.raises(ValueError, match="only in the checkpoint: host"):
            ocp.load(path, {key: value for key, value in wanted.items() if key != "host"})
        with pytest.raises(ValueError, match="only in the pytree: more"):
            ocp.load(path, {**wanted, "more": jnp.ones(3)})
        wanted["params"]["w"] = jax.ShapeDtypeStruct((4, 3), jnp.float32)
        with pytest.raises(ValueError, match=r"params.w has the shape \(3, 4\)"):
            ocp.load(path, wanted)
        del context
    part = ocp.Context(outlive.orbax.context(folder, "job"))
    part.pytree.loading.partial_load = True
    with part:
        got = ocp.load(path, {"params": {"b": jnp.zeros(4, jnp.bfloat16)}})
    assert np.array_equal(got["params"]["b"], state["params"]["b"])


def test_several_checkpointables_and_handlers(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "step"
    with outlive.orbax.context(folder, "job"):
        parts = {"state": tree(), "notes": {"text": "json"}, "more": {"w": jnp.ones(3)}}
        ocp.save_checkpointables(path, parts)
        got = ocp.load_checkpointables(path)
    same(got["state"], tree())
    same(got["more"], {"w": jnp.ones(3)})
    assert got["notes"] == {"text": "json"}
    # Orbax itself writes all but the state.
    in_pool = [name for name in parts if _pointers.read(path / name / "_METADATA")]
    assert in_pool == ["state"]
    # Any handler of outlive reads it, also one of another job.
    with outlive.orbax.context(folder, "other"):
        same(ocp.load_checkpointables(path)["state"], tree())
    # Orbax's own does not, as the small file has no tree.
    with pytest.raises(KeyError, match="tree_metadata"):
        ocp.load(path)


def test_a_pytree_of_another_name_goes_to_a_job_of_its_own(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "step"
    context = outlive.orbax.context(folder, "job")
    registry = context.checkpointables.registry
    registry.add(outlive.orbax.handler(folder, "averages"), checkpointable_name="averages")
    with context:
        ocp.save_checkpointables(path, {"state": tree(), "averages": {"w": jnp.ones(3)}})
        got = ocp.load_checkpointables(path)
    same(got["state"], tree())
    same(got["averages"], {"w": jnp.ones(3)})
    assert sorted(outlive.open(folder).jobs()) == ["averages", "job"]


def test_a_failed_save_surfaces(folder: Path, tmp_path: Path) -> None:
    large = {"w": np.random.default_rng(1).random(1 << 18)}
    with outlive.orbax.context(folder, "job"):
        ocp.save(tmp_path / "first", large)
        large["w"][:] = np.random.default_rng(2).random(1 << 18)
        with trained.full_disk(), pytest.raises(outlive.Error):
            ocp.save_async(tmp_path / "second", large).result()
        assert not (tmp_path / "second").exists()
        ocp.save(tmp_path / "third", large)
        same(ocp.load(tmp_path / "third"), large)
        ocp.load(tmp_path / "first")


def test_a_failed_save_ends_a_training_and_leaves_the_step_before(
    folder: Path, tmp_path: Path
) -> None:
    def state(step: int) -> dict[str, Any]:
        return {"w": np.random.default_rng(step).random(1 << 16), "step": step}

    every = ocp.training.save_decision_policies.FixedIntervalPolicy(1)
    steps = tmp_path / "steps"
    with outlive.orbax.context(folder, "job"):
        checkpointer = ocp.training.Checkpointer(steps, save_decision_policy=every)
        checkpointer.save(1, state(1))
        begun = []

        def train() -> None:
            for step in range(2, 50):
                begun.append(step)
                checkpointer.save_async(step, state(step))

        with trained.full_disk(), pytest.raises(outlive.Error):
            train()
        assert begun[-1] <= 3
        with contextlib.suppress(outlive.Error):
            checkpointer.close()
        with ocp.training.Checkpointer(steps, save_decision_policy=every) as again:
            assert again.latest is not None
            assert again.latest.step == 1
            same(again.load(), state(1))
            again.save(2, state(2))
            same(again.load(2), state(2))
        # A save of a `Checkpointer` does not end the context.
        before = len(outlive.open(folder).job("job").epochs())
        ocp.save(tmp_path / "free", state(3))
        same(ocp.load(tmp_path / "free"), state(3))
        assert len(outlive.open(folder).job("job").epochs()) == before + 1
    with pytest.raises(KeyError, match="tree_metadata"):
        ocp.load(tmp_path / "free")


def test_a_dropped_checkpoint_is_named(folder: Path, tmp_path: Path) -> None:
    with outlive.orbax.context(folder, "job"):
        for step in range(3):
            ocp.save(tmp_path / str(step), {"w": jnp.full(3, float(step))})
        outlive.open(folder).job("job").prune(keep_last=2)
        with pytest.raises(outlive.InvalidError, match=r"dropped it.*it has 2, 3"):
            ocp.load(tmp_path / "0")
        assert ocp.load(tmp_path / "1")["w"][0] == 1.0


def test_sharded_arrays_come_back_on_other_devices(folder: Path, run: Any) -> None:
    text = """
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    import jax, jax.numpy as jnp
    import outlive.orbax, orbax.checkpoint.experimental.v1 as ocp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    mesh = Mesh(np.array(jax.devices()).reshape(4), ("x",))
    rows, columns = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "x"))
    state = {"w": jax.device_put(jnp.arange(64.0).reshape(8, 8), rows)}
    with outlive.orbax.context(sys.argv[1], "job"):
        ocp.save(sys.argv[1] + "-step", state)
        wanted = {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=columns)}
        got = ocp.load(sys.argv[1] + "-step", wanted)["w"]
    assert got.sharding == columns
    assert (np.asarray(got) == np.arange(64.0).reshape(8, 8)).all()
    print("done")
    """
    assert run(text, folder) == "done"


def test_handlers_without_a_job_and_other_trees(folder: Path) -> None:
    handler = outlive.orbax.Handler()
    with pytest.raises(outlive.InvalidError, match=r"register `outlive.orbax.handler"):
        asyncio.run(handler.save(None, {"x": 1}))
    with pytest.raises(FileNotFoundError, match="names a checkpoint of outlive"):
        asyncio.run(handler.metadata(folder))
    assert handler.is_handleable({"x": 1})
    assert not handler.is_handleable({"x": object()})
    assert not handler.is_handleable({})
    assert handler.is_abstract_handleable({"x": int, "y": jax.ShapeDtypeStruct((2,), "f4")})
    assert not handler.is_abstract_handleable({"x": dict})
