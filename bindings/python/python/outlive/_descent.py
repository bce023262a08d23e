"""The jobs that this process continues: it has restored them, or saved them from the beginning.

All `Job` objects of one process are one writer, so a second one of the same job need not restore.
"""

from pathlib import Path

_known: set[tuple[str, str]] = set()


def know(location: str, name: str) -> None:
    """Notes a job that this process continues."""
    _known.add((_place(location), name))


def is_known(location: str, name: str) -> bool:
    """Whether this process continues a job."""
    return (_place(location), name) in _known


def _place(location: str) -> str:
    if "://" in location:
        return location.rstrip("/")
    place = Path(location).resolve()
    return str(place.parent if place.name == "pool.toml" else place)
