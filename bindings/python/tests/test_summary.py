"""`Gate.summary_writer`: TensorBoard's event files have each event once."""

import math
import struct
import zlib
from pathlib import Path
from typing import Any

import event_files
import numpy as np
import pytest
from event_files import get

import outlive


@pytest.fixture
def job(folder: Path) -> outlive.Job:
    return outlive.open(folder / "pool").job("j")


@pytest.fixture
def runs(folder: Path) -> Path:
    return folder / "runs"


def committed(job: outlive.Job) -> None:
    job.gate().flush({"step": 1})


def events(folder: Path) -> list[event_files.Event]:
    """Returns the events behind the first, which says the version."""
    first, *rest = event_files.read(folder / event_files.NAME)
    assert (first.version, first.step, first.values) == (event_files.VERSION, 0, [])
    assert all(event.version is None for event in rest)
    return rest


def only_value(folder: Path) -> Any:
    (event,) = events(folder)
    (value,) = event.values
    return value


def test_the_checksum_is_that_of_the_standard() -> None:
    # RFC 3720, B.4: the CRC-32C of 32 zeros.
    crc = 0x8A9136AA
    masked = ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32
    assert event_files.checksum(bytes(32)) == masked


def test_an_event_waits_for_its_commit(job: outlive.Job, runs: Path) -> None:
    path = runs / event_files.NAME
    with job.gate().summary_writer(runs) as writer:
        writer.add_scalar("loss", np.float32(0.5), 3, walltime=12.5)
        writer.flush()
        assert writer.get_logdir() == writer.log_dir == str(runs)
        assert not path.exists()
        job.save({"step": 1}, wait=True)
        job.gate().flush()
        assert [(it.wall_s, it.step) for it in events(runs)] == [(12.5, 3)]
        assert get(only_value(runs), 1) == b"loss"
        assert get(only_value(runs), 2) == 0.5
    # As with other writers, a call after `close` opens it again.
    writer.add_scalar("loss", [[7]])
    committed(job)
    assert [event.step for event in events(runs)] == [3, 0]
    job.close()


def test_a_number_may_have_the_form_of_tensorflow_2(job: outlive.Job, runs: Path) -> None:
    writer = job.gate().summary_writer(runs)
    writer.add_scalar("a", 0.1, -1, double_precision=True)
    writer.add_scalar("b", 1e300, 1 << 40, new_style=True)
    writer.add_scalar("c", 1e300)
    committed(job)
    first, second, third = events(runs)
    assert (first.step, second.step) == ((1 << 64) - 1, 1 << 40)
    assert get(first.values[0], 9, 1, 1) == b"scalars"
    assert get(first.values[0], 8, 1) == 2
    assert struct.unpack("<d", get(first.values[0], 8, 6)) == (0.1,)
    assert struct.unpack("<f", get(second.values[0], 8, 5)) == (math.inf,)
    assert get(third.values[0], 2) == math.inf
    job.close()


def test_numbers_of_one_chart_have_folders_of_their_own(job: outlive.Job, runs: Path) -> None:
    writer = job.gate().summary_writer(str(runs), filename_suffix=".x")
    writer.add_scalars("loss/all", {"train": 1, "test": 2}, 5)
    committed(job)
    for tag, number in {"train": 1, "test": 2}.items():
        path = runs / f"loss_all_{tag}" / (event_files.NAME + ".x")
        value = event_files.read(path)[1].values[0]
        assert (get(value, 1), get(value, 2)) == (b"loss/all", number)
    job.close()


def test_a_text(job: outlive.Job, runs: Path) -> None:
    job.gate().summary_writer(runs).add_text("config", "lr = 0.1 \u2713", 2)
    committed(job)
    value = only_value(runs)
    assert get(value, 1) == b"config/text_summary"
    assert get(value, 9, 1, 1) == b"text"
    assert get(value, 8, 1) == 7
    assert get(value, 8, 8).decode() == "lr = 0.1 \u2713"
    job.close()


def bins(value: Any) -> tuple[list[float], list[float]]:
    histogram = get(value, 5)
    limits, counts = (np.frombuffer(get(histogram, field), "<f8").tolist() for field in (6, 7))
    return limits, counts


@pytest.mark.parametrize("how", ["tensorflow", "auto", [0.0, 0.5, 1.0, 2.0], 64])
def test_a_histogram_counts_all_values(job: outlive.Job, runs: Path, how: Any) -> None:
    values = np.random.default_rng(1).random((50, 20))
    writer = job.gate().summary_writer(runs)
    writer.add_histogram("weights", values, 1, bins=how)
    committed(job)
    value = only_value(runs)
    sums = [get(value, 5, field) for field in range(1, 6)]
    assert sums == pytest.approx(
        [values.min(), values.max(), 1000, values.sum(), (values**2).sum()]
    )
    limits, counts = bins(value)
    assert len(limits) == len(counts)
    assert limits == sorted(limits)
    assert (sum(counts), counts[0]) == (1000, 0)
    for left, right, count in zip(limits[:-1], limits[1:], counts[1:], strict=True):
        there = (values >= left) & ((values < right) | (right == limits[-1]))
        assert there.sum() == count
    job.close()


def test_bins_are_joined(job: outlive.Job, runs: Path) -> None:
    writer = job.gate().summary_writer(runs)
    writer.add_histogram("steps", np.arange(10), 1, bins=10, max_bins=4)
    with pytest.raises(ValueError, match="at least one value"):
        writer.add_histogram("steps", [], 1)
    committed(job)
    limits, counts = bins(only_value(runs))
    assert counts == [0, 3, 3, 3, 1]
    assert limits == pytest.approx([0, 2.7, 5.4, 8.1, 9])
    job.close()


def pixels(png: bytes, channels: int) -> np.ndarray[Any, Any]:
    """Returns the pixels of a PNG without filters."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        name, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length)[0] == zlib.crc32(name + data)
        chunks[name] = data
        at += 12 + length
    width, height, depth, kind = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    assert (depth, kind) == (8, {3: 2, 4: 6}[channels])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, channels)


@pytest.mark.parametrize(
    ("order", "shape"), [("CHW", (3, 4, 5)), ("hwc", (4, 5, 4)), ("HW", (4, 5)), ("CHW", (1, 4, 5))]
)
def test_an_image_is_a_png(
    job: outlive.Job, runs: Path, order: str, shape: tuple[int, ...]
) -> None:
    whole = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    writer = job.gate().summary_writer(runs)
    writer.add_image("bytes", whole, 1, dataformats=order)
    writer.add_image("shares", whole / 255, 1, dataformats=order)
    committed(job)
    want = {"CHW": whole.transpose(1, 2, 0) if whole.ndim == 3 else whole}.get(order, whole)
    want = want.reshape(4, 5, -1)
    want = want.repeat(3, axis=2) if want.shape[2] == 1 else want
    for event, error in zip(events(runs), (0, 1), strict=True):
        image = get(event.values[0], 4)
        assert [get(image, field) for field in (1, 2, 3)] == [4, 5, want.shape[2]]
        got = pixels(get(image, 4), want.shape[2])
        assert np.abs(got.astype(int) - want).max() <= error
    job.close()


def test_hyperparameters_of_equal_calls_are_added_once(job: outlive.Job, runs: Path) -> None:
    writer = job.gate().summary_writer(runs)
    given = {"lr": 0.1, "layers": np.int64(3), "name": "x", "bias": True, "none": None}
    for _ in range(2):
        writer.add_hparams(given, {"loss": 0.5}, {"name": ["x", "y"]})
        committed(job)
    writer.add_hparams(given, {"loss": 0.25}, run_name="second", global_step=9)
    committed(job)
    below = sorted(path.name for path in runs.iterdir() if path.is_dir())
    assert below[1:] == ["second"]
    assert below[0].startswith("hparams-")
    of_run = [event.values[0] for event in events(runs / below[0])]
    tags = [get(value, 1).decode() for value in of_run]
    parts = ["experiment", "session_start_info", "session_end_info"]
    assert tags == [*(f"_hparams_/{part}" for part in parts), "loss"]
    experiment = event_files.fields(get(of_run[0], 9, 1, 2, 2))
    infos = [event_files.fields(value) for field, value in experiment if field == 4]
    kinds = {get(info, 1).decode(): get(info, 4) for info in infos}
    assert kinds == {"lr": 3, "layers": 3, "name": 1, "bias": 2}
    start = event_files.fields(get(of_run[1], 9, 1, 2, 3))
    found = {get(value, 1).decode(): event_files.fields(get(value, 2)) for _, value in start}
    assert found == {
        "lr": [(2, 0.1)], "layers": [(2, 3.0)], "name": [(3, b"x")], "bias": [(4, 1)],
    }  # fmt: skip
    assert get(of_run[2], 9, 1, 2, 4, 1) == 1
    assert [event.step for event in events(runs / "second")] == [0, 0, 0, 9]
    job.close()


def test_wrong_calls_are_refused(job: outlive.Job, runs: Path) -> None:
    gate = job.gate()
    with pytest.raises(outlive.InvalidError, match="give `log_dir`"):
        gate.summary_writer()
    writer = gate.summary_writer(runs)
    with pytest.raises(AttributeError, match="has no 'add_graph': it has add_scalar"):
        _ = writer.add_graph
    assert not hasattr(writer, "add_video")
    for value, says in {"1.0": "not the text", (1, 2): "one element"}.items():
        with pytest.raises(outlive.InvalidError, match=says):
            writer.add_scalar("x", value)
    for shape, order in {(4, 5): "CHW", (3, 4, 5): "NHW", (2, 4, 5): "CHW"}.items():
        with pytest.raises(outlive.InvalidError, match="the image has"):
            writer.add_image("x", np.zeros(shape), dataformats=order)
    with pytest.raises(outlive.InvalidError, match="'lr' is of type object"):
        writer.add_hparams({"lr": object()}, {})
    with pytest.raises(outlive.InvalidError, match="which hparam_dict lacks"):
        writer.add_hparams({"lr": 1}, {}, {"other": [1]})
    assert gate.status.outputs == 0
    job.close()
    with pytest.raises(outlive.InvalidError, match="closed"):
        writer.add_scalar("x", 1)


def test_a_restored_older_checkpoint_cuts_the_files(folder: Path, runs: Path) -> None:
    state = {"step": 0}
    pool = outlive.open(folder / "pool")
    job = pool.job("j")
    job.save(state, wait=True)  # before any event
    writer = job.gate().summary_writer(runs)
    for step in range(1, 5):
        state["step"] = step
        writer.add_scalar("step", step, step)
        writer.add_scalars("both", {"step": step}, step)
        job.save(state)
    job.close()
    for epoch, steps in {3: [1, 2, 9], 1: [9]}.items():
        job = pool.job("j")
        writer = job.gate().summary_writer(runs)
        job.restore(into=state, epoch=epoch)
        # Only the folder of the writer gets an event; the other file is cut all the same.
        writer.add_scalar("step", 9, 9)
        job.gate().flush(state)
        job.close()
        assert [event.step for event in events(runs)] == steps
        below = event_files.read(runs / "both_step" / event_files.NAME)
        assert [event.step for event in below][1:] == steps[:-1]


@pytest.mark.parametrize("is_early", [False, True])
def test_events_of_a_folder_that_the_next_run_does_not_name_are_released(
    folder: Path, runs: Path, run: Any, is_early: bool
) -> None:
    run(
        """
        import os
        job = outlive.open(sys.argv[1]).job("j")
        gate = job.gate()
        writer = gate.summary_writer(sys.argv[2])

        class Slow:
            def prepare(self):
                return b"token"

            def commit(self, tokens):
                os._exit(0)  # a crash between the commit and the release of the events

        gate.sink("a", Slow())
        writer.add_scalars("both", {"step": 1}, 1)
        job.save({"step": 1}, wait=True)
        gate.flush()
        """,
        folder / "pool",
        runs,
    )
    job = outlive.open(folder / "pool").job("j")
    state = {"step": 0}
    if is_early:
        writer = job.gate().summary_writer(runs)
    job.restore(into=state)
    job.gate().sink("a", Done())
    if not is_early:
        writer = job.gate().summary_writer(runs)
    writer.add_scalar("step", 2, 2)
    job.gate().flush(state)
    assert [event.step for event in events(runs / "both_step")] == [1]
    job.close()


def test_files_of_another_job_below_are_left_alone(folder: Path, runs: Path) -> None:
    pool = outlive.open(folder / "pool")

    def adds(name: str, log_dir: Path, step: int) -> None:
        job, state = pool.job(name), {"step": 0}
        job.restore(into=state)
        job.gate().summary_writer(log_dir).add_scalar("step", step, step)
        job.gate().flush(state)
        job.close()

    for step in (1, 2, 3):
        adds("below", runs / "below", step)
        adds("above", runs, step)
    for log_dir in (runs, runs / "below"):
        assert [event.step for event in events(log_dir)] == [1, 2, 3]


def test_two_writers_of_one_folder_share_its_file(job: outlive.Job, runs: Path) -> None:
    first, second = (job.gate().summary_writer(runs) for _ in range(2))
    for step in range(4):
        (first, second)[step % 2].add_scalar("step", step, step)
    committed(job)
    assert [event.step for event in events(runs)] == [0, 1, 2, 3]
    job.close()


class BFloat16:
    """A tensor of a kind that NumPy lacks, as PyTorch has it."""

    dtype = "torch.bfloat16"

    def detach(self) -> "BFloat16":
        """Returns itself."""
        return self

    cpu = detach

    def float(self) -> Any:
        """Returns the same number in a kind that NumPy has."""
        return np.float32(0.5)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Got unsupported ScalarType BFloat16")


def test_a_number_may_be_a_bfloat16(job: outlive.Job, runs: Path) -> None:
    job.gate().summary_writer(runs).add_scalar("loss", BFloat16())
    committed(job)
    assert get(only_value(runs), 2) == 0.5
    job.close()


class Done:
    """A sink without outputs of its own."""

    def prepare(self) -> None:
        return None

    def commit(self, tokens: list[bytes]) -> None:
        del tokens
