"""Sinks of the gate: print, call, send, transactions, and a program's own."""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from outlive._errors import InvalidError, RetryError

# Answer to an attempt: None if the output is released, else whether to try again, and the reason.
Outcome = tuple[bool, str] | None

# Seconds between two looks for an answer.
_STEP_S = 0.05
# Exceptions after which an attempt may succeed later.
_LATER = (OSError, RetryError)
# Attempts at a transaction that the database refuses. Two programs that create the same table, or
# insert the same row, refuse each other once even where each says "if not exists".
_REFUSALS = 5


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

    def close(self) -> None:
        """Gives back what it holds, in the gate's thread."""


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
                stream.write(token.decode())
                stream.flush()
        except (BrokenPipeError, ValueError) as error:
            # A closed pipe or stream stays closed.
            return False, f"{type(error).__name__}: {error}"
        except OSError as error:
            return _failure(error)
        return None


class Sent(_Sink):
    """Sends bytes through a socket."""

    def __init__(self, connection: Any) -> None:
        """Takes the socket."""
        self.connection = connection
        # The output that is being sent, and how much of it the socket has taken.
        self._number = -1
        self._sent = 0

    @property
    def is_live(self) -> bool:
        """Whether the socket is open."""
        return bool(self.connection.fileno() >= 0)

    def release(self, key: str, epoch: int, number: int, token: bytes) -> Outcome:
        """Sends, from where an earlier attempt on this connection has ended."""
        del key, epoch
        if number != self._number:
            self._number, self._sent = number, 0
        try:
            while self._sent < len(token):
                self._sent += self.connection.send(memoryview(token)[self._sent :])
        except OSError as error:
            return _failure(error)
        return None


class Answer:
    """The answer of a function that the gate calls."""

    def __init__(self, wait: Callable[[float], bool]) -> None:
        """Made by `Gate.call`."""
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
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.done():
            # True: nothing more is released, so there will be no answer.
            is_over = self._wait(_STEP_S)
            if is_over or (deadline is not None and time.monotonic() >= deadline):
                break
        if not self.done():
            raise RetryError(
                "there is no answer yet: save before you wait for it, and see `gate.status`"
            )
        return self._value


class Calls(_Sink):
    """Calls functions."""

    def __init__(self) -> None:
        """Has no answers to give yet."""
        self._lock = threading.Lock()
        self._answers: dict[int, Answer] = {}

    def give(self, give: Callable[[], int], wait: Callable[[float], bool]) -> Answer:
        """Gives a call to the gate; returns the answer that it will have."""
        answer = Answer(wait)
        # The call may be made before its number is known here.
        with self._lock:
            self._answers[give()] = answer
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
        with self._lock:
            answer = self._answers.pop(number, None)
        if answer is not None:
            answer.set(value)
        return None


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
    return dumped([_held(part, "an argument") for part in parts])


def dumped(held: Any) -> bytes:
    """Returns values that `_held` has taken as JSON."""
    try:
        return json.dumps(held).encode()
    except ValueError as error:
        raise InvalidError(f"an output holds a number that is too long: {error}") from error


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
        scalar = item()
        if type(scalar) is not type(value):
            return _held(scalar, where)
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


class Transaction:
    """Statements that run together, for `with`. Made by `Gate.transaction`."""

    def __init__(self, give: Callable[[bytes], int]) -> None:
        """Made by `Transactions`."""
        self._give = give
        self._statements: list[Any] | None = []

    def execute(self, statement: str, parameters: Any = ()) -> None:
        """Adds a statement.

        Args:
            statement: The statement, in the style of the connection's module.
            parameters: Its parameters: a sequence or a dict of plain values.

        Raises:
            InvalidError: If a parameter is of another type, or the `with` is over.
        """
        if self._statements is None:
            raise InvalidError("this transaction is over: begin another one")
        values = parameters if isinstance(parameters, dict) else list(parameters)
        self._statements.append([statement, _held(values, "a parameter")])

    def end(self, *, is_given: bool) -> None:
        """Gives the transaction to the gate, or drops it."""
        statements, self._statements = self._statements, None
        if is_given and statements:
            self._give(dumped(statements))


class Database:
    """A database behind the gate. Made by `Gate.transaction`."""

    def __init__(self, give: Callable[[bytes], int]) -> None:
        """Made by `Gate.transaction`."""
        self._give = give
        self._open = threading.local()

    def __enter__(self) -> Transaction:
        """Begins a transaction of this thread."""
        transaction = Transaction(self._give)
        self._stack().append(transaction)
        return transaction

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives the transaction to the gate; after an exception, drops it."""
        self._stack().pop().end(is_given=error is None)

    def _stack(self) -> list[Transaction]:
        stack: list[Transaction] = self._open.__dict__.setdefault("stack", [])
        return stack


class Transactions(_Sink):
    """Runs statements in a database."""

    is_idempotent = True

    def __init__(self, connect: Callable[[], Any], name: str) -> None:
        """Takes the function that connects, and the name of the database."""
        self._connect = connect
        self._name = name
        self._connection: Any = None
        # The output that the database has refused last, and how often.
        self._refused = (-1, -1)
        self._refusals = 0

    def release(self, key: str, epoch: int, number: int, token: bytes) -> Outcome:
        """Runs a transaction, unless the database has it."""
        # The pool and the job, and the rank if there is one.
        owner, _, rest = key.rpartition("@")
        rank = rest.rpartition("/")[2].rpartition(".")[0]
        owner = f"{owner}/{rank}" if rank else owner
        try:
            if self._connection is None:
                self._connection = self._connect()
                _refuse_autocommit(self._connection)
            self._run(owner, epoch, number, json.loads(token))
        except Exception as error:
            self._forget()
            return self._outcome((epoch, number), error)
        return None

    def close(self) -> None:
        """Closes the connection."""
        self._forget()

    def _run(self, owner: str, epoch: int, number: int, statements: list[Any]) -> None:
        connection = self._connection
        query = _Query(_paramstyle(connection))
        cursor = connection.cursor()
        try:
            sink = {"owner": owner, "sink": self._name}
            find = "select epoch, number from outlive_gate where owner = {owner} and sink = {sink}"
            try:
                cursor.execute(*query.of(find, sink))
            except Exception:
                connection.rollback()
                cursor.execute(
                    "create table outlive_gate (owner varchar(250), sink varchar(250), "
                    "epoch bigint, number bigint, primary key (owner, sink))"
                )
                connection.commit()
                cursor.execute(*query.of(find, sink))
            row = cursor.fetchone()
            last = None if row is None else tuple(row.values() if isinstance(row, dict) else row)
            if last is None or last < (epoch, number):
                for statement, parameters in statements:
                    cursor.execute(statement, _value(parameters))
                change = (
                    "insert into outlive_gate values ({owner}, {sink}, {epoch}, {number})"
                    if last is None
                    else "update outlive_gate set epoch = {epoch}, number = {number} "
                    "where owner = {owner} and sink = {sink}"
                )
                cursor.execute(*query.of(change, {**sink, "epoch": epoch, "number": number}))
            connection.commit()
        finally:
            cursor.close()

    def _outcome(self, output: tuple[int, int], error: Exception) -> Outcome:
        """Returns whether another attempt may succeed."""
        kinds = {kind.__name__ for kind in type(error).__mro__}
        is_later = isinstance(error, _LATER) or bool(kinds & {"OperationalError", "InterfaceError"})
        if not is_later and "DatabaseError" in kinds:
            self._refusals = self._refusals + 1 if output == self._refused else 1
            is_later = self._refusals < _REFUSALS
            # A restore in this process may bring the output back, for as many attempts again.
            self._refused = output if is_later else (-1, -1)
        return is_later, f"{type(error).__name__}: {error}"

    def _forget(self) -> None:
        """Drops the connection: the next attempt makes another one."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        for end in ("rollback", "close"):
            try:
                getattr(connection, end)()
            except Exception:
                continue


def _refuse_autocommit(connection: Any) -> None:
    """Refuses a connection whose statements are no transaction."""
    is_bare = getattr(connection, "isolation_level", "") is None and hasattr(
        connection, "in_transaction"
    )
    if is_bare or getattr(connection, "autocommit", False) is True:
        raise InvalidError("the connection commits each statement by itself: turn autocommit off")


def _paramstyle(connection: Any) -> str:
    """Returns the style of parameters of a connection's module."""
    for kind in type(connection).__mro__:
        module = sys.modules.get(kind.__module__.partition(".")[0])
        style = getattr(module, "paramstyle", None)
        if isinstance(style, str):
            return style
    raise InvalidError(f"{type(connection).__name__} is of no module of DB-API 2")


class _Query:
    """Writes statements in the style of a module."""

    def __init__(self, style: str) -> None:
        self._style = style

    def of(self, text: str, values: dict[str, Any]) -> tuple[str, Any]:
        """Returns a statement with named places in the module's style, and its parameters."""
        order = sorted(values, key=lambda it: text.index("{" + it + "}"))
        if self._style in ("named", "pyformat"):
            mark = ":{}" if self._style == "named" else "%({})s"
            marks = {name: mark.format(name) for name in order}
            return text.format(**marks), {name: values[name] for name in order}
        each = {"qmark": "?", "format": "%s"}
        marks = {name: each.get(self._style, f":{at}") for at, name in enumerate(order, 1)}
        return text.format(**marks), tuple(values[name] for name in order)


class TwoPhase(_Sink):
    """A sink of the program's own; see `Gate.sink`."""

    def __init__(self, sink: Any) -> None:
        """Takes the program's object."""
        self._sink = sink
        self._lock = threading.Lock()

    def prepare(self) -> list[bytes]:
        """Returns the tokens of the outputs since the last call."""
        with self._lock:
            token = self._sink.prepare()
        if token is None:
            return []
        return [token] if isinstance(token, bytes) else list(token)

    def recover(self, tokens: list[bytes]) -> None:
        """Tells the sink of the tokens that count, if it wants to know."""
        recover = getattr(self._sink, "recover", None)
        if recover is not None:
            with self._lock:
                recover(tokens)

    def release(self, key: str, epoch: int, number: int, token: bytes) -> Outcome:
        """Commits a token."""
        del key, epoch, number
        try:
            with self._lock:
                self._sink.commit([token])
        except Exception as error:
            return _failure(error)
        return None

    def abort(self, token: bytes) -> None:
        """Gives up a token."""
        abort = getattr(self._sink, "abort", None)
        if abort is not None:
            with self._lock:
                abort([token])
