"""All ranks restore the checkpoint that the first one takes, also if others see a newer one.

Each rank gets a pool or a file of its own here, and those of rank 1 have one checkpoint more. So
the ranks differ without a race.
"""

from pathlib import Path
from typing import Any

import pytest
import test_huggingface
import torch
from accelerate import Accelerator

import outlive
import outlive.accelerate
import outlive.huggingface
import outlive.lightning
import trained

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # Each start of such a program takes many seconds on a busy machine.
    pytest.mark.timeout(600),
]

BEGIN = """
import os, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import torch
rank = int(os.environ["RANK"])
here = Path(sys.argv[1])
"""


def told(text: str, folder: Path) -> list[str]:
    """Returns the last line of two ranks, which run a program."""
    found = trained.told_by_ranks(BEGIN + text, 2, folder, Path(__file__).parent)
    return [each.splitlines()[-1] for each in found]


def prepared() -> tuple[Any, Any]:
    """Returns an accelerator with a model."""
    accelerator = Accelerator(cpu=True)
    return accelerator, accelerator.prepare(torch.nn.Linear(2, 1))


def test_of_accelerate(tmp_path: Path) -> None:
    for rank in range(2):
        accelerator, _ = prepared()
        progress = {"step": 0}
        run = outlive.accelerate.capture(
            accelerator, tmp_path / str(rank), "job", progress=progress
        )
        for _ in range(2 + rank):
            progress["step"] += 1
            run.save(wait=True)
    text = """
import outlive.accelerate, test_ranks_agree as t
accelerator, _ = t.prepared()
progress = {"step": 0}
run = outlive.accelerate.capture(accelerator, here / str(rank), "job", progress=progress)
report = run.restore()
print(report.epoch, progress["step"])
"""
    assert told(text, tmp_path) == ["2 2"] * 2


def test_of_hooks_of_accelerate(tmp_path: Path) -> None:
    accelerator, model = prepared()
    hooks = outlive.accelerate.attach(accelerator, tmp_path / "pool", "job")
    for rank in range(2):
        torch.nn.init.constant_(model.weight, float(rank + 1))
        accelerator.save_state(str(tmp_path / f"files-{rank}"))
    hooks.close()
    text = """
import outlive.accelerate, test_ranks_agree as t
accelerator, model = t.prepared()
outlive.accelerate.attach(accelerator, here / "pool", "job")
accelerator.load_state(str(here / f"files-{rank}"))
print(accelerator.unwrap_model(model).weight.tolist())
"""
    assert told(text, tmp_path) == ["[[1.0, 1.0]]"] * 2


def test_of_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    for rank in range(2):
        saver = outlive.huggingface.Callback(tmp_path / str(rank), "job")
        used = test_huggingface.trainer(tmp_path, [saver], max_steps=2 + rank)
        used.train(resume_from_checkpoint=saver.newest(used))
    text = """
import outlive.huggingface, test_huggingface as t
saver = outlive.huggingface.Callback(here / str(rank), "job")
used = t.trainer(here, [saver], max_steps=3)
print(Path(saver.newest(used), "trainer_state.json").read_text().count('"global_step": 2'))
"""
    assert told(text, tmp_path) == ["1"] * 2


def test_of_lightning(tmp_path: Path) -> None:
    for rank in range(2):
        io = outlive.lightning.CheckpointIO(tmp_path / str(rank), "job")
        for step in range(1, 3 + rank):
            io.save_checkpoint({"step": step}, "outlive:newest")
        io.teardown()
    io = outlive.lightning.CheckpointIO(tmp_path / "files", "job")
    for rank in range(2):
        io.save_checkpoint({"step": rank}, tmp_path / f"file-{rank}")
    torch.save({"step": 9}, tmp_path / "plain")
    text = """
import torch.distributed as dist
import outlive.lightning
dist.init_process_group("gloo")
io = outlive.lightning.CheckpointIO(here / str(rank), "job")
paths = ["outlive:newest", here / f"file-{rank}", here / "plain"]
found = [io.load_checkpoint(path)["step"] for path in paths]
if rank == 0:  # this is not collective
    io.export("outlive:1", here / "exported")
print(found)
dist.destroy_process_group()
"""
    assert told(text, tmp_path) == ["[2, 0, 9]"] * 2
    assert torch.load(tmp_path / "exported") == {"step": 1}


def test_lightning_refuses_to_resume_on_some_ranks_only(tmp_path: Path) -> None:
    outlive.open(tmp_path / "1").job("job").save({"x": 1}, wait=True)
    text = """
import torch.distributed as dist
import outlive.lightning, test_lightning as t
saver = outlive.lightning.Callback(here / str(rank), "job")
used = t.trainer([saver], 1)
newest = saver.newest
dist.init_process_group("gloo")
try:
    saver.setup(used, t.Net(), "fit")
except outlive.InvalidError as error:
    print(newest, error)
dist.destroy_process_group()
"""
    first, second = told(text, tmp_path)
    assert first.startswith("None the ranks disagree")
    assert second.startswith("outlive:newest the ranks disagree")
