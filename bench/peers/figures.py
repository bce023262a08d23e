"""Figures from measurements: medians by peer. Only this module computes figures."""

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from peers.measure import Result

GIB = 1 << 30
Figures = dict[str, float | None]


def median(values: Iterable[float | None]) -> float | None:
    """Returns the median; None of no values."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def by_name(rows: list[Result], key: str) -> dict[str, list[Result]]:
    """Returns the rows of each peer."""
    found: dict[str, list[Result]] = {}
    for row in rows:
        if key in row:
            found.setdefault(row[key], []).append(row)
    return found


def raw(result: Result) -> Figures:
    """Returns, for the device, seconds for each GiB."""
    devices = {row["round"]: row["raw"] for row in result["rows"]}.values()
    return {
        name: median(one[f"{name}_s"] * GIB / one["bytes"] for one in devices)
        for name in ("write", "read")
    }


def saves(result: Result) -> dict[str, Figures]:
    """Returns, by peer, times in seconds for each GiB of state, shares, bytes by bytes of state."""
    found = {}
    for peer, rows in by_name(result["rows"], "peer").items():
        saved = [row for row in rows if "save" in row]
        if saved:
            found[peer] = _saves(saved) | _restores([row for row in rows if "restore" in row])
    return found


def _saves(rows: list[Result]) -> Figures:
    figures: Figures = {}
    for part in ("first", "part", "all"):
        for key in ("blocked_s", "durable_s", "cpu_s", "memory_bytes", "bytes"):
            scale = 1.0 if key.endswith("bytes") else GIB
            figures[f"{part}_{key}"] = median(
                row["save"][part][key] * scale / row["save"]["state_bytes"] for row in rows
            )
        figures[f"{part}_share"] = median(
            (row["raw"]["write_s"] / row["raw"]["bytes"])
            / (row["save"][part]["durable_s"] / row["save"]["state_bytes"])
            for row in rows
        )
    return figures


def _restores(rows: list[Result]) -> Figures:
    figures: Figures = {}
    for key in ("cold_s", "warm_s", "into_s", "cold_cpu_s", "warm_cpu_s"):
        figures[key] = median(
            row["restore"][key] * GIB / row["save"]["state_bytes"]
            if key in row["restore"]
            else None
            for row in rows
        )
    figures["cold_share"] = median(
        (row["raw"]["read_s"] / row["raw"]["bytes"])
        / (row["restore"]["cold_s"] / row["save"]["state_bytes"])
        for row in rows
    )
    return figures


def wrong(result: Result) -> list[str]:
    """Returns peers whose restore differed from the save, and peers that failed."""
    found = []
    for row in result["rows"]:
        if row.get("restore", {}).get("right") is False:
            found.append(f"{row['peer']}: what came back was not what was saved")
        for key in ("error", "failed"):
            if key in row:
                last = row[key].strip().splitlines()[-1]
                found.append(f"{row.get('peer', row.get('program'))}: {last[:200]}")
        if row.get("right") is False:
            found.append(f"{row['program']}: what came back was not what was put")
    return sorted(set(found))


def flips(result: Result) -> dict[str, dict[str, int]]:
    """Returns, by peer, how many flipped bits were detected, returned, or had no effect."""
    return _count(result, _of_flip)


def _of_flip(row: Result) -> str | None:
    if "failed" in row:
        return None
    if "crash" in row:
        return "crashed"
    if "refused" in row:
        return "detected"
    return "silent" if row["seed"] is None else "harmless"


def kills(result: Result) -> dict[str, dict[str, int]]:
    """Returns, by peer, how many kills left the previous state, the new one, or neither."""
    return _count(result, _of_kill)


def _of_kill(row: Result) -> str | None:
    if "failed" in row:
        return None
    if "crash" in row or "refused" in row:
        return "lost"
    return {1: "previous", 2: "new", None: "mixed"}[row["seed"]]


def _count(result: Result, judge: Callable[[Result], str | None]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for peer, rows in by_name(result["rows"], "peer").items():
        for row in rows:
            what = judge(row)
            if what is not None:
                counts = found.setdefault(peer, {})
                counts[what] = counts.get(what, 0) + 1
    return found


def slowdowns(result: Result, key: str) -> dict[str, Figures]:
    """Returns, by peer or baseline, how many times slower the thread was, less 1."""
    found = {}
    for name, rows in by_name(result["rows"], key).items():
        figures: Figures = {}
        for kernel in ("cache", "memory"):
            values = [value for row in rows for value in row.get(kernel, [])]
            middle = median(values)
            figures[kernel] = None if middle is None else middle - 1
            drains = [value for row in rows for value in row.get(f"{kernel}_drain_s", [])]
            figures[f"{kernel}_drain_s"] = median(drains)
        found[name] = figures
    return found


def files(result: Result) -> dict[str, Figures]:
    """Returns, by program, seconds, processor seconds, memory, and bytes of the repository."""
    found = {}
    for program, rows in by_name(result["rows"], "program").items():
        whole = [row for row in rows if "get" in row]
        if not whole:
            continue
        figures: Figures = {}
        for part in ("first", "again", "changed", "get"):
            for key in ("took_s", "cpu_s", "memory_bytes", "repository_bytes"):
                figures[f"{part}_{key}"] = median(row[part].get(key) for row in whole)
        found[program] = figures
    return found


def least(figures: dict[str, Figures], key: str, among: Iterable[str]) -> tuple[str, float] | None:
    """Returns the peer with the least of it, and how much."""
    known: list[tuple[float, str]] = []
    for name in among:
        value: Any = figures.get(name, {}).get(key)
        if value is not None:
            known.append((value, name))
    if not known:
        return None
    value, name = min(known)
    return name, value
