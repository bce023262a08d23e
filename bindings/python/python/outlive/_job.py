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
from types import TracebackType
from typing import Any, Literal, Protocol, Self, overload

from outlive import _core, _descent, _exit, _notices
from outlive._arguments import notes_of, tags_of
from outlive._autosave import Autosave
from outlive._commits import CommitEvents
from outlive._deferred import Deferred
from outlive._errors import Error, FailedSaveWarning, InvalidError
from outlive._files import AnyPath, Got, Put, one_or_more, patterns, told
from outlive._flat import Flat, is_single_value, shown
from outlive._gate import Gate
from outlive._layouts import unordered
from outlive._match import Match, Shapes
from outlive._past import Past
from outlive._preempt import StopRequest
from outlive._printed import flush_printed
from outlive._rebuild import FRESH, Rebuild
from outlive._remarks import Remarks
from outlive._restored import first_restored
from outlive._saves import (
    Epoch,
    JobStatus,
    LazyRestored,
    Restored,
    Save,
)
from outlive._select import Selection
from outlive._teller import Teller
from outlive._tree import TREE_LEAST, flatten

_SKIPPED = Save(None, None)
# The gates of this process, by its id, the pool and the job.
_GATES: weakref.WeakValueDictionary[tuple[int, str, str], Gate] = weakref.WeakValueDictionary()


class Job(Past):
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
        self._remarks = Remarks(name)
        self._knows_history = False
        self._gate: Gate | None = None
        # The connection of its ranks.
        self._ranks: Any = None
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
        tags: str | Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
    ) -> Save:
        """Saves a state, and writes only the pages that have changed since the last save.

        Returns as soon as the state may be changed again. A background thread completes the save,
        and the returned handle tells when the checkpoint is committed. If another save is still
        under way, this call first waits for it. No other thread may change the state during the
        call. Once the exit functions of the interpreter have run (in a `__del__`, say), it returns
        when the checkpoint is committed.

        Arrays that share memory are saved one by one, and no longer share it after a restore.
        Tensors of PyTorch that share memory are saved once, and share it again (docs/pytorch.md). A
        `memmap` comes back as a plain array. A container that holds only numbers, strings, bytes
        and None is saved as a whole, at 50 to 100 ns for each value. Beside arrays or other objects
        in the same container, each value takes a microsecond or more.

        To save at a signal, set a flag in its handler, and save where the program next calls this.
        A call by a handler or callback inside another call of the same job is refused.

        Args:
            state: A tree of dict, list and tuple. Keys are numbers, strings, bytes, None, members
                of an Enum, or tuples of these. Its leaves are arrays (NumPy's, PyTorch's, or any
                object with a buffer or `__dlpack__`, of any dtype), numbers, strings, bytes, None,
                and random generators of NumPy, `random` or PyTorch. Between them may be
                dataclasses, namedtuples, sets, tables, pytrees of JAX and other objects.
                docs/states.md lists them, and `outlive.register` adds other classes.
            force: Whether to save now, even if none is due yet.
            wait: Whether to return only when the checkpoint is committed.
            label: Label of the checkpoint. It forces the save, and no prune drops the checkpoint.
            pin: Whether to pin the checkpoint. A pin does the same as a label.
            tags: Tags of the checkpoint, such as ["train", "warmup"], by which `restore(tag=...)`,
                `prune(keep_tag=...)` and the command line choose checkpoints. They do not force
                the save.
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
            takes_parts = False
            while isinstance(state, Deferred):
                takes_parts = takes_parts or state._takes_parts
                state = state._outlive_state()
            if self._is_group:
                # Restores of several ranks cannot read data before they begin, as trees may need.
                flat = flatten(state, allow_pickle=self._allow_pickle, trees=())
            else:
                plain = core.plain_containers(state, TREE_LEAST)
                flat = flatten(state, allow_pickle=self._allow_pickle, plain=plain)
            distributions = self._distributions(flat, takes_parts)
            notes = notes_of(self._name, label, pin, metrics, tags)
            if core.has_transcript():
                flush_printed()
        walk_s = time.perf_counter() - begun
        self._remarks.tell(flat)
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

    def autosave(self, state: Any) -> Autosave:
        """Returns an object whose call marks the end of a step; for loops and notebooks.

        ```python
        with job.autosave(state) as autosave:
            while state["step"] < 1000:
                advance(state)
                autosave()
        ```

        It saves at the job's interval, and at the end of the `with`. See `Autosave` for what
        happens at exceptions.

        Args:
            state: The state as in `save`, a program that `outlive.torch.capture` has captured, or
                a function that returns one of them. The function is called only if a save is due.
        """
        return Autosave(self, state, is_group=self._is_group)

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

    def _distributions(self, flat: Flat, takes_parts: bool = False) -> dict[int, Any]:
        """Returns, by number of the leaf, its part of a global array, or True if replicated."""
        found: dict[int, Any] = dict(flat.parts)
        if found and not self._is_group and not takes_parts:
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
                    axes = flat.notes.get(at, {}).pop("axes", None)
                    if axes is not None:
                        flat.leaves[at] = unordered(flat.leaves[at], axes).copy(order="C")
        return found

    @property
    def rank(self) -> int:
        """The number of this rank in its group; 0 without one."""
        return (self._core.group() or (0, 1))[0]

    @property
    def ranks(self) -> int:
        """Number of ranks in the group; 1 without one."""
        return (self._core.group() or (0, 1))[1]

    @overload
    def restore(
        self,
        *,
        epoch: int | str | Epoch | None = None,
        only: str | Iterable[str] | None = None,
        lazy: bool = False,
        as_plain: bool = False,
        tag: str | Iterable[str] = (),
    ) -> Any: ...

    @overload
    def restore(
        self,
        into: Any,
        epoch: int | str | Epoch | None = None,
        only: str | Iterable[str] | None = None,
        *,
        lazy: Literal[True],
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
        shapes: Shapes = "exact",
        tag: str | Iterable[str] = (),
    ) -> LazyRestored: ...

    @overload
    def restore(
        self,
        into: Any,
        epoch: int | str | Epoch | None = None,
        only: str | Iterable[str] | None = None,
        *,
        lazy: bool = False,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
        shapes: Shapes = "exact",
        tag: str | Iterable[str] = (),
    ) -> Restored: ...

    def restore(
        self,
        into: Any = FRESH,
        epoch: int | str | Epoch | None = None,
        only: str | Iterable[str] | None = None,
        *,
        lazy: bool = False,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
        shapes: Shapes = "exact",
        as_plain: bool = False,
        tag: str | Iterable[str] = (),
    ) -> Any:
        """Restores the newest whole checkpoint.

        A damaged checkpoint is skipped with a warning (`logging`), and the next older one is taken.
        Afterwards the next save writes only the pages that have changed since.

        With `into`, the restore fills the program's own state. Arrays keep their memory, and
        objects that can change are filled. All else (numbers, strings, lists of values, pickled
        objects) is replaced in the dict, list or object that holds it. That happens after all data
        has been read and verified. Only `into` changes:
        keep it in a variable, and take from there what the program has elsewhere, as with
        `load_state_dict`. Checkpoint and `into` must match: the same containers, and arrays of the
        same dtype and shape. If they do not match, nothing is changed. Arrays are filled while the
        data is read, so after a `DamagedError` or an interruption they may hold parts of a
        checkpoint. The error then has `into_changed`. Objects are unpickled before anything is
        filled. No other thread may use the state during the call.

        Without `into`, a new tree is made. Tensors of PyTorch are tensors again. Arrays of other
        packages come back as NumPy arrays, and objects with their types: the modules of their
        classes are imported for that. If several ranks have saved a global array in parts, a single
        process gets the whole array, and so does an array of `into` that has the global shape.

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
            strict: Whether checkpoint and `into` must have the same leaves. If not, the restore
                fills the leaves that both have, and the report names the others. A leaf that both
                have must match even so.
            rename: New names of leaves, by old name, if `into` has other names than the checkpoint:
                {"encoder": "backbone"} for a container or leaf, {"old.*": "new.*"} with wildcards.
                The nth `*` of the new name takes the text of the nth wildcard. The first rule that
                fits a name applies. `only` then means the new names. If the checkpoint has the
                names of `into` already, nothing is renamed.
            shapes: Shapes that arrays of `into` may have. "exact": that of the checkpoint. "grow":
                also a larger one with as many dimensions, of which the checkpoint fills the
                beginning. "overlap": also a smaller one, which takes the part that both have.
            as_plain: Whether to make a tree of plain dicts, lists, tuples, values and arrays, for
                programs that lack the classes of the state. Tensors become arrays of NumPy. Nothing
                is imported or unpickled.
            tag: Tag that the checkpoint must have, or several. The newest whole one that has all of
                them is taken.

        Returns:
            With `into`, a report, which is false if the job has no checkpoint yet. Without `into`,
            the tree, or None if there is no checkpoint; the report is `Job.last_restore`. With
            `lazy`, the report is a `LazyRestored`.

        Raises:
            InvalidError: If there is no such epoch or tag, or if the checkpoint holds pickled
                objects and the job does not allow them. Also if the class of an object is missing
                or has changed its fields, and if `into` does not match; the message and the
                exception's `differences` name every path.
            DamagedError: If no checkpoint is whole.
        """
        with self._declining():
            if into is not FRESH and (isinstance(into, Epoch) or is_single_value(into)):
                raise InvalidError(_not_into(into))
            match = Match(strict=strict, rename=rename, shapes=shapes)
            if into is FRESH and not match.is_default:
                raise InvalidError(
                    "`strict`, `rename` and `shapes` say how far a checkpoint may differ from "
                    "`into`: give `into`, or leave them out"
                )
            if as_plain and into is not FRESH:
                raise InvalidError(
                    "`as_plain` is for a new tree, and `into` has its own objects: leave one out"
                )
            allow_pickle = self._allow_pickle
            rebuild = Rebuild(
                into, only=only, allow_pickle=allow_pickle, match=match, as_plain=as_plain
            )
            wanted = self._wanted(epoch, tags_of(tag))
            if lazy and self._is_group:
                raise InvalidError("the ranks of a group restore all memory before they go on")
            if self._core.has_transcript():
                flush_printed()
        tree, report = first_restored(
            rebuild, self._core, wanted, lazy=lazy, tick=self._tick, job=self._name
        )
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
        tags: str | Iterable[str] = (),
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
            tags: Tags of the checkpoint, as in `save`.
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
            notes=notes_of(self._name, label, pin, metrics, tags),
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
