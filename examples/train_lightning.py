"""Trains a small network with Lightning. Kill it at any time and run it again: it goes on.

    python examples/train_lightning.py ckpt

It ends with the same hash as without a kill.
"""

import argparse
import hashlib
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import outlive.lightning


class Net(lightning.LightningModule):  # type: ignore[misc]
    """A network with layers that draw random numbers and count batches."""

    def __init__(self) -> None:
        """Makes the layers."""
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.2),
            torch.nn.Linear(64, 4),
        )  # fmt: skip

    def training_step(self, batch: Any, number: int) -> Any:
        """Returns the loss of a batch."""
        inputs, targets = batch
        loss = torch.nn.functional.cross_entropy(self.layers(inputs), targets)
        self.log("loss", loss)
        return loss

    def on_train_epoch_end(self) -> None:
        """Says how far it is."""
        print("epoch", self.current_epoch, flush=True)

    def configure_optimizers(self) -> Any:
        """Returns an optimizer whose rate falls after each epoch."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)]


def main() -> None:
    """Trains to the end, from the newest checkpoint on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pool")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=1)
    args = parser.parse_args()
    lightning.seed_everything(1)
    data = TensorDataset(torch.randn(512, 16), torch.randint(4, (512,)))
    model = Net()
    saver = outlive.lightning.Callback(args.pool, "lightning", keep_last=3)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        callbacks=[saver],
        accelerator="cpu",
        devices=args.ranks,
        strategy="ddp" if args.ranks > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=32, shuffle=True), ckpt_path=saver.newest)
    state = [*model.state_dict().values(), torch.rand(9)]
    for entry in trainer.optimizers[0].state_dict()["state"].values():
        state += entry.values()
    found = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in state))
    print("done", trainer.global_rank, found.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
