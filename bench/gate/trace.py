"""Turns what the preloaded library wrote into a trace for `outlive-bench gate`.

docs/gate-simulator.md describes the format of traces; `shim.c` describes the lines of the library.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

FIRST_LINE = "outlive-io-trace 1"
OPERATIONS = {"read", "write", "durable", "sync", "send", "recv", "wait", "wake"}
# Files, sockets and locks are numbered separately.
KINDS = {"wait": "lock", "wake": "lock", "send": "socket", "recv": "socket"}


class Operation(NamedTuple):
    """One line of the library. Times are nanoseconds of the monotonic clock."""

    start_ns: int
    took_ns: int
    thread: int
    what: str
    key: int
    offset: int
    size: int


class Recording(NamedTuple):
    """Operations of all processes in the order of their starts, and the paths of files by key."""

    operations: list[Operation]
    paths: dict[int, str]


def parse(lines: Iterable[str], where: str = "recording") -> Recording:
    """Returns the recording of these lines.

    Raises:
        ValueError: a line is not one of the library's.
    """
    operations: list[Operation] = []
    paths: dict[int, str] = {}
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields:
            continue
        try:
            if fields[0] == "#":
                paths.setdefault(int(fields[1]), line.rstrip("\n").split(" ", 2)[2])
                continue
            start, took, thread, what, key, offset, size = fields
            if what not in OPERATIONS:
                raise ValueError(f"no operation is named {what!r}")
            operation = Operation(
                int(start), int(took), int(thread), what, int(key), int(offset), int(size)
            )
        except (ValueError, IndexError) as error:
            raise ValueError(f"{where}, line {number}: {line.strip()!r}: {error}") from None
        # Ends of files and closed connections move no byte.
        if operation.size > 0 or what in {"sync", "wait", "wake"}:
            operations.append(operation)
    operations.sort()
    return Recording(operations, paths)


def read_folder(folder: Path) -> Recording:
    """Returns the recording of all processes that wrote into a folder."""
    lines: list[str] = []
    for file in sorted(folder.iterdir()):
        lines += file.read_text(encoding="utf-8", errors="replace").splitlines()
    return parse(lines, str(folder))


def waits_that_matter(operations: list[Operation]) -> list[Operation]:
    """Returns the operations without the waits that found their semaphore free, and lone wakes.

    A wait depends on the last wake of its key by another thread before its end.
    """
    wakes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for at, operation in enumerate(operations):
        if operation.what == "wake":
            wakes[operation.key].append((operation.start_ns, at))
    kept: set[int] = set()
    for at, wait in enumerate(operations):
        if wait.what != "wait":
            continue
        of_key = wakes[wait.key]
        last = bisect.bisect(of_key, (wait.start_ns + wait.took_ns, len(operations))) - 1
        if last < 0:
            continue
        start_ns, wake_at = of_key[last]
        if start_ns >= wait.start_ns and operations[wake_at].thread != wait.thread:
            kept |= {at, wake_at}
    return [
        operation
        for at, operation in enumerate(operations)
        if operation.what not in {"wait", "wake"} or at in kept
    ]


def by_connection(operations: list[Operation]) -> list[Operation]:
    """Returns the operations with connections as flows, for programs with an event loop.

    A thread's use of files counts for the connection that it served last.
    """
    serves: dict[int, int] = {}
    changed = []
    for operation in operations:
        if operation.what in {"send", "recv"}:
            serves[operation.thread] = operation.key
        flow = serves.get(operation.thread, operation.thread)
        changed.append(operation._replace(thread=flow))
    return changed


def trace(
    recording: Recording,
    program: str,
    *,
    from_ns: int = 0,
    until_ns: int | None = None,
    operations_max: int = 10_000,
    connections: bool = False,
    root: str = "",
) -> str:
    """Returns the text of a trace: the first operations that start in a span of time.

    Args:
        recording: Operations to choose from.
        program: Description for people.
        from_ns: Start of the span.
        until_ns: End of the span.
        operations_max: Number of operations to keep.
        connections: Connections are the flows, not threads.
        root: Prefix of paths to leave out.
    """
    chosen = [
        operation
        for operation in recording.operations
        if operation.start_ns >= from_ns and (until_ns is None or operation.start_ns < until_ns)
    ]
    chosen = waits_that_matter(chosen)[:operations_max]
    if connections:
        chosen = by_connection(chosen)
    first_ns = chosen[0].start_ns if chosen else 0
    flows: dict[int, int] = {}
    keys: dict[tuple[str, int], int] = {}
    lines = [FIRST_LINE, f"program {' '.join(program.split())}"]
    body = []
    for start_ns, took_ns, thread, what, key, offset, size in chosen:
        flow = flows.setdefault(thread, len(flows))
        kind = (
            "lock" if what in {"wait", "wake"} else "socket" if what in {"send", "recv"} else "file"
        )
        if (kind, key) not in keys:
            keys[kind, key] = sum(known == kind for known, _ in keys)
            if kind == "file":
                path = recording.paths.get(key, "?").removeprefix(root).lstrip("/")
                body.append(f"file {keys[kind, key]} {path}")
        start_us, end_us = (start_ns - first_ns) // 1000, (start_ns + took_ns - first_ns) // 1000
        where = f"{offset} {size}" if kind == "file" and what != "sync" else f"- {size or '-'}"
        body.append(f"{start_us} {flow} {what} {keys[kind, key]} {where} {end_us - start_us}")
    return "\n".join(lines + body) + "\n"
