"""The programming interface: `open`, `Pool`, `Job`."""

from __future__ import annotations

import logging
import operator
import os
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, overload

from outlive import _core, _exit, _notices, _seen
from outlive._errors import DamagedError, Error, InvalidError
from outlive._files import AnyPath, Got, Put, one_or_more, patterns, told
from outlive._rebuild import FRESH, Rebuild
from outlive._saves import Collected, Epoch, LazyRestored, Plot, Pruned, Restored, Save, SaveStats
from outlive._tree import Flat, flatten, shown

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING}
_SKIPPED = Save(None, None)

Progress = Callable[[str, int, int], object]


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
    """Opens a pool, the place where checkpoints are stored.

    Args:
        location: A directory, or the `pool.toml` in it. A directory that is empty or does not
            exist becomes a pool.
        create: Whether to make a pool if the directory is not one yet. If False, that is an error.
        progress: Function that is called as ``progress(what, done_bytes, total_bytes)``, with
            "save" or "restore". It runs in a thread of the program, during a call to any job of the
            pool that saves, restores, waits, asks `done` or otherwise takes time. Progress that a
            save makes between such calls is reported at the next one. If it raises an `Exception`,
            that is logged and changes nothing. Others, such as `KeyboardInterrupt`, are raised by
            the call.
        threads: Number of threads that hash and copy; 0 is the number of cores, at most 4. This
            option and the following ones override `pool.toml`, for this process only.
        staging_bytes: Memory for data on its way to or from the pool, in bytes, or as text with a
            unit, such as "64MiB". The other sizes are given in the same way.
        freeze_bytes_max: Memory for copies of changed pages. If more has changed, a forked process
            holds it, or `save` writes the rest before it returns.
        freeze: How changed pages are held still: "auto", "copy", "fork" or "precopy".
        tracker: How changed pages are found: "auto", "wp-async", "mprotect" or "hash". If a way
            does not work on this machine, "hash" is used, and the statistics of a save say so.
        index_bytes_max: Memory for the index that finds duplicates.

    Raises:
        InvalidError: If the location is not a pool and cannot become one, or has another format.
    """
    place = os.fspath(location)
    if not isinstance(place, str):
        place = os.fsdecode(place)
    if not place:
        raise InvalidError("the location of a pool must not be empty: name a directory")
    scheme, colon, _ = place.partition("://")
    if colon and scheme.isalnum():
        raise InvalidError(
            f"{place!r}: pools at {scheme}:// are not in this build; name a directory"
        )
    core = _core.Pool(
        place,
        create=create,
        staging_bytes=_size("staging_bytes", staging_bytes),
        freeze_bytes_max=_size("freeze_bytes_max", freeze_bytes_max),
        index_bytes_max=_size("index_bytes_max", index_bytes_max),
        threads=None if threads is None else _number("threads", threads),
        freeze=_word("freeze", freeze),
        tracker=_word("tracker", tracker),
    )
    return Pool(core, place, progress)


_UNITS = {"": 0, "b": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30}


def _size(name: str, value: int | str | None) -> int | None:
    """Bytes: a number, or text such as "64MiB", as the command takes it."""
    if value is None:
        return None
    if not isinstance(value, str):
        return _number(name, value)
    digits, unit = re.fullmatch(r"([0-9]*)\s*(.*)", value.strip(), re.DOTALL).groups()  # type: ignore[union-attr]
    if not digits or unit.lower() not in _UNITS:
        raise InvalidError(
            f"{name} = {value!r} is not possible: give a number of bytes, or one with a unit, "
            'such as "64MiB"'
        )
    return _number(name, int(digits) << _UNITS[unit.lower()])


def _epoch_number(epoch: int | Epoch | None) -> int | None:
    number = epoch.epoch if isinstance(epoch, Epoch) else epoch
    if number is not None and not (isinstance(number, int) and 0 <= number < 1 << 64):
        raise InvalidError(f"there is no epoch {number!r}: give a number, or one of `epochs()`")
    return number


def _notes(label: str, pin: bool, metrics: Mapping[str, float] | None) -> _core.Notes:
    if not isinstance(metrics, Mapping | None):
        raise InvalidError(
            f'`metrics` are figures by name, such as {{"loss": 0.02}}, not {metrics!r}'
        )
    figures: dict[str, float] = {}
    for name, value in (metrics or {}).items():
        if not isinstance(name, str):
            raise InvalidError(f"the name of a metric must be text, not {name!r}")
        try:
            figures[name] = float(value)
        except (TypeError, ValueError, OverflowError):
            raise InvalidError(f"the metric {name!r} must be a number, not {value!r}") from None
    return _core.Notes(label=label, pin=pin, metrics=figures)


def _word(name: str, value: str | None) -> str | None:
    if not isinstance(value, str | None):
        raise InvalidError(f"{name} = {value!r} is not possible: give text, such as 'auto'")
    return value


def _number(name: str, value: int) -> int:
    """A number for the engine; `name` is what the caller calls it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise InvalidError(f"{name} = {value!r} is not possible: give a whole number from 0 on")
    return number


class Pool:
    """A place where checkpoints are stored; made by `open`. May be used from any thread.

    As a context manager, it closes itself at the end.
    """

    def __init__(self, core: _core.Pool, location: str, progress: Progress | None) -> None:
        """Made by `open`."""
        self._core = core
        self._location = location
        self._progress = progress
        self._jobs: weakref.WeakSet[Job] = weakref.WeakSet()
        self._tick = _Teller(core, progress)

    def job(self, name: str, every_s: float | None = None, *, allow_pickle: bool = False) -> Job:
        """Opens a job, a named series of checkpoints. Nothing is written before its first save.

        Only one program saves a job at a time, through one `Job` object. A second one takes the job
        over, and the first gets `FencedError`.

        Args:
            name: Name of the job: one line of text, not empty, up to 200 plain characters.
            every_s: Seconds between saves. Calls of `Job.save` in between return at once.
            allow_pickle: Whether objects other than arrays and plain values may be pickled when a
                state is saved, and unpickled when it is restored. Unpickling runs code that the
                checkpoint chooses, so allow it only if you trust everybody who can write to the
                pool.

        Raises:
            InvalidError: If the name or the time is not possible.
        """
        core = self._core.job(name, every_s=every_s)
        job = Job(core, name, self._location, self._tick, allow_pickle)
        self._jobs.add(job)
        return job

    def jobs(self) -> list[str]:
        """Names of the jobs that have ever saved to this pool."""
        return self._core.jobs()

    @property
    def location(self) -> str:
        """The location that was opened."""
        return self._location

    def gc(
        self,
        *,
        max_unused: float = 0.05,
        fence: Iterable[str] = (),
        dry_run: bool = False,
    ) -> Collected:
        """Deletes what no checkpoint needs, and rewrites packs that are mostly unused.

        May be called while programs save. A collection never deletes what a checkpoint needs, even
        if it is interrupted. The next one goes on.

        Args:
            max_unused: Share of the bytes in packs that may stay unused, 0 to 1.
            fence: Names of jobs whose program is gone, or must stop: it cannot save any more.
            dry_run: Whether to report only what would be done.

        Raises:
            DamagedError: If something stored cannot be read, so that its needs are unknown. Nothing
                was deleted.
            RetryError: If another collection, pruning or scrub is at work. Nothing was done.
            FencedError: If another collection has begun meanwhile, and the pool has no locks.
        """
        options = _core.Collection(unused_max=max_unused, fence=list(fence), dry_run=dry_run)
        return Collected(**self._core.gc(options, self._tick))

    def close(self) -> None:
        """Waits until all saves of its jobs are over.

        Raises:
            Error: If a save failed and its error has not been raised yet.
        """
        failure: Error | None = None
        for job in list(self._jobs):
            try:
                job.close()
            except Error as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        """The pool itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it. An exception of the program is not replaced by one of `close`."""
        _close(self, error)

    def __repr__(self) -> str:
        """The location, for people."""
        return f"<outlive.Pool at {self._location!r}>"


class Job:
    """A named series of checkpoints; made by `Pool.job`. May be used from any thread.

    As a context manager, it closes itself at the end.

    Attributes:
        last_restore: Report on the last `restore`; None before the first.
    """

    def __init__(
        self, core: _core.Job, name: str, location: str, tick: _Teller, allow_pickle: bool
    ) -> None:
        """Made by `Pool.job`."""
        self._core = core
        self._name = name
        self._location = location
        self._tick = tick
        self._allow_pickle = allow_pickle
        self._heavy: set[str] = set()
        self.last_restore: Restored | None = None
        _exit.watch(self, name, core, tick)

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._name

    def save(
        self,
        state: Any,
        *,
        force: bool = False,
        wait: bool = False,
        label: str = "",
        pin: bool = False,
        metrics: Mapping[str, float] | None = None,
    ) -> Save:
        """Saves a state; only what has changed since the last save is written.

        Returns as soon as the state may be changed again. The rest happens in the background, and
        the returned handle says when the checkpoint is committed. If another save is still under
        way, this call first waits for it. No other thread may change the state during the call.
        Once the exit functions of the interpreter have run (in a `__del__`, say), it returns when
        the checkpoint is committed.

        Arrays that share memory are saved one by one, and no longer share it when they come back.
        All come back as plain arrays, not as `recarray` or `memmap`. Each small value in a nested
        container takes a microsecond or more; in an array it takes none.

        To save at a signal, set a flag in its handler, and save where the program next calls this.
        A call by a handler or callback inside another call of the same job is refused.

        Args:
            state: A tree of dict (with str or int keys), list and tuple. Its leaves are arrays
                (NumPy's, or anything that has a buffer or `__dlpack__`, of any dtype), numbers,
                strings, bytes, None, and random generators of NumPy or `random`.
            force: Whether to save now, even if `every_s` has not passed.
            wait: Whether to return only when the checkpoint is committed.
            label: Label of the checkpoint. It forces the save, and keeps prunings from dropping it.
            pin: Whether to pin the checkpoint. A pin does the same as a label.
            metrics: Figures of merit by name, such as `{"loss": 0.02}`, for `prune(keep_best=...)`.

        Returns:
            The handle of the save. It is false if nothing was saved because `every_s` has not
            passed.

        Raises:
            InvalidError: If something in the state cannot be saved; the message says where. Or if a
                handler or callback calls this inside another call that keeps the job busy. Nothing
                was saved, and what was saved before is safe.
            FencedError: If another process has taken over this job, or has saved it since this one
                restored: see `take_over`.
            Error: If an earlier save failed and its error has not been raised yet. No new save was
                begun.
        """
        core = self._core
        # What somebody gives a name or a pin is meant to be there.
        if not (core.due() or force or label or pin):
            if core.events_waiting():
                self._tick()
            return _SKIPPED
        begun = time.perf_counter()
        flat = flatten(state, allow_pickle=self._allow_pickle)
        walk_s = time.perf_counter() - begun
        self._tell_of_heavy(flat)
        saving = core.save(
            self._tick,
            names=flat.names,
            dtypes=flat.dtypes,
            shapes=flat.shapes,
            leaves=flat.leaves,
            attachment=flat.skeleton(),
            notes=_notes(label, pin, metrics),
        )
        save = Save(saving, self._tick, walk_s)
        if wait or _exit.ended():
            save.wait()
        return save

    def _tell_of_heavy(self, flat: Flat) -> None:
        """Says once of each pickled object that the program waits for it."""
        for name, length, seconds in flat.heavy:
            if name not in self._heavy:
                self._heavy.add(name)
                _notices.tell(
                    logging.WARNING,
                    "job %s: %s is pickled at every save, while the program waits: %.1f MiB, in "
                    "%.2f s this time. Save the arrays in it as leaves of the state instead",
                    self._name,
                    shown(name),
                    length / (1 << 20),
                    seconds,
                )

    @overload
    def restore(
        self,
        *,
        epoch: int | Epoch | None = None,
        only: str | Iterable[str] | None = None,
        lazy: bool = False,
    ) -> Any: ...

    @overload
    def restore(
        self,
        into: Any,
        epoch: int | Epoch | None = None,
        only: str | Iterable[str] | None = None,
        *,
        lazy: Literal[True],
    ) -> LazyRestored: ...

    @overload
    def restore(
        self,
        into: Any,
        epoch: int | Epoch | None = None,
        only: str | Iterable[str] | None = None,
        *,
        lazy: bool = False,
    ) -> Restored: ...

    def restore(
        self,
        into: Any = FRESH,
        epoch: int | Epoch | None = None,
        only: str | Iterable[str] | None = None,
        *,
        lazy: bool = False,
    ) -> Any:
        """Restores the newest checkpoint that is whole.

        A damaged checkpoint is passed over with a warning (`logging`), and the next older one is
        taken. Afterwards the next save writes only what has changed since.

        With `into`, the program's own state is filled. Arrays keep their memory. Values (numbers,
        strings, None, bytes, whole lists of values) are replaced in the dict or list that holds
        them, after all data has been read and verified. Checkpoint and `into` must match: the same
        containers, arrays of the same dtype and shape. If they do not match, nothing is changed.
        Nothing is changed either if the program would not see what is restored: pickled arrays,
        pickled objects that it also holds elsewhere, or values in containers that nobody but `into`
        holds. Arrays are filled while the data is read, so after a `DamagedError` or an
        interruption they may hold parts of a checkpoint. No other thread may use the state during
        the call.

        Without `into`, a new tree is made. Arrays of other packages come back as NumPy arrays.

        With `lazy`, the call returns once the page tree is read, with all values and small arrays.
        Large arrays follow while the program runs: what it touches first comes first, and the rest
        comes in the background. `save`, `close`, another `restore` and `os.fork` wait for all of
        it. If damage is found then, no other checkpoint can be taken: the program ends at once,
        with a message and exit code 3. The checkpoint is marked suspect, so the next start takes
        the one before it.

        To serve system calls, a lazy restore needs root, CAP_SYS_PTRACE, or sysctl
        vm.unprivileged_userfaultfd=1. Without that right, a system call that meets missing memory,
        such as `file.write(array)`, fails with EFAULT: first call `wait` of the report. Arrays in
        shared memory are read before the return; so is everything if the kernel gives no
        userfaultfd. The report says so.

        Args:
            into: The state to fill.
            epoch: The checkpoint to take, instead of the newest.
            only: Names of what to restore, such as "model/weights" (with all below it) or
                "model/*/bias" (`*` also matches "/"). The rest is unchanged, or left out of a new
                tree (None in its lists).
            lazy: Whether to return at once and load memory later.

        Returns:
            With `into`, a report, which is false if the job has no checkpoint yet. Without `into`,
            the tree, or None if there is no checkpoint; the report is `Job.last_restore`. With
            `lazy`, the report is a `LazyRestored`.

        Raises:
            InvalidError: If there is no such epoch, if `into` does not match or would not be filled
                (the message and the exception's `differences` name every place), or if the
                checkpoint holds pickled objects and the job does not allow them.
            DamagedError: If no checkpoint is whole.
        """
        fresh = into is FRESH
        # Here and not further down: what counts is who holds it besides this call.
        is_referenced = _seen.is_referenced(sys.getrefcount(into))
        rebuild = Rebuild(into, is_referenced, only=only, allow_pickle=self._allow_pickle)
        epoch = _epoch_number(epoch)
        try:
            done = rebuild.run(self._core, epoch, False if lazy else None, self._tick)
        except DamagedError as error:
            if fresh or not rebuild.planned:
                raise
            raise DamagedError(
                f"{error}. Arrays of `into` may hold parts of it; its values are as they were"
            ) from None
        if done is None:
            self.last_restore = LazyRestored(None) if lazy else Restored(None)
            return None if fresh else self.last_restore
        tree = rebuild.finish(done.pop("values"))
        if lazy:
            fill = done.pop("fill")
            how = rebuild.how(**fill.how())
            self.last_restore = LazyRestored(
                _fill=fill,
                _select=rebuild.select(),
                _tick=self._tick,
                **how,
                **done,
            )
            if self.last_restore.eager_because:
                _notices.tell(
                    logging.WARNING,
                    "job %s: not all is restored lazily: %s",
                    self._name,
                    self.last_restore.eager_because,
                )
        else:
            self.last_restore = Restored(**done)
        _notices.tell(
            logging.INFO, "job %s: restored epoch %s", self._name, self.last_restore.epoch
        )
        return tree if fresh else self.last_restore

    def put_files(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        exclude: str | Iterable[str] = (),
        ignore_files: bool = True,
        one_file_system: bool = False,
        reread: bool = False,
        label: str = "",
        pin: bool = False,
        metrics: Mapping[str, float] | None = None,
    ) -> Put:
        """Stores directories and files in the pool, as a checkpoint of this job.

        Use it for the checkpoint files of any program. Data that the pool has already, from any
        file, takes no space again. Files that have not changed since the previous put, by their
        size, times and place on the disk, are not read. Modes, owners, times, links, holes and
        extended attributes are kept. Returns when the checkpoint is committed.

        Args:
            paths: Files and directories to store. The content of a single directory is listed
                without the directory's name; of several paths, each keeps its last part.
            exclude: Patterns of files to leave out, in the syntax of `.gitignore`.
            ignore_files: Whether to obey `.outliveignore` files in directories.
            one_file_system: Whether to skip directories on which another file system is mounted.
            reread: Whether to read every file, even if it has not changed.
            label: Label of the checkpoint, which keeps prunings from dropping it.
            pin: Whether to pin the checkpoint. A pin also keeps prunings from dropping it.
            metrics: Figures of merit by name, for `prune(keep_best=...)`.

        Returns:
            What was done. Files that could not be read are left out, and listed in `troubles`.

        Raises:
            InvalidError: If a path does not exist, or a pattern is not valid.
            Error: If the pool cannot store it, or after Ctrl-C. Nothing was committed.
        """
        done = self._core.put_files(
            one_or_more(paths),
            self._tick,
            patterns=patterns(exclude),
            ignore_files=ignore_files,
            one_file_system=one_file_system,
            reread=reread,
            leave_out=[self._location],
            notes=_notes(label, pin, metrics),
        )
        return Put(**told(done))

    def get_files(
        self,
        to: AnyPath,
        paths: AnyPath | Iterable[AnyPath] = (),
        *,
        epoch: int | Epoch | None = None,
        overwrite: bool = False,
    ) -> Got:
        """Restores files, with every byte verified. Links in `to` are never followed.

        Args:
            to: Directory to write to, which is made if it is missing.
            paths: Paths to restore, such as "model/weights.bin" or a directory; everything if
                empty.
            epoch: The checkpoint to take, instead of the newest of files that is whole.
            overwrite: Whether to replace existing files. Each is replaced when the new one is
                whole.

        Returns:
            What was done. It is false if the job has no checkpoint of files. A damaged file is left
            out and listed in `troubles`. So is what the file system or the user's rights refuse.

        Raises:
            InvalidError: If something is in the way, or there is no such path or epoch.
            DamagedError: If the list of files is damaged.
        """
        epoch = _epoch_number(epoch)
        wanted = [os.fsencode(path) for path in one_or_more(paths)]
        (place,) = one_or_more(to)
        values = self._core.get_files(place, wanted, self._tick, epoch=epoch, overwrite=overwrite)
        return Got() if values is None else Got(**told(values))

    def epochs(self) -> list[Epoch]:
        """The committed checkpoints, oldest first."""
        return [Epoch(**values) for values in self._core.epochs()]

    def note(self, epoch: int, *, label: str | None = None, pin: bool | None = None) -> None:
        """Changes the label or the pin of a checkpoint. First waits for a save that is under way.

        Args:
            epoch: Epoch of the checkpoint.
            label: New label; an empty text removes it. None leaves it unchanged.
            pin: Whether prunings keep it. None leaves it unchanged.

        Raises:
            InvalidError: If there is no such checkpoint.
        """
        self._core.note(_number("epoch", epoch), self._tick, label=label, pin=pin)

    def prune(
        self,
        keep: str | None = None,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_within: timedelta | None = None,
        keep_best: str | Iterable[str] = (),
        drop: Iterable[int] = (),
        everything: bool = False,
        collect: bool = True,
        max_unused: float = 0.05,
        dry_run: bool = False,
    ) -> Pruned:
        """Drops checkpoints by rules, and frees the space that only they needed.

        A checkpoint stays if any rule keeps it. Pinned and labelled checkpoints stay, too, and so
        does the newest of those that are not dropped by name. May be called while this or another
        program saves to the pool. First waits for a save of this job that is under way.

        Without any rule, the rules of `keep` in the `[tuning]` of `pool.toml` apply.

        Args:
            keep: Rules in one text: "last 10 | every 100 | newer than 7d | best loss:min:3".
            keep_last: Number of newest checkpoints to keep.
            keep_every: Interval of epochs to keep: those that are a multiple of it.
            keep_within: Age up to which to keep checkpoints, counted from the newest. If times do
                not fit the order of epochs, a clock has jumped: then more is kept, never less.
            keep_best: Metric given to `save` by which to keep the best: "loss", "accuracy:max",
                "loss:min:3" (the best three).
            drop: Epochs to drop, even if a rule, label or pin would keep them. Rules choose among
                the rest. At least one checkpoint must be left.
            everything: Whether to drop all checkpoints. No program may have the job open.
            collect: Whether to free space now; otherwise a later `gc` does.
            max_unused: Share of the bytes in packs that may stay unused, 0 to 1.
            dry_run: Whether to report only what would be done.

        Raises:
            InvalidError: If there is no rule, or one is not possible. Nothing was dropped.
            DamagedError: If something stored cannot be read, so that its needs are unknown. No pack
                was deleted.
            Error: If freeing the space failed for another reason. If checkpoints had been dropped
                by then, the message says so, as with `DamagedError`. They are gone, and the next
                `gc` frees their space once the cause is removed.
        """
        best = [keep_best] if isinstance(keep_best, str) else list(keep_best)
        rules = _core.Rules(
            last=None if keep_last is None else _number("keep_last", keep_last),
            every=None if keep_every is None else _number("keep_every", keep_every),
            within_s=None if keep_within is None else keep_within.total_seconds(),
            best=best,
            none=everything,
            drop={_number("drop", epoch) for epoch in drop},
            text=keep,
        )
        options = _core.Collection(unused_max=max_unused, collect=collect, dry_run=dry_run)
        done = self._core.prune(rules, options, self._tick)
        return Pruned(collected=Collected(**done.pop("collected")), **done)

    def take_over(self) -> None:
        """Lets the next save go on from this program's state, although others have saved since.

        The first save after a restore, and after a `close`, is refused with `FencedError` if
        another program has saved this job since. Usually the program then restores again, and goes
        on from there. Call this to go on from the state of this program instead. The checkpoints of
        the others stay, as older epochs, and their programs get `FencedError`.
        """
        self._core.take_over()

    def close(self) -> None:
        """Waits until the last save is over, and a lazy restore has filled its memory.

        The job can be used again afterwards.

        Raises:
            Error: If the last save failed and its error has not been raised yet.
        """
        self._core.close(self._tick, at_exit=False)

    def __enter__(self) -> Self:
        """The job itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it. An exception of the program is not replaced by one of `close`."""
        _close(self, error)

    def __repr__(self) -> str:
        """The name, for people."""
        return f"<outlive.Job {self._name!r}>"


class _Teller:
    """Passes on what the engine tells: notices to `logging`, progress to the program."""

    def __init__(self, core: _core.Pool, progress: Progress | None) -> None:
        self.core, self.progress = core, progress
        self.failed = False

    def __call__(self) -> None:
        events = self.core.take_events()
        # Notices first: what ends the callback must not swallow them.
        for notice in events["notices"]:
            _notices.tell(_LEVELS[notice["level"]], "%s", notice["text"])
        if self.progress is not None:
            for progress in events["progress"]:
                self.show(self.progress, **progress)

    def show(self, progress: Progress, what: str, done_bytes: int, total_bytes: int) -> None:
        """Calls the program. Its error must not end the work, nor lose what was done."""
        try:
            progress(what, done_bytes, total_bytes)
        except Exception as error:
            if not self.failed:
                self.failed = True
                _notices.tell(
                    logging.WARNING,
                    "the progress callback has raised %r; the work is not affected, and later "
                    "errors of the callback are not told",
                    error,
                    error=error,
                )


def plot(job: Job) -> Plot:
    """Draws a job's checkpoints over their epochs: stalls, bytes, what was shared.

    A notebook shows the picture; `save` writes it to a file.

    Raises:
        InvalidError: If it is not a job.
    """
    if not isinstance(job, Job):
        raise InvalidError(f"a plot shows one job: give `pool.job(name)`, not {job!r}")
    return Plot(job._core.plot())  # the job's own module


def _close(what: Pool | Job, error: BaseException | None) -> None:
    try:
        what.close()
    except Error as failure:
        if error is None:
            raise
        # The program's own exception goes on; this must be heard all the same.
        error.add_note(f"outlive: besides, the last save failed: {failure}")
        _notices.tell(logging.ERROR, "the last save failed: %s", failure)


__all__ = ["Job", "Pool", "SaveStats", "open", "plot"]
