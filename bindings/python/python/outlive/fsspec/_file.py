"""Files of the file system, opened for reading or writing."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import warnings
from types import TracebackType
from typing import IO, Any

from fsspec.spec import AbstractBufferedFile

from outlive import _core
from outlive.fsspec._paths import Place, path_of
from outlive.fsspec._pools import Change, PoolInvalidError, as_os_errors

# Longer contents wait for their commit in a file that has no name.
SPOOL_BYTES = 8 << 20


class Content:
    """The bytes of a file until its commit: in memory, or in a file without a name."""

    def __init__(self, folder: str | None) -> None:
        """Begins without bytes."""
        self._folder = folder
        self._memory = bytearray()
        self._file: IO[bytes] | None = None

    def add(self, data: Any) -> int:
        """Adds bytes, from any object with contiguous memory."""
        view = memoryview(data).cast("B")
        if self._file is None and len(self._memory) + view.nbytes <= SPOOL_BYTES:
            self._memory += view
            return view.nbytes
        if self._file is None:
            # The system deletes it when this process ends, however that happens.
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            self._write(memoryview(self._memory))
            self._memory = bytearray()
        self._write(view)
        return view.nbytes

    def _write(self, view: memoryview) -> None:
        assert self._file is not None
        while view.nbytes:
            view = view[self._file.write(view) :]

    def source(self) -> bytes | str:
        """Returns the bytes, or the path of a file that has them."""
        if self._file is None:
            return bytes(self._memory)
        return f"/proc/self/fd/{self._file.fileno()}"

    def close(self) -> None:
        """Frees the memory or the file."""
        self._memory = bytearray()
        if self._file is not None:
            self._file.close()


class OutliveFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file of a pool, from `OutliveFileSystem.open`.

    It reads the version that was there when it was opened. Written bytes are committed when it is
    closed. If its `with` ends with an exception, nothing is committed. A file that is written
    belongs to the process that opened it: a forked child cannot write, close or commit it.
    """

    DEFAULT_BLOCK_SIZE = 4 << 20
    closed: bool

    def __init__(
        self,
        fs: Any,
        path: str,
        mode: str,
        *,
        place: Place,
        stored: _core.StoredFile | None = None,
        epoch: int = 0,
        size: int = 0,
        **kwargs: Any,
    ) -> None:
        """Made by `OutliveFileSystem.open`."""
        self._place = place
        self._stored = stored
        self._epoch = epoch
        self._process = os.getpid()
        self._content: Content | None = None
        super().__init__(fs, path, mode, size=size, **kwargs)
        if mode != "rb":
            self._content = Content(fs.spool)
            self.loc = size

    def _fetch_range(self, start: int, end: int) -> bytes:
        if self._process != os.getpid():
            # The parent's pool cannot be used in a forked child.
            self._stored = self.fs._stored(self._pinned())
            self._process = os.getpid()
        assert self._stored is not None
        # Some caches ask for bytes beyond the end.
        end = min(end, self._stored.bytes)
        with as_os_errors(self.path):
            return self._stored.read(min(start, end), end)

    def _pinned(self) -> str:
        """Returns the path of this very version of the file."""
        place = Place(self._place.pool, self._place.job, str(self._epoch), "")
        return path_of(place, self._place.path)

    def write(self, data: Any) -> int:
        """Adds bytes, from any object with contiguous memory. Nothing is visible before the end."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        if self._content is None:
            raise ValueError("File not in write mode")
        self._check_process()
        count = self._content.add(data)
        self.loc += count
        return count

    def flush(self, force: bool = False) -> None:
        """Does nothing: bytes are durable and visible when the file is closed."""
        if self.closed:
            raise ValueError("Flush on closed file")

    def close(self) -> None:
        """Closes the file. One that was written is committed then, unless in a transaction."""
        if self.closed:
            return
        if self._content is None:
            super().close()
            self._stored = None
            return
        self._check_process()
        self.closed = True
        if self.autocommit:
            self.commit()
        else:
            self.fs.transaction.add(self)

    def _check_process(self) -> None:
        if self._process == os.getpid():
            return
        # This copy of the bytes is of no use. Those of the other process stay.
        self.discard()
        raise PoolInvalidError(
            errno.EINVAL,
            f"process {self._process} has opened the file, and this is process {os.getpid()}, "
            "forked from it: open a file here",
            self.path,
        )

    def change(self) -> tuple[Place, Change, Content | None]:
        """Returns the change that the commit makes, where, and its content, which goes with it."""
        content, self._content = self._content, None
        assert content is not None
        self.closed = True
        operation = "append" if self.mode == "ab" else "write"
        change = (operation, self._place.item, content.source(), self.mode == "xb")
        return self._place, change, content

    def commit(self) -> None:
        """Commits the written bytes."""
        if self._content is not None:
            self._check_process()
            self.fs._commit([self.change()])

    def discard(self) -> None:
        """Forgets the written bytes."""
        self.closed = True
        content, self._content = self._content, None
        if content is not None:
            content.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the file. After an exception, the written bytes are discarded."""
        if kind is not None and self._content is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        """A file that was never closed is not committed: it may lack its end."""
        if getattr(self, "_content", None) is None or self.closed:
            return
        with contextlib.suppress(Exception):
            self.discard()
        if self._process != os.getpid():
            return
        warnings.warn(
            f"{self.path} was never closed, so it is not committed: close it, or use `with`",
            ResourceWarning,
            stacklevel=2,
        )

    def __reduce__(self) -> Any:
        """Another process reads the same version of the file."""
        if self.mode != "rb":
            raise RuntimeError("a file that is open for writing cannot be pickled: close it")
        return _reopened, (self.fs, self._pinned(), self.blocksize, self.loc, self.cache.name)


def _reopened(fs: Any, path: str, block_size: int, at: int, cache: str) -> OutliveFile:
    file: OutliveFile = fs.open(path, "rb", block_size=block_size, cache_type=cache)
    if at:
        file.seek(at)
    return file
