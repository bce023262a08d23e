"""Every end of a program or worker that runs Python's exit functions completes its last save."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import outlive

Run = Callable[..., str]
Program = Callable[..., "subprocess.Popen[str]"]

# The state takes longer to drain than an end takes.
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
                self.job.save({"a": np.ones(3)}, force=True, metrics={"loss": float("nan")})
                os.rename(sys.argv[1] + "/packs", sys.argv[1] + "/hidden")
                open(sys.argv[1] + "/packs", "w").close()
                self.job.save({"a": np.zeros(3)}, force=True)

        keeper = Keeper()
        """,
        folder,
    )
    _, errors = child.communicate(timeout=100)
    assert "outlive._errors." in errors
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
            print(name, len(job.epochs()), flush=True)

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
