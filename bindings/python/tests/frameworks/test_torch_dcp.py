"""`torch.distributed.checkpoint` with the storage of outlive, in one process."""

import copy
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import outlive
import outlive.torch

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:torch", "ignore:torch.distributed is", "ignore:.*sparse.*"
)


def some_state() -> dict[str, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.BatchNorm1d(400))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(9, 300)).square().sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": 3,
        "texts": ["a", {"b": None}],
        "bfloat16": torch.randn(50, 60).bfloat16(),
        "float8": torch.randn(50, 60).to(torch.float8_e4m3fn),
        "float4": torch.zeros(50, 6, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "bool": torch.randn(500) > 0,
        "complex": torch.randn(30, 40, dtype=torch.complex64),
        "conjugated": torch.randn(30, 40, dtype=torch.complex64).conj(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "transposed": torch.randn(30, 40).t(),
        "expanded": torch.randn(1, 40).expand(30, 40),
        "sparse": torch.randn(30, 40).relu().to_sparse(),
        "parameter": torch.nn.Parameter(torch.randn(7)),
    }


def emptied(tree: Any) -> Any:
    """Returns a state of the same form, without its values."""
    if isinstance(tree, dict):
        return type(tree)((key, emptied(value)) for key, value in tree.items())
    if isinstance(tree, list):
        return [emptied(value) for value in tree]
    if not isinstance(tree, torch.Tensor):
        return None
    if tree.layout != torch.strided:
        return torch.zeros(tree.shape).to_sparse()
    made = torch.empty(tree.shape, dtype=tree.dtype)
    torch.empty(0, dtype=torch.uint8).set_(made.untyped_storage()).zero_()
    return made


def assert_like(got: Any, want: Any, path: str = "") -> None:
    if isinstance(want, dict):
        assert list(got) == list(want), path
        for key in want:
            assert_like(got[key], want[key], f"{path}/{key}")
    elif isinstance(want, list):
        assert len(got) == len(want), path
        for at, value in enumerate(want):
            assert_like(got[at], value, f"{path}/{at}")
    elif isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), path
        got, want = (each.detach().to_dense().resolve_conj().contiguous() for each in (got, want))
        bits = [each.reshape(-1).view(torch.uint8) for each in (got, want)]
        assert torch.equal(*bits), path
    else:
        assert got == want, path


@pytest.fixture
def pool(folder: Path) -> outlive.Pool:
    return outlive.open(folder)


@pytest.fixture
def writer(pool: outlive.Pool) -> outlive.torch.DCPWriter:
    return outlive.torch.DCPWriter(pool, "job")


@pytest.fixture
def reader(pool: outlive.Pool) -> outlive.torch.DCPReader:
    return outlive.torch.DCPReader(pool, "job")


def save_now(state: Any, writer: Any, **options: Any) -> Any:
    return dcp.save(state, storage_writer=writer, **options)


def save_later(state: Any, writer: Any, **options: Any) -> Any:
    future: Any = dcp.async_save(state, storage_writer=writer, **options)
    return future.result()


@pytest.mark.parametrize("save", [save_now, save_later])
def test_a_state_comes_back(
    writer: outlive.torch.DCPWriter,
    reader: outlive.torch.DCPReader,
    save: Callable[..., Any],
) -> None:
    state = some_state()
    metadata = save(state, writer)
    assert metadata.storage_meta.save_id == "1"
    got = emptied(state)
    dcp.load(got, storage_reader=reader)
    assert_like(got, state)
    report = reader.last_restore
    assert report is not None
    assert report.epoch == 1
    assert report.read_bytes > 0
    # Only some of it, into memory of another order.
    part = {"transposed": torch.zeros(30, 40).t(), "complex": torch.zeros(30, 40).cfloat().conj()}
    dcp.load(part, storage_reader=reader)
    assert_like(part, {key: state[key] for key in part})


def test_the_next_save_writes_only_changes(writer: outlive.torch.DCPWriter) -> None:
    state = some_state()
    dcp.save(state, storage_writer=writer)
    state["model"]["0.weight"][3, 4] += 1
    dcp.save(state, storage_writer=writer)
    first, second = writer.job.epochs()
    assert second.parent == 1
    # Tensors that are not contiguous are copied, and so are hashed as a whole.
    assert second.changed_bytes < 100_000 < first.changed_bytes


def test_a_state_may_change_when_async_save_returns(
    writer: outlive.torch.DCPWriter, reader: outlive.torch.DCPReader
) -> None:
    state = {"w": torch.randn(3000, 1000), "step": 1}
    want = copy.deepcopy(state)
    memory = state["w"].data_ptr()
    future: Any = dcp.async_save(state, storage_writer=writer)
    assert state["w"].data_ptr() == memory
    state["w"].zero_()
    state["step"] = 2
    future.result()
    got = {"w": torch.zeros(3000, 1000), "step": 0}
    dcp.load(got, storage_reader=reader)
    assert_like(got, want)


def test_saves_follow_each_other(
    writer: outlive.torch.DCPWriter, reader: outlive.torch.DCPReader
) -> None:
    state = {"w": torch.zeros(1000, 1000)}
    futures: list[Any] = []
    for _ in range(4):
        state["w"] += 1
        futures.append(dcp.async_save(state, storage_writer=writer))
    assert [future.result().storage_meta.save_id for future in futures] == ["1", "2", "3", "4"]
    dcp.save(state, storage_writer=writer)
    for epoch, want in ((1, 1), (4, 4), (5, 4), ("latest", 4), ("-2", 4), ("2", 2)):
        got = {"w": torch.zeros(1000, 1000)}
        dcp.load(got, storage_reader=reader, checkpoint_id=epoch)
        assert bool((got["w"] == want).all()), epoch


def test_a_name_holds_for_one_load(writer: Any, reader: Any) -> None:
    state = {"w": torch.zeros(30)}
    for _ in range(3):
        state["w"] += 1
        dcp.save(state, storage_writer=writer)

    def loaded(reader: Any, **options: Any) -> float:
        got = {"w": torch.zeros(30)}
        dcp.load(got, storage_reader=reader, **options)
        return float(got["w"][0])

    assert loaded(reader, checkpoint_id=1) == 1
    assert loaded(reader) == 3
    with pytest.raises(dcp.CheckpointException, match="no checkpoint 9"):
        loaded(reader, checkpoint_id=9)
    # PyTorch itself reads the metadata twice in `load_sharded_optimizer_state_dict`.
    reader.reset(2)
    reader.read_metadata()
    assert [loaded(reader), loaded(reader)] == [2, 3]
    state["w"] += 1
    dcp.save(state, storage_writer=writer)
    assert loaded(reader) == 4
    # That of the reader holds for all others.
    second = outlive.torch.DCPReader(writer.job, epoch=2)
    assert [loaded(second), loaded(second, checkpoint_id=1), loaded(second)] == [2, 1, 2]


def test_a_load_reads_the_checkpoint_of_its_metadata(writer: Any, reader: Any) -> None:
    """Another load may begin in between."""
    dcp.save({"w": torch.full((30,), 1.0), "old": torch.ones(5)}, storage_writer=writer)
    got = {"w": torch.zeros(30), "old": torch.zeros(5)}
    planner = dcp.DefaultLoadPlanner()
    planner.set_up_planner(got, reader.read_metadata(), True)
    (plan,) = reader.prepare_global_plan([reader.prepare_local_plan(planner.create_local_plan())])
    dcp.save({"w": torch.full((30,), 2.0)}, storage_writer=writer)
    other = {"w": torch.zeros(30)}
    dcp.load(other, storage_reader=reader)
    assert bool((other["w"] == 2).all())
    reader.read_data(plan, planner).wait()
    assert bool((got["w"] == 1).all())
    assert bool((got["old"] == 1).all())
    assert reader.last_restore.epoch == 1
    dcp.load(other, storage_reader=reader)
    assert bool((other["w"] == 2).all())


def test_labels_name_checkpoints(
    writer: outlive.torch.DCPWriter, reader: outlive.torch.DCPReader
) -> None:
    state = {"step": 0}
    for step, label in enumerate(("first", None, "step 2", "first", None)):
        state["step"] = step
        save = save_later if step % 2 else save_now
        metadata = save(state, writer, checkpoint_id=label)
        assert metadata.storage_meta.checkpoint_id == label
    assert [epoch.label for epoch in writer.job.epochs()] == ["first", "", "step 2", "first", ""]
    for label, want in (("first", 3), ("step 2", 2), (None, 4)):
        reader = outlive.torch.DCPReader(writer.job)
        dcp.load(state, storage_reader=reader, checkpoint_id=label)
        assert state["step"] == want
    with pytest.raises(dcp.CheckpointException, match="has the label 'last'"):
        dcp.load(state, storage_reader=reader, checkpoint_id="last")
    # Labelled checkpoints stay, as in every job.
    assert writer.job.prune(keep_last=1).dropped == [2]


def test_checkpoints_are_ordinary_epochs(writer: outlive.torch.DCPWriter, folder: Path) -> None:
    state = some_state()
    dcp.save(state, storage_writer=writer)
    writer.close()
    tree = outlive.open(folder).job("job").restore()
    assert torch.equal(tree["tensors"]["model.0.weight"], state["model"]["0.weight"])
    assert torch.equal(tree["tensors"]["bfloat16"], state["bfloat16"])
    command = [sys.executable, "-m", "outlive", "verify", str(folder)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_other_checkpoints_are_told_apart(pool: outlive.Pool, reader: Any) -> None:
    with pytest.raises(dcp.CheckpointException, match="'job' has no checkpoint: save one first"):
        dcp.load({"step": 0}, storage_reader=reader)
    pool.job("job").save({"step": 1}, wait=True)
    with pytest.raises(dcp.CheckpointException, match="was not saved by"):
        dcp.load({"step": 0}, storage_reader=reader)
    with pytest.raises(dcp.CheckpointException, match="no checkpoint 9"):
        dcp.load({"step": 0}, storage_reader=reader, checkpoint_id=9)


def test_names_of_all_kinds(writer: Any, reader: Any) -> None:
    names = ["a/b", "", "~", "a~1b", "é", "x" * 300, "metadata", "[0]*?", "tensors.1"]
    state = {name: torch.full((3,), float(at)) for at, name in enumerate(names)}
    dcp.save(state, storage_writer=writer)
    got = {name: torch.zeros(3) for name in names}
    dcp.load(got, storage_reader=reader)
    assert_like(got, state)


def test_an_empty_state(writer: Any, reader: Any) -> None:
    dcp.save({}, storage_writer=writer)
    dcp.load({}, storage_reader=reader)
    with pytest.raises(dcp.CheckpointException, match="Missing key"):
        dcp.load({"w": torch.zeros(3)}, storage_reader=reader)


class HalfPlanner(DefaultSavePlanner):
    """Saves floats in bfloat16."""

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        for item in plan.items:
            if item.tensor_data is not None:
                item.tensor_data.properties.dtype = torch.bfloat16
        return plan

    def resolve_data(self, write_item: Any) -> Any:
        data = super().resolve_data(write_item)
        return data.to(torch.bfloat16) if isinstance(data, torch.Tensor) else data


class TellingPlanner(DefaultSavePlanner):
    """Keeps data of its own in the metadata."""

    data: ClassVar[Any] = {"by": frozenset({"x"})}

    def create_global_plan(self, all_plans: Any) -> Any:
        plans, metadata = super().create_global_plan(all_plans)
        self.metadata = metadata
        metadata.planner_data = self.data
        return plans, metadata


class LatePlanner(DefaultSavePlanner):
    """Changes the metadata after it has kept them."""

    def create_global_plan(self, all_plans: Any) -> Any:
        plans, metadata = super().create_global_plan(all_plans)
        other = copy.copy(metadata)
        other.planner_data = {"w": ("v",)}
        return plans, other


def test_a_planner_may_change_the_data(pool: outlive.Pool, reader: Any) -> None:
    state = {"w": torch.randn(30, 40)}
    writer = outlive.torch.DCPWriter(pool, "job", planner=HalfPlanner)
    for save in (save_now, save_later):
        save(state, writer, planner=HalfPlanner())
        got = {"w": torch.zeros(30, 40)}
        dcp.load(got, storage_reader=reader)
        assert torch.equal(got["w"], state["w"].bfloat16().float())


def test_a_planner_that_the_writer_does_not_know_is_refused(
    writer: outlive.torch.DCPWriter, reader: outlive.torch.DCPReader
) -> None:
    dcp.save({"w": torch.ones(3)}, storage_writer=writer)
    with pytest.raises(dcp.CheckpointException, match="give `planner=HalfPlanner` to the writer"):
        save_later({"w": torch.zeros(3)}, writer, planner=HalfPlanner())
    # No load takes the checkpoint that no process has asked for.
    got = {"w": torch.zeros(3)}
    dcp.load(got, storage_reader=reader)
    assert bool(got["w"].all())
    with pytest.raises(outlive.InvalidError, match="the asynchronous save of checkpoint 2"):
        dcp.async_save({"w": torch.zeros(3)}, storage_writer=writer)
    save_later({"w": torch.zeros(3)}, writer)


def test_data_of_a_planner(pool: outlive.Pool, writer: Any, reader: Any) -> None:
    dcp.save({"w": torch.ones(3)}, storage_writer=writer, planner=TellingPlanner())
    with pytest.raises(dcp.CheckpointException, match="give `allow_pickle=True` to the reader"):
        dcp.load({"w": torch.zeros(3)}, storage_reader=reader)
    trusting = outlive.torch.DCPReader(pool, "job", allow_pickle=True)
    assert trusting.read_metadata().planner_data == TellingPlanner.data
    TellingPlanner.data = {"by": [("x", 1, None, 2.5, True)], 3: torch.Size([1, 2])}
    dcp.save({"w": torch.ones(3)}, storage_writer=writer, planner=TellingPlanner())
    assert reader.read_metadata().planner_data == TellingPlanner.data
    with pytest.raises(dcp.CheckpointException, match="marked as bad"):
        dcp.save({"w": torch.ones(3)}, storage_writer=writer, planner=LatePlanner())
    assert [epoch.mark for epoch in writer.job.epochs()][-1] == "bad"
    assert reader.read_metadata().planner_data == TellingPlanner.data


def test_another_process_cannot_save(writer: outlive.torch.DCPWriter) -> None:
    with pytest.raises(outlive.InvalidError, match=r"AsyncCheckpointerType\.THREAD"):
        pickle.dumps(writer)


PROCESS = """
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
import outlive.torch

if __name__ == "__main__":
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}.store", rank=0, world_size=1)
    pool = outlive.open(sys.argv[1])
    writer = outlive.torch.DCPWriter(pool, "j")
    state = {"w": torch.zeros(1000, 100), "step": 1}
    dcp.save(state, storage_writer=writer)
    memory = state["w"].data_ptr()
    kind = AsyncCheckpointerType.PROCESS
    future = dcp.async_save(state, storage_writer=writer, async_checkpointer_type=kind)
    try:
        future.result()
    except BaseException as error:
        print(error)
    assert state["w"].data_ptr() == memory
    assert not state["w"].is_shared()
    state["w"] += 1
    dcp.async_save(state, storage_writer=writer).result()
    print([epoch.mark for epoch in writer.job.epochs()])
"""


def test_the_checkpointer_in_a_process_is_refused(
    folder: Path, program: Callable[..., Any], tmp_path: Path
) -> None:
    child = program(PROCESS, folder)
    out, errors = child.communicate(timeout=100)
    assert child.returncode == 0, errors
    lines = out.splitlines()
    assert "checkpoint 2 is marked as bad: another process cannot save for this one" in lines[0]
    assert "AsyncCheckpointerType.THREAD" in lines[0]
    assert lines[1] == "['none', 'bad', 'none']"


def test_arguments_that_do_not_fit(pool: outlive.Pool) -> None:
    for make in (outlive.torch.DCPWriter, outlive.torch.DCPReader):
        with pytest.raises(outlive.InvalidError, match="give the name of one after it"):
            make(pool)
        with pytest.raises(outlive.InvalidError, match=r"is no pool and no job: give `outlive\.op"):
            make("ckpt", "job")  # type: ignore[arg-type]
        with pytest.raises(outlive.InvalidError, match="a job has its name"):
            make(pool.job("job"), "job")
    with pytest.raises(TypeError):
        outlive.torch.DCPWriter(pool, "job", keep_lats=3)
    assert not outlive.torch.DCPWriter.validate_checkpoint_id("x")
    assert not outlive.torch.DCPReader.validate_checkpoint_id("x")


def test_a_job_of_the_program(pool: outlive.Pool) -> None:
    job = pool.job("job", keep_last=2)
    writer, reader = outlive.torch.DCPWriter(job), outlive.torch.DCPReader(job)
    for step in range(4):
        dcp.save({"step": step, "w": torch.full((5,), float(step))}, storage_writer=writer)
    writer.close()
    got = {"step": 0, "w": torch.zeros(5)}
    dcp.load(got, storage_reader=reader)
    assert (got["step"], got["w"][0].item()) == (3, 3)
    # Its own states need no group only here.
    with pytest.raises(outlive.InvalidError, match="the job has no group"):
        job.save({"w": outlive.sharded(torch.ones(3), (6,), (0,))})
    job.close()
    assert len(job.epochs()) == 2


def test_options_of_the_job(pool: outlive.Pool) -> None:
    writer = outlive.torch.DCPWriter(pool, "job", keep_last=1)
    for step in range(3):
        dcp.save({"step": step}, storage_writer=writer)
    writer.close()
    assert [epoch.epoch for epoch in writer.job.epochs()] == [3]


FULL = """
import resource, warnings
import torch
import torch.distributed.checkpoint as dcp
import outlive.torch
warnings.filterwarnings("ignore", module="torch")
warnings.filterwarnings("ignore", message="torch.distributed")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

def full(is_full):
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000 if is_full else most, most))

def advance():
    state["w"] = torch.randn(1000, 100)
    state["step"] += 1

def same():
    got = {"w": torch.zeros(1000, 100), "step": 0}
    dcp.load(got, storage_reader=outlive.torch.DCPReader(pool, "j"))
    return got["step"] == state["step"] and torch.equal(got["w"], state["w"])

pool = outlive.open(sys.argv[1])
state = {"w": torch.zeros(1000, 100), "step": 0}
"""


def test_a_failed_asynchronous_save_surfaces_at_the_next_step(
    folder: Path, run: Callable[..., str]
) -> None:
    out = run(
        FULL
        + """
writer = outlive.torch.DCPWriter(pool, "j")
dcp.save(state, storage_writer=writer)
for save_next in ("async_save", "save", "close"):
    full(True)
    advance()
    future = dcp.async_save(state, storage_writer=writer)
    try:
        future.result()
    except BaseException as error:
        print(type(error).__name__)
    full(False)
    try:
        if save_next == "close":
            writer.close()
        else:
            getattr(dcp, save_next)(state, storage_writer=writer)
    except (outlive.FullError, dcp.CheckpointException) as error:
        assert "the asynchronous save of checkpoint" in str(error), error
        print(save_next, "raises")
    else:
        raise AssertionError("silent")
    # It is told once.
    dcp.async_save(state, storage_writer=writer).result()
    assert same()
""",
        folder,
    )
    names = ["async_save", "save", "close"]
    want = [line for name in names for line in ("CheckpointException", f"{name} raises")]
    assert out.splitlines() == want


def test_a_job_that_goes_on_after_failures_warns(folder: Path, run: Callable[..., str]) -> None:
    out = run(
        FULL
        + """
writer = outlive.torch.DCPWriter(pool, "j", on_failure="warn")
dcp.save(state, storage_writer=writer)
warned = []
warnings.showwarning = lambda text, category, *rest: warned.append((category, str(text)))
warnings.simplefilter("always", outlive.FailedSaveWarning)
full(True)
advance()
for _ in range(2):
    future = dcp.async_save(state, storage_writer=writer)
    try:
        future.result()
    except BaseException as error:
        print(type(error).__name__)
full(False)
dcp.async_save(state, storage_writer=writer).result()
assert same()
print([category.__name__ for category, text in warned if "the asynchronous save" in text])
writer.close()
""",
        folder,
    )
    assert out.splitlines() == [
        "CheckpointException",
        "CheckpointException",
        "['FailedSaveWarning', 'FailedSaveWarning']",
    ]


def test_the_end_of_a_program_tells_of_a_failed_asynchronous_save(
    folder: Path, program: Callable[..., Any]
) -> None:
    child = program(
        FULL
        + """
writer = outlive.torch.DCPWriter(pool, "j")
dcp.save(state, storage_writer=writer)
full(True)
advance()
future = dcp.async_save(state, storage_writer=writer)
while not future.done():
    pass
""",
        folder,
    )
    _, errors = child.communicate(timeout=100)
    assert child.returncode == 0
    assert "outlive: job j: the asynchronous save of checkpoint 2 has failed" in errors


def test_a_killed_program_loads_what_was_committed(
    folder: Path, program: Callable[..., Any]
) -> None:
    for life in range(1, 4):
        child = program(
            FULL
            + """
reader, writer = outlive.torch.DCPReader(pool, "j"), outlive.torch.DCPWriter(pool, "j")
if writer.job.epochs():
    dcp.load(state, storage_reader=reader)
    assert bool((state["w"] == state["step"]).all()), state
    assert state["step"] % 3 == 0
while True:
    state["w"] += 1
    state["step"] += 1
    future = dcp.async_save(state, storage_writer=writer)
    if state["step"] % 3 == 0:
        future.result()
        os.kill(os.getpid(), 9)
    future.result()
""",
            folder,
        )
        _, errors = child.communicate(timeout=100)
        assert child.returncode == -9, errors
        assert len(outlive.open(folder).job("j").epochs()) == 3 * life


def damage(folder: Path, before: set[Path]) -> None:
    """Damages all shards that were not there before."""
    for path in set(folder.rglob("*.shard")) - before:
        data = bytearray(path.read_bytes())
        for begin in range(len(data) // 8, len(data) - 64, len(data) // 8):
            data[begin : begin + 64] = bytes(64)
        path.chmod(0o600)
        path.write_bytes(data)


def test_a_damaged_checkpoint_is_skipped(
    folder: Path,
    writer: outlive.torch.DCPWriter,
    reader: outlive.torch.DCPReader,
    caplog: pytest.LogCaptureFixture,
) -> None:
    states = [{"w": torch.randn(700, 300), "step": step, "texts": ["a"]} for step in range(3)]
    before: set[Path] = set()
    for state in states:
        before = set(folder.rglob("*.shard"))
        dcp.save(state, storage_writer=writer)
    # Only the newest is whole.
    writer.close()
    damage(folder, before)
    got: dict[str, Any] = {"w": torch.zeros(700, 300), "step": 0, "texts": [""]}
    with caplog.at_level(logging.WARNING, "outlive"):
        dcp.load(got, storage_reader=reader)
    assert_like(got, states[1])
    assert reader.last_restore is not None
    assert reader.last_restore.epoch == 2
    assert [epoch for epoch, _ in reader.last_restore.skipped] == [3]
    assert "job job: checkpoint 3 is damaged, and is skipped: " in caplog.text
    # The one that was named, and no other.
    for name in (3, "3"):
        with pytest.raises(dcp.CheckpointException, match="checkpoint 3"):
            dcp.load(got, storage_reader=reader, checkpoint_id=name)
    dcp.load(got, storage_reader=reader, checkpoint_id=1)
    assert_like(got, states[0])
    # The next save goes on.
    dcp.save(states[0], storage_writer=outlive.torch.DCPWriter(reader.job))
    dcp.load(got, storage_reader=outlive.torch.DCPReader(reader.job))
    assert_like(got, states[0])


def test_an_older_checkpoint_of_another_form_is_not_taken(
    folder: Path, writer: outlive.torch.DCPWriter, pool: outlive.Pool
) -> None:
    dcp.save({"w": torch.randn(70, 300), "step": 0}, storage_writer=writer)
    pool.job("job").save({"other": 1}, wait=True)
    dcp.save({"w": torch.randn(700, 300)}, storage_writer=writer)
    before = set(folder.rglob("*.shard"))
    dcp.save({"w": torch.randn(700, 300), "step": 1}, storage_writer=writer)
    writer.close()
    damage(folder, before)
    reader = outlive.torch.DCPReader(pool, "job")
    got = {"w": torch.zeros(700, 300), "step": 0}
    told = r"those before it, such as 3, have other tensors.*`checkpoint_id=3`"
    with pytest.raises(dcp.CheckpointException, match=told):
        dcp.load(got, storage_reader=reader)
    # A part that both have is enough.
    part = {"w": torch.zeros(700, 300)}
    dcp.load(part, storage_reader=reader)
    assert part["w"].any()


def test_damage_without_an_older_checkpoint(
    folder: Path, writer: outlive.torch.DCPWriter, reader: outlive.torch.DCPReader
) -> None:
    dcp.save({"w": torch.randn(700, 300)}, storage_writer=writer)
    writer.close()
    damage(folder, set())
    with pytest.raises(dcp.CheckpointException, match=r"checkpoint 1|there is no older one"):
        dcp.load({"w": torch.zeros(700, 300)}, storage_reader=reader)
