"""Trains a small GPT-2 with the Trainer of Hugging Face. Kill it and run it again: it goes on.

    python examples/train_huggingface.py ckpt

It ends with the same hash as without a kill.
"""

import argparse
import hashlib
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import outlive.huggingface


class Progress(TrainerCallback):  # type: ignore[misc]
    """Says how far it is."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Prints the step."""
        print("step", state.global_step, flush=True)


def main() -> None:
    """Trains to the end, from the newest checkpoint on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pool")
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(1)
    texts = torch.randint(32, (200, 8))
    data = [{"input_ids": text, "labels": text} for text in texts]
    config = GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    model = GPT2LMHeadModel(config)
    options = TrainingArguments(
        output_dir=f"{args.pool}-files",
        num_train_epochs=args.epochs,
        per_device_train_batch_size=8,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        logging_steps=10,
    )
    saver = outlive.huggingface.Callback(args.pool, "huggingface", keep_last=3)
    trainer = Trainer(model, options, train_dataset=data, callbacks=[saver, Progress()])
    trainer.train(resume_from_checkpoint=saver.newest(trainer))
    state = [*model.state_dict().values(), torch.rand(9)]
    for entry in trainer.optimizer.state_dict()["state"].values():
        state += entry.values()
    found = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in state))
    print("done", options.process_index, found.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
