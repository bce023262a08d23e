"""Formats of figures, and tables in Markdown."""

import re
from collections.abc import Callable, Sequence

from peers.figures import Figures

Written = Callable[[float], str]
# Stands for a missing figure.
NONE = "\N{EN DASH}"
ABSENT = "*Not measured in this run.*"


def seconds(value: float) -> str:
    """Formats seconds with the significant digits."""
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def percent(value: float) -> str:
    """Formats a share."""
    return f"{value * 100:.0f} %"


def fine_percent(value: float) -> str:
    """Formats a small share."""
    return f"{value * 100:+.1f} %"


def ratio(value: float) -> str:
    """Formats bytes by bytes."""
    return f"{value:.3f}"


def mib(value: float) -> str:
    """Formats bytes as MiB."""
    return f"{value / (1 << 20):.1f}" if value < 100 << 20 else f"{value / (1 << 20):.0f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown; all columns but the first to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(found: Figures, columns: Sequence[tuple[str, Written]]) -> list[str]:
    """Returns the figures of one row; a dash where there is none."""
    out = []
    for key, written in columns:
        value = found.get(key)
        out.append(NONE if value is None else written(value))
    return out


def plain(title: str) -> str:
    """Returns a title without its Markdown."""
    return re.sub(r"[*`]", "", title)
