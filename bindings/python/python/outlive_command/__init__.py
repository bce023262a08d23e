"""The `outlive` command without the package `outlive`, which imports NumPy for half a second."""

import importlib.machinery
import importlib.util
import signal
import sys


def main() -> int:
    """Runs the command with the program's arguments; returns its exit code."""
    # The command handles Ctrl-C itself; Python would react only after its end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    package = importlib.util.find_spec("outlive")
    places = package.submodule_search_locations if package else None
    found = importlib.machinery.PathFinder.find_spec("outlive._core", places)
    if found is None or found.loader is None:
        raise ImportError("the package outlive is not whole: install it again")
    core = importlib.util.module_from_spec(found)
    found.loader.exec_module(core)
    code: int = core.command(["outlive", *sys.argv[1:]])
    return code
