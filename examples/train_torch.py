"""A training run of PyTorch that outlives `kill -9`: a small transformer learns to write this file.

It predicts each character from those before it (Vaswani et al., "Attention is all you need", 2017),
with dropout, AdamW and a schedule of the learning rate. All of these go on where they were: the
parameters, both moments of AdamW, the schedule, the random generators, and the counters.

    python examples/train_torch.py --dir ckpt

Kill it, start it again with the same command, and it continues from its newest checkpoint, to the
same bits. outlive takes the three lines that are marked, and one that opens the job.
"""

import argparse
import hashlib
from pathlib import Path

import torch
from torch import nn

import outlive
import outlive.torch

WIDTH, HEADS, LAYERS, WINDOW, BATCH = 64, 4, 2, 64, 16
CHARACTERS = 128


class Writer(nn.Module):  # type: ignore[misc]
    """A transformer that predicts the next character of each position."""

    def __init__(self) -> None:
        """Draws the parameters."""
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, WIDTH)
        self.places = nn.Embedding(WINDOW, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CHARACTERS, bias=False)
        self.head.weight = self.characters.weight  # tied
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(WINDOW))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Returns logits of shape (texts, characters, 128) for texts of whole characters."""
        places = torch.arange(text.shape[1], device=text.device)
        seen = self.characters(text) + self.places(places)
        predicted: torch.Tensor = self.head(self.layers(seen, mask=self.mask, is_causal=True))
        return predicted


def batch(text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws pieces of a text; returns them, and the same pieces one character later."""
    begins = torch.randint(len(text) - WINDOW - 1, (BATCH,)).tolist()
    pieces = torch.stack([text[begin : begin + WINDOW + 1] for begin in begins])
    return pieces[:, :-1], pieces[:, 1:]


def main() -> None:
    """Trains from the command line."""
    args = arguments()
    torch.set_num_threads(1)  # more threads would add up the same numbers in another order
    torch.manual_seed(args.seed)
    source = Path(__file__).read_bytes().decode("ascii", "replace")
    text = torch.tensor([min(ord(character), CHARACTERS - 1) for character in source])
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    progress = {"step": 0, "loss": 0.0}
    run = outlive.torch.capture(  # outlive: all that the next step needs, and the generators
        model=model, optimizer=optimizer, scheduler=scheduler, progress=progress
    )
    job = outlive.open(args.dir).job("writer", every_s=args.every, keep_last=2)
    run.restore(job)  # outlive: the newest whole checkpoint, if there is one
    print(f"from step {progress['step']}", flush=True)
    while progress["step"] < args.steps:
        given, wanted = batch(text)
        loss = nn.functional.cross_entropy(model(given).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        progress["step"] += 1
        progress["loss"] = loss.item()
        run.save(job, force=progress["step"] == args.steps)  # outlive: goes on at once
        if progress["step"] % 50 == 0:
            print(f"step {progress['step']} loss {progress['loss']:.4f}", flush=True)
    job.close()  # waits until the last checkpoint is committed
    bits = hashlib.sha256()
    for value in model.state_dict().values():
        bits.update(value.numpy().tobytes())
    print(f"end loss {progress['loss']:.4f} bits {bits.hexdigest()[:16]}", flush=True)


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Learns a text, checkpointed with outlive.")
    parser.add_argument("--steps", type=int, default=2000, help="total number of batches")
    parser.add_argument("--dir", default="ckpt", help="directory of the pool")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between checkpoints")
    parser.add_argument("--seed", type=int, default=7, help="seed of the random numbers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
