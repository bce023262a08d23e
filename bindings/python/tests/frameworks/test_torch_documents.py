"""The code in docs/pytorch.md runs."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import outlive
import outlive.torch

PAGE = Path(__file__).parents[4] / "docs" / "pytorch.md"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore:torch.distributed is")


def block(first_line: str) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (found,) = [each for each in blocks if each.partition("\n")[0] == first_line]
    return str(found)


def test_the_training_loop(job: outlive.Job) -> None:
    torch.manual_seed(1)
    text = block("import outlive.torch")
    assert "10_000" in text

    def life(steps: int) -> tuple[dict[str, Any], int]:
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        trained = [0]

        def train(model: Any, optimizer: Any, scheduler: Any) -> None:
            optimizer.zero_grad()
            model(torch.ones(3)).sum().backward()
            optimizer.step()
            scheduler.step()
            trained[0] += 1

        progress = {"step": 0}
        names = {"job": job, "model": model, "optimizer": optimizer, "scheduler": scheduler}
        code = compile(text.replace("10_000", str(steps)), str(PAGE), "exec")
        exec(code, {**names, "progress": progress, "train": train})
        return model.state_dict(), trained[0]

    life(5)
    got, trained = life(9)
    assert trained == 4
    assert torch.equal(job.restore()["model"]["weight"], got["weight"])


def test_a_distributed_checkpoint(folder: Path) -> None:
    for value in (1.0, 2.0):
        state = {"w": torch.full((30, 40), value), "step": int(value)}
        names: dict[str, Any] = {"outlive": outlive, "pool": outlive.open(folder)}
        names["state_dict"] = state
        code = compile(block("import torch.distributed.checkpoint as dcp"), str(PAGE), "exec")
        exec(code, names)
        names["future"].result()
    # The second program loaded before it saved.
    assert state["step"] == 1
    assert float(state["w"][0, 0]) == 1.0
