"""Bars as SVG, written by hand: a picture needs only rectangles, lines and words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 760
_LEFT = 240
_RIGHT = 80
_BAR = 13
_GAP = 10
_COLOURS = ("#3366cc", "#dc7633", "#4a9c5d", "#8e44ad")


@dataclass(frozen=True)
class Group:
    """The bars of one peer; None where there is no figure."""

    name: str
    values: Sequence[float | None]
    ours: bool = False


def bars(
    title: str,
    series: Sequence[str],
    groups: Sequence[Group],
    written: Callable[[float], str],
    *,
    line: tuple[str, float] | None = None,
) -> str:
    """Draws horizontal bars, one group for each peer.

    Args:
        title: Title above the picture.
        series: Names of the bars of a group.
        groups: Groups from top to bottom.
        written: Formats a value.
        line: A value to compare with, and its name.
    """
    values = [value for group in groups for value in group.values if value is not None]
    most = max([*values, *([line[1]] if line else [])], default=0.0) or 1.0
    each = len(series) * _BAR + _GAP
    top = 44 + 18 * len(series)
    height = top + each * len(groups) + 40
    across = _WIDTH - _LEFT - _RIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="24" font-size="15">{escape(title)}</text>',
    ]
    for number, name in enumerate(series):
        y = 36 + 18 * number
        out.append(f'<rect x="12" y="{y}" width="12" height="12" fill="{_COLOURS[number]}"/>')
        out.append(f'<text x="30" y="{y + 10}">{escape(name)}</text>')
    for place, group in enumerate(groups):
        begin = top + place * each
        middle = begin + len(series) * _BAR / 2 + 4
        weight = ' font-weight="bold"' if group.ours else ""
        out.append(
            f'<text x="{_LEFT - 8}" y="{middle:.0f}" text-anchor="end"{weight}>'
            f"{escape(group.name)}</text>"
        )
        for number, value in enumerate(group.values):
            y = begin + number * _BAR
            if value is None:
                out.append(f'<text x="{_LEFT + 4}" y="{y + 10}" fill="#999">-</text>')
                continue
            width = max(1.0, value / most * across)
            out.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 2}" '
                f'fill="{_COLOURS[number]}"/>'
            )
            out.append(
                f'<text x="{_LEFT + width + 4:.1f}" y="{y + 10}" font-size="11">'
                f"{escape(written(value))}</text>"
            )
    if line is not None:
        name, value = line
        x, bottom = _LEFT + value / most * across, top + each * len(groups)
        out.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 4}" y2="{bottom}" stroke="#c0392b" '
            'stroke-dasharray="4 3"/>'
        )
        out.append(
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#c0392b">'
            f"{escape(name)}: {escape(written(value))}</text>"
        )
    return "\n".join([*out, "</svg>", ""])
