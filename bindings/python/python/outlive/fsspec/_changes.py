"""Changes that wait for the end of a transaction."""

from __future__ import annotations

import errno
import os
from typing import Any

from fsspec.transaction import Transaction

from outlive.fsspec._file import Content, OutliveFile
from outlive.fsspec._paths import Place
from outlive.fsspec._pools import Change, PoolInvalidError

_STILL_OPEN = (
    "the file is still open at the end of the transaction, and nothing was committed: close it, or "
    "use `with`"
)

# A change, where it is made, and the content that it needs until the commit.
PlacedChange = tuple[Place, Change, Content | None]


class Changes(Transaction):  # type: ignore[misc]
    """The changes of a transaction, which become one checkpoint of each job.

    They belong to the process that began it: a forked child commits none of them.
    """

    fs: Any

    def __init__(self, fs: Any, **kwargs: Any) -> None:
        """Begins without changes."""
        super().__init__(fs, **kwargs)
        self._process = os.getpid()
        self._waiting: list[PlacedChange | OutliveFile] = []

    def start(self) -> None:
        """Begins the transaction."""
        self._process = os.getpid()
        self._waiting = []
        super().start()

    def add(self, change: PlacedChange | OutliveFile) -> None:
        """Adds a change, or a file that was closed."""
        self._waiting.append(change)

    def complete(self, commit: bool = True) -> None:
        """Commits all changes, or discards them.

        Raises:
            OSError: If a file is still open for writing, as it may lack its end. Nothing is
                committed then.
        """
        fs: Any = self.fs
        self.fs = None
        files = list(self.files)
        self.files.clear()
        waiting, self._waiting = self._waiting, []
        changes: list[PlacedChange] = []
        try:
            if commit and self._process == os.getpid():
                for file in files:
                    if not file.closed:
                        raise PoolInvalidError(errno.EINVAL, _STILL_OPEN, file.path)
                changes = [it.change() if isinstance(it, OutliveFile) else it for it in waiting]
                fs._commit(changes, at_once=True)
        finally:
            close_contents(changes or [it for it in waiting if not isinstance(it, OutliveFile)])
            for file in files:
                file.discard()
            fs._intrans = False
            fs._transaction = None


def close_contents(changes: list[PlacedChange]) -> None:
    """Frees the contents of changes."""
    for _, _, content in changes:
        if content is not None:
            content.close()
