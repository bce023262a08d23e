"""`Save.add_done_callback` and `await save`."""

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import outlive
from outlive._saves import Save

# Longer than any call may take: a test that waits for so long has failed.
LONG_S = 60.0
Run = Callable[..., str]


class Native:
    """Stands for the native half of a save that ends when the test says so."""

    epoch = 7

    def __init__(self) -> None:
        self.over = threading.Event()

    def done(self) -> bool:
        return self.over.is_set()

    def wait_done(self) -> None:
        assert self.over.wait(LONG_S)

    def wait(self, timeout: float | None, tick: Callable[[], None]) -> Any:
        assert self.over.is_set()
        raise outlive.FullError("the disk is full")


def pending() -> tuple[Native, Save]:
    native = Native()
    return native, Save(native, lambda: None)  # type: ignore[arg-type]


def test_a_thread_calls_the_functions_when_the_save_is_over() -> None:
    native, save = pending()
    calls: list[Any] = []
    called = threading.Event()

    def last(save: Save) -> None:
        calls.append((3, save, threading.current_thread()))
        called.set()

    for number in (1, 2):
        save.add_done_callback(lambda save, n=number: calls.append((n, save)))
    save.add_done_callback(last)
    assert calls == []
    native.over.set()
    assert called.wait(LONG_S)
    assert calls[:2] == [(1, save), (2, save)]
    assert calls[2][2] is not threading.current_thread()
    # From now on the caller's own thread makes the call.
    save.add_done_callback(lambda save: calls.append(threading.current_thread()))
    assert calls[3] is threading.current_thread()
    calls[2][2].join(LONG_S)
    assert not calls[2][2].is_alive()


def add_number(save: Save, calls: list[int], number: int) -> None:
    save.add_done_callback(lambda _: calls.append(number))


def test_each_function_is_called_once_whatever_comes_first() -> None:
    for _ in range(200):
        native, save = pending()
        calls: list[int] = []
        threads = [
            threading.Thread(target=add_number, args=(save, calls, number)) for number in range(4)
        ]
        threads.insert(2, threading.Thread(target=native.over.set))
        for thread in threads:
            thread.start()
        for thread in [*threads, *(t for t in threading.enumerate() if "callbacks" in t.name)]:
            thread.join(LONG_S)
        assert sorted(calls) == [0, 1, 2, 3]


def test_real_saves(job: outlive.Job) -> None:
    calls: list[tuple[int | None, bool]] = []
    saves = [job.save({"a": outlive.zeros(300_000) + n}) for n in range(10)]
    called = threading.Event()
    for save in saves:
        save.add_done_callback(lambda save: calls.append((save.epoch, save.done())))
    saves[-1].add_done_callback(lambda _: called.set())
    assert called.wait(LONG_S)
    assert sorted(calls) == [(epoch, True) for epoch in range(1, 11)]
    skipped = outlive.open(job._location).job("job", every_s=1e6)
    skipped.save({"a": 1}, wait=True)
    save = skipped.save({"a": 1})
    assert save.skipped
    save.add_done_callback(lambda save: calls.append((save.epoch, save.done())))
    assert calls[-1] == (None, True)


def test_the_error_of_a_function_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    native, save = pending()
    called = threading.Event()
    save.add_done_callback(lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
    save.add_done_callback(lambda _: called.set())
    with caplog.at_level(logging.ERROR, "outlive"):
        native.over.set()
        assert called.wait(LONG_S)
    assert "a callback of the save of epoch 7 has raised ZeroDivisionError" in caplog.text


def test_a_callback_does_not_take_the_failure_away(run: Run, folder: Path) -> None:
    program = """
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        job = outlive.open(sys.argv[1]).job("job")
        job.save({"a": 1}, wait=True)
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, most))
        called = threading.Event()
        save = job.save({"a": np.random.default_rng(1).random(1 << 18)})
        save.add_done_callback(lambda _: called.set())
        assert called.wait(60)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        try:
            job.save({"a": 2})
        except outlive.FullError:
            print("told")
        assert job.save({"a": 3}, wait=True)
    """
    # The program has not seen the failure when the callback was called.
    assert run(program, folder) == "told"


def test_a_save_in_a_forked_child(job: outlive.Job) -> None:
    save = job.save({"a": 1}, wait=True)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save.add_done_callback(lambda _: None)
        except outlive.InvalidError:
            os.write(write, b"refused")
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 100) == b"refused"
    os.close(read)


def test_the_save_goes_away_after_its_calls() -> None:
    native, save = pending()
    called = threading.Event()
    save.add_done_callback(lambda _: called.set())
    gone = weakref.ref(native)
    native.over.set()
    assert called.wait(LONG_S)
    for thread in threading.enumerate():
        if "callbacks" in thread.name:
            thread.join(LONG_S)
    del native, save
    import gc

    gc.collect()
    assert gone() is None


def test_a_program_ends_after_its_calls(run: Run, folder: Path) -> None:
    program = """
        import atexit, outlive
        job = outlive.open(sys.argv[1]).job("job")
        print("saving", flush=True)
        save = job.save({"a": outlive.zeros(3_000_000) + 1})
        save.add_done_callback(lambda save: print("over", save.epoch, save.done(), flush=True))

        def late():
            save = job.save({"a": outlive.zeros(1000)})
            save.add_done_callback(lambda save: print("late", save.done(), flush=True))

        atexit.register(late)
    """
    assert run(program, folder).split("\n") == ["saving", "over 1 True", "late True"]


# --- asyncio --------------------------------------------------------------------------------------


def test_await_lets_other_coroutines_run() -> None:
    native, save = pending()
    steps: list[str] = []

    async def wait() -> None:
        steps.append("waits")
        with pytest.raises(outlive.FullError):
            await save
        steps.append("over")

    async def other() -> None:
        steps.append("other")
        native.over.set()

    async def main() -> None:
        await asyncio.gather(wait(), other())

    asyncio.run(main())
    assert steps == ["waits", "other", "over"]


def test_await_of_real_saves(job: outlive.Job) -> None:
    async def main() -> list[outlive.SaveStats | None]:
        found = [await job.save({"a": outlive.zeros(300_000) + n}) for n in range(5)]
        save = job.save({"a": outlive.zeros(300_000)})
        return [*found, *await asyncio.gather(waited(save), waited(save))]

    async def waited(save: Save) -> outlive.SaveStats | None:
        return await save

    found = asyncio.run(main())
    assert [stats and stats.epoch for stats in found] == [1, 2, 3, 4, 5, 6, 6]


def test_await_of_a_skipped_save_and_of_one_that_is_over(folder: Path) -> None:
    job = outlive.open(folder).job("job", every_s=1e6)
    done = job.save({"a": 1}, force=True, wait=True)

    async def main() -> tuple[Any, Any]:
        return await done, await job.save({"a": 1})

    stats, nothing = asyncio.run(main())
    assert (stats.epoch, nothing) == (1, None)


def test_a_cancelled_wait_and_a_closed_loop() -> None:
    native, save = pending()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(waited()), 0.001)

    async def waited() -> None:
        await save

    asyncio.run(main())
    called = threading.Event()
    save.add_done_callback(lambda _: called.set())
    # The loop that waited is closed; the next function is called all the same.
    native.over.set()
    assert called.wait(LONG_S)
