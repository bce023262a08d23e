"""Claims of README.md and docs/python.md about JAX. Run by `make test-frameworks`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import outlive

DTYPES = ["float32", "int32", "bool_", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"]


@pytest.mark.parametrize("name", DTYPES)
def test_arrays_of_any_dtype_are_replaced(job: outlive.Job, name: str) -> None:
    want = jnp.arange(6).reshape(2, 3).astype(getattr(jnp, name))
    job.save({"w": want, "scalar": want[1, 2]}, wait=True)
    empty = {"w": jnp.zeros_like(want), "scalar": jnp.zeros_like(want[0, 0])}
    state = dict(empty)
    job.restore(into=state)
    for key, value in {"w": want, "scalar": want[1, 2]}.items():
        assert isinstance(state[key], jax.Array)
        assert state[key].dtype == value.dtype
        assert np.asarray(state[key]).tobytes() == np.asarray(value).tobytes()
        # No code may write to an array of JAX.
        assert not np.asarray(empty[key]).astype("f4").any()
    fresh = job.restore()["w"]
    assert isinstance(fresh, np.ndarray)
    assert jnp.array_equal(jnp.asarray(fresh), want)


def test_a_computation_continues_after_a_restore(job: outlive.Job) -> None:
    advance = jax.jit(lambda w: jnp.sin(w) * jnp.bfloat16(1.5))
    weights = advance(jnp.ones((300, 200), jnp.bfloat16))
    job.save({"w": weights}, wait=True)
    state = {"w": jnp.zeros((300, 200), jnp.bfloat16)}
    job.restore(into=state)
    assert np.asarray(advance(state["w"])).tobytes() == np.asarray(advance(weights)).tobytes()


def test_a_key_is_saved_as_its_data(job: outlive.Job) -> None:
    key = jax.random.key(3)
    with pytest.raises(outlive.InvalidError, match=r"jax\.random\.key_data"):
        job.save({"key": key}, wait=True)
    job.save({"key": jax.random.key_data(key)}, wait=True)
    again = jax.random.wrap_key_data(job.restore()["key"])
    assert jnp.array_equal(jax.random.bits(again, (9,)), jax.random.bits(key, (9,)))
