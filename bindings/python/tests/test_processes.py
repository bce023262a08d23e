"""Forks, interruptions, ends of the interpreter, and writers in several processes."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import outlive

Run = Callable[..., str]
Program = Callable[..., "subprocess.Popen[str]"]


def test_an_exit_completes_the_drain(folder: Path, run: Run) -> None:
    # Ends with the job alive, with the job gone already, and through sys.exit in a function.
    for step, end in enumerate(["", "del job", "sys.exit(0)"], 1):
        run(
            f"""
            job = outlive.open(sys.argv[1]).job("a")
            state = {{"step": {step}, "a": np.random.default_rng({step}).random(4_000_000)}}
            save = job.save(state)
            del save
            {end}
            """,
            folder,
        )
        tree = outlive.open(folder).job("a").restore()
        assert tree["step"] == step
        assert np.array_equal(tree["a"], np.random.default_rng(step).random(4_000_000))


def test_a_failure_at_exit_is_told(folder: Path, program: Program) -> None:
    child = program(
        """
        job = outlive.open(sys.argv[1]).job("a")
        job.save({"step": 1}, wait=True)
        os.rename(sys.argv[1] + "/packs", sys.argv[1] + "/hidden")
        open(sys.argv[1] + "/packs", "w").close()
        job.save({"step": 2})
        """,
        folder,
    )
    _, errors = child.communicate(timeout=100)
    assert errors.count("the last save before the end of the program failed") == 1
    assert "Traceback" not in errors


def test_no_noise_when_the_pool_is_gone_at_exit(folder: Path, program: Program) -> None:
    child = program(
        """
        import shutil
        job = outlive.open(sys.argv[1]).job("a")
        job.save({"step": 1}, wait=True)
        shutil.rmtree(sys.argv[1])
        """,
        folder,
    )
    _, errors = child.communicate(timeout=100)
    assert (child.returncode, errors) == (0, "")


def test_a_forked_child_is_told_to_open_its_own(folder: Path, run: Run) -> None:
    out = run(
        """
        import warnings
        warnings.simplefilter("ignore")  # newer Pythons warn of fork with threads
        pool = outlive.open(sys.argv[1])
        job = pool.job("a")
        # The fork comes while a save is under way, with its threads and locks.
        state = {"who": "parent", "a": np.random.default_rng(1).random(4_000_000)}
        save = job.save(state)
        child = os.fork()
        if child == 0:
            for call in [
                lambda: job.save(state),
                lambda: job.save(state, force=True),
                lambda: job.restore(),
                lambda: job.restore(into=state),
                lambda: job.epochs(),
                lambda: job.close(),
                lambda: save.wait(),
                lambda: save.done(),
                lambda: job.prune(keep_last=1),
                lambda: outlive.plot(job),
                lambda: job.note(1, pin=True),
                lambda: job.take_over(),
                lambda: job.put_files(sys.argv[0]),
                lambda: job.get_files(sys.argv[1] + "-files"),
                lambda: pool.job("b"),
                lambda: pool.jobs(),
                lambda: pool.gc(),
                lambda: pool.close(),
                lambda: pool._tick(),
            ]:
                try:
                    call()
                except outlive.InvalidError as error:
                    assert "fork" in str(error), error
                else:
                    os._exit(1)
            repr(save), repr(job)
            own = outlive.open(sys.argv[1]).job("child")
            own.save({"who": "child", "a": np.arange(100_000)}, wait=True)
            assert own.restore()["who"] == "child"
            own.save({"who": "child at exit"})
            del save, job, pool, own
            sys.exit(7)  # runs the exit hooks, and must neither wait for nor close the parent's
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        assert save.wait().epoch == 1
        assert job.save(state, wait=True).epoch == 2
        print(outlive.open(sys.argv[1]).job("child").restore()["who"])
        """,
        folder,
    )
    assert out == "child at exit"
    assert outlive.open(folder).job("a").restore()["who"] == "parent"


# Sends Ctrl-C once the main thread is inside the function of outlive with this name.
INTERRUPT = """
def interrupt_inside(name):
    main = threading.main_thread().ident

    def look():
        while (frame := sys._current_frames()[main]).f_code.co_name != name or (
            "outlive" not in frame.f_code.co_filename
        ):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=look, daemon=True).start()
"""


def test_ctrl_c_ends_a_wait(folder: Path, run: Run) -> None:
    # A thread keeps the job busy: its restore never ends.
    out = run(
        INTERRUPT
        + """
blocked = threading.Event()

def progress(*_):
    if threading.current_thread() is not threading.main_thread():
        blocked.set()
        threading.Event().wait()

pool = outlive.open(sys.argv[1], progress=progress)
job = pool.job("a")
state = {"a": np.random.default_rng(1).random(4_000_000)}
outlive.open(sys.argv[1]).job("a").save(state, wait=True)
threading.Thread(target=job.restore, daemon=True).start()
blocked.wait()
interrupt_inside("save")
try:
    job.save(state)
except KeyboardInterrupt:
    print("interrupted", flush=True)
os._exit(0)
""",
        folder,
    )
    assert out == "interrupted"


def test_ctrl_c_ends_a_wait_for_the_commit(folder: Path, run: Run) -> None:
    out = run(
        INTERRUPT
        + """
job = outlive.open(sys.argv[1]).job("a")
job.save({"step": 0}, wait=True)
state = {"a": np.random.default_rng(1).random(10_000_000), "step": 1}
interrupt_inside("wait")
try:
    while True:
        state["step"] += 1
        state["a"] += 1
        save = job.save(state)
        save.wait()
except KeyboardInterrupt:
    pass
# The job goes on as if nothing had been.
state["step"] = -1
job.save(state, wait=True)
tree = job.restore()
print(tree["step"], np.array_equal(tree["a"], state["a"]), flush=True)
""",
        folder,
    )
    assert out == "-1 True"


def test_ctrl_c_ends_a_restore(folder: Path, run: Run) -> None:
    state = {"a": np.random.default_rng(1).random(8_000_000), "step": 5}
    outlive.open(folder).job("a").save(state, wait=True)
    out = run(
        INTERRUPT
        + """
def names_of_threads():
    names = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as name:
                names.add(name.read().strip())
        except OSError:
            pass  # it has just ended
    return names

job = outlive.open(sys.argv[1]).job("a")
state = {"a": np.zeros(8_000_000), "step": 0}
interrupt_inside("run")  # of outlive._rebuild, which calls the native half
try:
    while True:
        job.restore(into=state)
        state["step"] = 0
except KeyboardInterrupt:
    pass
assert state["step"] in (0, 5)
# From the interruption on nothing writes the array any more, and it can be restored again.
state["a"][:] = 3
while "outlive-restore"[:15] in names_of_threads():
    time.sleep(0.001)
assert (state["a"] == 3).all()
job.restore(into=state)
state["step"] += 1
job.save(state, wait=True)
print(state["step"], flush=True)
""",
        folder,
    )
    assert out == "6"
    tree = outlive.open(folder).job("a").restore()
    assert tree["step"] == 6
    assert np.array_equal(tree["a"], state["a"])


def test_two_processes_cannot_both_write(folder: Path, program: Program, run: Run) -> None:
    first = program(
        """
        job = outlive.open(sys.argv[1]).job("a")
        step = 0
        while True:
            step += 1
            try:
                job.save({"who": "first", "step": step, "a": np.full(50_000, step)}, wait=True)
            except outlive.FencedError as error:
                print("fenced:", error, flush=True)
                sys.exit(0)
            if step == 5:
                print("waiting", flush=True)
        """,
        folder,
    )
    assert first.stdout is not None
    assert first.stdout.readline().strip() == "waiting"
    job = outlive.open(folder).job("a")
    epoch = job.save({"who": "second"}, wait=True).epoch
    out, errors = first.communicate(timeout=100)
    assert out.startswith("fenced:"), errors
    assert "taken over" in out
    assert job.restore() == {"who": "second"}
    assert job.epochs()[-1].epoch == epoch


def test_a_program_that_restored_before_another_went_on_is_fenced(folder: Path, run: Run) -> None:
    job = outlive.open(folder).job("a")
    job.save({"step": 1}, wait=True)
    job.close()
    assert job.restore() == {"step": 1}
    run(
        """
        job = outlive.open(sys.argv[1]).job("a")
        state = {"step": 0}
        job.restore(into=state)
        for step in range(2, 5):
            job.save({"step": step}, wait=True)
        """,
        folder,
    )
    with pytest.raises(outlive.FencedError, match=r"at checkpoint 1 .* up to checkpoint 4 since"):
        job.save({"step": 2}, wait=True)
    assert [epoch.epoch for epoch in job.epochs()] == [1, 2, 3, 4]
    # The program restores again and continues; or it calls `take_over`.
    assert job.restore(epoch=2) == {"step": 2}
    job.save({"step": 3}, wait=True)
    job.close()
    job.restore()
    run("outlive.open(sys.argv[1]).job('a').save({'step': 6}, wait=True)", folder)
    with pytest.raises(outlive.FencedError, match="take_over"):
        job.save({"step": 7}, wait=True)
    job.take_over()
    job.save({"step": 7}, wait=True)
    assert job.restore() == {"step": 7}
    # The first session has ended. Opening the job again starts a new one.
    run("outlive.open(sys.argv[1]).job('a').save({'step': 8}, wait=True)", folder)
    with pytest.raises(outlive.FencedError, match="taken over"):
        job.save({"step": 9}, wait=True)
    again = outlive.open(folder).job("a")
    assert again.restore() == {"step": 8}
    again.save({"step": 9}, wait=True)
    with pytest.raises(outlive.FencedError):
        job.save({"step": 9}, wait=True)
    assert [epoch.epoch for epoch in again.epochs()][-3:] == [7, 8, 9]


def test_a_thread_that_saves_does_not_hold_up_the_interpreter(folder: Path, run: Run) -> None:
    out = run(
        """
        job = outlive.open(sys.argv[1], freeze_bytes_max=0).job("a")
        state = {"a": np.random.default_rng(1).random(30_000_000)}
        # Steps of this thread while the other is inside the save. Did that hold the interpreter,
        # there would be a few, at its begin and its end. On a busy machine, too, but not always.
        inside = 0
        while inside <= 20:
            inside = 0
            state["a"] += 1
            thread = threading.Thread(target=lambda: job.save(state, wait=True))
            thread.start()
            while thread.is_alive():
                frame = sys._current_frames().get(thread.ident)
                inside += frame is not None and frame.f_code.co_name == "save"
                os.sched_yield()
        print("free")
        """,
        folder,
    )
    assert out == "free"
