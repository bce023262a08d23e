"""The example with mpi4py, under the `mpirun` of each installed MPI."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples/heat_mpi4py.py"


@pytest.fixture(params=["openmpi", "mpich"])
def mpi(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """Returns the command that starts ranks, and the environment for it."""
    command = shutil.which(f"mpirun.{request.param}")
    if command is None:
        assert "CI" not in os.environ, f"CI needs mpirun.{request.param}"
        pytest.skip(f"this machine has no mpirun.{request.param}")
    environment = dict(os.environ)
    if request.param == "openmpi":
        environment |= {
            "MPI4PY_MPIABI": "openmpi",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
        }
    else:
        # mpi4py's wheel asks for MPICH's own name of the library that Debian calls libmpich.
        found = next(Path("/usr/lib").glob("*/libmpich.so.12"))
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib/libmpi.so.12").symlink_to(found)
        environment |= {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(tmp_path / "lib")}
    return command, environment


def run(mpi: tuple[str, dict[str, str]], ranks: int, *arguments: object) -> str:
    """Returns the output of the ranks."""
    command, environment = mpi
    words = [command, "-n", str(ranks), sys.executable, str(EXAMPLE), *map(str, arguments)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_goes_on_with_other_ranks(
    mpi: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    size = ["--rows", 240, "--columns", 300]
    whole = run(mpi, 1, tmp_path / "whole", *size, "--steps", 60).splitlines()[-1]
    assert whole.startswith("step 60: ")
    first = run(mpi, 3, tmp_path / "parts", *size, "--steps", 25, "--every-s", 0)
    assert "3 ranks begin at step 0" in first
    then = run(mpi, 2, tmp_path / "parts", *size, "--steps", 60, "--every-s", 0)
    assert "2 ranks begin at step 25" in then
    assert then.splitlines()[-1] == whole


PRINTING = """
import os, pathlib, random, signal, sys
import numpy as np
from mpi4py import MPI
import outlive

folder, ranks = pathlib.Path(sys.argv[1]), MPI.COMM_WORLD
job = outlive.open(folder / "pool").job("job", group=ranks)
state = {"u": np.zeros(100), "step": 0}
job.restore(into=state)
kills = folder / "kills"
while state["step"] < 25:
    state["step"] += 1
    print("rank", ranks.rank, "step", state["step"])
    print("error", ranks.rank, state["step"], file=sys.stderr)
    # What a rank has printed and no save covers is repeated.
    if ranks.rank == state["step"] % ranks.size and state["step"] % 11 == 9:
        try:
            (kills / str(state["step"])).touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    job.save(state)
job.close()
print("rank", ranks.rank, "ends")
"""


def test_under_outlive_run_the_lines_of_each_rank_appear_once(
    mpi: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    command, environment = mpi
    program = tmp_path / "program.py"
    program.write_text(PRINTING, "utf-8")
    (tmp_path / "kills").mkdir()
    words = [sys.executable, "-m", "outlive", "run", "--pool", str(tmp_path / "pool")]
    words += ["--job", "job", "--gate", "--", command, "-n", "3"]
    words += [sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len([*(tmp_path / "kills").iterdir()]) == 2
    for rank in range(3):
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"rank {rank} ")]
        want = [f"rank {rank} step {step}" for step in range(1, 26)]
        assert lines == [*want, f"rank {rank} ends"], done.stderr
        errors = [line for line in done.stderr.splitlines() if line.startswith(f"error {rank} ")]
        assert errors == [f"error {rank} {step}" for step in range(1, 26)]
