"""The backup programs, each used as its documentation begins."""

from pathlib import Path
from typing import ClassVar

from peers.backups.base import Backup, Command

PASSWORD = "bench"


class OutlivePut(Backup):
    """`outlive put` and `outlive get`."""

    name = "outlive"
    title = "**outlive**"
    program = "outlive"
    needs = "put"

    def init(self) -> Command:
        """Makes the pool."""
        return self.run("pool", "init", self.repository)

    def put(self, tree: str) -> Command:
        """Adds a version to the job."""
        return self.run("put", self.repository, "bench", tree)

    def get(self, target: Path) -> Command:
        """Gets the newest version; the content of the directory that was put, not the directory."""
        return self.run("get", self.repository, "bench", "--to", target / "tree")


class Restic(Backup):
    """restic, whose repository is encrypted and, in format 2, compressed."""

    name = "restic"
    title = "restic"
    program = "restic"
    version_arguments = ("version",)
    note = "encrypts; compresses (zstd)"

    def environment(self) -> dict[str, str]:
        """Its settings are variables."""
        where = {"RESTIC_REPOSITORY": str(self.repository), "RESTIC_PASSWORD": PASSWORD}
        return super().environment() | where

    def init(self) -> Command:
        """Asks for the format that compresses, which older versions do not choose themselves."""
        return self.run("init", "--repository-version", "2")

    def put(self, tree: str) -> Command:
        """Adds a snapshot."""
        return self.run("backup", "--quiet", tree)

    def get(self, target: Path) -> Command:
        """Gets the newest snapshot."""
        return self.run("restore", "--quiet", "latest", "--target", target)


class Rustic(Backup):
    """rustic, which uses restic's format."""

    name = "rustic"
    title = "rustic"
    program = "rustic"
    note = "encrypts; compresses (zstd)"

    def environment(self) -> dict[str, str]:
        """Its settings are variables."""
        where = {"RUSTIC_REPOSITORY": str(self.repository), "RUSTIC_PASSWORD": PASSWORD}
        return super().environment() | where | {"RUSTIC_NO_PROGRESS": "true"}

    def init(self) -> Command:
        """Makes the repository."""
        return self.run("init")

    def put(self, tree: str) -> Command:
        """Adds a snapshot."""
        return self.run("backup", tree)

    def get(self, target: Path) -> Command:
        """Gets the newest snapshot."""
        return self.run("restore", "latest", target)


class Borg(Backup):
    """Borg, here without encryption."""

    name = "borg"
    title = "Borg"
    program = "borg"
    note = "encryption switched off; compresses (lz4)"

    def environment(self) -> dict[str, str]:
        """Its settings are variables."""
        return super().environment() | {
            "BORG_REPO": str(self.repository),
            "BORG_BASE_DIR": str(self.folder),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        }

    def init(self) -> Command:
        """Makes the repository."""
        return self.run("init", "--encryption", "none")

    def put(self, tree: str) -> Command:
        """Adds an archive."""
        self.puts += 1
        return self.run("create", f"::{self.puts}", tree)

    def get(self, target: Path) -> Command:
        """Gets the newest archive; Borg extracts only into the current directory."""
        shell = 'cd "$1" && exec "$2" extract "::$3"'
        return ["sh", "-c", shell, "sh", str(target), *self.run(str(self.puts))]


class Casync(Backup):
    """casync: an index for each version, and a store of chunks."""

    name = "casync"
    title = "casync"
    program = "casync"
    note = "compresses (zstd)"

    def init(self) -> None:
        """The first put makes the store."""

    def put(self, tree: str) -> Command:
        """Adds an index."""
        self.puts += 1
        return self.run("make", self._store(), self._index(), tree)

    def get(self, target: Path) -> Command:
        """Gets the newest index."""
        return self.run("extract", self._store(), self._index(), target / "tree")

    def _store(self) -> str:
        return f"--store={self.repository / 'default.castr'}"

    def _index(self) -> Path:
        self.repository.mkdir(exist_ok=True)
        return self.repository / f"{self.puts}.caidx"


class Copy(Backup):
    """`cp -a`, for comparison: every put is a whole copy."""

    name = "cp"
    title = "`cp -a`, for comparison"
    program = "cp"
    options: ClassVar[tuple[str, ...]] = ("-a", "--reflink=never")

    def init(self) -> None:
        """A directory is enough."""
        self.repository.mkdir()

    def put(self, tree: str) -> Command:
        """Adds a copy."""
        self.puts += 1
        (self.repository / str(self.puts)).mkdir()
        return self.run(*self.options, tree, self.repository / str(self.puts))

    def get(self, target: Path) -> Command:
        """Copies the newest copy."""
        return self.run(*self.options, self.repository / str(self.puts) / "tree", target)


BACKUPS: dict[str, type[Backup]] = {
    backup.name: backup for backup in (OutlivePut, Rustic, Restic, Borg, Casync, Copy)
}
