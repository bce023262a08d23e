"""Trains a small network with Accelerate. Kill it at any time and run it again: it goes on.

    python examples/train_accelerate.py ckpt

It ends with the same hash as without a kill.
"""

import argparse
import hashlib

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import outlive.accelerate


def main() -> None:
    """Trains to the end, from the newest checkpoint on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pool")
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.2),
        torch.nn.Linear(64, 4),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

    progress = {"epoch": 0}
    run = outlive.accelerate.capture(
        accelerator, args.pool, "accelerate", progress=progress, keep_last=3
    )
    run.restore()
    while progress["epoch"] < args.epochs and not run.should_stop:
        loader.set_epoch(progress["epoch"])
        for inputs, targets in loader:
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
        progress["epoch"] += 1
        print("epoch", progress["epoch"], flush=True)
        run.save()
    run.close()

    state = [*accelerator.unwrap_model(model).state_dict().values(), torch.rand(9)]
    for entry in optimizer.state_dict()["state"].values():
        state += entry.values()
    found = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in state))
    print("done", accelerator.process_index, found.hexdigest(), flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
