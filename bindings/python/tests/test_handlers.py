"""Code of the program that runs inside a call of outlive: it never hangs there."""

import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive

STATE = {"a": np.random.default_rng(1).random(500_000), "step": 1}


class Caller:
    """A progress callback that runs some code once, and keeps its outcome."""

    def __init__(self) -> None:
        self.call: Callable[[], object] | None = None
        self.came: list[Any] = []

    def __call__(self, what: str, done: int, total: int) -> None:
        call, self.call = self.call, None
        if call is not None:
            try:
                self.came.append(call())
            except BaseException as error:
                # Its traceback would keep the job alive.
                self.came.append(error.with_traceback(None))


CALLS: dict[str, Callable[[outlive.Job, Path], object]] = {
    "save": lambda job, _: job.save(STATE, force=True),
    "restore": lambda job, _: job.restore(),
    "restore into": lambda job, _: job.restore(into=STATE),
    "put_files": lambda job, out: job.put_files(out),
    "get_files": lambda job, out: job.get_files(out),
    "close": lambda job, _: job.close(),
}


@pytest.mark.parametrize("inner", CALLS)
@pytest.mark.parametrize("outer", ["restore", "put_files"])
def test_a_callback_that_needs_the_busy_job_is_refused(
    folder: Path, tmp_path: Path, outer: str, inner: str
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "large").write_bytes(np.random.default_rng(1).bytes(20 << 20))
    caller = Caller()
    job = outlive.open(folder, progress=caller).job("a")
    job.save(STATE, wait=True)
    caller.call = lambda: CALLS[inner](job, files)
    job.put_files(files) if outer == "put_files" else job.restore()
    (error,) = caller.came
    assert isinstance(error, outlive.InvalidError)
    assert "the job a is busy" in str(error)
    assert "Set a flag" in str(error)
    # The lock is free again.
    assert job.save(STATE, force=True, wait=True)


def test_a_callback_may_ask_and_wait(folder: Path) -> None:
    caller = Caller()
    pool = outlive.open(folder, progress=caller)
    job, other = pool.job("a"), pool.job("b")
    save = job.save(STATE, wait=True)
    for call, want in {
        lambda: len(job.epochs()): 1,
        lambda: save.wait().epoch: 1,  # type: ignore[union-attr]
        lambda: job.note(1, pin=True): None,
        lambda: other.save(STATE, wait=True).epoch: 1,
        lambda: len(job.prune(keep_last=1).kept): 1,
    }.items():
        caller.call = call
        job.restore()
        assert caller.came.pop() == want


def test_a_callback_does_not_wait_for_a_job_that_another_thread_keeps_busy(folder: Path) -> None:
    """That thread might be waiting for this thread's job, in a callback of its own."""
    entered, leave = threading.Event(), threading.Event()

    def hold(what: str, done: int, total: int) -> None:
        if threading.current_thread() is holder:
            entered.set()
            leave.wait()

    caller = Caller()
    pool = outlive.open(folder, progress=caller)
    job, busy = pool.job("a"), outlive.open(folder, progress=hold).job("b")
    job.save(STATE, wait=True)
    busy.save(STATE, wait=True)
    holder = threading.Thread(target=busy.restore)
    holder.start()
    try:
        entered.wait()
        caller.call = lambda: busy.save(STATE, force=True)
        job.restore()
        (error,) = caller.came
        assert isinstance(error, outlive.InvalidError)
        assert "the job b is busy" in str(error)
    finally:
        leave.set()
        holder.join()
    assert busy.save(STATE, wait=True)


def test_a_signal_handler_that_saves_is_refused(folder: Path) -> None:
    came: list[outlive.Save | outlive.Error] = []

    def handler(number: int, frame: object) -> None:
        try:
            came.append(job.save(STATE, force=True))
        except outlive.Error as error:
            came.append(error)

    def progress(what: str, done: int, total: int) -> None:
        if what == "restore" and not came:
            signal.raise_signal(signal.SIGUSR1)

    job = outlive.open(folder, progress=progress).job("a")
    job.save(STATE, wait=True)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        tree = job.restore()
        assert isinstance(came[0], outlive.InvalidError)
        assert np.array_equal(tree["a"], STATE["a"])
        # While no call is under way, the handler may save.
        signal.raise_signal(signal.SIGUSR1)
        assert isinstance(came[1], outlive.Save)
        assert came[1].wait()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_exception_of_a_signal_handler_ends_the_wait(folder: Path) -> None:
    """The exception ends the wait as Ctrl-C does; here it is a refusal that the handler does not
    catch.
    """

    def handler(number: int, frame: object) -> None:
        job.save(STATE, force=True)

    job = outlive.open(folder).job("a")
    job.save(STATE, wait=True)
    plan: list[bool] = []

    def send(**_: object) -> list[Any]:
        # Inside the restore; the handler runs before the next line of Python does.
        plan.append(True)
        signal.raise_signal(signal.SIGUSR1)
        return []

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(outlive.InvalidError, match="Set a flag"):
            job._core.restore(send, job._tick, epoch=None, user_only=None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert plan
    assert np.array_equal(job.restore()["a"], STATE["a"])


def test_a_logging_handler_that_saves_is_refused(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Saver(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            came.append(record.getMessage())
            job.save(STATE, force=True)

    came: list[str] = []
    job = outlive.open(folder).job("a")
    job.save(STATE, wait=True)
    # Damage is reported while the restore is under way.
    job.save({**STATE, "a": STATE["a"] + 1}, wait=True)
    newest = max(
        (folder / "packs").rglob("*"), key=lambda path: path.stat().st_mtime_ns * path.is_file()
    )
    newest.write_bytes(bytes(newest.stat().st_size))
    log, saver = logging.getLogger("outlive"), Saver()
    log.addHandler(saver)
    try:
        tree = job.restore()
        assert tree["step"] == 1
        assert np.array_equal(tree["a"], STATE["a"])
    finally:
        log.removeHandler(saver)
    assert came
    assert "the job a is busy" in capfd.readouterr().err
