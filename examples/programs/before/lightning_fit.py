"""A training with Lightning."""

import hashlib

import lightning
import torch


class Net(lightning.LightningModule):
    """A network."""

    def __init__(self):
        """Makes the layers."""
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 4)
        )

    def training_step(self, batch, number):
        """Returns the loss of a batch."""
        return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[0][:, :4].argmax(1))

    def on_train_epoch_end(self):
        """Says how far it is."""
        print("epoch", self.current_epoch, flush=True)

    def configure_optimizers(self):
        """Returns the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=0.01)


lightning.seed_everything(1)
model = Net()
rows = torch.utils.data.TensorDataset(torch.randn(512, 16))
data = torch.utils.data.DataLoader(rows, batch_size=32, shuffle=True)
options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
trainer = lightning.Trainer(max_epochs=20, accelerator="cpu", **options)
trainer.fit(model, data)
weights = b"".join(each.numpy().tobytes() for each in model.state_dict().values())
print("result", hashlib.sha256(weights).hexdigest())
