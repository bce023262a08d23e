"""Sinks of the gate: print, call, send, transactions, and a program's own."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from outlive._errors import InvalidError, RetryError

# Answer to an attempt: None if the output is released, else whether to try again, and the reason.
Outcome = tuple[bool, str] | None

# Exceptions after which an attempt may succeed later.
_LATER = (OSError, RetryError)


def _failure(error: BaseException) -> Outcome:
    return isinstance(error, _LATER), f"{type(error).__name__}: {error}"


class _Sink:
    """A sink that needs nothing before a release."""

    def prepare(self) -> list[bytes]:
        """Returns tokens of outputs that the sink itself has got: none."""
        return []

    def recover(self, tokens: list[bytes]) -> None:
        """Learns of the tokens that wait."""

    def abort(self, token: bytes) -> None:
        """Gives up an output."""


class Printed(_Sink):
    """Prints text."""

    def __init__(self, stream: str) -> None:
        """Prints to `sys.stdout` or `sys.stderr`, as it is at the release."""
        self._stream = stream

    def release(self, key: str, epoch: int, number: int, token: bytes) -> Outcome:
        """Prints."""
        del key, epoch, number
        stream = getattr(sys, self._stream)
        try:
            if stream is not None:
                stream.write(token.decode("utf-8", "surrogateescape"))
                stream.flush()
        except (OSError, ValueError) as error:
            # A closed pipe or stream stays closed.
            return False, f"{type(error).__name__}: {error}"
        return None


class Sent(_Sink):
    """Sends bytes through a socket."""

    def __init__(self, connection: Any) -> None:
        """Takes the socket."""
        self.connection = connection

    def release(self, key: str, epoch: int, number: int, token: bytes) -> Outcome:
        """Sends."""
        del key, epoch, number
        try:
            self.connection.sendall(token)
        except OSError as error:
            return _failure(error)
        return None


class Answer:
    """The answer of a function that the gate calls."""

    def __init__(self, number: int, wait: Callable[[int, float | None], bool]) -> None:
        """Made by `Gate.call`."""
        self._number = number
        self._wait = wait
        self._event = threading.Event()
        self._value: Any = None

    def done(self) -> bool:
        """Returns whether the function has returned."""
        return self._event.is_set()

    def set(self, value: Any) -> None:
        """Notes what the function has returned."""
        self._value = value
        self._event.set()

    def result(self, timeout_s: float | None = None) -> Any:
        """Waits for the call, and returns what the function has returned. Save first.

        Args:
            timeout_s: Seconds to wait; None waits without limit.

        Raises:
            RetryError: If there is no answer: no save covers the call, the time is over, or the
                calls have stopped.
        """
        if not self.done():
            self._wait(self._number, timeout_s)
        if not self.done():
            raise RetryError(
                "there is no answer yet: save before you wait for it, and see `gate.status`"
            )
        return self._value


class Calls(_Sink):
    """Calls functions."""

    def __init__(self) -> None:
        """Has no answers to give yet."""
        self._answers: dict[int, Answer] = {}

    def expect(self, number: int, wait: Callable[[int, float | None], bool]) -> Answer:
        """Returns the answer that output `number` will have."""
        answer = Answer(number, wait)
        self._answers[number] = answer
        return answer

    def release(self, key: str, epoch: int, number: int, token: bytes) -> Outcome:
        """Calls the function of a token."""
        del epoch
        try:
            module, name, args, kwargs, wants_key = _plain(json.loads(token))
            try:
                function = _found(module, name)
            except (AttributeError, ImportError) as error:
                # The program may still define it.
                return True, f"there is no function {module}.{name}: {error}"
            value = function(*args, **kwargs, **({"key": key} if wants_key else {}))
        except Exception as error:
            return _failure(error)
        answer = self._answers.pop(number, None)
        if answer is not None:
            answer.set(value)
        return None

    def abort(self, token: bytes) -> None:
        """Forgets the answers: their calls will not be made."""
        self._answers.clear()


def _found(module: str, name: str) -> Callable[..., Any]:
    value: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    function: Callable[..., Any] = value
    return function


def held_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: bool
) -> bytes:
    """Returns a token from which `Calls` can make a call, in this process or a later one."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    try:
        is_found = isinstance(module, str) and isinstance(name, str)
        is_found = is_found and _found(str(module), str(name)) == function
    except (AttributeError, ImportError):
        is_found = False
    if not is_found:
        raise InvalidError(
            f"{function!r} cannot be called by the next run, which must find it by its name: "
            "give a function at the top level of a module"
        )
    parts = [module, name, list(args), kwargs, key]
    return json.dumps([_held(part, "an argument") for part in parts]).encode()


def _held(value: Any, where: str) -> Any:
    """Returns a plain value as JSON has it: containers with their type first."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (bytes, bytearray):
        return ["b", bytes(value).hex()]
    if type(value) is dict:
        return ["d", *([_held(key, where), _held(item, where)] for key, item in value.items())]
    if type(value) in (list, tuple, set, frozenset):
        return [type(value).__name__[0], *(_held(item, where) for item in value)]
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        return _held(item(), where)
    raise InvalidError(
        f"{where} is of type {type(value).__name__}: give None, numbers, text, bytes, or lists, "
        "tuples, dicts and sets of these"
    )


_MAKERS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "l": list,
    "t": tuple,
    "s": set,
    "f": frozenset,
}


def _plain(held: Any) -> Any:
    """Returns the value that `_held` has taken; a list of the top level stays a list."""
    if not isinstance(held, list):
        return held
    return [_value(part) for part in held]


def _value(held: Any) -> Any:
    if not isinstance(held, list):
        return held
    kind, *items = held
    if kind == "b":
        return bytes.fromhex(items[0])
    if kind == "d":
        return {_value(key): _value(item) for key, item in items}
    return _MAKERS[kind](_value(item) for item in items)


class Transactions(_Sink):
    """Statements for a database. Made by `Gate.transaction`; for `with`."""

    def __init__(self, connect: Callable[[], Any], name: str) -> None:
        """Made by `Gate.transaction`."""
        self._connect = connect
        self._name = name
        self._connection: Any = None
        self._statements: list[Any] = []
        self.give: Callable[[bytes], int] | None = None

    def execute(self, statement: str, parameters: Any = ()) -> None:
        """Adds a statement to the transaction of this `with`.

        Args:
            statement: The statement, in the style of the connection's module.
            parameters: Its parameters: a sequence or a dict of plain values.
        """
        values = parameters if isinstance(parameters, dict) else list(parameters)
        self._statements.append([statement, _held(values, "a parameter")])

    def __enter__(self) -> Self:
        """Begins a transaction."""
        self._statements = []
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives the transaction to the gate; after an exception, drops it."""
        statements, self._statements = self._statements, []
        if error is None and statements and self.give is not None:
            self.give(json.dumps(statements).encode())

    def release(self, key: str, epoch: int, number: int, token: bytes) -> Outcome:
        """Runs a transaction, unless the database has it."""
        job = key.rpartition("@")[0]
        try:
            if self._connection is None:
                self._connection = self._connect()
            self._run(job, epoch, number, json.loads(token))
        except Exception as error:
            outcome = self._outcome(error)
            self._forget()
            return outcome
        return None

    def _run(self, job: str, epoch: int, number: int, statements: list[Any]) -> None:
        connection = self._connection
        module = sys.modules[type(connection).__module__.partition(".")[0]]
        mark = "?" if getattr(module, "paramstyle", "") == "qmark" else "%s"
        sink = (job, self._name)
        cursor = connection.cursor()
        try:
            cursor.execute(
                "create table if not exists outlive_gate (job varchar(250), sink varchar(250), "
                "epoch bigint, number bigint, primary key (job, sink))"
            )
            cursor.execute(
                f"select epoch, number from outlive_gate where job = {mark} and sink = {mark}", sink
            )
            row = cursor.fetchone()
            if row is None or (row[0], row[1]) < (epoch, number):
                for statement, parameters in statements:
                    cursor.execute(statement, _value(parameters))
                cursor.execute(
                    f"delete from outlive_gate where job = {mark} and sink = {mark}", sink
                )
                cursor.execute(
                    f"insert into outlive_gate values ({mark}, {mark}, {mark}, {mark})",
                    (*sink, epoch, number),
                )
            connection.commit()
        finally:
            cursor.close()

    def _outcome(self, error: Exception) -> Outcome:
        """Returns whether another attempt may succeed: after errors of the connection."""
        kinds = {kind.__name__ for kind in type(error).__mro__}
        is_later = isinstance(error, _LATER) or bool(kinds & {"OperationalError", "InterfaceError"})
        return is_later, f"{type(error).__name__}: {error}"

    def _forget(self) -> None:
        """Drops the connection: the next attempt makes another one."""
        connection, self._connection = self._connection, None
        for end in ("rollback", "close"):
            try:
                getattr(connection, end)()
            except Exception:
                continue


class TwoPhase:
    """A sink of the program's own; see `Gate.sink`."""

    def __init__(self, sink: Any) -> None:
        """Takes the program's object."""
        self._sink = sink

    def prepare(self) -> list[bytes]:
        """Returns the tokens of the outputs since the last call."""
        token = self._sink.prepare()
        if token is None:
            return []
        return [token] if isinstance(token, bytes) else list(token)

    def recover(self, tokens: list[bytes]) -> None:
        """Tells the sink of the tokens that count, if it wants to know."""
        recover = getattr(self._sink, "recover", None)
        if recover is not None:
            recover(tokens)

    def release(self, key: str, epoch: int, number: int, token: bytes) -> Outcome:
        """Commits a token."""
        del key, epoch, number
        try:
            self._sink.commit([token])
        except Exception as error:
            return _failure(error)
        return None

    def abort(self, token: bytes) -> None:
        """Gives up a token."""
        abort = getattr(self._sink, "abort", None)
        if abort is not None:
            abort([token])
