"""Shows that a program of four MPI ranks outlives the death of one of them, and of all.

    python examples/demo_mpi.py LIBRARY            (or: make demo)

`heat_mpi.c` is compiled and runs undisturbed from start to end: the reference. Then it runs again
and is killed twice: first one rank by SIGKILL, which ends the others too, then all. It restarts on
four ranks, and on three. At the end every bit must be as in the undisturbed run.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from demo import DemoError

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {
    **os.environ,
    # Open MPI: root may run it, and there are more ranks than cores, so they must not spin.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def build(library: Path, work: Path) -> Path:
    """Compiles the program against the library."""
    for name in ("liboutlive.so", "liboutlive.so.0"):
        (work / name).symlink_to(library.resolve())
    program = work / "heat_mpi"
    command = ["mpicc", "-std=c99", "-O2", f"-I{ROOT / 'bindings/c/include'}"]
    command += [str(ROOT / "examples/heat_mpi.c"), "-o", str(program)]
    command += [f"-L{work}", "-loutlive", f"-Wl,-rpath,{work.resolve()}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"`{' '.join(command)}` failed:\n  {done.stderr.strip()}")
    return program


def command(program: Path, ranks: int, *arguments: object) -> list[str]:
    """Returns the command that starts the ranks."""
    return ["mpirun", "-n", str(ranks), str(program), *map(str, arguments)]


def run(program: Path, ranks: int, *arguments: object) -> list[str]:
    """Runs the program to its end; returns its output, line by line."""
    words = command(program, ranks, *arguments)
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    if done.returncode != 0:
        raise DemoError(f"`{' '.join(words)}` failed:\n  {(done.stdout + done.stderr).strip()}")
    return done.stdout.splitlines()


def ranks_of(program: Path) -> list[int]:
    """Returns the processes of the program's ranks."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "exe").resolve() == program.resolve():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def records(pool: Path) -> int:
    """Returns the number of records in the job's log."""
    return len(list((pool / "log/heat").glob("*.record")))


def kill(program: Path, pool: Path, ranks: int, victims: int, steps: int) -> None:
    """Starts the ranks, waits for some checkpoints, and kills `victims` ranks."""
    before = records(pool)
    child = subprocess.Popen(
        command(program, ranks, pool, steps, 0.1),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
    )
    try:
        while records(pool) < before + 6:
            if child.poll() is not None:
                raise DemoError("the program ended too soon: give it more --steps")
            time.sleep(0.02)
        for process in ranks_of(program)[:victims]:
            os.kill(process, signal.SIGKILL)
        child.wait()
    finally:
        child.kill()
        while left := ranks_of(program):
            for process in left:
                os.kill(process, signal.SIGKILL)
            time.sleep(0.02)
    who = "one rank is" if victims == 1 else f"all {victims} ranks are"
    print(f"  {who} killed after {records(pool) - before - 1} more checkpoints", flush=True)


def begun(lines: list[str]) -> int:
    """Returns the step from which a run continued."""
    return int(lines[0].rpartition(" ")[2])


def demo(args: argparse.Namespace) -> None:
    """Runs the demo; raises `DemoError` if it does not end as it should."""
    work = args.dir / "mpi"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    program = build(args.library, work)
    print("Heat in a plate on four ranks of MPI, one checkpoint of all ranks")
    print(f"\n1. Undisturbed: {args.steps} steps, the reference", flush=True)
    reference = run(program, 4, work / "reference", args.steps, 1000)[-1]

    print("\n2. One rank is killed, then all; it goes on on four ranks, and on three", flush=True)
    pool = work / "pool"
    kill(program, pool, 4, 1, args.steps)
    kill(program, pool, 4, 4, args.steps)
    last = run(program, 3, pool, args.steps, 0.2)
    if begun(last) == 0:
        raise DemoError("the program started over: this is a bug in outlive")
    print(f"  three ranks go on from step {begun(last)}")

    print("\n3. Is the result the same, bit for bit?", flush=True)
    if last[-1] != reference:
        raise DemoError(f"it ended with {last[-1]!r}, undisturbed with {reference!r}")
    shutil.rmtree(work)
    print(f"  Yes: {reference}. One rank died, then all, and not one bit is different.")


def main() -> None:
    """Runs the demo from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("library", type=Path, help="liboutlive.so")
    parser.add_argument("--steps", type=int, default=4000, help="number of steps of the program")
    parser.add_argument(
        "--dir", type=Path, default=Path("demo-out"), help="directory for all files"
    )
    args = parser.parse_args()
    if shutil.which("mpicc") is None or shutil.which("mpirun") is None:
        print("This act needs MPI, which this machine lacks: apt-get install libopenmpi-dev")
        return
    try:
        demo(args)
    except DemoError as error:
        sys.exit(f"\nThe demo failed: {error}")
    except KeyboardInterrupt:
        shutil.rmtree(args.dir / "mpi", ignore_errors=True)
        sys.exit("\nStopped; its files have been removed.")


if __name__ == "__main__":
    main()
