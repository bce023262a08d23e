"""Lines as SVG: one for each schedule, over the size of the problem."""

from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 640, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 130, 44, 48
_COLOURS = ("#3366cc", "#dc7633", "#4a9c5d", "#8e44ad", "#c0392b", "#111111", "#999999")
_STEPS = 5

Points = Sequence[tuple[float, float]]


def _ceiling(value: float) -> float:
    """Returns a round number that is at least `value`."""
    power = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 0.1
    while power > value > 0:
        power /= 10
    for part in (1, 1.5, 2, 3, 4, 5, 8, 10):
        if power * part >= value:
            return power * part
    return value


def lines(title: str, across: str, up: str, series: Mapping[str, Points], dashed: str) -> str:
    """Returns a picture of lines; the line ``dashed`` is a bound.

    Args:
        title: Title above the picture.
        across: Label of the horizontal axis.
        up: Label of the vertical axis, which begins at 0.
        series: Points of each line.
        dashed: Name of the dashed line.
    """
    xs = sorted({x for points in series.values() for x, _ in points})
    top = _ceiling(max(y for points in series.values() for _, y in points))
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        part = (x - xs[0]) / ((xs[-1] - xs[0]) or 1)
        return _LEFT + part * wide, _TOP + high - y / top * high

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="{_LEFT + wide / 2:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">'
        f"{escape(across)}</text>",
        f'<text transform="translate(16,{_TOP + high / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(up)}</text>',
    ]
    for step in range(_STEPS + 1):
        y = top * step / _STEPS
        _, at = place(xs[0], y)
        out.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + wide}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>'
        )
        out.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{y:.3g}</text>')
    for x in xs:
        at, _ = place(x, 0)
        out.append(f'<text x="{at:.1f}" y="{_TOP + high + 16}" text-anchor="middle">{x:g}</text>')
    for number, (name, points) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        dash = ' stroke-dasharray="5 4"' if name == dashed else ""
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        out.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        y = _TOP + 12 + 18 * number
        x = _LEFT + wide + 10
        out.append(
            f'<line x1="{x}" x2="{x + 16}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" '
            f'stroke-width="2"{dash}/>'
        )
        out.append(f'<text x="{x + 22}" y="{y}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])
