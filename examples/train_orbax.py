"""Trains a small network with JAX and Orbax. Kill it at any time and run it again: it goes on.

    python examples/train_orbax.py ckpt

It ends with the same hash as without a kill.
"""

import argparse
import hashlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint.experimental.v1 as ocp

import outlive.orbax

State = dict[str, Any]


@jax.jit  # type: ignore[untyped-decorator]
def advance(state: State) -> State:
    """Returns the state after a step on random data."""
    key, data = jax.random.split(state["key"])
    inputs = jax.random.normal(data, (64, 16))
    targets = jnp.sin(inputs.sum(axis=1, keepdims=True))

    def loss(weights: State) -> Any:
        hidden = jnp.tanh(inputs @ weights["first"])
        return ((hidden @ weights["second"] - targets) ** 2).mean()

    slope = jax.grad(loss)(state["weights"])
    speed = jax.tree.map(lambda old, new: 0.9 * old + new, state["speed"], slope)
    weights = jax.tree.map(lambda old, step: old - 0.01 * step, state["weights"], speed)
    return {"weights": weights, "speed": speed, "key": key, "step": state["step"] + 1}


def main() -> None:
    """Trains to the end, from the newest checkpoint on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pool")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    first, second, key = jax.random.split(jax.random.PRNGKey(1), 3)
    weights = {
        "first": jax.random.normal(first, (16, 64)) / 4,
        "second": jax.random.normal(second, (64, 1)) / 8,
    }
    speed = jax.tree.map(jnp.zeros_like, weights)
    state: State = {"weights": weights, "speed": speed, "key": key, "step": jnp.int32(0)}

    folder = Path(f"{args.pool}-steps").absolute()
    # By default Orbax leaves out steps that come while a save is under way.
    every = ocp.training.save_decision_policies.FixedIntervalPolicy(10)
    keep = ocp.training.preservation_policies.LatestN(3)
    with (
        outlive.orbax.context(args.pool, "orbax", keep_last=4),
        ocp.training.Checkpointer(
            folder, save_decision_policy=every, preservation_policy=keep
        ) as checkpointer,
    ):
        if checkpointer.latest is not None:
            state = checkpointer.load(abstract_state=state)
        while int(state["step"]) < args.steps:
            state = advance(state)
            step = int(state["step"])
            print("step", step, flush=True)
            checkpointer.save_async(step, state)
    found = hashlib.sha256(
        b"".join(jax.device_get(each).tobytes() for each in jax.tree.leaves(state))
    )
    print("done 0", found.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
