"""A training program for test_torch_capture.py: `training.py POOL [--die-at STEP]`.

It saves after each step, and prints a hash of all that it has learnt. At the step, it kills itself
while a save may be under way.
"""

import argparse
import hashlib
import os
import random
import sys

import numpy as np
import torch

import outlive
import outlive.torch

STEPS = 40


def main(words: list[str]) -> None:
    """Trains to the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pool")
    parser.add_argument("--die-at", type=int)
    args = parser.parse_args(words)
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64),
        torch.nn.BatchNorm1d(64),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(64, 4),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer),
            torch.optim.lr_scheduler.MultiStepLR(optimizer, [7, 20]),
        ],
        [5],
    )
    scaler = torch.amp.GradScaler("cpu")
    progress = {"step": 0, "losses": []}
    run = outlive.torch.capture(
        model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, progress=progress
    )
    job = outlive.open(args.pool).job("training", keep_last=3)
    if run.restore(job):
        print(f"restored step {progress['step']}", file=sys.stderr)
    while progress["step"] < STEPS:
        inputs = torch.from_numpy(np.random.randn(32, 16).astype("f4"))
        target = torch.tensor([random.randrange(4) for _ in range(32)])
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(inputs), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        progress["step"] += 1
        progress["losses"].append(loss.item())
        save = run.save(job)
        if progress["step"] == args.die_at:
            if args.die_at % 2:
                save.wait()
            os.kill(os.getpid(), 9)
    found = hashlib.sha256(repr((progress, scheduler.state_dict(), scaler.state_dict())).encode())
    for value in [*model.state_dict().values(), torch.rand(9)]:
        found.update(value.numpy().tobytes())
    for entry in optimizer.state_dict()["state"].values():
        for value in entry.values():
            found.update(value.numpy().tobytes())
    job.close()
    print(found.hexdigest())


if __name__ == "__main__":
    main(sys.argv[1:])
