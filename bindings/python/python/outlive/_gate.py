"""The output gate: what a program sends waits until the checkpoint that covers it is committed."""

from __future__ import annotations

import io
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol

from outlive import _core
from outlive._errors import Error, InvalidError, RetryError
from outlive._saves import Save
from outlive._sinks import (
    Answer,
    Calls,
    Database,
    Printed,
    Sent,
    Transactions,
    TwoPhase,
    held_call,
)
from outlive._summary import SummaryWriter

if TYPE_CHECKING:
    import socket

    from outlive._teller import Teller


class _Saves(Protocol):
    """Saves a state, as `Job.save` does."""

    def __call__(self, state: Any, *, force: bool, wait: bool) -> Save: ...


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """State of one sink of a gate.

    Attributes:
        name: Its name, such as "file:/work/metrics.jsonl", "publish" or "call".
        outputs: Number of outputs that are not released.
        covered: Number of these that a save covers.
        is_stopped: Whether an output will never succeed, so that later ones wait for it.
        is_open: Whether the program has opened it.
        trouble: Reason why it waits or has stopped; None if there is none.
    """

    name: str
    outputs: int
    covered: int
    is_stopped: bool
    is_open: bool
    trouble: str | None


@dataclass(frozen=True, slots=True)
class GateStatus:
    """State of a gate.

    Attributes:
        outputs: Number of outputs that are not released.
        uncovered: Number of these that no save covers yet.
        bytes: Their bytes.
        sinks: Sinks with outputs, or with trouble.
    """

    outputs: int
    uncovered: int
    bytes: int
    sinks: tuple[SinkStatus, ...]


def _counted(outputs: int) -> str:
    return "1 output" if outputs == 1 else f"{outputs} outputs"


class GateFile(io.RawIOBase):
    """A file whose bytes are written once a checkpoint covers them. Made by `Gate.open`."""

    def __init__(self, core: _core.Gate, sink: str, path: str) -> None:
        """Made by `Gate.open`."""
        super().__init__()
        self._gate = core
        self._sink = sink
        self.name = path

    def writable(self) -> bool:
        """Returns True."""
        return True

    def write(self, data: Any, /) -> int:
        """Gives bytes to the gate. They are not in the file yet, and cannot be read there."""
        if self.closed:
            raise ValueError(f"{self.name} is closed")
        view = memoryview(data).cast("B")
        self._gate.write_file(self._sink, bytes(view))
        return len(view)

    def tell(self) -> int:
        """Returns the length that the file will have once everything is released."""
        return self._gate.file_position(self._sink)


class Gate:
    """Holds outputs until they cannot be repeated any more. Made by `Job.gate`.

    A program that is started again continues from its last checkpoint, and repeats what it did
    since. An output that left before that would leave twice. So the gate holds each output until
    the checkpoint of a later `Job.save` is committed. That checkpoint contains the output itself,
    so a crash after the commit loses nothing: the next run releases it. Outputs that no checkpoint
    covers are dropped with the program, which makes them again.

    Each sink releases its outputs in order. Between two sinks there is no order. A release that a
    crash interrupts is repeated. Files and `transaction` make that harmless; `call` passes a key by
    which a receiver can ignore the second one.
    """

    def __init__(self, core: _core.Gate, tick: Teller, save: Callable[[], _Saves | None]) -> None:
        """Made by `Job.gate`."""
        self._core = core
        self._tick = tick
        self._save = save
        self._opened: dict[str, Any] = {}
        # Outputs of an earlier run are released even if this one gives nothing more.
        for name in ("stdout", "stderr"):
            self._sink(name, lambda name=name: Printed(name))  # type: ignore[misc]
        self._sink("call", Calls)

    def open(
        self, path: str | os.PathLike[str], mode: str = "a", *, encoding: str = "utf-8"
    ) -> IO[Any]:
        """Opens a file to append to. A restart from an older checkpoint cuts it to what that had.

        The file is written after each commit, and then contains whole outputs only. The program
        cannot read its own outputs there before. Another program must not write the file.

        Args:
            path: The file. A relative path counts from the present directory.
            mode: "a" or "ab" to append; "w" or "wb" to begin a new file at the first start. A
                restart continues the file in each mode.
            encoding: Encoding of text.

        Returns:
            A file object for writing: text, or bytes if the mode has a "b". Its `close` closes only
            this object.

        Raises:
            InvalidError: If the mode is another one, the file is no regular file, or it is shorter
                than what was released to it. Also if the gate is closed.
        """
        if mode not in ("a", "ab", "w", "wb", "at", "wt"):
            raise InvalidError(f"mode {mode!r}: the gate opens files with 'a', 'ab', 'w' or 'wb'")
        name = os.fspath(path)
        sink = self._core.open_file(name, mode.startswith("w"), self._tick)
        raw = GateFile(self._core, sink, name)
        if "b" in mode:
            return raw  # type: ignore[return-value]
        # Nothing stays in a buffer of Python's: a save would not cover it.
        return io.TextIOWrapper(raw, encoding=encoding, newline="", write_through=True)

    def summary_writer(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        filename_suffix: str = "",
    ) -> SummaryWriter:
        """Opens event files for TensorBoard, in place of `SummaryWriter(...)`.

        They get whole events, once checkpoints cover them. After a kill and a restart each event is
        there once, so `purge_step` is not needed. The other arguments are those of
        `torch.utils.tensorboard.SummaryWriter`; neither PyTorch nor TensorBoard is needed.

        Args:
            log_dir: Folder of the files, the same in each run.
            comment: Not used, as with any `SummaryWriter` that has a `log_dir`.
            purge_step: Not used.
            max_queue: Not used: events wait for a checkpoint.
            flush_secs: Not used.
            filename_suffix: End of the files' names.

        Raises:
            InvalidError: If there is no `log_dir`, or the gate is closed.
        """
        del comment, purge_step, max_queue, flush_secs
        if log_dir is None:
            raise InvalidError(
                "give `log_dir`: each run must write to the same folder, to continue its files"
            )

        def open_file(path: str) -> IO[bytes]:
            return self.open(path, "ab")

        return SummaryWriter(os.fspath(log_dir), filename_suffix, open_file, self._core.files)

    def publish(self, temporary: str | os.PathLike[str], final: str | os.PathLike[str]) -> None:
        """Lets a finished file appear under its name once a checkpoint covers it.

        The file is synced and moved away at once, so the program may write `temporary` again. It
        replaces an existing file.

        Args:
            temporary: The file, on the same file system.
            final: The name that it gets.

        Raises:
            InvalidError: If it is no regular file, or on another file system, or the gate is
                closed.
        """
        self._core.publish(os.fspath(temporary), os.fspath(final))

    def print(self, *values: object, sep: str = " ", end: str = "\n", file: Any = None) -> None:
        """Prints, as the function `print` does, once a checkpoint covers it.

        A terminal cannot ignore what it has seen: after a crash in the moment of the release, the
        text may come twice.

        Args:
            *values: Values to print.
            sep: Text between them.
            end: Text after the last.
            file: `sys.stdout` (the default) or `sys.stderr`.
        """
        if file is not None and file is not sys.stdout and file is not sys.stderr:
            raise InvalidError("`gate.print` prints to sys.stdout or sys.stderr: use `gate.open`")
        name = "stderr" if file is not None and file is sys.stderr else "stdout"
        text = sep.join(map(str, values)) + end
        self._core.give(name, text.encode("utf-8", "backslashreplace"))

    def call(
        self, function: Callable[..., Any], /, *args: Any, key: bool = False, **kwargs: Any
    ) -> Answer:
        """Calls a function once a checkpoint covers the call. It runs in a thread of the gate.

        If it raises `OSError` or `RetryError`, it is called again later. Any other exception stops
        all later calls: they stay in the checkpoints until a run in which it succeeds. After a
        crash in the moment of a call, the next run may call again.

        Args:
            function: A function at the top level of a module, since the next run must find it.
            *args: Its arguments. They may be None, numbers, text, bytes, and lists, tuples, dicts
                and sets of these. NumPy's scalars count as numbers.
            key: Whether to pass `key="pool:job@epoch/number"` as well. It is the same at each
                attempt, and never that of another call of this pool. A receiver can ignore a key
                that it knows.
            **kwargs: Its named arguments.

        Returns:
            The answer, once there is one. To wait for it, save first.

        Raises:
            InvalidError: If the next run could not find the function, or an argument is of another
                type, or the gate is closed.
        """
        token = held_call(function, args, kwargs, key)
        core, calls = self._core, self._opened["call"]
        # The gate's sinks must not keep the gate.
        gate = weakref.ref(self)

        def wait(step_s: float) -> bool:
            there = gate()
            return there is None or there._core.wait(step_s, there._tick)

        answer: Answer = calls.give(lambda: core.give("call", token), wait)
        return answer

    def send(self, connection: socket.socket, data: Any, *, name: str | None = None) -> None:
        """Sends bytes through a connected socket once a checkpoint covers them.

        A stream cannot ignore what it has seen: after a crash in the moment of the release, or if
        the connection breaks in it, some bytes may come twice. A new run, or a new connection after
        a failure, takes over what waits with its first `send` to the same peer.

        Args:
            connection: The socket, connected.
            data: The bytes.
            name: Name of the connection; the address of the peer by default.

        Raises:
            InvalidError: If the peer has no address and no name is given, or the gate is closed.
        """
        if name is None:
            peer = connection.getpeername()
            if not peer:
                raise InvalidError("the peer of this socket has no address: give `name`")
            name = peer if isinstance(peer, str) else f"{peer[0]}:{peer[1]}"
        sink = f"socket:{name}"
        sent = self._opened.get(sink)
        if sent is not None and sent.connection is not connection:
            if sent.is_live:
                raise InvalidError(
                    f"another connection to {name} is open: close it, or give a `name` to each"
                )
            del self._opened[sink]
        self._sink(sink, lambda: Sent(connection))
        self._core.give(sink, bytes(memoryview(data).cast("B")))

    def transaction(self, connect: Callable[[], Any], *, name: str = "database") -> Database:
        """Opens a database whose statements run once a checkpoint covers them, exactly once.

        The statements of one `with` are one transaction. It also writes the epoch and the number
        of the output into the table `outlive_gate`, which it makes. So a transaction that was
        committed before a crash is found there, and is not repeated.

        Args:
            connect: Function that returns a new connection of a DB-API 2 module, such as
                `lambda: sqlite3.connect("results.db")` or `lambda: psycopg.connect("dbname=runs")`.
                The gate's thread calls it, and again after an error of the connection.
            name: Name of the database, the same in each run.

        Returns:
            An object for `with`: `with database as tx: tx.execute("insert ...", (1, 2.5))`.

        Raises:
            InvalidError: If the gate is closed.
        """
        sink, core = f"transaction:{name}", self._core
        self._sink(sink, lambda: Transactions(connect, name))
        return Database(lambda token: core.give(sink, token))

    def sink(self, name: str, sink: Any) -> None:
        """Opens a sink of the program's own, with two phases.

        `sink.prepare()` comes with each save. It makes the outputs since the last call ready, in a
        way that outlives the program, and returns their token: bytes, a list of bytes, or None.
        `sink.commit(tokens)` comes after the commit, and may come again for the same tokens. It
        returns normally if they are committed, now or before; it raises `OSError` or `RetryError`
        to be called again later, and any other exception if they will never succeed.
        `sink.abort(tokens)`, if it exists, gives up tokens that no checkpoint has. If
        `sink.recover(tokens)` exists, it comes once in each run, with the first save after a
        commit. No other token of an earlier run will ever be committed: give them up. Before that
        commit, the next run could still need them.

        Args:
            name: Name of the sink, the same in each run.
            sink: The object. Its methods run in several threads, one at a time. So a save waits for
                a `commit` that has begun.

        Raises:
            InvalidError: If the name is impossible or the gate's own, or the gate is closed.
        """
        if name in self._opened or name == "publish" or ":" in name:
            raise InvalidError(
                f"the gate has a sink {name!r}, or keeps names with a colon for its own"
            )
        self._core.open_sink(name, TwoPhase(sink))

    def _sink(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns a sink of the package, opened once."""
        opened = self._opened.get(name)
        if opened is None:
            opened = make()
            self._core.open_sink(name, opened)
            self._opened[name] = opened
        return opened

    def flush(self, state: Any = None, *, timeout_s: float | None = None) -> None:
        """Waits until every output is released.

        Args:
            state: The state of the program, which is saved first. Without it, the last save must
                cover all outputs.
            timeout_s: Seconds to wait; None waits without limit.

        Raises:
            InvalidError: If no save covers some outputs.
            RetryError: If some outputs are not released: the time is over, or a sink has stopped.
                They stay in the checkpoint.
            Error: If the save has failed.
        """
        if state is not None:
            save = self._save()
            if save is None:
                raise InvalidError("the job of this gate is gone: keep it in a variable")
            save(state, force=True, wait=True)
        uncovered = self.status.uncovered
        if uncovered:
            raise InvalidError(
                f"no save covers {_counted(uncovered)}: save first, or call `gate.flush(state)`"
            )
        if not self._core.wait(timeout_s, self._tick) or self.status.outputs:
            raise RetryError(f"outputs are not released: {self._left()}")

    def check(self) -> None:
        """Raises `InvalidError` in a forked child."""
        self._core.wants_save()

    def _left(self) -> str:
        def shown(sink: SinkStatus) -> str:
            why = sink.trouble or ("it waits" if sink.is_open else "the program has not opened it")
            return f"{sink.outputs} to {sink.name} ({why})"

        left = [shown(sink) for sink in self.status.sinks if sink.outputs]
        return ", ".join(left) or "a save has failed"

    def _wait_if_full(self) -> None:
        """Holds the program up as long as the gate holds more than it may."""
        while self._core.wants_save() and not self._core.wait(0.05, self._tick):
            pass

    @property
    def status(self) -> GateStatus:
        """The state of the gate; never waits."""
        values = self._core.report()
        sinks = tuple(SinkStatus(**sink) for sink in values.pop("sinks"))
        return GateStatus(**values, sinks=sinks)

    def __repr__(self) -> str:
        """Returns what it holds, for people."""
        try:
            status = self.status
        except Error:
            return "<outlive.Gate of another process>"
        return f"<outlive.Gate with {_counted(status.outputs)}, {status.bytes} bytes>"
