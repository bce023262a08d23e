"""Trains a small network with Keras. Kill it at any time and run it again: it goes on.

    KERAS_BACKEND=jax python examples/train_keras.py ckpt

It ends with the same hash as without a kill.
"""

import argparse
import hashlib

import keras
import numpy as np

import outlive.keras


def main() -> None:
    """Trains to the end, from the newest checkpoint on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pool")
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    keras.utils.set_random_seed(1)
    inputs = np.random.default_rng(1).standard_normal((256, 16)).astype("float32")
    targets = np.random.default_rng(2).integers(0, 4, 256)
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(64),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(4),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    saver = outlive.keras.Callback(args.pool, "keras", keep_last=3)
    progress = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: print("epoch", epoch, flush=True)
    )
    model.fit(
        inputs, targets, epochs=args.epochs, verbose=0, shuffle=True, callbacks=[saver, progress]
    )
    variables = [*model.variables, *model.optimizer.variables]
    found = hashlib.sha256(
        b"".join(keras.ops.convert_to_numpy(each).tobytes() for each in variables)
    )
    print("done 0", found.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
