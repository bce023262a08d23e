"""Passes the engine's reports to the program: notices to `logging`, progress to its callback."""

from __future__ import annotations

import logging
from collections.abc import Callable

from outlive import _core, _notices

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING}

Progress = Callable[[str, int, int], object]


class Teller:
    """Passes the engine's reports on: notices to `logging`, progress to the program."""

    def __init__(self, core: _core.Pool, progress: Progress | None) -> None:
        """For a pool, with the program's callback."""
        self.core, self.progress = core, progress
        self.failed = False

    def __call__(self) -> None:
        """Passes on the reports since the last call."""
        reports = self.core.take_notices()
        # Notices first: an exception of the callback must not drop them.
        for notice in reports["notices"]:
            _notices.tell(_LEVELS[notice["level"]], "%s", notice["text"])
        if self.progress is not None:
            for progress in reports["progress"]:
                self.show(self.progress, **progress)

    def show(self, progress: Progress, what: str, done_bytes: int, total_bytes: int) -> None:
        """Calls the program. Its error must not end the work, nor lose its result."""
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
