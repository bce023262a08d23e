"""Saves and loads of a real model of PyTorch: outlive beside `torch.save` and DCP.

A GPT with 124 million parameters learns on the CPU with AdamW, and is saved every few steps. Its
state takes 1.5 GB: the parameters, and two moments of each. All programs save the same state, and
every file is synced. A save holds the program up until it may change the state again, and is
durable once it would survive a power cut.

    .venv-bench/bin/python bench/torch_save.py DIR

`--small` takes a model of 6 MB, to try it.

Then a new program loads the newest save, with the files in the page cache.
"""

import argparse
import gc
import json
import os
import shutil
import statistics
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import outlive
import outlive.torch

CHARACTERS, CONTEXT = 50304, 64


class GPT(nn.Module):  # type: ignore[misc]
    """The shape of GPT-2 (Radford et al., 2019), with tied embeddings."""

    def __init__(self, width: int, layers: int, heads: int, characters: int) -> None:
        """Draws the parameters."""
        super().__init__()
        self.tokens = nn.Embedding(characters, width)
        self.places = nn.Embedding(1024, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, characters, bias=False)
        self.head.weight = self.tokens.weight
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, text: Any) -> Any:
        """Returns the logits of the next tokens."""
        seen = self.tokens(text) + self.places(torch.arange(text.shape[1]))
        return self.head(self.layers(seen, mask=self.mask, is_causal=True))


@dataclass
class Program:
    """A model that learns."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    characters: int
    progress: dict[str, int] = field(default_factory=lambda: {"step": 0})

    def step(self) -> None:
        """Learns from one text."""
        text = torch.randint(self.characters, (1, CONTEXT + 1))
        logits = self.model(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.progress["step"] += 1

    def state(self) -> dict[str, Any]:
        """Returns the state as programs make it for `torch.save`."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": dict(self.progress),
        }

    def tensors(self) -> dict[str, Any]:
        """Returns all tensors of the state by name, without the tied one."""
        found = dict(self.model.state_dict())
        found.pop("head.weight")
        for number, entry in self.optimizer.state_dict()["state"].items():
            found.update({f"{number}.{name}": value for name, value in entry.items()})
        return found

    def load(self, state: dict[str, Any]) -> None:
        """Takes such a state."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress.update(state["progress"])


def program(*, is_small: bool) -> Program:
    """Makes a program that has learnt one step, so that the optimizer has its state."""
    torch.manual_seed(1)
    shape = (96, 2, 4, 1000) if is_small else (768, 12, 12, CHARACTERS)
    model = GPT(*shape)
    made = Program(model, torch.optim.AdamW(model.parameters(), lr=1e-4), shape[3])
    made.step()
    return made


@dataclass
class Row:
    """The costs of one way to save and load, in seconds; the numbers are medians."""

    name: str
    first_stall_s: float = 0.0
    first_durable_s: float = 0.0
    stall_s: float = 0.0
    durable_s: float = 0.0
    step_s: float = 0.0
    step_in_save_s: float = 0.0
    load_s: float = 0.0


def sync(path: Path) -> None:
    """Makes a file or directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


# Each way to save begins a save and returns a function that waits until it is durable. Each way to
# load fills a program.
Begin = Callable[[Program], Callable[[], object]]
Load = Callable[[Program], object]


def by_capture(folder: Path) -> tuple[Begin, Load]:
    """`outlive.torch.capture`."""
    job = outlive.open(folder).job("gpt", keep_last=2)

    def run(it: Program) -> Any:
        return outlive.torch.capture(model=it.model, optimizer=it.optimizer, progress=it.progress)

    runs: dict[int, Any] = {}
    return (
        lambda it: runs.setdefault(id(it), run(it)).save(job, force=True).wait,
        lambda it: run(it).restore(outlive.open(folder).job("gpt")),
    )


def by_writer(folder: Path) -> tuple[Begin, Load]:
    """`dcp.async_save` with `DCPWriter`."""
    pool = outlive.open(folder)
    writer = outlive.torch.DCPWriter(pool, "gpt", keep_last=2)

    def begin(it: Program) -> Callable[[], object]:
        future: Any = dcp.async_save(it.state(), storage_writer=writer)
        wait: Callable[[], object] = future.result
        return wait

    def load(it: Program) -> None:
        state = it.state()
        dcp.load(state, storage_reader=outlive.torch.DCPReader(outlive.open(folder), "gpt"))
        it.load(state)

    return begin, load


def by_torch_save(folder: Path) -> tuple[Begin, Load]:
    """`torch.save` into a file that replaces the one before it."""

    def begin(it: Program) -> Callable[[], object]:
        torch.save(it.state(), folder / "new.pt")
        sync(folder / "new.pt")
        (folder / "new.pt").replace(folder / "state.pt")
        sync(folder)
        return lambda: None

    def load(it: Program) -> None:
        it.load(torch.load(folder / "state.pt", weights_only=True))

    return begin, load


def by_mapped_file(folder: Path) -> tuple[Begin, Load]:
    """The same, loaded from a mapped file."""
    begin, _ = by_torch_save(folder)
    return begin, lambda it: it.load(torch.load(folder / "state.pt", weights_only=True, mmap=True))


def by_dcp(folder: Path) -> tuple[Begin, Load]:
    """`dcp.save` into a folder that replaces the one before it."""
    return _dcp(folder, is_async=False)


def by_async_dcp(folder: Path) -> tuple[Begin, Load]:
    """`dcp.async_save`."""
    return _dcp(folder, is_async=True)


def _dcp(folder: Path, *, is_async: bool) -> tuple[Begin, Load]:
    saves = [0]

    def begin(it: Program) -> Callable[[], object]:
        saves[0] += 1
        place = folder / str(saves[0])
        writer = dcp.FileSystemWriter(place)

        def replace() -> None:
            shutil.rmtree(folder / str(saves[0] - 1), ignore_errors=True)
            sync(folder)

        if not is_async:
            dcp.save(it.state(), storage_writer=writer)
            replace()
            return lambda: None
        future: Any = dcp.async_save(it.state(), storage_writer=writer)

        def wait() -> None:
            future.result()
            replace()

        return wait

    def load(it: Program) -> None:
        state = it.state()
        newest = max(int(path.name) for path in folder.iterdir())
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder / str(newest)))
        it.load(state)

    return begin, load


def by_safetensors(folder: Path) -> tuple[Begin, Load]:
    """`safetensors.torch.save_file` of all tensors by name."""
    from safetensors.torch import load_file, save_file

    path = folder / "state.safetensors"

    def begin(it: Program) -> Callable[[], object]:
        save_file(it.tensors(), path)
        sync(path)
        return lambda: None

    def load(it: Program) -> None:
        found = load_file(path)
        with torch.no_grad():
            for name, value in it.tensors().items():
                value.copy_(found[name])

    return begin, load


WAYS: dict[str, Callable[[Path], tuple[Begin, Load]]] = {
    "outlive capture": by_capture,
    "outlive DCPWriter": by_writer,
    "torch.save": by_torch_save,
    "torch.save, mmap": by_mapped_file,
    "DCP save": by_dcp,
    "DCP async_save": by_async_dcp,
    "safetensors": by_safetensors,
}


def measure(name: str, folder: Path, args: argparse.Namespace) -> Row:
    """Measures one way to save and load."""
    folder.mkdir(parents=True)
    begin, load = WAYS[name](folder)
    it = program(is_small=args.small)
    stalls: list[float] = []
    durables: list[float] = []
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(args.saves):
        ended: list[float] = []
        started = time.perf_counter()
        wait = begin(it)
        stalls.append(time.perf_counter() - started)

        def finish(wait: Callable[[], object] = wait, ended: list[float] = ended) -> None:
            wait()
            ended.append(time.perf_counter())

        waiter = threading.Thread(target=finish)
        waiter.start()
        for _ in range(args.steps):
            at = time.perf_counter()
            is_in_save = not ended
            it.step()
            (beside if is_in_save else alone).append(time.perf_counter() - at)
        waiter.join()
        durables.append(ended[0] - started)
    row = Row(name, stalls[0], durables[0])
    row.stall_s, row.durable_s = statistics.median(stalls[1:]), statistics.median(durables[1:])
    row.step_s, row.step_in_save_s = (
        statistics.median(times) if times else float("nan") for times in (alone, beside)
    )
    begin(it)()
    other = program(is_small=args.small)
    started = time.perf_counter()
    load(other)
    row.load_s = time.perf_counter() - started
    if not all(map(torch.equal, it.tensors().values(), other.tensors().values())):
        raise SystemExit(f"{name} has loaded another state than it saved")
    return row


def main() -> None:
    """Measures all ways, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for the saves; it is emptied")
    parser.add_argument("--saves", type=int, default=5, help="saves of each way")
    parser.add_argument("--steps", type=int, default=3, help="steps after each save")
    parser.add_argument("--only", default="", help="part of the names of the ways to measure")
    parser.add_argument("--small", action="store_true", help="a model of 6 MB")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch")
    rows = []
    for name in WAYS:
        if args.only not in name:
            continue
        place = args.folder / name.replace(" ", "-").replace(",", "")
        shutil.rmtree(place, ignore_errors=True)
        try:
            rows.append(measure(name, place, args))
        except ImportError as error:
            print(f"{name} is left out: {error}")
        gc.collect()
        shutil.rmtree(place, ignore_errors=True)
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    heads = list(Row("").__dict__)[1:]
    print("| |", " | ".join(heads), "|")
    print("|---|" + "---|" * len(heads))
    for row in rows:
        print(f"| {row.name} |", " | ".join(f"{getattr(row, head):.3f}" for head in heads), "|")


if __name__ == "__main__":
    main()
