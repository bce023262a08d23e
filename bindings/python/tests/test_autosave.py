"""`Job.autosave`, `Job.latest` and `Job.best`."""

import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive

Program = Callable[..., "subprocess.Popen[str]"]


class StrangeError(Exception):
    pass


@pytest.fixture
def rare(folder: Path) -> outlive.Job:
    """A job in which no save is due after the first one."""
    job = outlive.open(folder).job("rare", every_s=1e6)
    job.save({"step": -1, "a": np.zeros(10)}, wait=True)
    return job


def error_of(work: Callable[[], object], kind: type[BaseException] = StrangeError) -> BaseException:
    """Returns the exception that a piece of work must raise."""
    with pytest.raises(kind) as caught:
        work()
    return caught.value


def newest(job: outlive.Job) -> Any:
    return job.restore()["step"]


def test_each_call_is_a_save_that_may_be_due(job: outlive.Job, rare: outlive.Job) -> None:
    state = {"step": 0}
    with job.autosave(state) as autosave:
        for _ in range(3):
            state["step"] += 1
            assert autosave()
    assert [epoch.epoch for epoch in job.epochs()] == [1, 2, 3, 4]
    assert newest(job) == 3
    with rare.autosave(state) as autosave:
        for _ in range(3):
            state["step"] += 1
            assert not autosave()
        assert autosave(label="kept", metrics={"loss": 1.0}, pin=True)
        assert autosave(force=True)
        state["step"] = 9
    assert [epoch.label for epoch in rare.epochs()] == ["", "kept", "", ""]
    assert rare.epochs()[1].metrics == {"loss": 1.0}
    assert newest(rare) == 9


def test_an_exception_in_a_step_saves_nothing(rare: outlive.Job) -> None:
    state = {"step": 0, "a": np.zeros(10)}

    def marks() -> None:
        with rare.autosave(state) as autosave:
            state["step"] = 1
            autosave()
            state["step"] = 2
            raise StrangeError

    (note,) = error_of(marks).__notes__
    assert note.startswith("outlive: the exception came perhaps in the middle of a step")
    assert note.endswith("`autosave` made none")
    assert newest(rare) == -1

    def steps() -> None:
        with rare.autosave(state) as autosave:
            with autosave.step():
                state["step"] = 3
            autosave(force=True)
            with autosave.step():
                state["step"] = 4
                raise StrangeError

    assert error_of(steps).__notes__[0].endswith("made checkpoint 2")
    assert newest(rare) == 3


def broken(count: int) -> Iterator[int]:
    yield from range(count)
    raise StrangeError


def test_an_exception_between_steps_saves_the_last_one(rare: outlive.Job) -> None:
    state = {"step": 0, "a": np.zeros(10)}

    def steps() -> None:
        with rare.autosave(state) as autosave:
            for _ in broken(3):
                with autosave.step():
                    state["step"] += 1

    assert not hasattr(error_of(steps), "__notes__")
    assert newest(rare) == 3
    # A step that is saved already is not saved again.
    every = outlive.open(rare._location).job("rare", every_s=0)

    def saved_steps() -> None:
        with every.autosave(state) as autosave:
            for _ in broken(2):
                with autosave.step():
                    state["step"] += 1

    error_of(saved_steps)
    assert [epoch.epoch for epoch in every.epochs()] == [1, 2, 3, 4]
    assert newest(every) == 5


def test_before_the_first_step_and_after_one_that_failed(rare: outlive.Job) -> None:
    state = {"step": 0, "a": np.zeros(10)}

    def before() -> None:
        with rare.autosave(state):
            state["step"] = 50
            raise StrangeError

    error_of(before)

    def fails(autosave: outlive.Autosave) -> None:
        with autosave.step():
            state["step"] = 51
            raise ValueError("bad")

    def after() -> None:
        with rare.autosave(state) as autosave:
            with pytest.raises(ValueError, match="bad"):
                fails(autosave)
            raise StrangeError

    error_of(after)
    assert newest(rare) == -1


def test_a_call_after_steps_makes_the_state_uncertain(rare: outlive.Job) -> None:
    state = {"step": 0, "a": np.zeros(10)}

    def mixed() -> None:
        with rare.autosave(state) as autosave:
            with autosave.step():
                state["step"] = 1
            autosave()
            state["step"] = 2
            raise StrangeError

    error_of(mixed)
    assert newest(rare) == -1


def test_a_loop_that_ends_inside_a_step(rare: outlive.Job) -> None:
    state = {"step": 0, "a": np.zeros(10)}
    with rare.autosave(state) as autosave:
        while True:
            with autosave.step():
                state["step"] += 1
                if state["step"] == 5:
                    break
    assert newest(rare) == 5

    def nested() -> None:
        with autosave.step(), autosave.step():
            pass

    assert "contains no other" in str(error_of(nested, outlive.InvalidError))
    # After that error the object is as before.
    with autosave.step():
        state["step"] = 6


def test_a_function_makes_the_state_only_if_a_save_is_due(rare: outlive.Job) -> None:
    made: list[int] = []

    def state() -> dict[str, int]:
        made.append(len(made))
        return {"step": len(made)}

    with rare.autosave(state) as autosave:
        for _ in range(5):
            autosave()
        assert made == []
    assert made == [0]
    assert newest(rare) == 1

    def fails() -> None:
        raise StrangeError

    error_of(lambda: rare.autosave(fails)(force=True))
    assert newest(rare) == 1


def test_the_error_of_the_last_save(folder: Path, tmp_path: Path) -> None:
    job = outlive.open(folder).job("job", every_s=1e6)
    state = {"step": 0, "a": outlive.zeros(100_000)}
    job.save(state, wait=True)

    def ends() -> None:
        with job.autosave(state) as autosave:
            autosave()
            folder.rename(tmp_path / "away")

    error_of(ends, outlive.Error)
    (tmp_path / "away").rename(folder)

    def breaks() -> None:
        with job.autosave(state) as autosave:
            with autosave.step():
                state["step"] = 1
            folder.rename(tmp_path / "away")
            raise StrangeError

    (note,) = error_of(breaks).__notes__
    assert note.startswith("outlive: besides, the last step could not be saved:")
    (tmp_path / "away").rename(folder)
    with job.autosave(state):
        pass
    assert newest(job) == 1


def test_a_fenced_program_gets_the_error(folder: Path) -> None:
    job = outlive.open(folder).job("job")
    state = {"step": 0}
    take = "import outlive, sys; outlive.open(sys.argv[1]).job('job').save({'step': 9}, wait=True)"

    def fenced() -> None:
        with job.autosave(state) as autosave:
            autosave().wait()
            subprocess.run([sys.executable, "-c", take, str(folder)], check=True)
            autosave().wait()

    error_of(fenced, outlive.FencedError)
    assert newest(outlive.open(folder).job("job")) == 9


def test_no_save_after_an_exception_in_a_group(folder: Path) -> None:
    job = outlive.open(folder).job("job", group=outlive.ranks(0, 1, run="run"), every_s=1e6)
    state = {"step": 1}
    job.save(state, wait=True)

    def steps() -> None:
        with job.autosave(state) as autosave:
            with autosave.step():
                state["step"] = 2
            raise StrangeError

    assert "in a group of ranks" in error_of(steps).__notes__[0]
    assert newest(outlive.open(folder).job("job")) == 1
    with job.autosave(state):
        state["step"] = 3
    job.close()
    assert newest(outlive.open(folder).job("job")) == 3


def test_ctrl_c_between_steps(program: Program, folder: Path) -> None:
    child = program(
        """
        job = outlive.open(sys.argv[1]).job("job", every_s=1e6)
        state = {"step": 0}
        job.save(state, wait=True)
        with job.autosave(state) as autosave:
            while True:
                with autosave.step():
                    state["step"] += 1
                print("between", flush=True)
                time.sleep(100)
        """,
        folder,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "between\n"
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert newest(outlive.open(folder).job("job")) == 1


# --- The latest and the best ----------------------------------------------------------------------


def test_the_latest_and_the_best(job: outlive.Job) -> None:
    assert job.latest is None
    assert job.best("loss") is None
    losses = [0.5, 0.25, 0.75, 0.25, -0.0, 0.0]
    for step, loss in enumerate(losses):
        job.save({"step": step}, wait=True, metrics={"loss": loss, "other": -loss})
    assert job.latest == job.epochs()[-1]

    def best(metric: str) -> int:
        found = job.best(metric)
        assert found is not None
        return found.epoch

    assert (best("loss"), best("loss:min"), best("loss:max"), best("other:max")) == (6, 6, 3, 6)
    job.mark(6, "bad")
    assert best("loss") == 5
    job.prune(drop=[5])
    assert best("loss") == 4
    assert job.restore(epoch=job.best("loss:max")) == {"step": 2}
    assert job.restore(epoch=job.latest) == {"step": 5}
    # The best is the one that a rule of `prune` keeps.
    kept = job.prune(keep_best="loss", dry_run=True).kept
    assert kept[best("loss")] == "best by loss"


def test_metrics_that_no_checkpoint_has(job: outlive.Job) -> None:
    job.save({"step": 0}, wait=True)
    with pytest.raises(outlive.InvalidError, match="they have no metrics"):
        job.best("loss")
    job.save({"step": 1}, wait=True, metrics={"loss": math.inf})
    found = job.best("loss")
    assert found is not None
    assert found.epoch == 2
    # None would restore the newest without a word.
    with pytest.raises(outlive.InvalidError, match="they have 'loss'"):
        job.best("lost")
    for wrong in ("", ":max", "loss:high", 3):
        with pytest.raises(outlive.InvalidError, match="is not possible"):
            job.best(wrong)  # type: ignore[arg-type]
