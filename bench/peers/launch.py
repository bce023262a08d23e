"""Runs one program and reports its use of resources: `python -IS launch.py FILE COMMAND...`.

It is a small process of its own, since a child begins with its parent's peak of memory.
"""

import os
import subprocess
import sys
import time

# Seconds after which the program is ended.
PATIENCE_S = 600


def main() -> int:
    """Writes seconds, processor seconds and peak of memory in bytes into FILE."""
    place, *command = sys.argv[1:]
    began = time.perf_counter()
    child = subprocess.Popen(command)
    while True:
        process, status, usage = os.wait4(child.pid, os.WNOHANG)
        took = time.perf_counter() - began
        if process:
            break
        if took > PATIENCE_S:
            child.kill()
        time.sleep(0.002)
    child.returncode = os.waitstatus_to_exitcode(status)
    with open(place, "w") as file:  # noqa: PTH123 (pathlib would make this process larger)
        print(took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, file=file)
    return 0 if child.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
