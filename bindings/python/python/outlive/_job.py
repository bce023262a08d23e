"""A job: a named series of checkpoints."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Protocol, Self, overload

from outlive import _core, _descent, _exit, _notices
from outlive._arguments import epoch_name, notes_of, rules_of
from outlive._commits import CommitEvents
from outlive._errors import Error, FailedSaveWarning, InvalidError
from outlive._files import AnyPath, Got, Put, one_or_more, patterns, told
from outlive._gate import Gate
from outlive._preempt import StopRequest
from outlive._printed import flush_printed
from outlive._rebuild import FRESH, Rebuild, restored
from outlive._saves import (
    Collected,
    Epoch,
    JobStatus,
    LazyRestored,
    Pruned,
    Restored,
    Save,
)
from outlive._select import Selection
from outlive._teller import Teller
from outlive._tree import TREE_LEAST, Flat, flatten, is_single_value, shown

_SKIPPED = Save(None, None)
# The gates of this process, by its id, the pool and the job.
_GATES: weakref.WeakValueDictionary[tuple[int, str, str], Gate] = weakref.WeakValueDictionary()


class Job:
    """A named series of checkpoints, from `Pool.job`. Any thread may use it.

    As a context manager, it closes itself at the end.

    Attributes:
        last_restore: Report on the last `restore`; None before the first.
    """

    def __init__(
        self,
        core: _core.Job,
        name: str,
        location: str,
        tick: Teller,
        allow_pickle: bool,
        replicated: Selection | None = None,
    ) -> None:
        """Made by `Pool.job`."""
        self._replicated = replicated
        self._is_group = core.group() is not None
        self._core = core
        self._name = name
        self._location = location
        self._tick = tick
        self._allow_pickle = allow_pickle
        self._heavy: set[str] = set()
        self._lossy: set[str] = set()
        self._knows_history = False
        self._gate: Gate | None = None
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
        label: str | None = None,
        pin: bool = False,
        metrics: Mapping[str, float] | None = None,
    ) -> Save:
        """Saves a state, and writes only the pages that have changed since the last save.

        Returns as soon as the state may be changed again. A background thread completes the save,
        and the returned handle tells when the checkpoint is committed. If another save is still
        under way, this call first waits for it. No other thread may change the state during the
        call. Once the exit functions of the interpreter have run (in a `__del__`, say), it returns
        when the checkpoint is committed.

        Arrays that share memory are saved one by one, and no longer share it after a restore. All
        come back as plain arrays, not as `recarray` or `memmap`. A container that holds only
        numbers, strings, bytes and None is saved as a whole, at 50 to 100 ns for each value. Beside
        arrays or other objects in the same container, each value takes a microsecond or more.

        To save at a signal, set a flag in its handler, and save where the program next calls this.
        A call by a handler or callback inside another call of the same job is refused.

        Args:
            state: A tree of dict, list and tuple. Keys are str or int. They may be of any plain
                type if the whole dict is plain and the job has no group. Its leaves are arrays
                (NumPy's, or any object with a buffer or `__dlpack__`, of any dtype), numbers,
                strings, bytes, None, and random generators of NumPy or `random`.
            force: Whether to save now, even if none is due yet.
            wait: Whether to return only when the checkpoint is committed.
            label: Label of the checkpoint. It forces the save, and no prune drops the checkpoint.
            pin: Whether to pin the checkpoint. A pin does the same as a label.
            metrics: Figures of merit by name, such as `{"loss": 0.02}`, for `prune(keep_best=...)`.
                A metric that is NaN is left out, with a warning.

        Returns:
            The handle of the save. It is false if nothing was saved, since none was due yet.

        Raises:
            InvalidError: If an object in the state cannot be saved; the message names its path.
                Also if a handler or callback calls this inside another call that keeps the job
                busy. Nothing was saved, and earlier checkpoints are safe.
            FencedError: If another process has taken over this job, or has saved it since this one
                restored: see `take_over`.
            Error: If an earlier save failed and its error has not been raised yet. No new save has
                begun. With on_failure="warn" only after `fail_after` (see `Pool.job`). Until then a
                save that fails at once also returns a handle, whose `wait` raises.
        """
        core = self._core
        # A label or a pin asks for this very checkpoint.
        if not (core.due(self._tick) or force or label or pin):
            if core.notices_waiting():
                self._tick()
                self._warn_of_failures()
            return _SKIPPED
        begun = time.perf_counter()
        with self._declining():
            # If the program turns warnings into errors, no save begins.
            self._warn_of_failures()
            # A restore of several ranks cannot read data before it begins, as trees may need it.
            trees = frozenset() if self._is_group else core.plain_containers(state, TREE_LEAST)
            flat = flatten(state, allow_pickle=self._allow_pickle, plain=trees)
            distributions = self._distributions(flat)
            notes = notes_of(self._name, label, pin, metrics)
            if core.has_transcript():
                flush_printed()
        walk_s = time.perf_counter() - begun
        self._tell_of_heavy(flat)
        self._tell_of_lost(flat)
        saving = core.save(
            self._tick,
            names=flat.names,
            dtypes=flat.dtypes,
            shapes=flat.shapes,
            leaves=flat.leaves,
            distributions=distributions,
            attachment=flat.skeleton(with_names=self._is_group),
            notes=notes,
        )
        save = Save(saving, self._tick, walk_s, core.tiers)
        self._tell_of_history(save.epoch)
        if wait or saving.is_last() or _exit.ended():
            saving.settle(self._tick)
            self._warn_of_failures()
        if self._gate is not None:
            self._gate._wait_if_full()
        return save

    def _warn_of_failures(self) -> None:
        """Warns of failed saves, if the program goes on after them."""
        untold = self._core.untold_failures()
        if untold is None:
            return
        count, in_a_row, error = untold
        saves = "a save has" if count == 1 else f"{count} saves have"
        after = f", {in_a_row} in a row" if in_a_row > count else ""
        warnings.warn(
            f"job {self._name}: {saves} failed{after}, and the program goes on: {error}",
            FailedSaveWarning,
            stacklevel=3,
        )

    @property
    def should_stop(self) -> bool:
        """Whether the program is to save once more and to end.

        It becomes true after a signal (see `outlive.on_preempt`), or at a request of `outlive run`
        or `outlive stop`. The next `save` is then made whether it is due or not, and returns when
        its checkpoint is committed. Collective in a group: all ranks get true as soon as one of
        them was asked, so that they end after the same step.

        Raises:
            Error: In a group, if another rank has ended or is elsewhere in the program.
        """
        return self._core.should_stop(self._tick)

    @property
    def stop_request(self) -> StopRequest | None:
        """The request to stop that this process knows of; None without one. Not collective."""
        found = self._core.stop_request()
        return None if found is None else StopRequest(*found)

    @property
    def status(self) -> JobStatus:
        """Figures of this job's saves in this process; never waits."""
        return JobStatus(**self._core.status())

    def events(self) -> CommitEvents:
        """Subscribes to the fate of each checkpoint from now on: committed or failed.

        A program may hold back its outputs with it until the state behind them is safe. The
        subscription keeps every event until it is taken: see `CommitEvents`. It does not keep the
        job open.

        Returns:
            The subscription: iterate over it, or call its `next`.

        Raises:
            InvalidError: In a forked child.
        """
        return CommitEvents(self._core.commit_events(), self._name, self._tick)

    def gate(self, *, bytes_max: int | None = None) -> Gate:
        """Opens the output gate, which holds outputs until a checkpoint covers them.

        ```python
        gate = job.gate()
        log = gate.open("metrics.jsonl")
        while state["step"] < 1000:
            train(state)
            print(json.dumps({"step": state["step"]}), file=log)
            job.save(state)
        ```

        After a crash the file has each line once: see `Gate`. Open the gate before or after the
        `restore`, and before the first output. The next save covers what was given until its call.
        A fenced program releases nothing. A forked child has no gate.

        Args:
            bytes_max: Bytes of outputs from which on a save is due, whatever `every_s` says, and
                waits until there are fewer. None keeps the last value, 4 MiB at first. A group of
                ranks has no such limit.

        Returns:
            The gate; later calls return the same one.

        Raises:
            FencedError: If another process has taken over the job.
            InvalidError: In a forked child.
        """
        if self._gate is not None and bytes_max is None:
            self._gate.check()
            return self._gate
        core = self._core.gate(4 << 20 if bytes_max is None else bytes_max, self._tick)
        if self._gate is None:
            # All jobs of this name are one writer, with one gate.
            key = None if self._is_group else (os.getpid(), self._location, self._name)
            gate = None if key is None or core.is_new else _GATES.get(key)
            self._gate = gate or Gate(core, self._tick, weakref.WeakMethod(self.save))
            if key is not None:
                _GATES[key] = self._gate
        return self._gate

    def _tell_of_history(self, epoch: int | None) -> None:
        """Warns once if this program saves over checkpoints that it never looked at."""
        if self._knows_history or epoch is None:
            return
        known = _descent.is_known(self._location, self._name)
        self._know_history()
        # The first epoch has none before it, and neither has a later one after a prune of all.
        if known or epoch == 1 or self.rank != 0:
            return
        try:
            is_first = all(before.epoch == epoch for before in self.epochs())
        except Error:  # the save is under way in any case
            return
        if is_first:
            return
        _notices.tell(
            logging.WARNING,
            "job %s: IT HAS CHECKPOINTS, and this program saves epoch %s without having restored "
            "one. Was `job.restore` forgotten? Rules such as keep_last keep only the newest of the "
            "old checkpoints. End this program and restore; or call "
            "`job.take_over()` before the first save if the program is meant to start over",
            self._name,
            epoch,
        )

    @contextmanager
    def _declining(self) -> Iterator[None]:
        """Passes an error of this rank to the other ranks of its group, which begin the call."""
        try:
            yield
        except BaseException as error:
            if self._is_group:
                with contextlib.suppress(Error):
                    self._core.abort_collective(self._tick, str(error) or type(error).__name__)
            raise

    def _distributions(self, flat: Flat) -> dict[int, Any]:
        """Returns, by number of the leaf, its part of a global array, or True if replicated."""
        found: dict[int, Any] = dict(flat.parts)
        if found and not self._is_group:
            name = flat.names[min(found)]
            raise InvalidError(
                f"{shown(name)} is sharded, and the job has no group: open it with `group=`"
            )
        if self._replicated is not None:
            for at, name in enumerate(flat.names):
                if self._replicated.has(name):
                    if at in found:
                        raise InvalidError(f"{shown(name)} is sharded, and `replicated` names it")
                    found[at] = True
                    # Rank 0 stores it for all, whatever order the memory of each rank has.
                    if at in flat.fortran:
                        flat.fortran.remove(at)
                        flat.leaves[at] = flat.leaves[at].T.copy(order="C")
        return found

    @property
    def rank(self) -> int:
        """The number of this rank in its group; 0 without one."""
        return (self._core.group() or (0, 1))[0]

    @property
    def ranks(self) -> int:
        """Number of ranks in the group; 1 without one."""
        return (self._core.group() or (0, 1))[1]

    def _tell_of_heavy(self, flat: Flat) -> None:
        """Warns once of each pickled object that the program waits for it."""
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

    def _tell_of_lost(self, flat: Flat) -> None:
        """Warns once of each ordered dict that its attributes are not saved."""
        for name, attributes in flat.lost:
            if name not in self._lossy:
                self._lossy.add(name)
                _notices.tell(
                    logging.WARNING,
                    "job %s: %s is an OrderedDict with attributes (%s), which are not saved: put "
                    "what the program needs of them beside it, as values",
                    self._name,
                    shown(name),
                    attributes,
                )

    @overload
    def restore(
        self,
        *,
        epoch: int | str | Epoch | None = None,
        only: str | Iterable[str] | None = None,
        lazy: bool = False,
    ) -> Any: ...

    @overload
    def restore(
        self,
        into: Any,
        epoch: int | str | Epoch | None = None,
        only: str | Iterable[str] | None = None,
        *,
        lazy: Literal[True],
    ) -> LazyRestored: ...

    @overload
    def restore(
        self,
        into: Any,
        epoch: int | str | Epoch | None = None,
        only: str | Iterable[str] | None = None,
        *,
        lazy: bool = False,
    ) -> Restored: ...

    def restore(
        self,
        into: Any = FRESH,
        epoch: int | str | Epoch | None = None,
        only: str | Iterable[str] | None = None,
        *,
        lazy: bool = False,
    ) -> Any:
        """Restores the newest whole checkpoint.

        A damaged checkpoint is skipped with a warning (`logging`), and the next older one is taken.
        Afterwards the next save writes only the pages that have changed since.

        With `into`, the restore fills the program's own state. Arrays keep their memory. All else
        (numbers, strings, None, bytes, whole lists of values, pickled objects) is replaced in the
        dict or list that holds it, after all data has been read and verified. Only `into` changes:
        keep it in a variable, and take from there what the program has elsewhere, as with
        `load_state_dict`. Checkpoint and `into` must match: the same containers, and arrays of the
        same dtype and shape. If they do not match, nothing is changed. Arrays are filled while the
        data is read, so after a `DamagedError` or an interruption they may hold parts of a
        checkpoint. The error then has `into_changed`. Objects are unpickled before anything is
        filled. No other thread may use the state during the call.

        Without `into`, a new tree is made. Arrays of other packages come back as NumPy arrays. If
        several ranks have saved a global array in parts, a single process gets the whole array, and
        so does an array of `into` that has the global shape.

        With `lazy`, the call returns once the page tree is read, with all values and small arrays.
        Large arrays follow while the program runs: touched memory first, and the rest in the
        background. `save`, `close`, another `restore` and `os.fork` wait for all of it. If damage
        is found then, no other checkpoint can be taken: the program ends at once, with a message
        and exit code 3. The checkpoint is marked suspect: the next lazy restore takes the one
        before it. An eager restore tries the suspect one, finds the damage, and then takes the one
        before it.

        To serve system calls, a lazy restore needs root, CAP_SYS_PTRACE, or sysctl
        vm.unprivileged_userfaultfd=1. Without that right, a system call that touches missing
        memory, such as `file.write(array)`, fails with EFAULT: first call `wait` of the report.
        Arrays in shared memory are read before the return. If the kernel gives no userfaultfd,
        everything is read before the return. The report says so.

        Args:
            into: The state to fill.
            epoch: The checkpoint to take, and no other: its number, one of `epochs()`, or -1 for
                the newest ("latest" is the same), -2 for the one before it. None means the newest
                whole one.
            only: Names of leaves to restore, such as "model/weights" (with all below it) or
                "model/*/bias" (`*` also matches "/"). The rest is unchanged, or missing in a new
                tree (None in its lists).
            lazy: Whether to return at once and load memory later.

        Returns:
            With `into`, a report, which is false if the job has no checkpoint yet. Without `into`,
            the tree, or None if there is no checkpoint; the report is `Job.last_restore`. With
            `lazy`, the report is a `LazyRestored`.

        Raises:
            InvalidError: If there is no such epoch, or if the checkpoint holds pickled objects and
                the job does not allow them. Also if `into` does not match; the message and the
                exception's `differences` name every path.
            DamagedError: If no checkpoint is whole.
        """
        with self._declining():
            if into is not FRESH and (isinstance(into, Epoch) or is_single_value(into)):
                raise InvalidError(_not_into(into))
            rebuild = Rebuild(into, only=only, allow_pickle=self._allow_pickle)
            wanted = self._number_of(epoch)
            if lazy and self._is_group:
                raise InvalidError("the ranks of a group restore all memory before they go on")
            if self._core.has_transcript():
                flush_printed()
        tree, report = restored(rebuild, self._core, wanted, lazy=lazy, tick=self._tick)
        self.last_restore = report
        self._know_history()
        if report and into is not FRESH:
            # The program's state was replaced: what it gave since that checkpoint is void.
            self._core.roll_back_gate(self._tick)
        if isinstance(report, LazyRestored) and report.eager_because:
            _notices.tell(
                logging.WARNING,
                "job %s: not all is restored lazily: %s",
                self._name,
                report.eager_because,
            )
        if report:
            _notices.tell(logging.INFO, "job %s: restored epoch %s", self._name, report.epoch)
        return tree if into is FRESH else report

    def put_files(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        exclude: str | Iterable[str] = (),
        ignore_files: bool = True,
        one_file_system: bool = False,
        reread: bool = False,
        label: str | None = None,
        pin: bool = False,
        metrics: Mapping[str, float] | None = None,
    ) -> Put:
        """Stores directories and files in the pool, as a checkpoint of this job.

        Use it for the checkpoint files of any program. Data that the pool has already, from any
        file, takes no more space. Files that have not changed since the previous put, by their
        size, times and place on the disk, are not read. Modes, owners, times, links, holes and
        extended attributes are kept. Returns when the checkpoint is committed.

        Args:
            paths: Files and directories to store. The content of a single directory is listed
                without the directory's name; of several paths, each keeps its last part.
            exclude: Patterns of files to leave out, in the syntax of `.gitignore`.
            ignore_files: Whether to obey `.outliveignore` files in directories.
            one_file_system: Whether to skip directories on which another file system is mounted.
            reread: Whether to read every file, even if it has not changed.
            label: Label of the checkpoint. No prune drops a labelled checkpoint.
            pin: Whether to pin the checkpoint. No prune drops a pinned checkpoint.
            metrics: Figures of merit by name, for `prune(keep_best=...)`.

        Returns:
            Report of the put. Files that could not be read are left out, and listed in `troubles`.

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
            notes=notes_of(self._name, label, pin, metrics),
        )
        return Put(**told(done))

    def get_files(
        self,
        to: AnyPath,
        paths: AnyPath | Iterable[AnyPath] = (),
        *,
        epoch: int | str | Epoch | None = None,
        overwrite: bool = False,
    ) -> Got:
        """Restores files, with every byte verified. Links in `to` are never followed.

        Args:
            to: Directory to write to, which is created if it is missing.
            paths: Paths to restore, such as "model/weights.bin" or a directory; everything if
                empty.
            epoch: The checkpoint to take, as in `restore`. None means the newest whole one of
                files.
            overwrite: Whether to replace existing files that differ. Each is replaced when the new
                one is whole. Files with the right content, owner, mode and attributes are not
                touched.

        Returns:
            Report of the get. It is false if the job has no checkpoint of files. A damaged file is
            left out and listed in `troubles`. So is each file that the file system or the user's
            rights refuse.

        Raises:
            InvalidError: If something is in the way, or no such path or epoch exists.
            DamagedError: If the list of files is damaged.
        """
        number_of = self._number_of(epoch)
        wanted = [os.fsencode(path) for path in one_or_more(paths)]
        (place,) = one_or_more(to)
        values = self._core.get_files(
            place, wanted, self._tick, epoch=number_of, overwrite=overwrite
        )
        return Got() if values is None else Got(**told(values))

    def _number_of(self, epoch: int | str | Epoch | None) -> int | None:
        """Returns a checkpoint's number. One counted from the newest waits for a save under way."""
        name = epoch_name(epoch)
        return self._core.epoch_named(name, self._tick) if isinstance(name, str) else name

    def epochs(self) -> list[Epoch]:
        """Returns the committed checkpoints, oldest first."""
        return [Epoch(**values) for values in self._core.epochs()]

    def tiers(self, epoch: int | str | Epoch | None = None) -> tuple[str, ...]:
        """Returns the tiers from which alone a checkpoint can be read now.

        The result is "fast", "slow", both or none. A pool without a slow tier has only a fast one.
        The call asks every target for its shards. Data that is only on a fast tier in memory is
        lost when its host restarts: see `Save.wait(tier="slow")`.

        Args:
            epoch: The checkpoint, as in `restore`. None is the newest.

        Raises:
            InvalidError: If there is no such checkpoint.
        """
        return tuple(self._core.tiers(self._number_of(epoch)))

    def note(
        self, epoch: int | str | Epoch, *, label: str | None = None, pin: bool | None = None
    ) -> None:
        """Changes the label or the pin of a checkpoint. First waits for a save that is under way.

        Args:
            epoch: The checkpoint, as in `restore`.
            label: New label; an empty text removes it. None leaves it unchanged.
            pin: Whether prunes keep it. None leaves it unchanged.

        Raises:
            InvalidError: If there is no such checkpoint.
        """
        named = self._number_of(epoch)
        if named is None:
            raise InvalidError("no checkpoint is named: give its epoch, or -1 for the newest")
        self._core.note(named, self._tick, label=label, pin=pin, mark=None)

    def mark(self, epoch: int | str | Epoch, mark: Literal["good", "bad", "none"]) -> None:
        """Marks the state in a checkpoint as good or bad. First waits for a save that is under way.

        A restore without an epoch passes over bad checkpoints, with a warning, and rules such as
        `keep_last` do not count them. `outlive run` marks a checkpoint as bad if the program fails
        again and again after its restore. `restore(epoch=...)` takes a bad one all the same.

        Args:
            epoch: The checkpoint, as in `restore`.
            mark: "bad", "good", or "none" to take the mark back.

        Raises:
            InvalidError: If there is no such checkpoint or mark.
        """
        named = self._number_of(epoch)
        if named is None:
            raise InvalidError("no checkpoint is named: give its epoch, or -1 for the newest")
        self._core.note(named, self._tick, label=None, pin=None, mark=mark)

    def prune(
        self,
        keep: str | None = None,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_within: timedelta | str | None = None,
        keep_best: str | Iterable[str] = (),
        drop: Iterable[int | str | Epoch] = (),
        everything: bool = False,
        collect: bool = True,
        max_unused: float = 0.02,
        dry_run: bool = False,
    ) -> Pruned:
        """Drops checkpoints by rules, and frees the space that only they needed.

        A checkpoint stays if any rule keeps it. Pinned and labelled checkpoints stay, too, and so
        does the newest of those that are not dropped by name. This or another program may save to
        the pool meanwhile. First waits for a save of this job that is under way.

        Without any rule, the rules of `keep` in the `[tuning]` of `pool.toml` apply.

        Args:
            keep: Rules in one text: "last 10 | every 100 | newer than 7d | best loss:min:3".
            keep_last: Number of newest checkpoints to keep. Damaged ones do not count.
            keep_every: Interval of epochs to keep: those that are a multiple of it.
            keep_within: Age up to which to keep checkpoints, counted from the newest: a timedelta,
                or text such as "7d". If times do not fit the order of epochs, a clock has jumped:
                then more is kept, never less.
            keep_best: Metric given to `save` by which to keep the best: "loss", "accuracy:max",
                "loss:min:3" (the best three).
            drop: Epochs to drop, named as in `restore`, even if a rule, label or pin would keep
                them. Rules choose among the rest. At least one checkpoint must stay.
            everything: Whether to drop all checkpoints. No other program may have the job open;
                for a dry run, neither may this one: call `close` first.
            collect: Whether to free space now; otherwise a later `gc` does.
            max_unused: Share of the bytes in packs that may stay unused, 0 to 1.
            dry_run: Whether to report only what would be done.

        Raises:
            InvalidError: If there is no rule, or one is not possible. Nothing was dropped.
            DamagedError: If stored data that a decision needs cannot be read. No pack was deleted.
            Error: If freeing the space failed for another reason. If checkpoints had been dropped
                by then, the message says so, as with `DamagedError`. They are gone, and the next
                `gc` frees their space once the cause is removed.
        """
        rules = rules_of(
            keep,
            keep_last=keep_last,
            keep_every=keep_every,
            keep_within=keep_within,
            keep_best=keep_best,
            drop=[epoch for epoch in map(self._number_of, drop) if epoch is not None],
            everything=everything,
        )
        options = _core.Collection(unused_max=max_unused, collect=collect, dry_run=dry_run)
        done = self._core.prune(rules, options, self._tick)
        return Pruned(collected=Collected(**done.pop("collected")), **done)

    def take_over(self) -> None:
        """Lets the next save continue from this program's state, although others have saved since.

        If another program has saved this job since the last restore or `close`, the first save
        afterwards is refused with `FencedError`. Usually the program then restores again, and
        continues from there. Call this to continue from the state of this program instead. The
        checkpoints of the others stay, as older epochs, and their programs get `FencedError`.
        """
        self._core.take_over()
        self._know_history()

    def _know_history(self) -> None:
        """Notes that this program has restored the job, or continues without a restore."""
        self._knows_history = True
        _descent.know(self._location, self._name)

    def close(self) -> None:
        """Waits until the last save is over, and a lazy restore has filled its memory.

        If the pool has a slow tier, this waits until that has the checkpoints that `[tiers]` in
        `pool.toml` chooses, at most `finish_s` seconds. If it lacks some of them then, a warning
        says so. The job can be used again afterwards. If the job has rules (`keep_last`, `keep`),
        this drops the other checkpoints and frees their space.

        All ranks of a group close the job, after the same saves. If another rank saves or restores
        meanwhile, all get `InvalidError`, which names it. If an exception ends the `with`, no rank
        waits for the others.

        Raises:
            Error: If the last save failed and its error has not been raised yet. With
                on_failure="warn" this is a warning, unless nothing was committed for `fail_after`,
                or no save of this process was committed.
        """
        self._close(together=True)

    def _close(self, *, together: bool) -> None:
        self._core.close(self._tick, at_exit=False, together=together)
        self._gate = None
        self._warn_of_failures()

    def __enter__(self) -> Self:
        """Returns the job itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it. An exception of `close` does not replace one of the program."""
        close_after(self._close, error)

    def __repr__(self) -> str:
        """Returns the name, for people."""
        return f"<outlive.Job {self._name!r}>"


def _not_into(into: Any) -> str:
    """Returns the advice for a restore into a single value."""
    if isinstance(into, Epoch):
        return f"`into` is an `Epoch`, and no state: write `restore(epoch={into.epoch})`"
    meant = ""
    if type(into) is int:
        meant = f"write `restore(epoch={into})` for that epoch, or "
    elif type(into) is str:
        meant = f"write `restore(only={into!r})` for a part, or "
    return (
        f"`into` is {repr(into)[:100]}, which cannot be filled: {meant}give the dict or list that "
        "holds the state, or leave `into` out to get a new one"
    )


class _Close(Protocol):
    def __call__(self, *, together: bool) -> None: ...


def close_after(close: _Close, error: BaseException | None) -> None:
    """Closes an object at the end of a `with`, which `error` has ended unless it is None."""
    try:
        # After an exception the other ranks of a group may be anywhere.
        close(together=error is None)
    except Error as failure:
        if error is None:
            raise
        # Python raises the program's own exception, so add the failure to it.
        error.add_note(f"outlive: besides, the last save failed: {failure}")
        _notices.tell(logging.ERROR, "the last save failed: %s", failure)
