"""The `outlive` command, as `outlive` or `python -m outlive`."""

import signal
import sys

from outlive import _core


def main() -> int:
    """Runs the command with the program's arguments; gives its exit code."""
    # The command deals with Ctrl-C itself; Python would only notice afterwards.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.command(["outlive", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
