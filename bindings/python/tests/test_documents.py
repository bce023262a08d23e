"""The Python code in the documents is checked by `mypy --strict`; most of it runs here, too."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pages import FRAMEWORK_PAGES, PAGES, write_programs, write_stubs

import outlive

ROOT = Path(__file__).parents[3]

# Definitions that each block needs, by the document and the block's first line.
TYPES = """
from typing import Any
import outlive
def advance(state: dict[str, Any]) -> None: ...
pool: outlive.Pool
job: outlive.Job
state: dict[str, Any]
"""
GIVEN = {
    ("README.md", "from typing import Any"): "",
    ("docs/capture.md", "report = job.restore(into=state, lazy=True)"): TYPES,
    (
        "docs/frameworks.md",
        'saver = outlive.lightning.Callback("ckpt", "training", every_s=60)',
    ): "from typing import Any\nimport outlive.lightning\nlightning: Any\nmodel: Any\ndata: Any",
    ("docs/frameworks.md", 'files = outlive.lightning.CheckpointIO("ckpt", "training")'): (
        "from typing import Any\nimport outlive.lightning\nlightning: Any\nmodel: Any\ndata: Any\n"
        "ModelCheckpoint: Any"
    ),
    (
        "docs/frameworks.md",
        'saver = outlive.huggingface.Callback("ckpt", "training", every_s=60)',
    ): (
        "from typing import Any\nimport outlive.huggingface\nTrainer: Any\nmodel: Any\ndata: Any\n"
        "args: Any"
    ),
    (
        "docs/frameworks.md",
        'run = outlive.accelerate.capture(accelerator, "ckpt", "training", progress=progress)',
    ): (
        "from typing import Any\nimport outlive.accelerate\naccelerator: Any\nmodel: Any\n"
        "optimizer: Any\nprogress: dict[str, int]\ntrain: Any"
    ),
    ("docs/frameworks.md", 'with outlive.orbax.context("ckpt", "training", keep_last=4):'): (
        "from typing import Any\nimport outlive.orbax\nocp: Any\nstate: Any\nstep: int"
    ),
    ("docs/frameworks.md", 'saver = outlive.keras.Callback("ckpt", "training", every_s=60)'): (
        "from typing import Any\nimport outlive.keras\nmodel: Any\nx: Any\ny: Any"
    ),
    ("docs/frameworks.md", "ray.train.report("): (
        "import outlive.ray\nimport ray.train\n"
        "from ray.train import Checkpoint, CheckpointUploadMode\nloss: float"
    ),
    ("docs/fsspec.md", "import fsspec"): "",
    ("docs/fsspec.md", "with fs.transaction:"): "from typing import Any\nfs: Any\nmodel: bytes",
    ("docs/gate.md", 'job = pool.job("train", every_s=60)'): (
        f"{TYPES}\nimport json\ndef train(state: dict[str, Any]) -> None: ..."
    ),
    ("docs/gate.md", 'writer = gate.summary_writer("runs/a")'): f"{TYPES}\ngate: outlive.Gate",
    ("docs/gate.md", 'database = gate.transaction(lambda: sqlite3.connect("results.db"))'): (
        f"{TYPES}\nimport sqlite3\ngate: outlive.Gate"
    ),
    ("docs/groups.md", "from typing import Any"): "def advance(cells: object) -> None: ...",
    ("docs/groups.md", 'job = outlive.open("ckpt").job("heat")  # no group'): (
        "import numpy as np\nimport outlive"
    ),
    ("docs/groups.md", "import numpy as np"): "",
    ("docs/groups.md", "import os"): "",
    ("docs/python.md", "save = job.save(state, force=True)  # now, whatever every_s says"): TYPES,
    ("docs/python.md", 'job.save(state, tags=["warmup"])'): TYPES,
    ("docs/python.md", "with job.autosave(state) as autosave:"): TYPES,
    ("docs/python.md", "# The state changes only inside of `autosave.step()`."): (
        f"{TYPES}\nbatches: list[int]\ndef train(state: dict[str, Any], batch: int) -> None: ..."
    ),
    ("docs/python.md", "async def checkpoint(state: dict[str, Any]) -> None:"): TYPES,
    (
        "docs/python.md",
        "outlive.on_preempt(job, grace_s=30)  # SIGTERM, SIGUSR1, SIGUSR2",
    ): TYPES,
    (
        "docs/python.md",
        'job = pool.job("simulation", every_s=600, on_failure="warn", fail_after="2h")',
    ): TYPES,
    ("docs/python.md", "from collections import deque"): TYPES,
    (
        "docs/python.md",
        'state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}',
    ): f"{TYPES}\nmodel: Any\noptimizer: Any",
    (
        "docs/python.md",
        "tree = job.restore()  # tensors are tensors again",
    ): f"{TYPES}\nmodel: Any\noptimizer: Any",
    ("docs/python.md", "report = job.restore("): TYPES,
    ("docs/python.md", "report = job.restore(into=state, lazy=True)"): TYPES,
    ("docs/python.md", 'state["rng"] = outlive.rng()'): TYPES,
    ("docs/pytorch.md", "import outlive.torch"): (
        f"{TYPES}\nmodel: Any\noptimizer: Any\nscheduler: Any\nprogress: dict[str, int]\n"
        "def train(model: Any, optimizer: Any, scheduler: Any) -> None: ..."
    ),
    ("docs/pytorch.md", "import torch.distributed"): (
        f"{TYPES}\nimport outlive.torch\nrun: outlive.torch.Capture"
    ),
    ("docs/pytorch.md", "import torch.distributed.checkpoint as dcp"): (
        f"{TYPES}\nimport outlive.torch\nstate_dict: dict[str, Any]"
    ),
    ("docs/running.md", 'job = pool.job("train", every_s=60)'): (
        f"{TYPES}\ndef train(state: dict[str, Any]) -> None: ..."
    ),
    ("docs/states.md", "plain = job.restore(as_plain=True)"): TYPES,
    ("docs/states.md", "import numpy as np"): TYPES,
    (
        "docs/web.md",
        'server = outlive.serve_metrics(9099, pool="ckpt")  # in a thread of its own',
    ): "import outlive",
}


def blocks() -> dict[tuple[str, str], str]:
    """Returns the blocks of the documents, without the pages that test_pages.py runs whole."""
    found = {}
    pages = {ROOT / "docs" / page for page in [*PAGES, *FRAMEWORK_PAGES]}
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if document in pages:
            continue
        for block in re.findall(r"^```python\n(.*?)^```", document.read_text(), re.M | re.S):
            found[str(document.relative_to(ROOT)), block.partition("\n")[0]] = block
    return found


def test_all_blocks_are_known() -> None:
    assert list(blocks()) == list(GIVEN)


def write_checked(folder: Path) -> list[Path]:
    """Writes all Python of the documents to files, for a type checker."""
    files = write_programs(folder)
    for number, (key, block) in enumerate(blocks().items()):
        # Pyright wants values: `eval` may return anything.
        given = re.sub(r"^(\w+: [^=\n]+)$", r"\1 = eval('given')", GIVEN[key], flags=re.M)
        files.append(folder / f"block{number}.py")
        files[-1].write_text(f"{given}\n{block}")
    write_stubs(files)
    return files


# Without the cache of `make lint`, mypy reads NumPy's types first.
@pytest.mark.timeout(600)
def test_mypy_has_no_complaints(tmp_path: Path) -> None:
    # Only `make test-frameworks` has PyTorch, and runs these blocks.
    for package in ("torch", "torch/distributed", "torch/distributed/checkpoint"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.pyi").write_text(
            "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"
        )
    files = write_checked(tmp_path)
    options = ["--strict", "--config-file=", f"--cache-dir={ROOT / '.mypy_cache'}"]
    command = [sys.executable, "-m", "mypy", *options, *map(str, files)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run(document: str, first_line: str, **given: Any) -> dict[str, Any]:
    names = {"outlive": outlive, "Any": Any, **given}
    exec(compile(blocks()[document, first_line], document, "exec"), names)
    return names


def some(step: int) -> dict[str, Any]:
    return {"model": {"layer": {"weights": outlive.zeros(50_000)}}, "step": step}


def test_the_quick_start_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # It begins near its end, as after an earlier run that was killed.
    state = {"u": outlive.zeros((2048, 2048)) + 4_990.0, "step": 4_990}
    monkeypatch.chdir(tmp_path)
    with outlive.open("ckpt").job("count") as job:
        job.save(state, wait=True)
    names = run("README.md", "from typing import Any")
    assert names["job"].restore(only="step") == {"step": 5_000}
    assert capsys.readouterr().out == "starting at step 4990\ndone: 5000.0\n"


def test_the_calls_of_the_manual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "output").mkdir(parents=True)
    (tmp_path / "run" / "output" / "data").write_text("data")
    pool = outlive.open("ckpt")
    job = pool.job("gray-scott")
    for step in range(7):
        job.save(some(step), wait=True, metrics={"loss": 0.1})
    first_line = "save = job.save(state, force=True)  # now, whatever every_s says"
    run("docs/python.md", first_line, pool=pool, job=job, state=some(8))
    assert "SaveStats(epoch=8" in capsys.readouterr().out
    assert (tmp_path / "restored" / "data").read_text() == "data"


def test_autosave(folder: Path) -> None:
    job = outlive.open(folder).job("a", every_s=1e6)

    def advance(state: dict[str, Any]) -> None:
        state["step"] += 1

    state = some(0)
    first_line = "with job.autosave(state) as autosave:"
    run("docs/python.md", first_line, job=job, state=state, advance=advance)
    assert job.restore(only="step") == {"step": 1000}

    def train(state: dict[str, Any], batch: int) -> None:
        state["step"] += batch

    def batches() -> Iterator[int]:
        yield from [1, 2, 3]
        raise KeyboardInterrupt

    first_line = "# The state changes only inside of `autosave.step()`."
    with pytest.raises(KeyboardInterrupt):
        run("docs/python.md", first_line, job=job, state=state, batches=batches(), train=train)
    assert job.restore(only="step") == {"step": 1006}


def test_the_end_of_a_save(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = outlive.open(folder).job("a")
    first_line = "async def checkpoint(state: dict[str, Any]) -> None:"
    names = run("docs/python.md", first_line, job=job, state=some(1))
    asyncio.run(names["checkpoint"](some(2)))
    for thread in threading.enumerate():
        if thread.name == "outlive-callbacks":
            thread.join()
    told = capsys.readouterr().out
    assert "checkpoint SaveStats(epoch=1" in told
    assert "\nSaveStats(epoch=2" in told


def test_a_checkpoint_that_differs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = outlive.open(folder).job("a")
    job.save({"encoder.0": np.ones(3), "opt": {"lr": 0.1}, "old": 1}, wait=True)
    state = {"backbone.0": np.zeros(4), "optimizer": {"lr": 0.0}, "new": 2}
    run("docs/python.md", "report = job.restore(", job=job, state=state)
    assert state["backbone.0"].tolist() == [1, 1, 1, 0]  # type: ignore[attr-defined]
    assert state["optimizer"] == {"lr": 0.1}
    assert capsys.readouterr().out == "('new',)\n('old',)\n('backbone.0',)\n"


def test_outputs_wait_for_a_commit(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = outlive.open(folder).job("a")
    names = run("docs/python.md", "from collections import deque", job=job, state=some(0))
    outputs = [f"output {number}" for number in range(7)]
    for output in outputs[:5]:
        names["send_after_commit"](output)
    sent: list[str] = []
    while len(sent) < 5:
        names["send_committed"]()
        sent += capsys.readouterr().out.splitlines()
    assert sent == outputs[:5]
    # The pool is away: nothing leaves until a later checkpoint has the state.
    folder.rename(tmp_path / "away")
    with pytest.raises(outlive.Error):
        names["send_after_commit"](outputs[5])
    names["send_committed"]()
    assert capsys.readouterr().out == ""
    (tmp_path / "away").rename(folder)
    names["send_after_commit"](outputs[6])
    job.close()
    names["send_committed"]()
    assert capsys.readouterr().out.splitlines() == outputs[5:]


def test_a_look_at_ranks_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = np.arange(4096.0 * 4096).reshape(4096, 4096)
    with outlive.open("ckpt").job("heat", group=outlive.ranks(0, 1, run="run")) as job:
        job.save({"step": 7, "cells": outlive.sharded(cells, cells.shape, (0, 0))})
    names = run("docs/groups.md", 'job = outlive.open("ckpt").job("heat")  # no group', np=np)
    assert np.array_equal(names["state"]["cells"], cells)
    assert np.array_equal(names["whole"], cells)
    assert np.array_equal(names["cells"], cells[:100])


def test_a_lazy_restore(folder: Path) -> None:
    job = outlive.open(folder).job("a")
    state = {"mesh": outlive.zeros(100_000) + 1}
    job.save(state, wait=True)
    state = {"mesh": outlive.zeros(100_000)}
    run("docs/capture.md", "report = job.restore(into=state, lazy=True)", job=job, state=state)
    job.close()
    assert state["mesh"].all()


def test_an_array_is_written_after_a_lazy_restore(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = outlive.open(folder).job("a")
    job.save({"u": outlive.zeros(100_000) + 1}, wait=True)
    state = {"u": outlive.zeros(100_000)}
    monkeypatch.chdir(tmp_path)
    run("docs/python.md", "report = job.restore(into=state, lazy=True)", job=job, state=state)
    assert np.fromfile("u.raw").sum() == 100_000


def program_of(document: str, first: str, before: str, after: str = "") -> str:
    """Returns a program with a block, which a process of its own runs: it takes signals."""
    return f"{before}\n{blocks()[document, first]}\n{after}"


def test_a_save_at_a_signal(folder: Path) -> None:
    before = f"""
import os, signal, outlive
job = outlive.open({str(folder)!r}).job("a", every_s=1e6)
state = {{"step": 0}}
def advance(state):
    state["step"] += 1
    if state["step"] == 3:
        os.kill(os.getpid(), signal.SIGUSR1)
"""
    first = "outlive.on_preempt(job, grace_s=30)  # SIGTERM, SIGUSR1, SIGUSR2"
    code = program_of("docs/python.md", first, before, "os._exit(0)  # completes nothing")
    subprocess.run([sys.executable, "-c", code], check=True)
    assert outlive.open(folder).job("a").restore() == {"step": 3}


class Config(NamedTuple):
    rate: float


def test_objects_in_states(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = outlive.open(folder).job("a")
    job.save({"config": Config(0.5)}, wait=True)
    run("docs/states.md", "plain = job.restore(as_plain=True)", job=job)
    assert capsys.readouterr().out == "0.5\n"
    names = run("docs/states.md", "import numpy as np", job=job)
    assert names["mesh"].name == "coarse"
    assert names["mesh"].points.shape == (3, 100_000)


def test_a_training_loop_under_a_supervisor(folder: Path) -> None:
    before = f"""
import os, outlive
pool = outlive.open({str(folder)!r})
state = {{"step": 0}}
def train(state):
    state["step"] += 1
    if state["step"] == 3:
        os.kill(os.getppid(), 15)
"""
    code = program_of("docs/running.md", 'job = pool.job("train", every_s=60)', before)
    words = [sys.executable, "-m", "outlive", "run", "--pool", str(folder), "--job", "train"]
    done = subprocess.run([*words, "--", sys.executable, "-c", code], check=False)
    assert done.returncode == 76
    restored = outlive.open(folder).job("train").restore()
    assert restored["step"] >= 3
