"""Notices to the program by `logging`. An error of `logging` never loses work that is done."""

import contextlib
import logging
import sys

_log = logging.getLogger("outlive")


def tell(level: int, text: str, *values: object, error: BaseException | None = None) -> None:
    """Logs a notice under "outlive".

    Mostly the work is done already when this is called. So an error of a filter or handler goes to
    standard error instead of to the caller, which would lose its result.

    Args:
        level: A level of `logging`.
        text: The notice, with `%`-signs for `values`.
        values: Values for the text.
        error: The exception that it reports; its trace is logged too.
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
    """Whether the program handles notices. Without a handler `logging` prints warnings."""
    return _log.hasHandlers()
