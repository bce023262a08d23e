"""The interval between saves: rules, what is learned, and `outlive run --every`."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import command

import outlive

DAY = 86_400.0


@pytest.fixture
def state() -> dict[str, Any]:
    return {"u": np.zeros(100_000), "step": 0}


def saved(job: outlive.Job, state: dict[str, Any]) -> outlive.SaveInterval:
    state["step"] += 1
    state["u"][state["step"]] += 1
    save = job.save(state, force=True)
    save.wait()
    stats = save.stats
    assert stats is not None
    assert stats.interval is not None
    return stats.interval


def attempt(cause: Any, ran_s: float, committed_s: float | None, **more: Any) -> dict[str, Any]:
    here = more.pop("host", _host())
    return {
        "host": here,
        "supervisor": 1,
        "attempt": 1,
        "started_ns": 1,
        "ran_s": ran_s,
        "committed_s": committed_s,
        "cause": cause,
        "restored": None,
        "newest": None,
        "commits": 1,
        "distrusted": None,
    } | more


def _host() -> str:
    return Path("/proc/sys/kernel/hostname").read_text("utf-8").strip()


def write_history(folder: Path, *attempts: dict[str, Any]) -> Path:
    path = folder / "run" / "job.history"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"attempts": attempts}), "utf-8")
    return path


def test_a_fresh_pool_rests_on_the_prior_and_says_so(folder: Path, state: dict[str, Any]) -> None:
    job = outlive.open(folder).job("job", every="auto")
    first = job.save(state)
    assert first, "the first save measures"
    stats = first.wait()
    assert stats is not None
    chosen = stats.interval
    assert chosen is not None
    assert (chosen.every, chosen.saves, chosen.failures) == ("auto", 1, 0)
    assert chosen.is_prior
    assert not chosen.is_overridden
    assert chosen.mtbf_s == pytest.approx(DAY, rel=0.01)
    assert "rests on the prior, 1 failure in 24.0 h" in chosen.reasons
    assert chosen.bound in ("optimum", "latency")
    assert chosen.seconds >= chosen.latency_s > 0
    # The optimum of a day's failures is seconds away.
    assert not job.save(state)


def test_later_saves_teach(folder: Path, state: dict[str, Any]) -> None:
    job = outlive.open(folder).job("job", every="auto")
    seen = [saved(job, state).saves for _ in range(5)]
    assert seen == [1, 2, 3, 4, 5]
    shown = command("show", folder, "job")
    line = next(line for line in shown.splitlines() if line.startswith("interval"))
    assert "auto, " in line
    assert "rests on the prior" in line
    assert "(as of checkpoint " in line
    found = json.loads(command("--json", "show", folder, "job"))["interval"]
    assert found["choice"]["every"] == "auto"
    assert found["epoch"] <= 5


def test_failures_of_the_history_count(folder: Path, state: dict[str, Any]) -> None:
    outlive.open(folder).job("job").save(state, wait=True)
    killed = attempt({"killed": 9}, 3600.0, 3000.0)
    stopped = attempt("stopped", 3600.0, 3000.0)
    elsewhere = attempt("hung", 3600.0, 3000.0, host="elsewhere")
    loop = attempt({"failed": 1}, 1.0, None)
    write_history(folder, killed, killed, stopped, elsewhere, loop, loop, loop)
    job = outlive.open(folder).job("job", every="auto")
    chosen = saved(job, state)
    # Two kills, a quarter of a hang elsewhere, and one failure of the loop.
    assert chosen.failures == 3.25
    assert chosen.exposure_s == pytest.approx(3 * 3600 + 900 + 3, abs=60)
    assert chosen.mtbf_s == pytest.approx((DAY / 4 + chosen.exposure_s) / 3.5)
    assert not chosen.is_prior
    assert "(3.25 in " in chosen.reasons


UNSUPERVISED = """
import os, signal, sys, numpy as np, outlive

job = outlive.open(sys.argv[1]).job("job", every=sys.argv[2])
state = {"u": np.zeros(1000), "step": 0}
job.restore(into=state)
for _ in range(3):
    state["step"] += 1
    job.save(state, force=True, wait=True)
if sys.argv[3] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_programs_without_a_supervisor_note_how_they_end(
    folder: Path, state: dict[str, Any]
) -> None:
    def run(every: str, end: str) -> None:
        words = [sys.executable, "-c", UNSUPERVISED, str(folder), every, end]
        done = subprocess.run(words, check=False)
        assert done.returncode == (-signal.SIGKILL if end == "killed" else 0)

    outlive.open(folder).close()
    run("0s", "killed")
    command("history", folder, "job", code=2)
    for every, end in [("auto", "killed"), ("auto", "ended"), ("continuous", "killed")]:
        run(every, end)
    shown = command("history", folder, "job")
    assert shown.count("gone without a close") == 2, shown
    job = outlive.open(folder).job("job", every="auto")
    assert saved(job, state).failures == 2
    found = json.loads(command("--json", "history", folder, "job"))["attempts"]
    causes = [entry["cause"] for entry in found]
    assert causes == ["gone without a close", "finished", "gone without a close", None]
    assert all(entry["attempt"] == 0 for entry in found)
    assert found[0]["newest"] is None or found[0]["commits"] > 0
    # The newest checkpoint tells how long it ran.
    assert found[0]["ran_s"] > 0
    again = outlive.open(folder).job("job", every="auto")
    assert saved(again, state).failures == 2, "the program itself has not failed"
    job.close()
    found = json.loads(command("--json", "history", folder, "job"))["attempts"]
    assert [entry["cause"] for entry in found] == [*causes[:3], "finished"]


def test_a_program_that_is_killed_sooner_than_the_interval_makes_progress(
    folder: Path, state: dict[str, Any]
) -> None:
    outlive.open(folder).job("job").save(state, wait=True)
    # Each lives for two seconds, and saves once.
    write_history(folder, *[attempt({"killed": 9}, 2.0, 0.1) for _ in range(4)])
    assert saved(outlive.open(folder).job("job", every="auto"), state).mtbf_s > 3600
    write_history(folder, *[attempt({"killed": 9}, 2.0, 0.1) for _ in range(5)])
    job = outlive.open(folder).job("other")
    job.save(state, wait=True)
    (folder / "run" / "job.history").rename(folder / "run" / "other.history")
    chosen = saved(outlive.open(folder).job("other", every="auto"), state)
    assert chosen.mtbf_s == 2.0
    assert chosen.seconds < 2.0 or chosen.bound == "latency"


@pytest.mark.parametrize("text", [" ", "{", '{"attempts": [{"host": 3}]}', "\0\0\0"])
def test_a_damaged_history_leaves_the_prior_with_a_warning(
    folder: Path, state: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    outlive.open(folder).job("job").save(state, wait=True)
    path = write_history(folder)
    path.write_text(text, "utf-8")
    with caplog.at_level(logging.WARNING, "outlive"):
        job = outlive.open(folder).job("job", every="auto")
        chosen = saved(job, state)
        saved(job, state)
    assert chosen.mtbf_s == pytest.approx(DAY, rel=0.01)
    assert "the failures of the past are not known" in chosen.reasons
    warned = [record for record in caplog.records if "rests on the prior" in record.getMessage()]
    assert len(warned) == 1
    # The damaged file stays for people.
    assert path.read_text("utf-8") == text


def test_continuous_saves_have_a_budget(folder: Path, state: dict[str, Any]) -> None:
    pool = outlive.open(folder)
    chosen = saved(pool.job("job", every="continuous"), state)
    assert (chosen.every, chosen.slowdown_max) == ("continuous", 0.03)
    assert "saves take at most 3.0 % of the time" in chosen.reasons or chosen.bound == "latency"
    chosen = saved(pool.job("other", every="continuous", slowdown_max=0.2), state)
    assert chosen.slowdown_max == 0.2


@pytest.mark.parametrize("every", [3600, 3600.0, "3600s", "60m", "1h", timedelta(hours=1)])
def test_a_time_has_several_forms(folder: Path, state: dict[str, Any], every: Any) -> None:
    job = outlive.open(folder).job("job", every=every)
    chosen = saved(job, state)
    assert (chosen.every, chosen.seconds, chosen.bound) == ("3600 s", 3600.0, "given")
    assert chosen.reasons == "the program sets it"
    assert not job.save(state)
    # Nothing is learned, so no file says so.
    assert not (folder / "run").exists()
    assert saved(outlive.open(folder).job("b", every_s=3600.0), state).seconds == 3600.0
    assert saved(outlive.open(folder).job("c"), state).every == "always"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"every": "often"}, "is no interval"),
        ({"every": "30"}, "is no interval"),
        ({"every": ""}, "is no interval"),
        ({"every": -1}, "must be a number of seconds"),
        ({"every": float("nan")}, "must be a number of seconds"),
        ({"every": float("inf")}, "must be a number of seconds"),
        ({"every": True}, "is no interval"),
        ({"every": [30]}, "is no interval"),
        ({"every": "auto", "every_s": 1.0}, "give one of them"),
        ({"every": "auto", "slowdown_max": 0.1}, "give both"),
        ({"every": "continuous", "slowdown_max": 0.0}, "slowdown_max = 0"),
        ({"every": "continuous", "slowdown_max": 1.0}, "slowdown_max = 1"),
        ({"every": "continuous", "slowdown_max": float("nan")}, "slowdown_max = "),
    ],
)
def test_nonsense_is_refused(folder: Path, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(outlive.InvalidError, match=why):
        outlive.open(folder).job("job", **arguments)


PROGRAM = """
import sys
import numpy as np
import outlive

job = outlive.open(sys.argv[1]).job(sys.argv[2], **eval(sys.argv[3]))
state = {"u": np.zeros(1000), "step": 0}
job.restore(into=state)
saves = 0
for step in range(20):
    state["step"] += 1
    saves += bool(job.save(state))
last = job.save(state, force=True)
last.wait()
chosen = last.stats.interval
print(saves, chosen.every, chosen.is_overridden, chosen.reasons, sep="|")
"""


def supervised(folder: Path, arguments: str, *options: str, job: str = "job") -> list[str]:
    source = folder.with_name("program.py")
    source.write_text(textwrap.dedent(PROGRAM), "utf-8")
    program = [sys.executable, source, folder, job, arguments]
    told = command("run", "--pool", folder, "--job", "job", *options, "--", *program)
    return told.splitlines()[0].split("|")


def test_outlive_run_overrides_the_interval(folder: Path) -> None:
    saves, every, overridden, why = supervised(folder, "{}", "--every", "1h")
    assert (saves, every, overridden) == ("1", "3600 s", "True")
    assert why == "`outlive run --every` sets it"
    saves, every, overridden, _ = supervised(folder, "{'every_s': 3600}", "--every", "0s")
    assert (saves, every, overridden) == ("20", "0 s", "True")
    _, every, _, why = supervised(folder, "{'every': '1h'}", "--every", "auto")
    assert every == "auto"
    assert "the prior" in why
    assert supervised(folder, "{'every': '1h'}", "--every", "continuous")[1] == "continuous"
    # Without the option, and for another job, the program's own counts.
    assert supervised(folder, "{'every': '1h'}")[1:3] == ["3600 s", "False"]
    assert supervised(folder, "{'every': '2h'}", "--every", "1h", job="b")[1:3] == [
        "7200 s",
        "False",
    ]
    shown = command("history", folder, "job")
    for text in ("EVERY", "60.0 min", "auto, ", "continuous, ", "the last interval: "):
        assert text in shown, shown
    found = json.loads(command("--json", "history", folder, "job"))["attempts"]
    chosen = [(entry.get("interval") or {}).get("every") for entry in found]
    assert chosen == ["3600 s", "0 s", "auto", "continuous", "3600 s", None]
    assert found[0]["interval"]["is_overridden"]
    assert found[1]["restored_s"] >= 0
    assert "restored_s" not in found[0]


def test_a_supervisor_within_another_does_not_pass_its_interval_on(folder: Path) -> None:
    inner = [sys.executable, "-m", "outlive", "run", "--pool", folder, "--job", "inner", "--"]
    source = folder.with_name("program.py")
    source.write_text(textwrap.dedent(PROGRAM), "utf-8")
    program = [sys.executable, source, folder, "inner", "{'every': '2h'}"]
    outer = ["run", "--pool", folder, "--job", "outer", "--every", "1h", "--"]
    told = command(*outer, *inner, *program).splitlines()[0].split("|")
    assert told[1:3] == ["7200 s", "False"]


@pytest.mark.parametrize("every", ["", "30", "-1s", "often", "NaNs"])
def test_an_interval_that_is_none_is_refused_by_outlive_run(folder: Path, every: str) -> None:
    words = ["run", "--pool", folder, "--job", "job", f"--every={every}", "--", "true"]
    assert "is no interval" in command(*words, code=2)
    assert not folder.exists()
