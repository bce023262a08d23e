"""Notices to the program by `logging`. An error of `logging` never loses the work that was done."""

import contextlib
import logging
import sys

_log = logging.getLogger("outlive")


def tell(level: int, text: str, *values: object, error: BaseException | None = None) -> None:
    """Logs a notice under "outlive".

    When this is called the work is mostly done already. So an error of a filter or handler goes to
    standard error instead of to the caller, who would lose what was done.

    Args:
        level: One of `logging`'s.
        text: The notice, with `%`-signs for `values`.
        values: What goes into the text.
        error: The exception that it is about; its trace is logged too.
    """
    try:
        _log.log(level, text, *values, exc_info=error, stacklevel=2)
    except Exception as failure:
        to_stderr(f"{text % values} (logging this failed: {failure!r})")


def to_stderr(message: str) -> None:
    """Prints a line to standard error, if there is one."""
    if sys.stderr is not None:
        with contextlib.suppress(Exception):
            print(f"outlive: {message}", file=sys.stderr)


def heard() -> bool:
    """Whether the program listens to notices. Without a handler `logging` prints warnings."""
    return _log.hasHandlers()
