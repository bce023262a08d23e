"""The machine of the measurements."""

import contextlib
import datetime
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def describe(folder: Path) -> dict[str, Any]:
    """Describes the machine and the file system of `folder`, without names of the machine."""
    file_system, device = _file_system(folder)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cores": os.cpu_count() or 0,
        "processor": _field("/proc/cpuinfo", "model name"),
        "memory_gib": round(int(_field("/proc/meminfo", "MemTotal").split()[0]) / (1 << 20)),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "file_system": file_system,
        "disk": _disk(device),
        "outlive_commit": _commit(),
    }


def cpu_s() -> tuple[float, float, float]:
    """Returns processor seconds so far: used by all, used by us and our children, and in total."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields]
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own_s = sum(usage.ru_utime + usage.ru_stime for usage in own)
    return sum(ticks[at] for at in (0, 1, 2, 5, 6, 7)), own_s, sum(ticks[:8])


@contextlib.contextmanager
def others() -> Iterator[dict[str, float]]:
    """Adds the share of the processors that other programs used meanwhile."""
    found: dict[str, float] = {}
    before = cpu_s()
    yield found
    busy_s, own_s, all_s = (now - then for now, then in zip(cpu_s(), before, strict=True))
    found["others_share"] = max(0.0, busy_s - own_s) / max(1e-9, all_s)


def _field(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            return line.split(":", 1)[1].strip()
    return "0"


def _file_system(folder: Path) -> tuple[str, str]:
    best, answer = -1, ("unknown", "")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, mount, kind = line.split()[:3]
        if folder.resolve().is_relative_to(mount) and len(mount) >= best:
            best, answer = len(mount), (kind, device)
    return answer


def _disk(device: str) -> str:
    name = Path(device).name
    if name.startswith("vd"):
        return "one virtual disk"
    kind = Path(f"/sys/block/{name.rstrip('0123456789').removesuffix('p')}/queue/rotational")
    if not kind.exists():
        return "unknown device"
    return "hard disk" if kind.read_text().strip() == "1" else "solid-state disk"


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def versions() -> dict[str, str]:
    """Returns versions of the peers that save memory; "not installed" if a package is missing."""
    from peers.adapters import PEERS

    found = {}
    for peer in PEERS.values():
        found[peer.packages[0]] = peer.version() or "not installed"
        for package in peer.packages[1:]:
            found.setdefault(package, _version(package))
    return dict(sorted(found.items())) | {"python": sys.version.split()[0]}


def _version(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
