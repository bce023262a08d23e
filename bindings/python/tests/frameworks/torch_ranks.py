"""A program of several ranks for the tests of PyTorch: each rank is a process.

    python torch_ranks.py RANK SIZE STORE COMMAND [ARGUMENT...]

The ranks meet in the file STORE, and use gloo. The commands are at the end.
"""

import hashlib
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import outlive
import outlive.torch

warnings.filterwarnings("ignore", module="torch")

# Rows that no number of ranks divides, and names with all that needs care.
SIZES: dict[str, tuple[int, ...]] = {
    "rows": (1001, 300),
    "columns": (64, 777),
    "few": (3, 5),
    "a/b.c": (130,),
    "cube": (17, 33, 65),
}


def large(*, empty: bool = False) -> dict[str, Any]:
    """Returns a state with one large tensor."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensor = torch.arange(4001 * 512, dtype=torch.float32).reshape(4001, 512)
    if empty:
        tensor.zero_()
    return {"large": distribute_tensor(tensor, mesh, [Shard(0)]), "step": 3}


def whole(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns the whole tensor of a name."""
    generator = torch.Generator().manual_seed(len(name))
    return torch.randn(SIZES[name], generator=generator).to(dtype)


def state(how: str, *, empty: bool = False) -> dict[str, Any]:
    """Returns a state with distributed tensors, others, and values."""
    size = dist.get_world_size()
    if how == "grid":
        mesh = init_device_mesh("cpu", (2, size // 2))
        placements: list[Any] = [Shard(0), Shard(1)]
    else:
        mesh = init_device_mesh("cpu", (size,))
        placements = [{"rows": Shard(0), "columns": Shard(1), "copies": Replicate()}[how]]
    found: dict[str, Any] = {}
    for name, extents in SIZES.items():
        places = placements
        if len(extents) < 2 and how in ("columns", "grid"):
            places = [Shard(0)] + [Replicate()] * (len(placements) - 1)
        found[name] = distribute_tensor(whole(name), mesh, places)
    tree: dict[str, Any] = {
        "parts": found,
        "bfloat16": distribute_tensor(whole("rows", torch.bfloat16), mesh, placements),
        "plain": whole("few"),
        "scalar": torch.tensor(2.5),
        "sparse": torch.eye(4).to_sparse(),
        "step": 12,
        "texts": ["a", {"b": None}],
        f"of rank {dist.get_rank()}": f"value of rank {dist.get_rank()}",
    }
    if empty:
        for tensor in [*found.values(), tree["bfloat16"], tree["plain"], tree["scalar"]]:
            with torch.no_grad():
                tensor.zero_()
        tree |= {"step": 0, "texts": [None, {"b": 3}], "sparse": torch.zeros(4, 4).to_sparse()}
    return tree


def check(tree: dict[str, Any]) -> None:
    """Checks that a state is what `state` returns."""
    for name, tensor in tree["parts"].items():
        assert torch.equal(tensor.full_tensor(), whole(name)), name
    assert torch.equal(tree["bfloat16"].full_tensor(), whole("rows", torch.bfloat16))
    assert torch.equal(tree["plain"], whole("few"))
    assert tree["scalar"].item() == 2.5
    assert torch.equal(tree["sparse"].to_dense(), torch.eye(4))
    assert tree["step"] == 12
    assert tree["texts"] == ["a", {"b": None}]


def save(pool: str, how: str, kind: str) -> None:
    """Saves a state, by `dcp.save` or `dcp.async_save`."""
    writer = outlive.torch.DCPWriter(outlive.open(pool), "job")
    tree = large() if how == "large" else state(how)
    if kind == "save":
        dcp.save(tree, storage_writer=writer)
    else:
        future: Any = dcp.async_save(
            tree, storage_writer=writer, process_group=dist.new_group(backend="gloo")
        )
        # From now on the state may change.
        for tensor in tree["parts"].values():
            with torch.no_grad():
                tensor.zero_()
        future.result()
    writer.close()


def load(pool: str, how: str) -> None:
    """Loads a state; prints how many bytes this rank restored, and read, of how many."""
    reader = outlive.torch.DCPReader(outlive.open(pool), "job")
    if how == "large":
        tree = large(empty=True)
        dcp.load(tree, storage_reader=reader)
        assert torch.equal(tree["large"].full_tensor(), large()["large"].full_tensor())
        report = reader.last_restore
        assert report is not None
        print(report.restored_bytes, report.read_bytes, 4001 * 512 * 4)
        return
    tree = state(how, empty=True)
    # Values of ranks that may not have saved.
    del tree[f"of rank {dist.get_rank()}"]
    dcp.load(tree, storage_reader=reader)
    check(tree)


def of_ranks(pool: str) -> None:
    """Loads the values that each rank has for itself."""
    tree = {f"of rank {dist.get_rank()}": ""}
    dcp.load(tree, storage_reader=outlive.torch.DCPReader(outlive.open(pool), "job"))
    print(tree[f"of rank {dist.get_rank()}"])


def model_of(seed: int, *, is_divided: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Returns a model whose parameters are divided among the ranks, or the same on all."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(33, 70), torch.nn.ReLU(), torch.nn.LayerNorm(70), torch.nn.Linear(70, 5)
    )
    if not is_divided:
        model = torch.nn.parallel.DistributedDataParallel(model)
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Returns a hash of all whole tensors, the same for any number of ranks."""
    found = hashlib.sha256()
    entries = optimizer.state_dict()["state"]
    tensors = [*model.state_dict().values(), *(e[k] for e in entries.values() for k in sorted(e))]
    for tensor in tensors:
        tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()


def train(pool: str, how: str, steps: str, die_at: str) -> None:
    """Trains with FSDP2 from the newest checkpoint; dies at a step; prints a hash."""
    model, optimizer = model_of(1, is_divided=how != "ddp")
    progress = {"step": 0}
    storage = outlive.open(pool)
    if how == "dcp":
        writer = outlive.torch.DCPWriter(storage, "job")
        reader = outlive.torch.DCPReader(storage, "job")
        assert reader.job is writer.job
        if writer.job.epochs():
            states = get_state_dict(model, optimizer)
            tree = {"model": states[0], "optimizer": states[1], "progress": progress}
            dcp.load(tree, storage_reader=reader)
            set_state_dict(model, optimizer, model_state_dict=states[0], optim_state_dict=states[1])
            progress = tree["progress"]
    else:
        run = outlive.torch.capture(model=model, optimizer=optimizer, progress=progress, rng=False)
        names = [*run.replicated, "progress"]
        job = storage.job("job", group=dist.new_group(backend="gloo"), replicated=names)
        run.restore(job)
    upload = dist.new_group(backend="gloo")
    begun = progress["step"]
    while progress["step"] < int(steps):
        inputs = torch.randn(8, 33, generator=torch.Generator().manual_seed(progress["step"]))
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()
        progress["step"] += 1
        if how == "dcp":
            states = get_state_dict(model, optimizer)
            tree = {"model": states[0], "optimizer": states[1], "progress": progress}
            future: Any = dcp.async_save(tree, storage_writer=writer, process_group=upload)
            if progress["step"] == int(die_at):
                future.result()
                os.kill(os.getpid(), signal.SIGKILL)
        else:
            handle = run.save(job)
            if progress["step"] == int(die_at):
                handle.wait()
                os.kill(os.getpid(), signal.SIGKILL)
    if how == "dcp":
        future.result()
        writer.close()
    else:
        job.close()
    print(begun, digest(model, optimizer))


def fail(pool: str, how: str) -> None:
    """Fails on rank 1 in a save; prints the errors, and saves again."""
    writer = outlive.torch.DCPWriter(outlive.open(pool), "job")
    tree = state("rows")

    class Unwilling:
        def __reduce__(self) -> Any:
            raise ValueError("this cannot be pickled")

    bad = {**tree, "bad": Unwilling() if dist.get_rank() == 1 else 1}
    # Without this, rank 0 alone saves values that all ranks have.
    bad[f"bad of {dist.get_rank()}"] = bad.pop("bad")
    group = dist.new_group(backend="gloo")
    try:
        if how == "save":
            dcp.save(bad, storage_writer=writer)
        else:
            dcp.async_save(bad, storage_writer=writer, process_group=group)
    except BaseException as error:
        print(str(error).replace("\n", " "))
    else:
        raise AssertionError
    dcp.save(tree, storage_writer=writer)
    print([epoch.epoch for epoch in writer.job.epochs()])


class UnwillingPlanner(DefaultLoadPlanner):  # type: ignore[misc]
    """Fails on rank 1 in one of the calls of a load."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call

    def _may_fail(self, call: str) -> None:
        if call == self.call and dist.get_rank() == 1:
            raise ValueError(f"rank 1 is unwilling to {call}")

    def resolve_tensor(self, read_item: Any) -> Any:
        self._may_fail("resolve")
        return super().resolve_tensor(read_item)

    def load_bytes(self, read_item: Any, value: Any) -> None:
        self._may_fail("load bytes")
        super().load_bytes(read_item, value)

    def commit_tensor(self, read_item: Any, tensor: Any) -> None:
        self._may_fail("commit")
        super().commit_tensor(read_item, tensor)


def fail_load(pool: str, name: str) -> None:
    """Fails on rank 1 in loads; prints the errors, and loads with the same reader."""
    reader = outlive.torch.DCPReader(outlive.open(pool), "job")
    tree = state("rows", empty=True)
    del tree[f"of rank {dist.get_rank()}"]
    for call in ("resolve", "load bytes", "commit"):
        try:
            dcp.load(tree, storage_reader=reader, planner=UnwillingPlanner(call))
        except BaseException as error:
            print(str(error).replace("\n", " "))
        else:
            raise AssertionError
    # A checkpoint that only one rank does not find.
    wanted = name if dist.get_rank() == 0 else "another"
    try:
        dcp.load(tree, storage_reader=reader, checkpoint_id=wanted)
    except BaseException as error:
        print(str(error).replace("\n", " "))
    else:
        raise AssertionError
    dcp.load(tree, storage_reader=reader)
    check(tree)


def lone_death(pool: str) -> None:
    """Saves, and then rank 1 dies before the next save."""
    writer = outlive.torch.DCPWriter(outlive.open(pool), "job")
    tree = state("rows")
    dcp.save(tree, storage_writer=writer)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    print("saved", writer.job.epochs()[-1].epoch, flush=True)
    dcp.save(tree, storage_writer=writer)


def wrong(pool: str) -> None:
    """Saves with jobs that do not fit the ranks; prints the errors."""
    storage = outlive.open(pool)
    tree = {"step": 1}

    def refuse(writer: Any, **options: Any) -> None:
        try:
            dcp.save(tree, storage_writer=writer, **options)
        except BaseException as error:
            print(str(error).replace("\n", " "))
        else:
            raise AssertionError

    refuse(outlive.torch.DCPWriter(storage.job("job")))
    refuse(outlive.torch.DCPWriter(storage, "divided"), use_collectives=False)
    meeting = outlive.ranks(dist.get_rank(), dist.get_world_size(), run="a")
    refuse(outlive.torch.DCPWriter(storage.job("meeting", group=meeting)))


COMMANDS: dict[str, Callable[..., None]] = {
    "save": save,
    "load": load,
    "of_ranks": of_ranks,
    "train": train,
    "fail": fail,
    "fail_load": fail_load,
    "lone_death": lone_death,
    "wrong": wrong,
}


def main(words: list[str]) -> None:
    """Runs a command as one rank."""
    number, count, store, command, *arguments = words
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(number), world_size=int(count)
    )
    COMMANDS[command](*arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
