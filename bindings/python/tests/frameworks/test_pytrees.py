"""Claims of docs/states.md about pytrees of Optax, Flax, Equinox and JAX, which nothing pickles."""

import functools
import pickle
from typing import Any

import equinox
import flax.core
import flax.linen
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import outlive


@pytest.fixture(autouse=True)
def without_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing may be pickled or unpickled")

    for name in ("dumps", "loads", "dump", "load"):
        monkeypatch.setattr(pickle, name, refuse)


@flax.struct.dataclass
class Carry:
    sums: Any
    steps: int = flax.struct.field(pytree_node=False)


@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, left: Any, right: Any, tag: Any) -> None:
        self.left, self.right, self.tag = left, right, tag

    def tree_flatten(self) -> Any:
        return (self.left, self.right), self.tag

    @classmethod
    def tree_unflatten(cls, tag: Any, children: Any) -> "Node":
        return cls(*children, tag)


class Block(equinox.Module):
    linear: equinox.nn.Linear
    scale: jax.Array
    name: str = equinox.field(static=True)


model = flax.linen.Dense(3)
parameters = model.init(jax.random.key(0), jnp.ones((1, 2)))
optimizer = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 9))
)
linear = equinox.nn.Linear(2, 3, key=jax.random.key(1))

STATES: dict[str, Any] = {
    "optax": optimizer.init(parameters),
    "optax masked": optax.masked(optax.sgd(0.1, momentum=0.9), {"params": True}).init(parameters),
    "flax parameters": flax.core.freeze(parameters),
    "flax dataclass": Carry(jnp.arange(3.0), 5),
    "equinox": linear,
    "equinox in a module": Block(linear, jnp.ones(3), "first"),
    "equinox arrays": equinox.filter(equinox.nn.MLP(2, 3, 4, 2, key=jax.random.key(0)), False),
    "node of JAX": Node(jnp.ones(2), {"a": [jnp.zeros(3)]}, ("tag", 1)),
    "nnx": nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0))),
}


class Activated(equinox.Module):
    block: Block
    apply: Any
    partial: Any


# With functions among their fields, which come from `into`.
WITH_CODE: dict[str, Any] = {
    "train state": TrainState.create(apply_fn=model.apply, params=parameters, tx=optimizer),
    "equinox with activations": equinox.nn.MLP(2, 3, 4, 2, key=jax.random.key(0)),
    "node with a function": Node(jnp.ones(2), 1, len),
    "equinox with functions that hold arrays": Activated(
        STATES["equinox in a module"],
        jax.nn.relu,
        jax.tree_util.Partial(jnp.add, jnp.ones(3)),
    ),
}


def other(tree: Any) -> Any:
    """Returns a tree of the same form with other numbers."""
    return jax.tree.map(lambda leaf: leaf + 7 if hasattr(leaf, "dtype") else leaf, tree)


def assert_same(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, two in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if hasattr(two, "dtype"):
            assert one.dtype == two.dtype
            assert np.asarray(one).tobytes() == np.asarray(two).tobytes()
        else:
            assert one == two


@pytest.mark.parametrize("name", [*STATES, *WITH_CODE])
def test_pytrees(job: outlive.Job, name: str) -> None:
    want = {**STATES, **WITH_CODE}[name]
    job.save({"s": want, "n": 1}, wait=True)
    into: dict[str, Any] = {"s": other(want), "n": 0}
    for _ in range(2):
        assert job.restore(into=into)
        assert_same(into["s"], want)
        for leaf in jax.tree.leaves(into["s"]):
            assert isinstance(leaf, jax.Array) or not hasattr(leaf, "dtype")
    if name in STATES:
        assert_same(job.restore()["s"], want)
    else:
        with pytest.raises(outlive.InvalidError, match=r"held code, which is not saved.*`into`"):
            job.restore()
    assert job.restore(as_plain=True)["n"] == 1
    # A structure that differs is named.
    with pytest.raises(outlive.InvalidError, match="does not match"):
        job.restore(into={"s": {"x": jnp.ones(2)}, "n": 0})


def test_a_function_that_hides_an_array_is_refused(job: outlive.Job) -> None:
    hidden = functools.partial(jnp.add, jnp.ones(3))
    with pytest.raises(outlive.InvalidError, match=r"'s/apply' is of type functools\.partial"):
        job.save({"s": Activated(STATES["equinox in a module"], hidden, None)})


def test_a_training_goes_on(job: outlive.Job) -> None:
    @jax.jit
    def step(state: TrainState) -> TrainState:
        def loss(params: Any) -> Any:
            return (state.apply_fn(params, jnp.ones((4, 2))) ** 2).sum()

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    state = WITH_CODE["train state"]
    for _ in range(3):
        state = step(state)
    job.save({"state": state, "key": jax.random.key(1)}, wait=True)
    want = step(step(state))
    into = {"state": WITH_CODE["train state"], "key": jax.random.key(0)}
    assert job.restore(into=into)
    assert_same(step(step(into["state"])), want)  # type: ignore[arg-type]
