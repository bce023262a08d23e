"""A training loop of JAX and Optax."""

import hashlib

import jax
import jax.numpy as jnp
import optax

adam = optax.adam(0.01)


@jax.jit
def advance(params, moments, key):
    """Returns all of them after a step on random data."""
    key, data = jax.random.split(key)
    inputs = jax.random.normal(data, (64, 32))
    slope = jax.grad(lambda w: ((jnp.tanh(inputs @ w) - jnp.sin(inputs)) ** 2).mean())(params)
    change, moments = adam.update(slope, moments)
    return optax.apply_updates(params, change), moments, key


params = jax.random.normal(jax.random.key(0), (32, 32))
state = {"all": (params, adam.init(params), jax.random.key(1)), "step": 0}
while state["step"] < 1500:
    state["all"] = advance(*state["all"])
    state["step"] += 1
    if state["step"] % 50 == 0:
        print("step", state["step"], flush=True)
print("result", hashlib.sha256(jax.device_get(state["all"][0]).tobytes()).hexdigest())
