"""Conclusions from the figures: which goals outlive meets, and where others are better."""

from collections.abc import Sequence

from peers import figures
from peers.adapters import PEERS
from peers.backups import BACKUPS
from peers.figures import Figures
from peers.words import ABSENT, NONE, Written, fine_percent, mib, percent, ratio, seconds, table

Found = dict[str, Figures]
OURS = ("outlive", "outlive-none", "outlive-copy")
# A smaller advantage counts as none.
_MARGIN = 0.02

# Figures of peers that save memory; less is better.
_SAVES: tuple[tuple[str, str, Written], ...] = (
    ("first_blocked_s", "a first save blocks the program, s/GiB", seconds),
    ("first_durable_s", "a first save is durable, s/GiB", seconds),
    ("first_cpu_s", "processor time of a first save, s/GiB", seconds),
    ("first_memory_bytes", "memory beyond the state, share of the state", percent),
    ("first_bytes", "bytes of a first save by state", ratio),
    ("all_blocked_s", "a save of everything changed blocks the program, s/GiB", seconds),
    ("all_durable_s", "a save of everything changed is durable, s/GiB", seconds),
    ("part_blocked_s", "a save of 2 of 16 arrays blocks the program, s/GiB", seconds),
    ("part_durable_s", "a save of 2 of 16 arrays is durable, s/GiB", seconds),
    ("part_bytes", "bytes of a second save by state", ratio),
    ("cold_s", "cold restore, s/GiB", seconds),
    ("warm_s", "warm restore, s/GiB", seconds),
    ("into_s", "warm restore into arrays in use, s/GiB", seconds),
)
_PARTS = {"first": "first put", "again": "put again", "changed": "put after changes", "get": "get"}
_OF_PARTS: tuple[tuple[str, str, Written], ...] = (
    ("took_s", "s", seconds),
    ("cpu_s", "processor seconds", seconds),
    ("memory_bytes", "peak memory, MiB", mib),
    ("repository_bytes", "repository, MiB", mib),
)


def goals(save: Found, slow: Found, files: Found) -> str:
    """Returns the goals as a table."""
    ours, copy = save.get("outlive", {}), save.get("outlive-copy", {})
    rows = [
        _goal("first save, checksums on: share of raw", ours.get("first_share"), 0.95, percent),
        _goal("everything changed: program blocked, s/GiB", ours.get("all_blocked_s"), 0.08),
        _goal("the same, memory for a whole copy", copy.get("all_blocked_s"), 0.08),
        _goal("warm verified restore, s/GiB", ours.get("warm_s"), 0.13),
        _goal("the same, into arrays in use", ours.get("into_s"), 0.13),
    ]
    for name, words in (("outlive", "defaults"), ("outlive-copy", "memory for a whole copy")):
        slowed = slow.get(name, {}).get("cache")
        what = f"computing in cache slowed while a save is persisted, {words}"
        rows.append(_goal(what, slowed, 0.03, fine_percent))
    rows += [
        _file_goal(files, "files: first put, s", "first_took_s", ("rustic", "restic")),
        _file_goal(files, "files: put again, s", "again_took_s", ("rustic", "restic")),
        _file_goal(
            files, "files: repository at the end, MiB", "changed_repository_bytes", ("restic",), mib
        ),
        _file_goal(files, "files: restore, s", "get_took_s", ("casync",)),
    ]
    return table(["", "outlive", "goal", "met"], rows)


def _goal(what: str, value: float | None, bound: float, written: Written = seconds) -> list[str]:
    """Returns one row; shares of the raw device should be large, all else small."""
    large = written is percent
    wanted = f"{'>=' if large else '<='} {written(bound)}"
    if value is None:
        return [what, NONE, wanted, "not measured"]
    met = value >= bound if large else value <= bound
    return [what, written(value), wanted, "yes" if met else "**no**"]


def _file_goal(
    files: Found, what: str, key: str, rivals: Sequence[str], written: Written = seconds
) -> list[str]:
    value = files.get("outlive", {}).get(key)
    best = figures.least(files, key, rivals)
    if best is None:
        return [
            what,
            NONE if value is None else written(value),
            " and ".join(rivals),
            "not measured",
        ]
    wanted = f"<= {written(best[1])} ({best[0]})"
    if value is None:
        return [what, NONE, wanted, "not measured"]
    return [what, written(value), wanted, "yes" if value <= best[1] else "**no**"]


def losses(save: Found, slow: Found, files: Found) -> str:
    """Returns each column in which a peer beats outlive's defaults: the peer, and by how much."""
    if not save and not slow and not files:
        return ABSENT
    lines = [_loss(save, key, what, written) for key, what, written in _SAVES]
    for key in ("cache", "memory"):
        what = f"computing in {key} slowed while a save is persisted"
        lines.append(_loss(slow, key, what, fine_percent))
    for part, word in _PARTS.items():
        for key, unit, written in _OF_PARTS:
            lines.append(_loss(files, f"{part}_{key}", f"files, {word}: {unit}", written))
    return "\n".join(line for line in lines if line is not None) or "- none."


def _loss(found: Found, key: str, what: str, written: Written) -> str | None:
    ours = found.get("outlive", {}).get(key)
    best = figures.least(found, key, [name for name in found if name not in (*OURS, "cp")])
    if ours is None or best is None or written(ours) == written(best[1]):
        return None
    name, least = best
    if ours <= least + _MARGIN * abs(least):
        return None
    title = PEERS[name].title if name in PEERS else BACKUPS[name].title
    return f"- {what}: outlive {written(ours)}, {title} {written(least)}"
