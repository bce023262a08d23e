"""The file system, as fsspec calls it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractFileSystem
from fsspec.utils import isfilelike, stringify_path

from outlive import _core
from outlive._errors import InvalidError
from outlive.fsspec import _paths
from outlive.fsspec._changes import Changes, PlacedChange, close_contents
from outlive.fsspec._file import SPOOL_BYTES, Content, OutliveFile
from outlive.fsspec._paths import Place, name_of, path_of, place_of
from outlive.fsspec._pools import (
    Change,
    Files,
    PoolMissingError,
    Store,
    as_os_errors,
    close_all,
    refuse,
    store_of,
)

POOL_VARIABLE = "OUTLIVE_POOL"
# Bytes that a get reads and writes at a time.
_STEP_BYTES = 16 << 20


class OutliveFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The trees of files in a pool: `outlive:///data/pool!/job/dir/file`.

    Each change is a checkpoint of its job, so that older versions stay readable. Changes are
    durable and visible to all processes when the call returns, and a written file when it is
    closed.

    Args:
        pool: Location of the pool of paths that name none, such as `outlive://job/dir/file`. None
            stands for the environment variable `OUTLIVE_POOL`.
        keep: Rules by which older checkpoints of a job are dropped after each change, such as
            "last 10 | daily 7". None keeps all of them.
        spool: Directory for files of more than 8 MiB until they are committed. None stands for
            that of the module `tempfile`.
    """

    protocol = _paths.PROTOCOL
    root_marker = ""
    transaction_type = Changes

    def __init__(
        self,
        pool: str | os.PathLike[str] | None = None,
        keep: str | None = None,
        spool: str | os.PathLike[str] | None = None,
        **storage_options: Any,
    ) -> None:
        """Opens no pool yet."""
        super().__init__(**storage_options)
        self.pool = None if pool is None else os.fspath(pool)
        self.keep = keep
        self.spool = None if spool is None else os.fspath(spool)
        self._gathering = threading.local()
        self._locations: set[str] = set()

    @property
    def _intrans(self) -> bool:
        """Whether a transaction of this process is under way. fsspec sets it."""
        return self._changing == os.getpid()

    @_intrans.setter
    def _intrans(self, begins: bool) -> None:
        self._changing = os.getpid() if begins else None

    def close(self) -> None:
        """Closes the pools and jobs that this process keeps open for the next call.

        The object stays usable, and so do files that are open: fsspec may have given both to other
        parts of the program, too. The next call opens what it needs.
        """
        close_all(self._locations)

    # Paths.

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return _paths.stripped(stringify_path(path))

    @classmethod
    def _parent(cls, path: Any) -> str:
        return _paths.parent(stringify_path(path))

    def _place(self, path: Any) -> Place:
        return place_of(self._strip_protocol(path))

    def _store(self, place: Place) -> Store:
        location = place.pool or self.pool or os.environ.get(POOL_VARIABLE)
        if not location:
            raise ValueError(
                f"no pool is named: use a path such as {self.protocol}:///data/pool!/job/file, the "
                f"storage option `pool`, or the environment variable {POOL_VARIABLE}"
            )
        self._locations.add(location)
        return store_of(location)

    def _files(self, place: Place) -> Files:
        return self._store(place).files(place.job or "")

    def _pool_to_read(self, place: Place, path: str) -> _core.Pool:
        store = self._store(place)
        try:
            return store.core(create=False)
        except InvalidError as error:
            raise PoolMissingError(errno.ENOENT, str(error), path) from error

    def _tree(self, place: Place, path: str) -> _core.FilesTree | None:
        with as_os_errors(path):
            self._pool_to_read(place, path)
            return self._files(place).tree(place.epoch, path)

    # Reading.

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns name, size, type, mode, owner, times and epoch of a path.

        Raises:
            FileNotFoundError: If there is nothing.
        """
        path = self._strip_protocol(path)
        place = place_of(path)
        if place.is_root:
            with as_os_errors(path):
                self._pool_to_read(place, path)
            return {"name": path, "size": 0, "type": "directory"}
        tree = self._tree(place, path)
        with as_os_errors(path):
            item = None if tree is None else tree.item(place.item)
        if tree is None or item is None:
            refuse(errno.ENOENT, path)
        return _told(path, item, tree.epoch)

    def ls(self, path: Any, detail: bool = True, **kwargs: Any) -> Any:
        """Lists a directory, the jobs of a pool, or a single file.

        Raises:
            FileNotFoundError: If there is nothing.
        """
        path = self._strip_protocol(path)
        place = place_of(path)
        found = self._jobs(place, path) if place.is_root else self._entries(place, path)
        return found if detail else [entry["name"] for entry in found]

    def _jobs(self, place: Place, path: str) -> list[dict[str, Any]]:
        with as_os_errors(path):
            jobs = self._pool_to_read(place, path).jobs_of_files()
        names = [_paths.join_pool(place.pool, name_of(job)) for job in sorted(jobs)]
        return [{"name": name, "size": 0, "type": "directory"} for name in names]

    def _entries(self, place: Place, path: str) -> list[dict[str, Any]]:
        tree = self._tree(place, path)
        with as_os_errors(path):
            item = None if tree is None else tree.item(place.item)
            if tree is None or item is None:
                refuse(errno.ENOENT, path)
            if item["kind"] != "directory":
                return [_told(path, item, tree.epoch)]
            children = tree.children(place.item)
        return [_told(path_of(place, child["path"]), child, tree.epoch) for child in children]

    def exists(self, path: Any, **kwargs: Any) -> bool:
        """Whether there is something. A damaged tree is an error, not an absence."""
        return self._info_or_none(path) is not None

    def isdir(self, path: Any) -> bool:
        """Whether it is a directory."""
        info = self._info_or_none(path)
        return info is not None and info["type"] == "directory"

    def isfile(self, path: Any) -> bool:
        """Whether it is a file."""
        info = self._info_or_none(path)
        return info is not None and info["type"] == "file"

    def modified(self, path: Any) -> datetime:
        """Returns the time of the last change of a file."""
        mtime = self.info(path).get("mtime")
        if mtime is None:
            refuse(errno.EISDIR, str(path))
        return datetime.fromtimestamp(mtime, tz=UTC)

    def checksum(self, path: Any) -> int:
        """Returns a number that stays the same while the content of a file does."""
        content = self.info(path).get("content", "")
        return int(content[:16] or "0", 16)

    def ukey(self, path: Any) -> str:
        """Returns a name of this version of a file."""
        info = self.info(path)
        return f"{info.get('content', '')}-{info['size']}"

    def _stored(self, path: str) -> _core.StoredFile:
        """Opens a file for reads of ranges."""
        place = place_of(path)
        tree = None if place.is_root else self._tree(place, path)
        with as_os_errors(path):
            stored = None if tree is None else tree.open(place.item)
        if stored is None:
            info = self.info(path)
            refuse(errno.EISDIR if info["type"] == "directory" else errno.EINVAL, path)
        return stored

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> OutliveFile:
        place = place_of(path)
        options = {"block_size": block_size, "cache_options": cache_options, **kwargs}
        if mode == "rb":
            return self._open_to_read(place, path, options)
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(f"mode {mode!r}: files are opened to read, write, create or append")
        self._check_writable(place, path)
        info = self._info_or_none(path)
        if not place.path or (info is not None and info["type"] == "directory"):
            refuse(errno.EISDIR, path)
        if mode == "xb" and info is not None:
            refuse(errno.EEXIST, path)
        size = info["size"] if info is not None and mode == "ab" else 0
        return OutliveFile(
            self, path, mode, place=place, size=size, autocommit=autocommit, **options
        )

    def _open_to_read(self, place: Place, path: str, options: dict[str, Any]) -> OutliveFile:
        tree = None if place.is_root else self._tree(place, path)
        with as_os_errors(path):
            stored = None if tree is None else tree.open(place.item)
        if tree is None or stored is None:
            info = self.info(path)
            refuse(errno.EISDIR if info["type"] == "directory" else errno.EINVAL, path)
        return OutliveFile(
            self,
            path,
            "rb",
            place=place,
            stored=stored,
            epoch=tree.epoch,
            size=stored.bytes,
            **options,
        )

    def cat_file(
        self, path: Any, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        """Returns the bytes of a file, or of a range of it."""
        path = self._strip_protocol(path)
        stored = self._stored(path)
        begin, stop, _ = slice(start, end).indices(stored.bytes)
        with as_os_errors(path):
            return stored.read(begin, max(begin, stop))

    def get_file(
        self,
        rpath: Any,
        lpath: Any = None,
        callback: Any = DEFAULT_CALLBACK,
        outfile: Any = None,
        **kwargs: Any,
    ) -> None:
        """Copies a file to a local one."""
        path = self._strip_protocol(rpath)
        if outfile is None and isfilelike(lpath):
            outfile = lpath
        elif outfile is None and self.isdir(path):
            Path(lpath).mkdir(parents=True, exist_ok=True)
            return
        stored = self._stored(path)
        callback.set_size(stored.bytes)
        if outfile is not None:
            self._copy_out(stored, path, outfile, callback)
            return
        Path(lpath).parent.mkdir(parents=True, exist_ok=True)
        with Path(lpath).open("wb", buffering=0) as file:
            self._copy_out(stored, path, file, callback)

    def _copy_out(self, stored: _core.StoredFile, path: str, to: Any, callback: Any) -> None:
        for block in _blocks_of(stored, path):
            data = memoryview(block)
            while data.nbytes:
                count = to.write(data)
                count = data.nbytes if count is None else count
                callback.relative_update(count)
                data = data[count:]

    # Changing.

    def _info_or_none(self, path: str) -> dict[str, Any] | None:
        try:
            return self.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _check_writable(self, place: Place, path: str) -> None:
        if place.is_root:
            refuse(errno.EISDIR, path)
        if place.epoch is not None:
            refuse(errno.EROFS, path)

    def _change(self, operation: str, path: Any, argument: Any = None, flag: bool = False) -> None:
        """Makes a change, now or at the end of the transaction or of the call that gathers."""
        path = self._strip_protocol(path)
        place = place_of(path)
        self._check_writable(place, path)
        self._make((place, (operation, place.item, argument, flag), None))

    def _make(self, change: PlacedChange) -> None:
        if self._intrans:
            self.transaction.add(change)
        else:
            self._commit([change])

    def _commit(self, changes: list[PlacedChange], at_once: bool = False) -> None:
        gathered = getattr(self._gathering, "changes", None)
        if gathered is not None and not at_once:
            gathered.extend(changes)
            return
        by_files: dict[int, tuple[Files, str, list[Change]]] = {}
        try:
            for place, change, _ in changes:
                files = self._files(place)
                by_files.setdefault(id(files), (files, path_of(place, ""), []))[2].append(change)
            for files, path, its in by_files.values():
                with as_os_errors(path):
                    files.commit(its, self.keep)
        finally:
            close_contents(changes)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Makes one checkpoint of all changes in it, which are visible at its end."""
        if self._intrans or getattr(self._gathering, "changes", None) is not None:
            yield
            return
        changes: list[PlacedChange] = []
        self._gathering.changes = changes
        try:
            yield
        except BaseException:
            close_contents(changes)
            raise
        finally:
            self._gathering.changes = None
        self._commit(changes)

    def _write(self, path: str, blocks: Iterable[Any], exclusive: bool = False) -> None:
        """Writes a file of blocks of bytes, which are taken now, also in a transaction."""
        place = place_of(path)
        self._check_writable(place, path)
        if not place.path:
            refuse(errno.EISDIR, path)
        content = Content(self.spool)
        try:
            for block in blocks:
                content.add(block)
        except BaseException:
            content.close()
            raise
        self._make((place, ("write", place.item, content.source(), exclusive), content))

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Writes a whole file."""
        self._write(self._strip_protocol(path), [value], mode == "create")

    def pipe(self, path: Any, value: Any = None, **kwargs: Any) -> None:
        """Writes a file, or several as one checkpoint, from a mapping of paths to bytes."""
        with self._together():
            super().pipe(path, value, **kwargs)

    def put_file(
        self,
        lpath: Any,
        rpath: Any,
        callback: Any = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **kwargs: Any,
    ) -> None:
        """Copies a local file, which must not change meanwhile. A transaction takes it now."""
        path, local = self._strip_protocol(rpath), Path(os.fspath(lpath))
        if local.is_dir():
            if not self.isdir(path):
                self._change("make", path, flag=True)
            return
        if not place_of(path).path:
            refuse(errno.EISDIR, path)
        if self._intrans or not local.is_file():
            # A transaction, or a pipe, whose length is known at its end.
            with local.open("rb") as source:
                self._write(path, _blocks_in(source, callback), mode == "create")
            return
        size = local.stat().st_size
        callback.set_size(size)
        self._change("write", path, str(local.resolve(strict=True)), mode == "create")
        callback.relative_update(size)

    def put(self, lpath: Any, rpath: Any, *args: Any, **kwargs: Any) -> None:
        """Copies local files; all of them become one checkpoint."""
        with self._together():
            super().put(lpath, rpath, *args, **kwargs)

    def cp_file(self, path1: Any, path2: Any, **kwargs: Any) -> None:
        """Copies a file. Within a job, its content is neither read nor stored again."""
        old, new = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(old):
            if not self.isdir(new):
                self._change("make", new, flag=True)
            return
        source, target = place_of(old), place_of(new)
        if source.epoch is None and self._is_same_job(source, target):
            self._change("copy", old, target.item)
            return
        self._write(new, _blocks_of(self._stored(old), old))

    def _is_same_job(self, one: Place, other: Place) -> bool:
        return one.job == other.job and self._store(one) is self._store(other)

    def copy(self, path1: Any, path2: Any, *args: Any, **kwargs: Any) -> None:
        """Copies files; all of them become one checkpoint."""
        with self._together():
            super().copy(path1, path2, *args, **kwargs)

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Renames a file or directory, or moves several. Within a job that is one checkpoint."""
        if path1 == path2:
            return
        if isinstance(path1, str) and isinstance(path2, str) and maxdepth is None:
            old, new = self._strip_protocol(path1), self._strip_protocol(path2)
            if self._can_rename(old, new, path2, recursive):
                self._change("rename", old, place_of(new).item)
                return
        with self._together():
            self.copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise")
            self.rm(path1, recursive=recursive)

    def _can_rename(self, old: str, new: str, asked: str, recursive: bool) -> bool:
        """Whether a move changes one name of one job, by the rules of fsspec for its target."""
        source, target = place_of(old), place_of(new)
        if not self._is_same_job(source, target) or not source.path or not target.path:
            return False
        if source.epoch is not None or target.epoch is not None or asked.endswith("/"):
            return False
        if self._intrans:
            # The tree at the end of the transaction decides.
            return True
        info = self._info_or_none(old)
        there = self._info_or_none(new)
        if info is None:
            return False
        if info["type"] == "directory":
            return recursive and there is None
        return there is None or there["type"] != "directory"

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files, or directories with all that is in them; all as one checkpoint.

        Older checkpoints of the job still have them.

        Raises:
            FileNotFoundError: If there is nothing.
            OSError: If a directory is not empty and not `recursive`.
        """
        if self._intrans:
            for one in path if isinstance(path, list) else [path]:
                self._change("remove", one, flag=recursive)
            return
        paths = path if isinstance(path, list | tuple | set) else [path]
        depth_one = recursive and maxdepth is None
        whole = recursive and not depth_one
        found = self.expand_path(list(paths), recursive=whole, maxdepth=maxdepth)
        if depth_one:
            # Each with what is below it; a path below another one goes with it.
            tops: list[str] = []
            for one in sorted(found):
                if not tops or not one.startswith(tops[-1] + "/"):
                    tops.append(one)
            found = tops
        with self._together():
            for one in reversed(found):
                if maxdepth is not None and self._has_rest(one, found):
                    continue
                self._change("remove", one, flag=depth_one)

    def _has_rest(self, path: str, removed: list[str]) -> bool:
        """Whether something in a directory stays when these paths are removed."""
        gone = set(removed)
        return self.isdir(path) and any(it not in gone for it in self.find(path, withdirs=True))

    def rm_file(self, path: Any) -> None:
        """Removes a file."""
        if not self._intrans and self.info(path)["type"] == "directory":
            refuse(errno.EISDIR, self._strip_protocol(path))
        self._change("remove", path)

    def _rm(self, path: Any) -> None:
        self.rm_file(path)

    def rmdir(self, path: Any) -> None:
        """Removes a directory that is empty."""
        if not self._intrans and self.info(path)["type"] != "directory":
            refuse(errno.ENOTDIR, self._strip_protocol(path))
        self._change("remove", path)

    def mkdir(self, path: Any, create_parents: bool = True, **kwargs: Any) -> None:
        """Makes a directory, and those above it.

        Raises:
            FileExistsError: If there is something.
            FileNotFoundError: If the directory above is missing, without `create_parents`.
        """
        path = self._strip_protocol(path)
        if place_of(path).is_root or self._info_or_none(path) is not None:
            refuse(errno.EEXIST, path)
        if not create_parents and self._info_or_none(self._parent(path)) is None:
            refuse(errno.ENOENT, path)
        self._change("make", path)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        """Makes a directory, and those above it.

        Raises:
            FileExistsError: If there is something, unless `exist_ok` and it is a directory.
        """
        path = self._strip_protocol(path)
        if exist_ok and place_of(path).is_root:
            return
        info = self._info_or_none(path)
        if exist_ok and info is not None and info["type"] == "directory":
            return
        if info is not None:
            refuse(errno.EEXIST, path)
        self._change("make", path, flag=exist_ok)

    def created(self, path: Any) -> datetime:
        """Not known: a tree has the times of changes only."""
        raise NotImplementedError("a tree of files has no times of creation: use `modified`")


def _blocks_of(stored: _core.StoredFile, path: str) -> Iterator[bytes]:
    """Reads a stored file, block by block."""
    for at in range(0, stored.bytes, _STEP_BYTES):
        with as_os_errors(path):
            block = stored.read(at, min(at + _STEP_BYTES, stored.bytes))
        yield block


def _blocks_in(source: IO[bytes], callback: Any) -> Iterator[bytes]:
    """Reads a local file, block by block."""
    while block := source.read(SPOOL_BYTES):
        yield block
        callback.relative_update(len(block))


def _told(path: str, item: dict[str, Any], epoch: int) -> dict[str, Any]:
    """Returns an item as `info` describes it."""
    told = {
        "name": path,
        "size": item["bytes"],
        "type": item["kind"],
        "mtime": item["mtime_ns"] / 1e9,
        "mode": item["mode"],
        "uid": item["uid"],
        "gid": item["gid"],
        "epoch": epoch,
    }
    if item["kind"] == "file":
        told["content"] = item["content"]
    if item["kind"] == "link":
        told["destination"] = item["target"]
    return told
