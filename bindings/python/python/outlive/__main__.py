"""The `outlive` command, as `outlive` or `python -m outlive`."""

import signal
import sys

from outlive import _core


def main() -> int:
    """Runs the command with the program's arguments; returns its exit code."""
    # The command handles Ctrl-C itself; Python would react only after its end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.command(["outlive", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
