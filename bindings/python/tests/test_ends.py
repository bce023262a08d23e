"""Every end of a program or worker that runs Python's exit functions completes its last save."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive
from outlive import _exit

Run = Callable[..., str]
Program = Callable[..., "subprocess.Popen[str]"]

# Such a state takes longer to save than the program to end.
SAVE = """
def save(name, step=1):
    job = outlive.open(sys.argv[1]).job(name)
    state = {"step": step, "a": np.random.default_rng(step).random(4_000_000)}
    print("epoch", job.save(state, force=True).epoch, flush=True)
"""


def check(folder: Path, name: str, step: int = 1) -> None:
    tree = outlive.open(folder, create=False).job(name).restore()
    assert tree is not None
    assert tree["step"] == step
    assert np.array_equal(tree["a"], np.random.default_rng(step).random(4_000_000))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_multiprocessing(folder: Path, run: Run, method: str) -> None:
    out = run(
        SAVE
        + """
import multiprocessing
import warnings
warnings.simplefilter("ignore")  # newer Pythons warn of fork with threads

def work(number):
    save(f"w{number}", number)

if __name__ == "__main__":
    save("parent", 7)
    context = multiprocessing.get_context(sys.argv[2])
    workers = [context.Process(target=work, args=(number,)) for number in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print([worker.exitcode for worker in workers])
""",
        folder,
        method,
    )
    assert out.splitlines()[-1] == "[0, 0]"
    for name, step in {"w1": 1, "w2": 2, "parent": 7}.items():
        check(folder, name, step)


def test_a_job_that_a_worker_opens_on_import(folder: Path, run: Run) -> None:
    run(
        """
        import multiprocessing
        job = outlive.open(sys.argv[1]).job(__name__)

        def work():
            job.save({"step": 1, "a": np.random.default_rng(1).random(4_000_000)})

        if __name__ == "__main__":
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([])  # so that the worker itself imports the program
            worker = context.Process(target=work)
            worker.start()
            worker.join()
            assert worker.exitcode == 0
        """,
        folder,
    )
    check(folder, "__mp_main__")


def test_workers_of_concurrent_futures(folder: Path, run: Run) -> None:
    run(
        SAVE
        + """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(2, mp_context=context) as workers:
        for future in [workers.submit(save, f"w{number}", number) for number in (1, 2)]:
            future.result()
""",
        folder,
    )
    check(folder, "w1", 1)
    check(folder, "w2", 2)


def test_a_worker_says_that_its_last_save_failed(folder: Path, program: Program) -> None:
    child = program(
        """
        import multiprocessing

        def work():
            job = outlive.open(sys.argv[1]).job("a")
            job.save({"step": 1}, wait=True)
            os.rename(sys.argv[1] + "/packs", sys.argv[1] + "/hidden")
            open(sys.argv[1] + "/packs", "w").close()
            job.save({"step": 2})

        if __name__ == "__main__":
            worker = multiprocessing.get_context("fork").Process(target=work)
            worker.start()
            worker.join()
        """,
        folder,
    )
    _, errors = child.communicate(timeout=100)
    assert errors.count("the last save before the end of the program failed") == 1
    assert "Traceback" not in errors


def test_a_save_by_a_destructor_at_the_very_end(folder: Path, run: Run) -> None:
    out = run(
        """
        class Keeper:
            def __init__(self):
                self.job = outlive.open(sys.argv[1]).job("a")
                self.state = {"step": 1, "a": np.random.default_rng(1).random(4_000_000)}

            def __del__(self):
                print("epoch", self.job.save(self.state, force=True).epoch, flush=True)

        keeper = Keeper()
        """,
        folder,
    )
    assert out == "epoch 1"
    check(folder, "a")


def test_a_refusal_at_the_very_end_is_told(folder: Path, program: Program) -> None:
    child = program(
        """
        class Keeper:
            def __init__(self):
                self.job = outlive.open(sys.argv[1]).job("a")

            def __del__(self):
                self.job.save({"a": np.ones(3)}, force=True, metrics={"": 1.0})
                os.rename(sys.argv[1] + "/packs", sys.argv[1] + "/hidden")
                open(sys.argv[1] + "/packs", "w").close()
                self.job.save({"a": np.zeros(3)}, force=True)

        keeper = Keeper()
        """,
        folder,
    )
    _, errors = child.communicate(timeout=100)
    assert "outlive.InvalidError: " in errors
    assert "ImportError" not in errors


def test_exit_functions_that_run_later_and_threads(folder: Path, run: Run) -> None:
    out = run(
        """
        import atexit
        import builtins
        # Registered before outlive's own by a program that imports that first; here by hand.
        outlive_finish = outlive._exit._finish
        atexit.unregister(outlive_finish)
        drained = threading.Event()

        def save(name):
            job = outlive.open(sys.argv[1]).job(name)
            job.save({"step": 1, "a": np.random.default_rng(1).random(4_000_000)})
            # One string, since the thread prints as well.
            print(f"{name} {len(job.epochs())}" + chr(10), end="", flush=True)

        def from_thread():
            drained.wait()
            save("thread")

        thread = threading.Thread(target=from_thread, daemon=True)
        thread.start()
        atexit.register(thread.join)
        atexit.register(save, "function")
        atexit.register(drained.set)
        atexit.register(outlive_finish)
        """,
        folder,
    )
    assert sorted(out.splitlines()) == ["function 1", "thread 1"]
    check(folder, "function")
    check(folder, "thread")


# The handler is that of docs/python.md; the signal comes before the first wait for a save.
TERMINATED = """
def terminated_at_the_end():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    complete = outlive._exit._complete

    def first(entry):
        outlive._exit._complete = complete
        os.kill(os.getpid(), signal.SIGTERM)
        complete(entry)

    outlive._exit._complete = first

def work():
    global jobs
    jobs = [outlive.open(sys.argv[1]).job(name) for name in ("a", "b")]
    for job in jobs:
        job.save({"step": 1, "a": np.random.default_rng(1).random(4_000_000)})
    terminated_at_the_end()
"""


def test_sigterm_while_saves_are_completed(folder: Path, program: Program) -> None:
    child = program(TERMINATED + "work()", folder)
    _, errors = child.communicate(timeout=100)
    # Python prints this for an exit function that raises.
    assert "SystemExit: 143" in errors
    check(folder, "a")
    check(folder, "b")


def test_sigterm_while_a_worker_completes_its_saves(folder: Path, run: Run) -> None:
    # A forked worker has only the exit functions of multiprocessing.
    out = run(
        TERMINATED
        + """
import multiprocessing

if __name__ == "__main__":
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    worker.join()
    print(worker.exitcode)
""",
        folder,
    )
    assert out == "143"
    check(folder, "a")
    check(folder, "b")


# Sends one more signal each time that a job is asked whether it saves, so during a handler.
AGAIN = """
import multiprocessing

class Asked:
    signals = 0

    def __init__(self, core):
        self.core = core

    def __getattr__(self, name):
        return getattr(self.core, name)

    def saving(self):
        if Asked.signals < 20:
            Asked.signals += 1
            os.kill(os.getpid(), SIGNAL)
        return self.core.saving()

def asked():
    for key, entry in outlive._exit._alive.items():
        outlive._exit._alive[key] = entry._replace(core=Asked(entry.core))

def both():
    work()
    asked()

if __name__ == "__main__":
    worker = multiprocessing.get_context("fork").Process(target=both)
    worker.start()
    worker.join()
    print(worker.exitcode)
"""


def test_sigterm_while_sigterm_is_dealt_with(folder: Path, run: Run) -> None:
    out = run(TERMINATED + AGAIN.replace("SIGNAL", "signal.SIGTERM"), folder)
    assert out == "143"
    check(folder, "a")
    check(folder, "b")


class Stubborn:
    """A native job whose waits raise these exceptions, one each."""

    def __init__(
        self, *raised: BaseException, saving: bool = True, asked: Sequence[BaseException] = ()
    ) -> None:
        self.raised, self.is_saving, self.closed = list(raised), saving, False
        # Exceptions of the question whether it saves, from the second time on.
        self.asked: list[BaseException | None] = [None, *asked]

    def saving(self) -> bool:
        if self.asked and (error := self.asked.pop(0)):
            raise error
        return self.is_saving

    def wait(self, tick: object) -> None:
        if self.raised:
            raise self.raised.pop(0)
        self.is_saving = False

    def close(self, tick: object, *, at_exit: bool, together: bool) -> None:
        self.closed = True


@pytest.fixture
def finish(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Ends this process, as far as outlive can see, with jobs that have the given native ones."""

    def finish(**cores: Any) -> None:
        entries = [
            _exit.Entry(os.getpid(), name, core, lambda: None) for name, core in cores.items()
        ]
        monkeypatch.setattr(_exit, "_alive", dict(enumerate(entries)))
        monkeypatch.setattr(_exit, "_orphans", [])
        monkeypatch.setattr(_exit, "_ended", set())
        _exit._finish()

    return finish


def test_an_exception_of_a_handler_waits_for_all_saves(finish: Callable[..., None]) -> None:
    a = Stubborn(TimeoutError("an alarm"), SystemExit(143), KeyboardInterrupt())
    b, done = Stubborn(), Stubborn(TimeoutError("again"), saving=False)
    with pytest.raises(TimeoutError, match="an alarm"):
        finish(a=a, done=done, b=b)
    assert not a.raised
    assert a.closed
    assert b.closed


def test_a_second_ctrl_c_gives_up(
    finish: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    done, later = Stubborn(saving=False), Stubborn()
    with pytest.raises(KeyboardInterrupt):
        finish(done=done, first=Stubborn(*[KeyboardInterrupt()] * 2), later=later)
    first, second = capsys.readouterr().err.splitlines()
    assert "interrupt again" in first
    assert "these saves are lost: first, later" in second
    assert done.closed
    assert not later.closed


def test_the_first_exception_is_raised_though_others_follow(
    finish: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = Stubborn(SystemExit(143), asked=[SystemExit(144)] * 9), Stubborn()
    with pytest.raises(SystemExit, match="143"):
        finish(a=a, b=b)
    assert (a.closed, b.closed) == (True, True)
    assert capsys.readouterr().err == ""
    # The second Ctrl-C comes during the first; the saves are named even so.
    a, b = Stubborn(KeyboardInterrupt(), asked=[KeyboardInterrupt()]), Stubborn()
    with pytest.raises(KeyboardInterrupt):
        finish(a=a, b=b)
    assert "these saves are lost: a, b" in capsys.readouterr().err
    assert (a.closed, b.closed) == (False, False)
