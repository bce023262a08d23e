"""Python's buffers of standard output and error, under `outlive run --gate`."""

import contextlib
import sys


def flush_printed() -> None:
    """Writes out what Python keeps of standard output and error: a save covers what is written.

    Raises:
        OSError: If it cannot be written; then no save must cover it.
    """
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        # None in a program without a console. An object of the program's own may lack a `flush`,
        # and a closed stream keeps nothing.
        with contextlib.suppress(ValueError, AttributeError):
            if stream is not None:
                stream.flush()
