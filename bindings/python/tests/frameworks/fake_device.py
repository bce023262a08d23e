"""A device whose memory is the host's, and whose streams run as late as they may, or at once.

If late, actions run only when an event or a stream is waited for, in the order that the streams
allow. So a program that forgets to wait sees old data. If at once, a buffer that is used again too
early has lost its data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

Action = Callable[[], object]


class Stream:
    """Actions that run one after the other."""

    late = True

    def __init__(self, device: Any = None) -> None:
        self.actions: list[Action] = []
        self.done = 0

    def queue(self, action: Action) -> None:
        """Adds an action."""
        self.actions.append(action)
        if not self.late:
            self.synchronize()

    def run(self, until: int) -> None:
        """Runs the actions up to a number."""
        while self.done < until:
            self.done += 1
            self.actions[self.done - 1]()

    def wait_stream(self, other: Stream) -> None:
        """Has later actions wait for those that the other stream has now."""
        until = len(other.actions)
        self.queue(lambda: other.run(until))

    def synchronize(self) -> None:
        """Runs all."""
        self.run(len(self.actions))


class Event:
    """A point in a stream."""

    def __init__(self) -> None:
        self.at: tuple[Stream, int] | None = None

    def record(self, stream: Stream) -> None:
        """Takes the point at which the stream is."""
        self.at = stream, len(stream.actions)

    def synchronize(self) -> None:
        """Runs the stream up to there."""
        assert self.at is not None
        stream, until = self.at
        stream.run(until)


class Device:
    """PyTorch's module for the device, and the copy."""

    Stream, Event = Stream, Event

    def __init__(self) -> None:
        self.current = self.default = Stream()
        self.copied: list[int] = []

    def current_stream(self, device: Any = None) -> Stream:
        """Returns the stream in use."""
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Uses a stream."""
        self.current, before = stream, self.current
        try:
            yield
        finally:
            self.current = before

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queues a copy."""
        self.copied.append(target.numel())
        self.current.queue(lambda: target.copy_(source))
