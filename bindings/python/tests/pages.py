"""Runs pages of `docs` from top to bottom, as a reader does: their Python and their commands.

- A block of Python goes on where the one before it ended. One below a line that ends in "`NAME`:"
  is a file of that name, which commands run.
- A block of text below a block of Python is what that prints.
- A block for a console has commands after `$ `, each with what it prints, if the page shows that. A
  comment such as `# exit code 3` names another end than 0.
- `…` stands for any text of a line, and for any lines where it has a line of its own.
- `<!-- not run: REASON -->` above a block says why it is left out, and `<!-- needs PyTorch -->` or
  `<!-- needs JAX -->` that only tests/frameworks runs it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [
    "install.md",
    "tutorial.md",
    "coming-from.md",
    "guides/batch.md",
    "guides/notebooks.md",
    "guides/numpy.md",
    "guides/pandas.md",
    "pool-toml.md",
    "versioning.md",
]
# Pages that tests/frameworks runs, with PyTorch and JAX.
FRAMEWORK_PAGES = ["coming-from.md", "guides/batch.md", "guides/jax.md"]

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"`([\w.-]+)`:\Z")
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\Z")
NEEDS = re.compile(r"<!-- needs (PyTorch|JAX) -->\Z")
EXIT_CODE = re.compile(r"# exit code (\d+)\b")


class Block(NamedTuple):
    """A block of code in a page."""

    kind: str
    text: str
    # Name of the file that it is, if it is one.
    file: str | None
    # Why it is not run, if it is not.
    reason: str | None
    # The framework that it needs, if it needs one.
    needs: str | None


def blocks_of(page: str) -> list[Block]:
    """Returns the blocks of a page in their order."""
    text = (DOCS / page).read_text("utf-8")
    found = []
    for block in BLOCK.finditer(text):
        before = text[: block.start()].rstrip()
        reason, needs = NOT_RUN.search(before), NEEDS.search(before)
        file = FILE.search(NEEDS.sub("", before).rstrip())
        notes = [note and note[1] for note in (file, reason, needs)]
        found.append(Block(block[1], block[2], *notes))
    return found


def programs_of(page: str) -> dict[str, str]:
    """Returns the Python of a page by names of modules: its blocks as one, and its files."""
    name = re.sub(r"\W", "_", page.removesuffix(".md"))
    python = [block for block in blocks_of(page) if block.kind == "python"]
    found = {f"{name}_{block.file[:-3]}": block.text for block in python if block.file}
    found[name] = "\n".join(block.text for block in python if not block.file)
    return {name: text for name, text in found.items() if text}


# Packages without types in .venv, or that are not there.
UNTYPED = "fsspec|jax|optax|orbax|pandas|ray|torch"


def write_programs(folder: Path) -> list[Path]:
    """Writes the Python of all pages to files, for a type checker."""
    files = []
    for page in sorted({*PAGES, *FRAMEWORK_PAGES}):
        for name, text in programs_of(page).items():
            files.append(folder / f"{name}.py")
            files[-1].write_text(text, "utf-8")
    return files


def write_stubs(programs: list[Path]) -> None:
    """Writes stubs beside programs, for the untyped packages that they import."""
    for program in programs:
        text = program.read_text("utf-8")
        for module in re.findall(rf"^(?:import|from) ((?:{UNTYPED})\b[\w.]*)", text, re.M):
            stub = program.parent
            for part in module.split("."):
                stub /= part
                stub.mkdir(exist_ok=True)
                (stub / "__init__.pyi").write_text(
                    "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"
                )


def matches(shown: str, printed: str) -> bool:
    """Returns whether a text is one that a page shows; blanks at the ends of lines do not count."""
    printed = re.sub(r" +$", "", printed, flags=re.M)
    pattern = "".join(
        "(?:.*\n)*?" if line.strip() == "…" else re.escape(line).replace("…", ".*") + "\n"
        for line in shown.splitlines()
    )
    return re.fullmatch(pattern, printed) is not None


def commands_of(text: str) -> list[tuple[str, str]]:
    """Returns the commands of a console, each with what the page shows behind it."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            command, shown = found.pop()
            found.append((command, f"{shown}{line}\n"))
    return found


class Reader:
    """Follows one page in a folder."""

    def __init__(self, page: str, folder: Path, *, frameworks: bool = False) -> None:
        """Starts with nothing; `folder` is the working directory, and `frameworks` are there."""
        self._page, self._folder, self._frameworks = page, folder, frameworks
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._printed = ""
        tools = folder.parent / "tools"
        tools.mkdir()
        # The environment's folder may have another `outlive`, so it is last.
        python = tools / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', "utf-8")
        python.chmod(0o755)
        path = [str(tools), os.environ["PATH"], str(Path(sys.executable).parent)]
        self._environment = {**os.environ, "PATH": os.pathsep.join(path)}

    def read(self) -> None:
        """Runs all blocks; a difference fails."""
        for block in blocks_of(self._page):
            if block.reason or (block.needs and not self._frameworks):
                continue
            if block.file:
                (self._folder / block.file).write_text(block.text, "utf-8")
                continue
            match block.kind:
                case "python":
                    self._python(block.text)
                case "console":
                    self._console(block.text)
                case "text":
                    assert matches(block.text, self._printed), (block.text, self._printed)
                case kind:
                    raise AssertionError(f"{self._page}: say why a block of {kind!r} is not run")

    def _python(self, text: str) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, self._page, "exec"), self._names)
        self._printed = printed.getvalue()

    def _console(self, text: str) -> None:
        for command, shown in commands_of(text):
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            code = EXIT_CODE.search(command)
            ended = done.returncode if done.returncode >= 0 else 128 - done.returncode
            assert ended == int(code[1] if code else 0), (command, ended, done.stdout)
            if shown:
                assert matches(shown, done.stdout), (command, shown, done.stdout)
