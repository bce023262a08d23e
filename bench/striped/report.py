"""Figures, words and pictures from measurements."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from striped import chart

MB = 1e6
PLACES = {
    "central": "one device",
    "pool": "pool",
    "arm": "arm",
    "hosts": "nodes",
}
FIGURES = {
    "central": "Central server",
    "pool": "Pool of eight devices",
    "arm": "Disk with an arm",
    "hosts": "Four storage nodes",
}
BOUND = "device bound"


def rows_of(found: dict[str, Any], name: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns the measurements of a setup, by schedule and size."""
    rows = (row for row in found.get("schedules", []) if row["on"] == name)
    return {(row["by"], row["rows"]): row for row in rows}


def bound_of(found: dict[str, Any], name: str) -> float:
    """Returns the highest measured bytes per second of the devices of a setup."""
    return max(float(row["bytes_per_s"]) for row in found["bounds"] if row["on"] == name)


def sides_of(rows: dict[tuple[str, int], Any]) -> list[int]:
    """Returns the measured sizes."""
    return sorted({side for _, side in rows})


def fixed_of(rows: dict[tuple[str, int], Any]) -> list[str]:
    """Returns the measured schedules except the adaptive one."""
    return [by for by in dict.fromkeys(by for by, _ in rows) if by != "adaptive"]


def verdict(found: dict[str, Any]) -> Iterable[str]:
    """Returns one line for each measured goal."""
    for name, words in PLACES.items():
        rows = rows_of(found, name)
        for side in sides_of(rows):
            yield f"{words}, {side} rows: {size_verdict(found, name, side)}"
    large = {row["by"]: row for row in found.get("large", [])}
    if large:
        bound, alone = bound_of(found, "pool"), large["alone"]
        for by, row in large.items():
            share = row["bytes"] / row["seconds"] / bound
            size = f"{row['bytes'] / MB:.0f} MB by 16 ranks"
            yield f"{size}, {by}: {share:.2f} of what the devices take"
        row = large["coordinated"]
        yield (
            f"stands still for {1e3 * row['stood_s']:.0f} ms as a group, each rank for itself "
            f"{1e3 * alone['stood_s']:.0f} ms; a barrier {1e3 * row['barrier_s']:.1f} ms"
        )
    for row in found.get("rollback", []):
        rate = row["bytes"] / row["seconds"] / MB
        yield (
            f"rollback of {row['bytes'] / MB:.0f} MB by {row['ranks']} ranks: "
            f"{row['seconds']:.2f} s, {rate:.0f} MB/s"
        )


def size_verdict(found: dict[str, Any], name: str, side: int) -> str:
    """Returns the comparison of the schedules at one size of one setup."""
    rows = rows_of(found, name)
    seconds = {by: rows[by, side]["seconds"] for by, other in rows if other == side}
    fixed = {by: took for by, took in seconds.items() if by != "adaptive"}
    best = min(fixed, key=lambda by: fixed[by])
    share = rows[best, side]["bytes"] / fixed[best] / bound_of(found, name)
    words = [f"best is {best} with {fixed[best]:.2f} s, {share:.2f} of the bound"]
    if "staggered" in fixed and "striped(8)" in fixed:
        words.append(f"striped(8) is {fixed['staggered'] / fixed['striped(8)']:.1f} x staggered")
    if "adaptive" in seconds:
        words.append(f"adaptive takes {seconds['adaptive'] / fixed[best]:.2f} of the best")
    return "; ".join(words)


def times(found: dict[str, Any], name: str) -> str:
    """Returns the picture of the times of saves."""
    return picture(
        found, name, "Checkpoint time", "seconds until durable", lambda row: row["seconds"]
    )


def throughputs(found: dict[str, Any], name: str) -> str:
    """Returns the picture of the bytes written in a second."""
    return picture(
        found, name, "Throughput", "MB/s", lambda row: row["bytes"] / row["seconds"] / MB
    )


def picture(found: dict[str, Any], name: str, what: str, unit: str, value: Any) -> str:
    """Returns a line for each schedule, and the bound that the devices set."""
    rows = rows_of(found, name)
    series = {
        by: [(float(side), float(value(rows[by, side]))) for side in sides_of(rows)]
        for by in dict.fromkeys(by for by, _ in rows)
    }
    bound = bound_of(found, name)
    ideal = []
    for side in sides_of(rows):
        size = side * side * 8
        ideal.append((float(side), float(value({"bytes": size, "seconds": size / bound}))))
    series[BOUND] = ideal
    title = f"{what}: {FIGURES[name]}"
    return chart.lines(title, "rows and columns of the problem", unit, series, BOUND)


def table(found: dict[str, Any], name: str) -> list[str]:
    """Returns seconds by schedule and size, as Markdown."""
    rows = rows_of(found, name)
    sides, by_all = sides_of(rows), list(dict.fromkeys(by for by, _ in rows))
    heads = [f"{side} ({side * side * 8 / MB:.0f} MB)" for side in sides]
    out = ["| | " + " | ".join(heads) + " |", "|---|" + "---|" * len(sides)]
    for by in by_all:
        out.append(
            f"| {by} | " + " | ".join(f"{rows[by, side]['seconds']:.2f}" for side in sides) + " |"
        )
    bound = bound_of(found, name)
    ideal = " | ".join(f"{side * side * 8 / bound:.2f}" for side in sides)
    return [*out, f"| {BOUND} | {ideal} |"]


def summary(found: dict[str, Any], name: str) -> str:
    """Compares the adaptive schedule with the best fixed one on a setup, over all sizes."""
    rows = rows_of(found, name)
    sides = sides_of(rows)
    adaptive = geometric_mean(
        rows["adaptive", side]["seconds"] / min(rows[by, side]["seconds"] for by in fixed_of(rows))
        for side in sides
    )
    return f"Over all sizes, adaptive takes {adaptive:.2f} of the time of the best fixed schedule."


def write(found: dict[str, Any], docs: Path) -> None:
    """Writes the page of figures, and its pictures."""
    pictures = docs / "striped"
    pictures.mkdir(parents=True, exist_ok=True)
    page = (Path(__file__).parent / "page.md").read_text()
    for name, title in FIGURES.items():
        part = "Not measured."
        if rows_of(found, name):
            part = "\n".join([*table(found, name), "", summary(found, name), ""])
            for what, drawn in (("time", times), ("throughput", throughputs)):
                (pictures / f"{name}-{what}.svg").write_text(drawn(found, name))
                part += f"\n![{title}: {what}](striped/{name}-{what}.svg)"
        page = page.replace(f"{{{name}}}", part)
    lines = [f"- {line}" for line in verdict(found)]
    beside = "while HPL runs beside it" if found["hpl"] else "while nothing runs beside it"
    page = page.replace("{verdict}", "\n".join(lines)).replace("{beside}", beside)
    page = page.replace("{mbps}", f"{found['mbps']:g}")
    (docs / "striped.md").write_text(page)
