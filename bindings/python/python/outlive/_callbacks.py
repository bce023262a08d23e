"""Calls functions of the program when a save is over: `Save.add_done_callback`, and `await`."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from outlive import _notices

if TYPE_CHECKING:
    from outlive import _core
    from outlive._saves import Save


class Callbacks:
    """Functions that wait for the end of one save. Each is called once, by one thread.

    It has no lock, which a signal handler could find taken by its own thread. A function is added
    before the save is asked whether it is over. So either the thread that adds it sees the end, or
    the waiting thread sees the function.
    """

    def __init__(self, save: Save, core: _core.Save) -> None:
        """For a save and its native half."""
        self._save, self._core = save, core
        self._waiting: deque[Callable[[Save], object]] = deque()
        self._thread: threading.Thread | None = None

    def add(self, function: Callable[[Save], object]) -> None:
        """Calls a function at the end of the save, or now if it is over."""
        self._waiting.append(function)
        if not threading.main_thread().is_alive():
            # Exit functions run, and Python waits for no thread that starts now.
            self._core.wait_done()
        if not self._core.done() and self._thread is None:
            # Python waits for it at the end of the program, so that no call is lost.
            thread = threading.Thread(target=self._run, name="outlive-callbacks", daemon=False)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError:
                # The interpreter ends, and starts no threads any more.
                self._core.wait_done()
        if self._core.done():
            self._call()

    def _run(self) -> None:
        self._core.wait_done()
        self._call()

    def _call(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                function = self._waiting.popleft()
                try:
                    function(self._save)
                except Exception as error:
                    _notices.tell(
                        logging.ERROR,
                        "a callback of the save of epoch %s has raised %r; the save itself went on",
                        self._save.epoch,
                        error,
                        error=error,
                    )
