"""Space that files take on their device."""

from pathlib import Path


def used_bytes(location: Path) -> int:
    """Returns the bytes that the files below a folder take."""
    total = 0
    for path in location.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:  # it was deleted meanwhile
            continue
    return total
