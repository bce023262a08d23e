"""Measures the programs that back up files: put, put again, put after changes, get."""

import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from peers import durable, machine, trees
from peers.backups import BACKUPS, Backup
from peers.backups.base import Command
from peers.measure import Result, say

_LAUNCH = Path(__file__).with_name("launch.py")


class ProgramError(Exception):
    """A program failed; the text is its output."""


@dataclass(frozen=True)
class FilePlan:
    """A plan of measurements.

    Attributes:
        only: Names of the programs.
        folder: A directory of the bench's own.
        wheels: Directory with releases of a package.
        large_bytes: Bytes of the largest file.
        small: Whether a small tree is enough.
        rounds: Number of repetitions of each timed part.
    """

    only: tuple[str, ...]
    folder: Path
    wheels: Path
    large_bytes: int
    small: bool
    rounds: int

    def backups(self) -> list[type[Backup]]:
        """Returns the programs that are wanted and installed."""
        return [one for name, one in BACKUPS.items() if name in self.only and one.version()]


def files(plan: FilePlan) -> Result:
    """Measures every program in turn, round by round, each with a new tree and a new repository."""
    rows: list[Result] = []
    sizes: Result = {}
    with machine.others() as load:
        for number in range(plan.rounds):
            backups = plan.backups()
            random.Random(number).shuffle(backups)
            for backup in backups:
                say(f"round {number + 1} of {plan.rounds}: files: {backup.name}")
                folder = durable.empty(plan.folder / "files")
                row: Result = {"program": backup.name, "round": number}
                try:
                    row |= _round(plan, backup(folder), folder, sizes)
                except (ProgramError, OSError) as error:
                    row["error"] = str(error)[:2000]
                    say(row["error"])
                rows.append(row)
                shutil.rmtree(folder)
    return {"rows": rows, "tree": sizes, **load}


def _round(plan: FilePlan, backup: Backup, folder: Path, sizes: Result) -> Result:
    tree = folder / "tree"
    releases = trees.wheels(plan.wheels)
    trees.build(tree, releases, plan.large_bytes, small=plan.small)
    sizes["files"], sizes["bytes"] = trees.measure(tree)
    sizes["upgrade"] = [wheel.name.split("-")[1] for wheel in releases]
    found: Result = {}
    begin = backup.init()
    if begin is not None:
        _run(backup, begin, folder)
    for name in ("first", "again", "changed"):
        if name == "changed":
            trees.change(tree, releases)
            # A program may distrust files that have just changed.
            time.sleep(1.1)
        os.sync()
        found[name] = _run(backup, backup.put("tree"), folder)
        found[name]["repository_bytes"] = durable.size_bytes(backup.repository)
    target = folder / "restored"
    target.mkdir()
    os.sync()
    durable.make_cold(backup.repository)
    found["get"] = _run(backup, backup.get(target), folder)
    restored = trees.find(target, "tree")
    found["right"] = restored is not None and trees.same(tree, restored)
    return found


def _run(backup: Backup, command: Command, folder: Path) -> Result:
    """Times one command until it has ended and all that it wrote is durable."""
    log, used = folder / "program.log", folder / "program.used"
    with log.open("wb") as output:
        launched = subprocess.run(
            [sys.executable, "-IS", str(_LAUNCH), str(used), *command],
            cwd=folder,
            env=backup.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    # The same for all programs, including those that sync.
    began = time.perf_counter()
    subprocess.run(["sync", "--file-system", str(folder)], check=True)
    sync_s = time.perf_counter() - began
    if launched.returncode != 0:
        text = log.read_text(errors="replace")[-1500:]
        raise ProgramError(f"{backup.name}: {' '.join(command)}: {text}")
    took_s, cpu_s, memory_bytes = (float(word) for word in used.read_text().split())
    return {"took_s": took_s + sync_s, "cpu_s": cpu_s, "memory_bytes": int(memory_bytes)}
