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


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_of_random_numbers(job: outlive.Job, impl: str) -> None:
    key = jax.random.key(3, impl=impl)
    state = {"key": key, "keys": jax.random.split(key, (2, 3))}
    job.save(state, wait=True)
    empty = jax.random.key(0, impl=impl)
    into = {"key": empty, "keys": None}
    job.restore(into=into)
    for there in (job.restore(), into):
        assert there["key"].dtype == key.dtype
        assert there["keys"].shape == (2, 3)
        for name, want in state.items():
            assert jnp.array_equal(jax.random.key_data(there[name]), jax.random.key_data(want))
        assert jnp.array_equal(jax.random.bits(there["key"], (9,)), jax.random.bits(key, (9,)))
    plain = job.restore(as_plain=True)
    assert type(plain["key"]) is np.ndarray
    # The old kind of key is an array.
    job.save({"key": jax.random.PRNGKey(3)}, wait=True)
    assert job.restore()["key"].dtype == np.uint32
