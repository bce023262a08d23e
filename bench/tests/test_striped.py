"""Figures and pages that bench/schedules.py makes of measurements."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from striped import chart, report, runs

SCHEDULES = {"coordinated": 1.1, "staggered": 6.0, "striped(8)": 1.0, "adaptive": 1.02}


def found() -> dict[str, Any]:
    """Returns measurements on devices that take 100 MB/s together."""
    rows = [
        {
            "on": name,
            "rows": side,
            "by": by,
            "seconds": seconds * side * side * 8 / 80e6,
            "bytes": side * side * 8,
        }
        for name in report.PLACES
        for side in (1000, 3000)
        for by, seconds in SCHEDULES.items()
    ]
    large = [
        {"by": by, "bytes": 10**9, "seconds": 10 / share, "stood_s": 0.1, "barrier_s": 0.01}
        for by, share in {"alone": 0.5, "coordinated": 0.92}.items()
    ]
    rollback = [{"of": "each", "ranks": 2, "bytes": 2 * 10**7, "seconds": 0.5}]
    bounds = [{"on": name, "bytes_per_s": 100e6} for name in report.PLACES]
    parts = {"schedules": rows, "large": large, "rollback": rollback, "bounds": bounds}
    return {**parts, "mbps": 12.5, "hpl": True, "ranks": 16}


def test_the_schedules_are_compared_with_the_best_and_with_the_devices() -> None:
    line = report.size_verdict(found(), "pool", 3000)
    assert line == (
        "best is striped(8) with 0.90 s, 0.80 of the bound; striped(8) is 6.0 x staggered; "
        "adaptive takes 1.02 of the best"
    )
    lines = list(report.verdict(found()))
    assert "1000 MB by 16 ranks, coordinated: 0.92 of what the devices take" in lines
    assert "rollback of 20 MB by 2 ranks: 0.50 s, 40 MB/s" in lines
    assert any("as a group, each rank for itself 100 ms; a barrier 10.0 ms" in it for it in lines)


def test_a_page_and_its_pictures_are_written(tmp_path: Path) -> None:
    report.write(found(), tmp_path)
    page = (tmp_path / "striped.md").read_text()
    assert "{" not in page
    assert "| striped(8) | 0.10 | 0.90 |" in page
    assert "| device bound | 0.08 | 0.72 |" in page
    pictures = sorted((tmp_path / "striped").iterdir())
    assert len(pictures) == 2 * len(report.PLACES)
    for picture in pictures:
        assert f"striped/{picture.name}" in page
        drawn = ElementTree.parse(picture).getroot()
        assert sum(1 for it in drawn.iter() if it.tag.endswith("polyline")) == len(SCHEDULES) + 1


def test_the_page_marks_missing_measurements(tmp_path: Path) -> None:
    some = found()
    some["schedules"] = [row for row in some["schedules"] if row["on"] == "pool"]
    report.write(some, tmp_path)
    page = (tmp_path / "striped.md").read_text()
    assert "{" not in page
    assert page.count("Not measured.") == len(report.PLACES) - 1
    assert "central-time.svg" not in page


@pytest.mark.parametrize(
    ("value", "top"), [(0.06, 0.08), (0.9, 1), (1.2, 1.5), (73, 80), (201, 300)]
)
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    drawn = chart.lines("t", "x", "y", {"a": [(1, value / 2), (2, value)]}, "")
    assert f'text-anchor="end">{top:.3g}</text>' in drawn


def test_a_plate_has_at_least_the_bytes_that_were_asked_for() -> None:
    for size in (1, 8, 9, 1 << 20, 200_000_000):
        rows = runs.plate_rows(size)
        assert (rows - 1) ** 2 * 8 < size <= rows**2 * 8
