"""The programming interface: `open` and `register`, with `Pool` and `Job`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from outlive import _core, _kinds
from outlive._arguments import number, size, word
from outlive._errors import InvalidError
from outlive._job import Job
from outlive._pool import Pool
from outlive._teller import Progress

# `-P`: modules of the directory in which the program runs are none of the helper's.
if sys.executable and not getattr(sys, "frozen", False):
    _core.set_helper_command([sys.executable, "-P", "-m", "outlive"])


def open(
    location: str | os.PathLike[str],
    *,
    create: bool = True,
    progress: Progress | None = None,
    threads: int | None = None,
    staging_bytes: int | str | None = None,
    freeze_bytes_max: int | str | None = None,
    freeze: str | None = None,
    tracker: str | None = None,
    index_bytes_max: int | str | None = None,
) -> Pool:
    """Opens a pool, the storage of checkpoints.

    Args:
        location: A directory, the `pool.toml` in it, a prefix in a bucket of S3 or its like,
            such as "s3://bucket/prefix", or one on a storage node, such as "node://host/prefix".
            See docs/pool.md for the servers and the keys. A location that is empty or does not
            exist becomes a pool.
        create: Whether to create a pool if the location is not one yet. If False, that is an error.
        progress: Function that is called as ``progress(what, done_bytes, total_bytes)``, with
            "save" or "restore". It runs in a thread of the program, during a call to any job of the
            pool that takes time: a save, restore, wait, `done` and others. Progress that a save
            makes between such calls is reported at the next one. If it raises an `Exception`, that
            is logged and changes nothing. The call raises other exceptions, such as
            `KeyboardInterrupt`.
        threads: Number of threads that hash and copy; 0 is the number of cores, at most 4. This
            option and the following ones override `pool.toml`, for this process only.
        staging_bytes: Memory for data on its way to or from the pool, in bytes, or as text with a
            unit, such as "64MiB". The other sizes are given in the same way.
        freeze_bytes_max: Memory for copies of changed pages. If more has changed, a forked process
            holds it, or `save` writes the rest before it returns.
        freeze: Way to hold changed pages still: "auto", "copy", "fork", "precopy", or
            "helper": as "auto", and a helper process completes the save if this one is killed.
        tracker: Way to find changed pages: "auto", "wp-async" or "hash". If a way does
            not work on this machine, "hash" is used, and the statistics of a save say so.
        index_bytes_max: Memory for the index that finds duplicates.

    Raises:
        InvalidError: If the location is not a pool and cannot become one, or has another format.
    """
    place = os.fspath(location)
    if not isinstance(place, str):
        place = os.fsdecode(place)
    if not place:
        raise InvalidError("the location of a pool must not be empty: name a directory")
    core = _core.Pool(
        place,
        create=create,
        staging_bytes=size("staging_bytes", staging_bytes),
        freeze_bytes_max=size("freeze_bytes_max", freeze_bytes_max),
        index_bytes_max=size("index_bytes_max", index_bytes_max),
        threads=None if threads is None else number("threads", threads),
        freeze=word("freeze", freeze),
        tracker=word("tracker", tracker),
    )
    return Pool(core, place, progress)


_T = TypeVar("_T")


def register(
    cls: type[_T],
    to_tree: Callable[[_T], Any],
    from_tree: Callable[[Any], _T],
    *,
    fill: Callable[[_T, Any], object] | None = None,
) -> None:
    """Says how objects of a class are saved: as a tree, of which a restore makes one again.

    ```python
    outlive.register(
        Mesh,
        lambda mesh: {"points": mesh.points, "cells": mesh.cells},
        lambda tree: Mesh(tree["points"], tree["cells"]),
    )
    ```

    Call it in the module of the class, so that a restore finds it: a checkpoint names the class,
    and a restore imports its module. Objects of subclasses need a call of their own. A later call
    for a class of the same name replaces the earlier one.

    Args:
        cls: The class.
        to_tree: Returns the tree for an object: any state. Return the object's own arrays, and no
            copies: then only their changes are written, and `into` fills them where they are.
        from_tree: Returns an object for such a tree.
        fill: Gives an object that the program holds the content of a tree: `fill(object, tree)`.
            Without it, `restore(into=...)` replaces the object in the dict or list that holds it.

    Raises:
        InvalidError: If `cls` is no class, or one that every state may have.
    """
    if not isinstance(cls, type):
        raise InvalidError(f"cls={cls!r}: give the class of the objects")
    given: dict[str, object] = {"to_tree": to_tree, "from_tree": from_tree, "fill": fill or len}
    for name, function in given.items():
        if not callable(function):
            raise InvalidError(f"{name}={function!r} for {cls.__qualname__}: give a function")
    if _kinds.is_built_in(cls):
        raise InvalidError(
            f"{cls.__module__}.{cls.__qualname__} is part of every state: register a class of your "
            "own, such as a subclass of it"
        )
    _kinds.register(cls, to_tree, from_tree, fill)


__all__ = ["Job", "Pool", "open", "register"]
