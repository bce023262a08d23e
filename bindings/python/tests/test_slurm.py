"""`outlive run` in jobs of a real Slurm, by the script in examples: nothing saved is lost."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slurm
from commands import command
from slurm import Slurm, program_of_ranks, until

import outlive

SCRIPT = Path(__file__).parents[3] / "examples" / "slurm.sh"
SAVED, HELD, STEPS = 20, 25, 40
# In place of the signal before the end of the time limit: one that nothing takes.
SILENT = "--signal=B:CONT@1"

# It commits step 20, and stays at step 25 in its first run, until it is asked to stop. A program
# that only saves stays there until it is ended.
PROGRAM = f"""
import os, pathlib, sys, time
import numpy as np
import outlive

pool, how = pathlib.Path(sys.argv[1]), sys.argv[2]
trail = pool.parent / "trail"

def note(*words):
    with trail.open("a") as file:
        print(*words, file=file)

holds = not trail.exists()
job = outlive.open(pool).job(os.environ["OUTLIVE_RUN_JOB"], every_s=1e6)
state = {{"u": np.zeros(50_000), "rng": np.random.default_rng(7), "step": 0}}
job.restore(into=state)
note("start", state["step"])
while state["step"] < {STEPS}:
    if how == "asks" and job.should_stop:
        job.save(state)
        note("stop", state["step"], job.stop_request.reason, job.stop_request.left_s)
        sys.exit(0)
    state["u"] += state["rng"].standard_normal(50_000)
    state["step"] += 1
    job.save(state, force=state["step"] == {SAVED}, wait=state["step"] == {SAVED})
    if holds and state["step"] == {HELD}:
        note("held")
        while how == "saves" or not job.stop_request:
            if how == "saves":
                job.save(state)
            time.sleep(0.01)
job.save(state, force=True).wait()
note("done", state["step"])
"""


@dataclass
class Work:
    """A program in jobs of Slurm, with a pool of its own."""

    cluster: Slurm
    folder: Path

    def submit(
        self,
        *options: str,
        before: tuple[str, ...] = (),
        how: str = "asks",
        program: Path | None = None,
        script: Path = SCRIPT,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Submits the script of the examples; returns the number of its job."""
        if program is None:
            program = self.folder / "program.py"
            program.write_text(PROGRAM, "utf-8")
        own = ["--parsable", f"--chdir={self.folder}", "--output=out", "--job-name=work"]
        given = {"POOL": self.folder / "pool", "OUTLIVE_HELPER": self.folder}
        words = [*before, sys.executable, program, self.folder / "pool", how]
        return self.cluster.command(
            "sbatch", *own, *options, script, *words, **given, **(variables or {})
        )

    def trail(self) -> list[str]:
        """Returns what the program has noted."""
        file = self.folder / "trail"
        return file.read_text("utf-8").splitlines() if file.exists() else []

    def until_held(self) -> None:
        """Waits until the first run stays at its step, or was asked to stop before."""
        until(lambda: any(line.startswith(("held", "stop")) for line in self.trail()))

    def finishes(self, job: str, *steps: int) -> None:
        """Checks that a job comes to the end, and that its runs began at these steps."""
        assert self.cluster.until_over(job) == "COMPLETED", (self.folder / "out").read_text("utf-8")
        starts = [line.split()[1] for line in self.trail() if line.startswith("start")]
        assert starts == list(map(str, steps))
        assert self.trail()[-1] == f"done {STEPS}"
        rng, u = np.random.default_rng(7), np.zeros(50_000)
        for _ in range(STEPS):
            u += rng.standard_normal(50_000)
        tree = outlive.open(self.folder / "pool").job("work").restore()
        assert tree["step"] == STEPS
        assert tree["u"].tobytes() == u.tobytes(), "an undisturbed run gives another result"

    def history(self) -> list[dict[str, Any]]:
        """Returns the attempts of the supervisors."""
        said = command("--json", "history", self.folder / "pool", "work")
        attempts: list[dict[str, Any]] = json.loads(said)["attempts"]
        return attempts

    def stopped(self) -> tuple[int, str, float | None]:
        """Returns where the program was asked to stop: step, reason and seconds that were left."""
        (line,) = [line for line in self.trail() if line.startswith("stop")]
        _, step, reason, left = line.split()
        return int(step), reason, None if left == "None" else float(left)


Jobs = Callable[[str], tuple[Work, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm.cluster() as found:
        yield found


@pytest.fixture(scope="module", autouse=True)
def begun(cluster: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """Jobs in their first run, each for one test. They begin side by side, since that saves time.

    Slurm looks only twice a minute for jobs whose time ends: those are for the last tests.
    """
    srun, limit = ("srun",), ("--nodelist=node1", "--time=10")
    jobs = {}

    def begin(name: str, *options: str, before: tuple[str, ...] = (), **more: Any) -> None:
        work = Work(cluster, tmp_path_factory.mktemp(name))
        jobs[name] = (work, work.submit(*options, before=before, **more))

    begin("script", *limit, "--signal=B:USR1@600", before=srun)
    # An option of the command line only adds to what the script says here.
    script = tmp_path_factory.mktemp("script") / "slurm.sh"
    script.write_text(SCRIPT.read_text("utf-8").replace("B:USR1", "USR1"), "utf-8")
    begin("tasks", *limit, "--signal=USR1@600", before=srun, script=script)
    begin("limit", *limit, SILENT, before=srun)
    begin("saves", "--nodelist=node1", how="saves")
    begin("direct", "--nodelist=node1")
    begin("srun", "--nodelist=node1", before=srun)
    begin("requeued", "--nodelist=node1")
    begin("preempted", "--nodelist=node2", before=srun)
    begin("lost", "--nodelist=node3", before=srun)
    for work, _ in jobs.values():
        work.until_held()
    cluster.command("scontrol", "update", f"JobId={jobs['limit'][1]}", "EndTime=now")
    cluster.command("scontrol", "requeue", jobs["saves"][1])
    return jobs.__getitem__


@pytest.mark.parametrize("before", ["direct", "srun"])
def test_a_cancelled_job_saves_and_does_not_come_back(begun: Jobs, before: str) -> None:
    """Slurm sends SIGTERM to all processes at once: script, supervisor, srun and program."""
    work, job = begun(before)
    work.cluster.command("scancel", job)
    assert work.cluster.until_over(job) == "CANCELLED"
    assert work.cluster.job(job)["Restarts"] == "0"
    assert work.stopped()[:2] == (HELD, "SIGTERM")
    assert "has saved as checkpoint" in (work.folder / "out").read_text("utf-8")
    # Another job goes on from there.
    work.finishes(work.submit(), 0, HELD)


def test_a_requeued_job_goes_on_where_it_was(begun: Jobs) -> None:
    work, job = begun("requeued")
    work.cluster.command("scontrol", "requeue", job)
    work.cluster.start_again(job)
    work.finishes(job, 0, HELD)
    assert work.cluster.job(job)["Restarts"] == "1"
    assert work.stopped()[:2] == (HELD, "SIGTERM")


def test_a_preempted_job_goes_on_where_it_was(begun: Jobs) -> None:
    work, job = begun("preempted")
    urgent = ["--partition=urgent", "--exclusive", "--nodelist=node2", "--output=/dev/null"]
    other = work.cluster.command("sbatch", "--parsable", *urgent, "--wrap=true")
    assert work.cluster.until_over(other) == "COMPLETED"
    work.cluster.start_again(job)
    work.finishes(job, 0, HELD)
    assert work.stopped()[:2] == (HELD, "SIGTERM")


def test_the_end_of_the_job_is_the_deadline(cluster: Slurm, tmp_path: Path) -> None:
    """Slurm 22.05 knows the end, but sets no variable; 23.02 sets one, which may be outdated."""
    soon = {"SLURM_JOB_END_TIME": int(time.time()) + 60}
    short, past = ["--time=1", SILENT], {"SLURM_JOB_END_TIME": 1000}
    cases = [(short, {}), ([], soon), (short, past)]
    works = [Work(cluster, tmp_path / str(number)) for number in range(len(cases))]
    jobs = []
    for work, (options, variables) in zip(works, cases, strict=True):
        work.folder.mkdir()
        jobs.append(work.submit("--nodelist=node2", *options, variables=variables))
    for work, job in zip(works, jobs, strict=True):
        work.until_held()
        cluster.command("scancel", "--batch", "--signal=USR1", job)
    for work, job in zip(works, jobs, strict=True):
        cluster.until_requeued(job)
        cluster.command("scancel", job)
        step, reason, left_s = work.stopped()
        assert (step, reason) == (HELD, "SIGUSR1")
        assert left_s is not None
        assert left_s <= 60, "the script gives 110 s"


# Each rank has a part of an array. In the first task of the job array, one rank fails once. Ranks
# stay at a step until they are asked, or may go on.
RANKS = """
task = os.environ["SLURM_ARRAY_TASK_ID"]
trail = pathlib.Path(sys.argv[1]).parent / f"trail{task}"

def note(*words):
    with trail.open("a") as file:
        print(rank, *words, file=file)

part = outlive.sharded(np.zeros(50_000), (100_000,), (rank * 50_000,))
state = {"part": part, "step": 0}
job.restore(into=state)
note("start", state["step"])
fails, holds = task == "1" and state["step"] == 0, state["step"] < 30
while state["step"] < 40 and not job.should_stop:
    part.array += rank + state["step"]
    state["step"] += 1
    job.save(state, force=state["step"] == 20, wait=state["step"] == 20)
    if fails and state["step"] == 25 and rank == 1:
        os.kill(os.getpid(), 9)
    if holds and not fails and state["step"] == 30:
        note("held")
        while not job.stop_request and not trail.with_name("go").exists():
            time.sleep(0.01)
job.save(state, force=state["step"] == 40)
job.close()
note("end", state["step"])
"""


def test_a_job_whose_node_is_lost_goes_on_from_its_last_checkpoint(begun: Jobs) -> None:
    work, job = begun("lost")
    work.cluster.lose_node("node3")
    work.cluster.start_again(job)
    work.finishes(job, 0, SAVED)
    causes = [entry["cause"] for entry in work.history()]
    assert causes == ["its supervisor was killed", "finished"]


def test_ranks_of_an_array(cluster: Slurm, tmp_path: Path) -> None:
    """A rank fails, and all are started again. Then one task of the array is stopped alone."""
    work = Work(cluster, tmp_path)
    program = work.folder / "ranks.py"
    given = {
        '"/shared/ckpt"': "sys.argv[1]",
        '"heat"': 'os.environ["OUTLIVE_RUN_JOB"]',
        "every_s=60": "every_s=1e6",
    }
    program.write_text(program_of_ranks(given, RANKS), "utf-8")
    options = ["--nodelist=node2", "--array=1-2", "--ntasks=2"]
    array = work.submit(*options, before=("srun", "--kill-on-bad-exit"), program=program)

    def trail(task: int) -> list[str]:
        file = work.folder / f"trail{task}"
        return sorted(file.read_text("utf-8").splitlines()) if file.exists() else []

    def of_both(*texts: str) -> list[str]:
        return sorted(f"{rank} {text}" for rank in (0, 1) for text in texts)

    held = {1: ["start 0", "start 20", "held"], 2: ["start 0", "held"]}
    until(lambda: all(trail(task) == of_both(*texts) for task, texts in held.items()))
    # One task has the number of the whole array; it alone must be requeued.
    numbers = {work.cluster.job(f"{array}_{task}")["JobId"]: task for task in (1, 2)}
    one, other = numbers[array], 3 - numbers[array]
    work.cluster.command("scancel", "--batch", "--signal=USR1", f"{array}_{one}")
    work.cluster.start_again(f"{array}_{one}")
    assert work.cluster.job(f"{array}_{other}")["Restarts"] == "0"
    assert trail(other) == of_both(*held[other])
    (work.folder / "go").touch()
    for task in (1, 2):
        assert work.cluster.until_over(f"{array}_{task}") == "COMPLETED"
        tree = outlive.open(work.folder / "pool").job(f"work_{task}").restore()
        assert tree["step"] == 40
        whole = np.repeat([float(sum(range(40))), 40.0 + sum(range(40))], 50_000)
        assert tree["part"].tobytes() == whole.tobytes()
    assert trail(one) == of_both(*held[one], "end 30", "start 30", "end 40")
    assert trail(other) == of_both(*held[other], "end 40")


def test_the_end_of_the_time_is_announced_to_the_script(begun: Jobs) -> None:
    work, job = begun("script")
    work.cluster.start_again(job)
    step, reason, _ = work.stopped()
    assert (step <= HELD, reason) == (True, "SIGUSR1")
    work.finishes(job, 0, step)


def test_the_end_of_the_time_is_announced_to_the_tasks_alone(begun: Jobs) -> None:
    """Without `B:` neither script nor supervisor get the signal, and the program ends with 0."""
    work, job = begun("tasks")
    work.cluster.start_again(job)
    step, reason, left_s = work.stopped()
    assert (step <= HELD, reason, left_s) == (True, "SIGUSR1", None)
    work.finishes(job, 0, step)


def test_a_job_whose_time_is_over_saves(begun: Jobs) -> None:
    """Then Slurm sends two SIGTERMs to the tasks of a step, within some milliseconds."""
    work, job = begun("limit")
    assert work.cluster.until_over(job) == "TIMEOUT"
    assert work.stopped()[:2] == (HELD, "SIGTERM")
    work.finishes(work.submit("--nodelist=node2"), 0, HELD)


def test_a_program_that_never_asks_is_saved_by_its_next_save(begun: Jobs) -> None:
    work, job = begun("saves")
    work.cluster.start_again(job)
    work.finishes(job, 0, HELD)
