"""PyTorch writes into a pool by URLs: `torch.save`, and `dcp.save` with several processes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp

import outlive

# Saves and loads a state of shards, each time into another directory of one job.
RANKS = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter, FsspecReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

rank, size, meeting, root = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
mesh = init_device_mesh("cpu", (size,))
whole = torch.arange(40_000.0).reshape(400, 100)
for step in range(3):
    state = {
        "shards": distribute_tensor(whole + step, mesh, [Shard(0)]),
        "same": torch.full((1000,), float(step)),
        "step": step,
    }
    dcp.save(state, storage_writer=FsspecWriter(f"{root}/step {step}", sync_files=False))
for step in range(3):
    state = {
        "shards": distribute_tensor(torch.zeros(400, 100), mesh, [Shard(1)]),
        "same": torch.zeros(1000),
        "step": -1,
    }
    dcp.load(state, checkpoint_id=f"{root}/step {step}")
    assert state["step"] == step
    assert (state["same"] == step).all()
    assert (state["shards"].full_tensor() == whole + step).all()
dist.destroy_process_group()
"""


def test_torch_saves_and_loads_by_url(tmp_path: Path) -> None:
    root = f"outlive://{tmp_path / 'pool'}!/job"
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(300)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with fsspec.open(f"{root}/last.pt", "wb") as file:
        torch.save(state, file)
    with fsspec.open(f"{root}/last.pt", "rb") as file:
        loaded = torch.load(file)
    for name, value in state["model"].items():
        assert torch.equal(loaded["model"][name], value)
    # The weights take no more space under another name.
    before = size(tmp_path / "pool")
    with fsspec.open(f"{root}/same.pt", "wb") as file:
        torch.save(state, file)
    assert size(tmp_path / "pool") - before < 100_000


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.shard"))


def test_ranks_save_into_one_directory(tmp_path: Path) -> None:
    root = f"outlive://{tmp_path / 'pool'}!/job"
    command = [sys.executable, "-c", RANKS]
    ranks = [
        subprocess.Popen([*command, str(rank), "3", str(tmp_path / "meeting"), root])
        for rank in range(3)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0, 0]
    fs = fsspec.filesystem("outlive", pool=tmp_path / "pool")
    for step in range(3):
        names = fs.ls(f"job/step {step}", detail=False)
        assert f"job/step {step}/.metadata" in names
        assert len(names) == 4, names
    # Another program looks at one tensor, without ranks.
    state: dict[str, Any] = {"same": torch.zeros(1000)}
    with pytest.warns(UserWarning, match="load in a single process"):
        dcp.load(state, checkpoint_id=f"{root}/step 2", no_dist=True)
    assert (state["same"] == 2).all()
    assert outlive.open(tmp_path / "pool").job("job").latest is not None


def test_a_save_that_fails_leaves_the_older_files(tmp_path: Path) -> None:
    root = f"outlive://{tmp_path / 'pool'}!/job"
    fs, path = fsspec.url_to_fs(root)
    with fs.open(f"{path}/last.pt", "wb") as file:
        torch.save({"x": torch.ones(3)}, file)

    def fail() -> None:
        with fs.open(f"{path}/last.pt", "wb") as file:
            torch.save({"x": torch.zeros(3), "y": lambda: None}, file)

    with pytest.raises(Exception, match=r"lambda|pickle"):
        fail()
    with fs.open(f"{path}/last.pt", "rb") as file:
        assert (torch.load(file)["x"] == 1).all()
