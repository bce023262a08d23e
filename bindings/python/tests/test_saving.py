"""Saves: asynchronous, incremental, spaced in time, from several threads; and what they report."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive

Same = Callable[[Any, Any], None]


def test_a_handle_tells_all(job: outlive.Job) -> None:
    state = {"a": np.random.default_rng(1).random(1_000_000), "step": 1}
    save = job.save(state)
    assert save
    assert not save.skipped
    assert save.epoch == 1
    stats = save.wait(60)
    assert stats is not None
    assert save.done()
    assert save.stats == stats
    assert stats.epoch == 1
    assert stats.state_bytes == 8_000_008
    assert stats.new_bytes >= 8_000_000
    assert stats.freeze.startswith("copy")
    assert stats.tracker.startswith(("wp-async: ", "hash"))
    assert (stats.copied_bytes, stats.forked_bytes) == (8_000_000, 0)
    assert 0 <= stats.stall_s <= stats.total_s < 60
    assert save.new_bytes == stats.new_bytes
    assert "epoch 1, done" in repr(save)


def test_only_changed_data_is_written(folder: Path) -> None:
    job = outlive.open(folder).job("a")
    state = {"u": outlive.array(np.random.default_rng(1).random((1000, 1000))), "step": 0}
    job.save(state, wait=True)
    state["u"][500, 500] += 1
    state["step"] += 1
    assert job.save(state, wait=True).new_bytes < 100_000
    # The same holds in a new process after a restore, into arrays and into a new tree.
    other = outlive.open(folder).job("a")
    again = {"u": outlive.zeros((1000, 1000)), "step": 0}
    assert other.restore(into=again)
    again["u"][3, 3] += 1
    save = other.save(again, wait=True)
    assert save.epoch == 3
    assert save.new_bytes < 100_000
    third = outlive.open(folder).job("a")
    fresh = third.restore()
    fresh["step"] = 9
    save = third.save(fresh, wait=True)
    assert save.changed_bytes <= 4096
    assert save.new_bytes < 50_000
    assert np.array_equal(third.restore()["u"], again["u"])


def test_saves_between_intervals_are_skipped(folder: Path) -> None:
    job = outlive.open(folder).job("a", every_s=1000)
    state = {"x": 1}
    first = job.save(state)
    assert first
    second = job.save({"not even looked at": object()})
    assert not second
    assert second.skipped
    assert second.done()
    assert second.wait() is None
    assert second.stats is None
    assert second.epoch is None
    with pytest.raises(outlive.InvalidError, match="skipped"):
        _ = second.new_bytes
    assert job.save(state, force=True).epoch == 2
    loops = 10_000
    began_s = time.thread_time()
    for _ in range(loops):
        job.save(state)
    assert (time.thread_time() - began_s) / loops < 50e-6  # about 1 us
    # Once the interval is over, it saves again.
    often = outlive.open(folder).job("b", every_s=0.1)
    assert often.save(state)
    while not (save := often.save(state)):
        time.sleep(0.01)
    assert save.epoch == 2


def test_many_threads_save_one_job(job: outlive.Job, same: Same) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(10):
                job.save({"who": number, "step": step, "a": np.full(20_000, number)}, wait=True)
                tree = job.restore()
                assert (tree["a"] == tree["who"]).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [epoch.epoch for epoch in job.epochs()] == list(range(1, 61))


def test_jobs_of_a_pool_do_not_meet(folder: Path) -> None:
    with outlive.open(folder) as pool:
        jobs = [pool.job(name) for name in ["a", "b", "a/b"]]
        for step in range(3):
            for number, job in enumerate(jobs):
                job.save({"n": number, "step": step, "array": np.full(10_000, number)})
        for number, job in enumerate(jobs):
            tree = job.restore()
            assert (tree["n"], tree["step"], tree["array"][0]) == (number, 2, number)
        assert sorted(pool.jobs()) == ["a", "a/b", "b"]


def test_epochs_describe_all_checkpoints(job: outlive.Job) -> None:
    assert job.epochs() == []
    for step in range(3):
        job.save({"a": np.arange(100_000), "step": step}, wait=True)
    one, two, three = job.epochs()
    assert (one.epoch, one.parent, two.parent, three.parent) == (1, None, 1, 2)
    assert one.state_bytes == 800_008
    assert one.regions == 2
    assert one.new_bytes > 300_000 > three.new_bytes
    assert abs(three.frozen_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert three.frozen_at >= one.frozen_at


def test_progress_comes_on_the_calling_thread(folder: Path) -> None:
    seen: list[tuple[str, int, int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        seen.append((what, done, total, threading.get_ident()))

    state = {"a": np.random.default_rng(1).random(4_000_000)}
    with outlive.open(folder, progress=progress, freeze_bytes_max=1 << 20).job("a") as job:
        job.save(state, wait=True)
        job.restore(into=state)
    assert {what for what, *_ in seen} >= {"save", "restore"}
    assert all(0 <= done <= total for _, done, total, _ in seen)
    assert {ident for *_, ident in seen} == {threading.get_ident()}


def test_a_poll_of_a_save_reports_its_progress(folder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    job = outlive.open(folder, progress=lambda *event: told.append(event)).job("a")
    save = job.save({"a": np.random.default_rng(1).random(4_000_000)})
    told.clear()
    while not save.done():
        time.sleep(0.001)
    assert told
    assert {what for what, *_ in told} == {"save"}


def test_any_call_of_a_job_of_the_pool_reports_progress(folder: Path) -> None:
    told: list[int] = []
    pool = outlive.open(folder, progress=lambda *_: told.append(threading.get_ident()))
    mine, other = pool.job("mine"), pool.job("other")
    save = mine.save({"a": 1})
    save.wait()
    state = {"a": np.random.default_rng(1).random(4_000_000)}
    thread = threading.Thread(target=other.save, args=(state,))
    thread.start()
    thread.join()
    told.clear()
    while not told:
        save.done()
    assert set(told) == {threading.get_ident()}


def test_an_error_in_progress_loses_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def progress(what: str, done: int, total: int) -> None:
        raise RuntimeError(f"from progress of {what}")

    state = {"a": np.random.default_rng(1).random(4_000_000)}
    job = outlive.open(folder, progress=progress).job("a")
    save = job.save(state)
    assert save.wait().epoch == 1  # type: ignore[union-attr]
    assert np.array_equal(job.restore()["a"], state["a"])
    assert job.restore(into=state)
    told = [record for record in caplog.records if "progress callback" in record.getMessage()]
    assert len(told) == 1
    assert "from progress of save" in told[0].getMessage()
    assert told[0].exc_info


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_an_interruption_in_progress_is_the_callers(
    folder: Path, interruption: type[BaseException]
) -> None:
    raised = []

    def progress(what: str, done: int, total: int) -> None:
        if what == "restore" and not raised:
            raised.append(True)
            raise interruption

    state = {"a": np.random.default_rng(1).random(4_000_000)}
    job = outlive.open(folder, progress=progress).job("a")
    job.save(state, wait=True)
    with pytest.raises(interruption):
        job.restore(into=state)
    state["a"][:] = 1
    job.save(state, wait=True)
    assert len(job.epochs()) == 2


def test_an_error_of_logging_loses_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(record: logging.LogRecord) -> bool:
        raise RuntimeError("from a filter")

    log = logging.getLogger("outlive")
    job = outlive.open(folder).job("a")
    state = {"x": np.arange(10_000)}
    log.addFilter(fail)
    log.setLevel(logging.DEBUG)
    try:
        assert job.save(state, force=True).epoch == 1
        assert np.array_equal(job.restore()["x"], state["x"])
        assert job.restore(into=state)
        job.close()
    finally:
        log.removeFilter(fail)
        log.setLevel(logging.NOTSET)
    assert "restored epoch 1 (logging this failed: RuntimeError('from a filter'))" in (
        capfd.readouterr().err
    )


def test_context_managers_wait_and_keep_the_first_error(folder: Path) -> None:
    with outlive.open(folder) as pool, pool.job("a") as job:
        save = job.save({"a": np.arange(1_000_000)})
    assert save.done()

    def fail() -> None:
        with outlive.open(folder) as pool, pool.job("a") as job:
            job.save({"a": np.arange(1_000_000)})
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert len(outlive.open(folder).job("a").epochs()) == 2


def test_a_failure_of_a_save_without_a_wait_is_raised_later(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with outlive.open(folder).job("a") as job:
        job.save({"step": 1}, wait=True)
    for how in ["save", "skipped save", "close", "context", "wait"]:
        job = outlive.open(folder).job("a", every_s=1000 if how == "skipped save" else None)
        packs = folder / "packs"
        hidden = folder / "hidden"
        packs.rename(hidden)
        packs.write_text("in the way")
        failing = job.save({"step": 2, "a": np.arange(10_000)})
        while not failing.done():
            time.sleep(0.001)
        packs.unlink()
        hidden.rename(packs)
        calls: dict[str, Callable[[], object]] = {
            "save": lambda: job.save({"step": 3}),  # noqa: B023
            "skipped save": lambda: job.save({"step": 3}),  # noqa: B023
            "close": job.close,
            "context": lambda: job.__exit__(None, None, None),  # noqa: B023
            "wait": failing.wait,
        }
        with pytest.raises(outlive.Error) as caught:
            calls[how]()
        assert str(caught.value)
        # The error is raised once; then calls succeed.
        assert job.save({"step": 4}, force=True, wait=True)
        assert job.restore() == {"step": 4}
    assert any("failed" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("how", ["cell", "keep", "del"])
def test_a_job_that_is_opened_again_is_the_same_writer(folder: Path, how: str) -> None:
    """A notebook cell runs again while its last save is under way."""
    kept: list[Any] = []
    for number in range(4):
        job = outlive.open(folder).job("nb")
        state = {"u": np.zeros(2_000_000), "step": 0}
        assert job.restore(into=state).epoch == (number or None)
        assert state["step"] == number
        state["step"] += 1
        state["u"][:] = number
        save = job.save(state, force=True)
        if how == "keep":
            kept.append((job, save))
        elif how == "del":
            del job, save
    for job, save in kept:
        save.wait()
        job.close()
    last = outlive.open(folder).job("nb", keep_last=2)
    line = [(epoch.epoch, epoch.parent) for epoch in last.epochs()]
    assert line[:3] == [(1, None), (2, 1), (3, 2)]
    assert last.restore()["step"] == 4
    last.save({"step": 5}, wait=True)
    last.close()
    assert [epoch.epoch for epoch in last.epochs()] == [4, 5]


def test_a_timeout_leaves_the_save_alone(folder: Path) -> None:
    job = outlive.open(folder).job("a")
    save = job.save({"a": np.random.default_rng(1).random(4_000_000)})
    try:
        save.wait(0)
    except TimeoutError:
        assert save.stats is None or save.done()
    assert save.wait(60)
    with pytest.raises(outlive.InvalidError):
        job.save({}).wait(float("nan"))


def test_notices_go_to_logging(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = outlive.open(folder).job("a")
    job.save({"a": np.arange(50_000)}, wait=True)
    with caplog.at_level(logging.INFO, "outlive"):
        job.restore()
    assert any("restored epoch 1" in record.getMessage() for record in caplog.records)


def test_large_pickled_objects_are_told_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Holder:
        def __init__(self, length: int) -> None:
            self.array = np.zeros(length, np.uint8)

        def __reduce__(self) -> Any:
            return bytes, (self.array.tobytes(),)

    job = outlive.open(folder).job("a", allow_pickle=True)
    for _ in range(2):
        job.save({"deep": {"large": Holder(20 << 20)}, "small": Holder(100)}, wait=True)
    (told,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "'deep/large' is pickled at every save, while the program waits: 20.0 MiB" in (
        told.getMessage()
    )
