"""Saves that fail while the program goes on (`on_failure="warn"`)."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import outlive

Run = Callable[..., str]

# Programs whose disk is full for a while: no file may get longer than 5,000 bytes.
FULL = """
import logging, resource, warnings
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

def full(is_full):
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000 if is_full else most, most))

class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())

log = Kept()
logging.getLogger("outlive").addHandler(log)
warned = []
warnings.showwarning = lambda text, category, *rest: warned.append((category, str(text)))
warnings.simplefilter("always", outlive.FailedSaveWarning)
state = {"u": np.random.default_rng(1).random(1 << 18), "step": 0}

def advance(count=1):
    for _ in range(count):
        state["step"] += 1
        state["u"][state["step"] * 5000 % (1 << 18)] = state["step"]

def same(path):
    found = outlive.open(path).job("j").restore()
    return found["step"] == state["step"] and np.array_equal(found["u"], state["u"])
"""


def rows(path: Path) -> list[dict[str, object]]:
    """Returns the checkpoints, as `outlive ls` lists them."""
    command = [sys.executable, "-m", "outlive", "ls", str(path), "j", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[dict[str, object]] = json.loads(done.stdout)["checkpoints"]
    return found


def test_a_program_goes_on_while_its_disk_is_full(folder: Path, run: Run) -> None:
    out = run(
        FULL
        + """
job = outlive.open(sys.argv[1]).job("j", on_failure="warn", keep_last=2)
advance()
job.save(state, wait=True)
before = job.status
assert (before.on_failure, before.fail_after_s) == ("warn", 3600.0), before
assert (before.failed, before.committed, before.last_error) == (0, 1, None), before
full(True)
advance()
save = job.save(state)
try:
    save.wait()
except outlive.FullError:
    print("the handle raises")
for _ in range(3):
    advance()
    assert job.save(state, wait=True)
status = job.status
assert (status.failed_in_a_row, status.failed, status.committed) == (4, 4, 1), status
assert isinstance(status.last_error, outlive.FullError), status
assert status.since_commit_s > 0, status
assert not warned[4:] and len(warned) == 4, warned
assert all(category is outlive.FailedSaveWarning for category, _ in warned), warned
assert "job j: a save has failed, 4 in a row, and the program goes on: " in warned[3][1], warned
assert sum("a save of job j failed" in text for text in log.texts) == 4, log.texts
full(False)
advance()
job.save(state, wait=True)
after = job.status
assert (after.failed_in_a_row, after.failed, after.committed) == (0, 4, 2), after
assert isinstance(after.last_error, outlive.FullError)
assert same(sys.argv[1])
for _ in range(2):
    advance()
    job.save(state, wait=True)
job.close()
assert len(warned) == 4
print([(it.epoch, it.failed_before) for it in job.epochs()], same(sys.argv[1]))
""",
        folder,
    )
    assert out.splitlines() == ["the handle raises", "[(3, 0), (4, 0)] True"]


def test_the_log_says_how_many_saves_failed(folder: Path, run: Run) -> None:
    run(
        FULL
        + """
with outlive.open(sys.argv[1]).job("j", on_failure="warn", fail_after="30m") as job:
    # The disk is full from the beginning: not even a session can be opened.
    full(True)
    for _ in range(2):
        advance()
        job.save(state, wait=True)
    full(False)
    advance()
    job.save(state)
# With "raise", too.
job = outlive.open(sys.argv[1]).job("j", on_failure="raise")
full(True)
advance()
job.save(state)
try:
    job.save(state)
except outlive.FullError:
    full(False)
    job.save(state)
else:
    raise AssertionError
job.close()
assert same(sys.argv[1])
""",
        folder,
    )
    assert [row["failed_before"] for row in rows(folder)] == [2, 1]
    command = [sys.executable, "-m", "outlive", "ls", str(folder), "j"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"after \d+ failed", told) == ["after 2 failed", "after 1 failed"], told


def test_after_fail_after_the_error_is_raised(folder: Path, run: Run) -> None:
    out = run(
        FULL
        + """
# So short that it has passed whenever a save has failed.
job = outlive.open(sys.argv[1]).job("j", on_failure="warn", fail_after="0.000001s")
advance()
job.save(state, wait=True)
full(True)
told = 0
for wait in (False, True, False, True):
    advance()
    try:
        job.save(state, wait=wait).done()
    except outlive.FullError as error:
        assert "no save of job j was committed for " in str(error), error
        told += 1
print(told >= 2)
try:
    job.save(state)
    job.close()
except outlive.FullError as error:
    print("close" if "fail_after" in str(error) else error)
full(False)
advance()
job.save(state)
job.close()
print(same(sys.argv[1]))
""",
        folder,
    )
    assert out.splitlines() == ["True", "close", "True"]


def test_an_end_of_the_program_tells_of_the_last_save(
    folder: Path, program: Callable[..., "subprocess.Popen[str]"]
) -> None:
    for end, told in (
        ("job.close()", "none of its saves was committed"),
        ("del job", "the last save before the end of the program failed"),
        ("job.save({'a': 2}); full(True); job.save(state); job.close(); print('goes on')", None),
    ):
        full = "full(True); job.save(state)" if told else "job.save({'a': 1}, wait=True)"
        child = program(
            FULL
            + f"""
job = outlive.open(sys.argv[1]).job("j", on_failure="warn")
{full}
{end}
""",
            folder,
        )
        out, errors = child.communicate()
        if told is None:
            assert (child.returncode, out) == (0, "goes on\n"), errors
        else:
            assert told in errors, errors


def test_a_warning_that_is_an_error_is_raised_before_a_save_begins(folder: Path, run: Run) -> None:
    out = run(
        FULL
        + """
warnings.simplefilter("error", outlive.FailedSaveWarning)
job = outlive.open(sys.argv[1]).job("j", on_failure="warn")
job.save(state, wait=True)
full(True)
advance()
save = job.save(state)
while not save.done():
    pass
try:
    job.save(state)
except outlive.FailedSaveWarning:
    print("raised", job.status.failed)
full(False)
job.save(state, wait=True)
print(same(sys.argv[1]))
""",
        folder,
    )
    assert out.splitlines() == ["raised 1", "True"]


def test_the_last_on_failure_setting_holds_for_the_job(folder: Path, run: Run) -> None:
    out = run(
        FULL
        + """
pool = outlive.open(sys.argv[1])
first = pool.job("j")
second = pool.job("j", on_failure="warn", fail_after="2h")
assert first.status == second.status
third = pool.job("j")
assert third.status.on_failure == "warn", third.status
first.save(state, wait=True)
full(True)
advance()
first.save(state, wait=True)
third.save(state, wait=True)
assert second.status.failed_in_a_row == 2
pool.job("j", on_failure="raise")
try:
    first.save(state)
except outlive.FullError:
    print("raised")
full(False)
second.save(state, wait=True)
print(same(sys.argv[1]))
""",
        folder,
    )
    assert out.splitlines() == ["raised", "True"]


def test_a_target_that_was_away_gets_all(folder: Path, run: Run, tmp_path: Path) -> None:
    target, away = tmp_path / "disk", tmp_path / "away"
    command = [
        sys.executable,
        "-m",
        "outlive",
        "pool",
        "init",
        str(folder),
        "--target",
        str(target),
    ]
    subprocess.run(command, capture_output=True, check=True)
    out = run(
        FULL
        + """
path, target, away = sys.argv[1:]
job = outlive.open(path).job("j", on_failure="warn")
for round in range(3):
    advance()
    job.save(state, wait=True)
    os.rename(target, away)
    advance()
    job.save(state, wait=True)
    advance()
    job.save(state, wait=True)
    os.rename(away, target)
advance()
job.save(state, wait=True)
job.close()
print(job.status.failed, [it.failed_before for it in job.epochs()], same(path))
""",
        folder,
        target,
        away,
    )
    assert out == "6 [0, 2, 2, 2] True"


def test_a_failed_save_is_soon_due_again(folder: Path, run: Run) -> None:
    out = run(
        FULL
        + """
job = outlive.open(sys.argv[1]).job("j", every_s=3000, on_failure="warn", fail_after="1h")
assert job.save(state, wait=True)
assert not job.save(state)
full(True)
advance()
assert job.save(state, force=True, wait=True)
assert job.status.failed == 1
full(False)
advance()
save = job.save(state)
while not save:  # within about a second, instead of 50 minutes
    save = job.save(state)
save.wait()
assert not job.save(state)
print(same(sys.argv[1]))
""",
        folder,
    )
    assert out == "True"


def test_mistakes_of_the_program_are_raised(folder: Path) -> None:
    pool = outlive.open(folder)
    job = pool.job("j", on_failure="warn")
    with pytest.raises(outlive.InvalidError, match="object"):
        job.save({"a": object()})
    job.save({"a": 1}, wait=True)
    assert job.status.failed == 0
    for arguments, told in (
        ({"on_failure": "ignore"}, 'give "raise" or "warn"'),
        ({"on_failure": 3}, "give text"),
        ({"fail_after": "1h"}, "goes with on_failure"),
        ({"on_failure": "warn", "fail_after": "soon"}, "fail_after: .* is not an age"),
        ({"on_failure": "warn", "fail_after": 3600}, "give a timedelta, or text"),
        ({"on_failure": "warn", "fail_after": timedelta(0)}, "give a longer time"),
        ({"on_failure": "warn", "every_s": 3600}, "saves are due every 3600 s"),
    ):
        with pytest.raises(outlive.InvalidError, match=told):
            pool.job("j", **arguments)  # type: ignore[arg-type]
    assert job.status.on_failure == "warn"
