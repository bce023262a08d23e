"""The protocol of each backup program's adapter."""

import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

Command = list[str]
_ROOT = Path(__file__).parents[3]


class Backup(ABC):
    """A program that puts a tree of files into a repository and gets it back.

    Attributes:
        name: Name on the command line.
        title: Name in tables.
        program: Its executable.
        version_arguments: Arguments that print its version.
        needs: Another subcommand that the program must have.
        note: A note for readers on how it was used.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    program: ClassVar[str]
    version_arguments: ClassVar[tuple[str, ...]] = ("--version",)
    needs: ClassVar[str | None] = None
    note: ClassVar[str] = ""

    def __init__(self, folder: Path) -> None:
        """Uses a repository in `folder`, which also takes its caches and settings."""
        self.folder = folder
        self.repository = folder / "repository"
        self.puts = 0

    @classmethod
    def find(cls) -> str | None:
        """Returns its executable's path: as built here, beside the interpreter, or in `PATH`."""
        built = Path(os.environ.get("CARGO_TARGET_DIR", _ROOT / "target"), "release")
        places = [str(built), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        return shutil.which(cls.program, path=os.pathsep.join(places))

    @classmethod
    def version(cls) -> str | None:
        """Returns its version; None if it is not installed, or a needed part is missing."""
        found = cls.find()
        if found is None or (cls.needs and not _runs([found, cls.needs, "--help"])):
            return None
        done = subprocess.run(
            [found, *cls.version_arguments], capture_output=True, text=True, check=False
        )
        words = done.stdout.split("\n")[0].split()
        return next((word.lstrip("v") for word in words if word.lstrip("v")[:1].isdigit()), "?")

    def environment(self) -> dict[str, str]:
        """Returns variables for its commands."""
        homes = {"HOME": "home", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config"}
        return dict(os.environ) | {name: str(self.folder / path) for name, path in homes.items()}

    @abstractmethod
    def init(self) -> Command | None:
        """Returns the command that creates the repository; None if the first put does."""

    @abstractmethod
    def put(self, tree: str) -> Command:
        """Returns the command that puts the tree of that name in the current directory."""

    @abstractmethod
    def get(self, target: Path) -> Command:
        """Returns the command that gets the newest tree into `target`, an empty directory."""

    def run(self, *arguments: str | Path) -> Command:
        """Returns its command line."""
        return [self.find() or self.program, *map(str, arguments)]


def _runs(command: Command) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
