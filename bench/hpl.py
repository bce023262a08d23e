"""HPL under a tracker: the program of Debian's package ``hpcc``, in its compiled form.

So the code that saves it must enter its process: a preloaded library
(``crates/capture/examples/preload``) does the work of a save while the program runs, but writes
nothing. One process computes on one thread.

Of the HPC Challenge only HPL matters here, which comes last, after minutes of other tests. A test
is skipped if it gets no memory. So the library's ``malloc`` refuses blocks from an eighth of HPL's
matrix up to just below all of it, also in runs without saves.
"""

import json
import math
import os
import re
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

HOW_TO_GET_IT = "HPL is measured by hpcc, which is not here: apt-get install hpcc"
# Freezes before those that count: the first copies everything, and trackers have to adapt.
WARM_UP_FREEZES = 6
# Columns that HPL factors at once.
BLOCK_COLUMNS = 64
# Longer than any realistic run.
PATIENCE_S = 1800

ROOT = Path(__file__).resolve().parent.parent

INPUT = """\
HPLinpack benchmark input file
outlive
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
{rows}       Ns
1            # of NBs
{columns}    NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
1            Ps
1            Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
##### This line (no. 32) is ignored (it serves as a separator). ######
0            Number of additional problem sizes for PTRANS
0            values of N
0            number of additional blocking sizes for PTRANS
0            values of NB
"""


def is_here() -> bool:
    """Whether there is an HPL to measure."""
    return shutil.which("hpcc") is not None


def build_library(*, release: bool = True) -> Path:
    """Builds the library that is preloaded, if necessary, and returns its path.

    It is built together with the command, or with all parts of the tests, so that cargo builds
    shared parts only once.
    """
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    packages = ["--release", "-p", "outlive-cli", "-p", "outlive-capture"]
    command = ["cargo", "build", "--quiet", "--example", "preload"]
    command += packages if release else ["--workspace"]
    subprocess.run(command, cwd=ROOT, check=True)
    return ROOT / target / ("release" if release else "debug") / "examples" / "libpreload.so"


def environment(library: Path, report: Path, **settings: object) -> dict[str, str]:
    """Returns the environment for a saved program; the library documents the settings."""
    names = {f"OUTLIVE_PRELOAD_{name.upper()}": str(value) for name, value in settings.items()}
    return {
        **os.environ,
        **names,
        "LD_PRELOAD": str(library),
        "OUTLIVE_PRELOAD_REPORT": str(report),
    }


def run(
    tracker: str | None, library: Path, folder: Path, mib: int, interval_ms: int
) -> dict[str, Any]:
    """Runs HPL once with a matrix of ``mib`` MiB, saved by ``tracker`` or not at all.

    ``step_s`` are the processor seconds of its thread from the matrix' allocation to its end,
    ``step_system_s`` those in the kernel. Figures of saves are medians of one save. ``result`` is
    the printed result of HPL. Raises SystemExit if HPL or an image is wrong.
    """
    rows = math.isqrt((mib << 20) // 8)
    matrix_bytes = rows * rows * 8
    (folder / "hpccinf.txt").write_text(INPUT.format(rows=rows, columns=BLOCK_COLUMNS))
    report, output = folder / "report.json", folder / "hpccoutf.txt"
    settings: dict[str, object] = {
        "refuse": f"{matrix_bytes // 8}-{matrix_bytes}",
        "from_bytes": matrix_bytes + 1,
        "interval_ms": interval_ms,
    }
    if tracker is not None:
        settings["tracker"] = tracker
    env = environment(library, report, **settings)
    # One process, possibly as root, without a daemon beside it; one thread with any BLAS.
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env |= {"OMPI_MCA_ess_singleton_isolated": "1"}
    env |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["hpcc"], cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S
    )
    name = f"HPL, {tracker or 'no saves'}"
    if done.returncode != 0:
        raise SystemExit(f"{name}: hpcc ended with {done.returncode}: {done.stderr[-2000:]}")
    told = json.loads(report.read_text())
    found = {
        "step_s": told["program_cpu_s"],
        "step_system_s": told["program_system_cpu_s"],
        "result": check_result(name, output.read_text(errors="replace")),
    }
    return found if tracker is None else found | figures(name, told)


def check_result(name: str, output: str) -> str:
    """Returns the result of HPL; raises SystemExit if HPL itself reports an error."""
    solved = re.search(r"\|\|Ax-b\|\|.*\.\.\. (\w+)", output)
    if solved is None or solved[1] != "PASSED":
        raise SystemExit(f"{name}: HPL's own check did not pass: {solved and solved[0]}")
    return " ".join(re.findall(r"^HPL_(?:R|A|X|B)norm\w+=.*$", output, re.MULTILINE))


def figures(name: str, told: dict[str, Any]) -> dict[str, Any]:
    """Returns medians of the library's figures; raises SystemExit if it found an image wrong."""
    if told["error"] is not None:
        raise SystemExit(f"{name}: {told['error']}")
    if told["wrong_pages"] > 0 or told["checked_pages"] == 0:
        wrong, checked = told["wrong_pages"], told["checked_pages"]
        raise SystemExit(f"{name}: {wrong} of {checked} pages are not what the images have")
    freezes = told["freezes"][WARM_UP_FREEZES:]
    if not freezes:
        raise SystemExit(f"{name}: it ended before it had been saved {WARM_UP_FREEZES} times")

    def median(*names: str) -> float:
        return float(statistics.median(sum(one[key] for key in names) for one in freezes))

    return {
        "stall_s": median("stop_s", "stall_s"),
        "stall_cpu_s": median("stall_cpu_s"),
        "save_cpu_s": median("stall_cpu_s", "drain_cpu_s"),
        "changed_bytes": median("changed_bytes"),
        "saves": len(told["freezes"]),
        "checked_pages": told["checked_pages"],
        "tracker": told["tracker"],
    }
