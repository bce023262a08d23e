"""Trains a small network with Ray Train. Kill a worker: Ray starts another, which goes on.

    python examples/train_ray.py ckpt

It ends with the same hash as without a kill.
"""

import argparse
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import TorchTrainer

import outlive.ray


def train(config: dict[str, Any]) -> None:
    """Trains to the end, from the newest checkpoint on; one step is one batch."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with outlive.ray.directory(checkpoint) as folder:
            found = torch.load(folder / "state.pt", weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        torch.set_rng_state(found["rng"])
        step = found["step"]
    while step < config["steps"]:
        inputs = torch.randn(32, 16)
        loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        files = Path(tempfile.mkdtemp())
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "step": step,
        }
        torch.save(state, files / "state.pt")
        weights = b"".join(each.numpy().tobytes() for each in model.state_dict().values())
        ray.train.report(
            {"step": step, "hash": hashlib.sha256(weights).hexdigest()},
            checkpoint=ray.train.Checkpoint.from_directory(files),
            checkpoint_upload_mode=ray.train.CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=outlive.ray.upload(config["pool"], "ray", keep_last=4),
        )
        print("step", step, os.getpid(), flush=True)


def main() -> None:
    """Starts the training, and prints how it ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pool")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    pool = Path(args.pool).absolute()
    trainer = TorchTrainer(
        train,
        train_loop_config={"pool": str(pool), "steps": args.steps},
        scaling_config=ray.train.ScalingConfig(num_workers=1),
        run_config=ray.train.RunConfig(
            name="run",
            storage_path=f"{pool}-runs",
            failure_config=ray.train.FailureConfig(max_failures=3),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=3),
        ),
    )
    result = trainer.fit()
    print("done 0", result.metrics["hash"], flush=True)


if __name__ == "__main__":
    main()
