"""The pools and jobs that the file system has open in this process, and how it commits changes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import random
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from outlive import _core
from outlive._api import open as open_pool
from outlive._arguments import notes_of
from outlive._errors import DamagedError, Error, FencedError, FullError, InvalidError, RetryError
from outlive._job import Job
from outlive._pool import Pool

# A change, as the native half takes it: operation, path, its argument, its flag.
Change = tuple[str, bytes, Any, bool]

# Most jobs and pools that a process keeps open between calls: each holds some file descriptors.
OPEN_MAX = 16
# How often an edit is tried while other processes edit the same job.
_ATTEMPTS = 100
# How often it is tried after failures that may be over the next time.
_RETRIES = 3
# Longest pause between two attempts, and longest wait for another process of this host. A writer
# that does not wait costs only work: the log lets one of two commit, and the other tries again.
_PAUSE_MAX_S = 0.5
_WAIT_MAX_S = 60.0


class PoolDamagedError(DamagedError, OSError):
    """Stored bytes are missing or wrong."""


class PoolFullError(FullError, OSError):
    """No space is left."""


class PoolRetryError(RetryError, OSError):
    """A temporary failure: the same call may succeed later."""


class PoolInvalidError(InvalidError, OSError):
    """The request is not possible."""


class PoolMissingError(InvalidError, FileNotFoundError):
    """There is no such pool, job or checkpoint."""


@contextmanager
def as_os_errors(path: str) -> Iterator[None]:
    """Raises errors of outlive as `OSError`s, too, as users of file systems expect them."""
    try:
        yield
    except OSError:
        raise
    except DamagedError as error:
        raise PoolDamagedError(errno.EIO, str(error), path) from error
    except FullError as error:
        raise PoolFullError(errno.ENOSPC, str(error), path) from error
    except (RetryError, FencedError) as error:
        raise PoolRetryError(errno.EIO, str(error), path) from error
    except InvalidError as error:
        raise PoolInvalidError(errno.EINVAL, str(error), path) from error


def refuse(code: int, path: str) -> NoReturn:
    """Raises the `OSError` for a code of the system."""
    raise OSError(code, os.strerror(code), path)


@dataclass(eq=False)
class _Entry:
    """Changes that wait for a commit."""

    changes: list[Change]
    done: bool = False
    epoch: int = 0
    failure: BaseException | None = None


@dataclass(eq=False)
class Files:
    """The files of one job. Its session stays open for the next commit, until others need room."""

    store: Store
    name: str
    _tree: _core.FilesTree | None = None
    _job: Job | None = None
    _waiting: list[_Entry] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def tree(self, epoch: str | None, path: str) -> _core.FilesTree | None:
        """Returns the newest tree, or that of a checkpoint; None if there is none."""
        if epoch is not None:
            try:
                return self.store.core(create=False).files(self.name, epoch)
            except InvalidError as error:
                raise PoolMissingError(errno.ENOENT, str(error), path) from error
        tree = self._tree
        if tree is None or not tree.is_newest():
            tree = self._tree = self.store.core(create=False).files(self.name)
        _used(self)
        return tree

    def commit(self, changes: list[Change], keep: str | None) -> int:
        """Commits changes, and returns the number of the checkpoint that has them.

        Changes of several threads that wait for the same job become one checkpoint.

        Raises:
            OSError: If the tree does not permit one of them. None of them was made.
            Error: If the pool cannot store them.
        """
        entry = _Entry(changes)
        with self._lock:
            self._waiting.append(entry)
        try:
            self._turn.acquire()
        except BaseException:
            self._withdraw(entry)
            raise
        try:
            if not entry.done:
                with self._lock:
                    batch, self._waiting = self._waiting, []
                self._commit_all(batch, entry, keep)
        finally:
            self._turn.release()
        if entry.failure is not None:
            raise entry.failure
        return entry.epoch

    def _withdraw(self, entry: _Entry) -> None:
        """Gives up changes after Ctrl-C, say. Their sources may be closed when this returns."""
        with self._lock:
            if entry in self._waiting:
                self._waiting.remove(entry)
                return
        # Another thread commits them now.
        while not entry.done:
            with contextlib.suppress(KeyboardInterrupt), self._turn:
                with self._lock:
                    if entry in self._waiting:
                        self._waiting.remove(entry)
                return

    def _commit_all(self, batch: list[_Entry], mine: _Entry, keep: str | None) -> None:
        try:
            self._commit_batch(batch, keep)
        except BaseException:
            # Ctrl-C, say: the others try their changes themselves.
            with self._lock:
                left = [entry for entry in batch if not entry.done and entry is not mine]
                self._waiting = left + self._waiting
            raise

    def _commit_batch(self, batch: list[_Entry], keep: str | None) -> None:
        if len(batch) > 1:
            together = [change for entry in batch for change in entry.changes]
            try:
                epoch = self._edit(together, keep)
            except OSError as error:
                if isinstance(error, Error):
                    raise
                # The tree does not permit one of them: each gets its own answer.
            except Error as error:
                for entry in batch:
                    entry.done, entry.failure = True, error
                return
            else:
                for entry in batch:
                    entry.done, entry.epoch = True, epoch
                return
        for entry in batch:
            try:
                entry.epoch = self._edit(entry.changes, keep)
            except Exception as error:
                entry.failure = error
            entry.done = True

    def _edit(self, changes: list[Change], keep: str | None) -> int:
        """Edits the newest tree, again if others did so meanwhile."""
        retries = 0
        for attempt in range(_ATTEMPTS):
            try:
                with _first_of_this_host(f"{self.store.core(create=True).pool_id} {self.name}"):
                    return self._edit_once(changes, keep)
            except FencedError:
                self._job = None
                if attempt + 1 == _ATTEMPTS:
                    raise
            except RetryError:
                retries += 1
                if retries > _RETRIES:
                    raise
            time.sleep(random.uniform(0, min(_PAUSE_MAX_S, 0.002 * 2 ** min(attempt, 8))))
        raise AssertionError("unreachable")

    def _edit_once(self, changes: list[Change], keep: str | None) -> int:
        if self._job is None:
            self._job = self.store.pool(create=True).job(self.name, keep=keep)
        job = self._job
        _used(self)
        notes = notes_of(self.name, None, False, None)
        told = job._core.edit_files(changes, job._tick, notes)
        if told["outcome"] == "refused":
            refuse(getattr(errno, told["by"]), f"{self.name}/{told['path']}")
        epoch: int = told["epoch"]
        return epoch

    def close(self, *, wait: bool = True) -> bool:
        """Ends the session of the job; false if a thread commits now and `wait` is false."""
        if not self._turn.acquire(blocking=wait):
            return False
        try:
            self._tree = None
            job, self._job = self._job, None
            if job is not None:
                job.close()
        finally:
            self._turn.release()
        return True


class Store:
    """A pool. It stays open for the next call, until others need room."""

    def __init__(self, location: str) -> None:
        """Opens nothing yet."""
        self.location = location
        self._pool: Pool | None = None
        self._files: WeakValueDictionary[str, Files] = WeakValueDictionary()
        self._lock = threading.Lock()

    def pool(self, *, create: bool) -> Pool:
        """Returns the pool; with `create`, makes it if there is none."""
        with self._lock:
            if self._pool is None:
                self._pool = open_pool(self.location, create=create)
            pool = self._pool
        _used(self)
        return pool

    def core(self, *, create: bool) -> _core.Pool:
        """Returns the native half of the pool."""
        return self.pool(create=create)._core

    def files(self, job: str) -> Files:
        """Returns the files of a job."""
        with self._lock:
            return self._files.setdefault(job, Files(self, job))

    def close(self, *, wait: bool = True) -> bool:
        """Closes the pool, but no open file; false if a thread opens it and `wait` is false."""
        if not self._lock.acquire(blocking=wait):
            return False
        self._pool = None
        self._lock.release()
        return True


class _Process:
    """The pools of this process; a forked child has none.

    Attributes:
        stores: All pools in use, by location.
        opened: Those that are open, and jobs that are, the most recently used last.
    """

    def __init__(self) -> None:
        self.stores: WeakValueDictionary[str, Store] = WeakValueDictionary()
        self.opened: OrderedDict[Files | Store, None] = OrderedDict()
        self.lock = threading.Lock()
        self.lock_file: int | None = None


_process = _Process()


def _forked() -> None:
    global _process
    # Its locks may be held by threads that the child does not have.
    _process = _Process()


os.register_at_fork(after_in_child=_forked)


def store_of(location: str) -> Store:
    """Returns a pool, the same for the same location."""
    with _process.lock:
        return _process.stores.setdefault(location, Store(location))


def _used(one: Files | Store) -> None:
    """Keeps a job or pool open, and closes those that no thread has used for longest."""
    process = _process
    with process.lock:
        opened = process.opened
        opened[one] = None
        opened.move_to_end(one)
        surplus = list(opened)[: max(0, len(opened) - OPEN_MAX)]
        for old in surplus:
            del opened[old]
    for old in surplus:
        # A pool that cannot be reached, say: its session ends with the next one.
        with contextlib.suppress(Error):
            if not old.close(wait=False):
                # A thread uses it, and has it open at its end.
                with process.lock:
                    opened[old] = None
                    opened.move_to_end(old, last=False)


def close_all(locations: Collection[str] | None = None) -> None:
    """Closes what this process keeps open of some pools, or of all. The next call opens it again.

    It waits for commits that are under way.
    """
    with _process.lock:
        found = [
            one
            for one in _process.opened
            if locations is None
            or (one if isinstance(one, Store) else one.store).location in locations
        ]
    for one in found:
        one.close()
        with _process.lock:
            _process.opened.pop(one, None)


def _lock_file() -> int | None:
    with _process.lock:
        if _process.lock_file is None:
            # Never closed: that would free the locks of other threads.
            path = Path(tempfile.gettempdir()) / f"outlive-{os.geteuid()}.lock"
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            try:
                _process.lock_file = os.open(path, flags, 0o600)
            except OSError:
                return None
        return _process.lock_file


def _until(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + _WAIT_MAX_S
    pause = 0.001
    while not is_done() and time.monotonic() < end:
        time.sleep(random.uniform(0, pause))
        pause = min(2 * pause, 0.05)


@contextmanager
def _first_of_this_host(what: str) -> Iterator[None]:
    """Lets the processes of one user and host commit one after the other, where that is possible.

    The log decides between writers in any case. This only saves them the work of a lost race.
    """
    file = _lock_file()
    if file is None:
        yield
        return
    digest = hashlib.blake2b(what.encode("utf-8", "surrogateescape"), digest_size=7).digest()
    place = int.from_bytes(digest, "big")
    held = False

    def is_mine() -> bool:
        nonlocal held
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            held = True
        except BlockingIOError:
            return False
        except OSError:
            # A file system without locks.
            return True
        return True

    _until(is_mine)
    try:
        yield
    finally:
        if held:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, place)
