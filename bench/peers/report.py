"""Writes `benchmarks.md` and its pictures from the measurements alone."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from peers import figures, svg, verdict
from peers.adapters import PEERS
from peers.backups import BACKUPS
from peers.figures import GIB, Figures
from peers.measure import Result
from peers.verdict import OURS
from peers.words import (
    ABSENT,
    NONE,
    Written,
    cells,
    fine_percent,
    mib,
    percent,
    plain,
    ratio,
    seconds,
    table,
)


def write(results: Path, docs: Path) -> list[Path]:
    """Writes the page into `docs` and the pictures beside it; returns the paths."""
    found = {
        path.stem: json.loads(path.read_text())
        for path in sorted(results.glob("*.json"))
        if "what" in json.loads(path.read_text())
    }
    if not found:
        raise SystemExit(f"error: nothing has been measured yet: {results} has no results")
    page = Page(found)
    pictures = docs / "benchmarks"
    pictures.mkdir(parents=True, exist_ok=True)
    written = []
    for name, picture in page.pictures().items():
        path = pictures / f"{name}.svg"
        path.write_text(picture)
        written.append(path)
    path = docs / "benchmarks.md"
    path.write_text(page.text())
    return [path, *written]


# --- The page -------------------------------------------------------------------------------------


class Page:
    """The page of all measurements."""

    def __init__(self, found: dict[str, Result]) -> None:
        """Takes the results by the names of their files."""
        self.found = found
        self.any = next(iter(found.values()))
        save = found.get("save")
        self.save = figures.saves(save) if save else {}
        self.raw = figures.raw(save) if save else {}
        slow = found.get("slowdown")
        self.slow = figures.slowdowns(slow, "peer") if slow else {}
        self.beside = figures.slowdowns(slow, "beside") if slow else {}
        self.flips = figures.flips(found["flip"]) if "flip" in found else {}
        self.kills = figures.kills(found["kill"]) if "kill" in found else {}
        self.files = figures.files(found["files"]) if "files" in found else {}

    def text(self) -> str:
        """Returns the page."""
        template = Path(__file__).with_name("page.md").read_text()
        words = self._words()
        return re.sub(r"\{\{(\w+)\}\}", lambda match: words[match[1]], template)

    def _words(self) -> dict[str, str]:
        one, files = self.any, self.found.get("files", {})
        save, small = self.found.get("save", one), self.found.get("kill", one)
        machine = one["machine"]
        tree, upgrade = _tree(files)
        cores = machine["cores"]
        return {
            "commands": self._commands(),
            "machine": f"{cores} cores ({machine['processor']}), {machine['memory_gib']} GiB, "
            f"Linux {machine['kernel']}, {machine['file_system']} on {machine['disk']}",
            "date": " and ".join(dict.fromkeys(self._each("date"))),
            "commit": self._commit(),
            "scale": _scale(save),
            "busy": self._busy(),
            "versions": ", ".join(
                f"`{name} {version}`" for name, version in one["versions"].items()
            ),
            "programs": ", ".join(
                f"`{name} {version}`"
                for name, version in one["programs"].items()
                if name not in ("outlive", "cp")
            ),
            "goals": verdict.goals(self.save, self.slow, self.files),
            "losses": verdict.losses(self.save, self.slow, self.files),
            "size": f"{save['gib']:.4g} GiB",
            "small": f"{small['small_gib'] * 1024:.4g} MiB",
            "rounds": f"{save['rounds']} rounds" if save["rounds"] > 1 else "one round only",
            "raw": self._raw(),
            "save_table": self._save_table(),
            "save_notes": self._save_notes(),
            "part_table": self._part_table(),
            "restore_table": self._restore_table(),
            "safety_table": self._safety_table(),
            "flips": str(max((sum(c.values()) for c in self.flips.values()), default=0)),
            "kills": str(max((sum(c.values()) for c in self.kills.values()), default=0)),
            "slowdown_table": self._slowdown_table(),
            "cores": str(cores),
            "cores_note": "a save that uses more than one core takes time from the thread"
            if cores <= 2
            else "there is room for both",
            "tree": tree,
            "upgrade": upgrade,
            "files_table": self._files_table(),
            "repository_table": self._repository_table(),
            "file_notes": " ".join(
                f"{BACKUPS[name].title} {BACKUPS[name].note}."
                for name in self.files
                if BACKUPS[name].note
            ),
            "problems": self._problems(),
        }

    # --- Summaries ---

    def _commands(self) -> str:
        """Returns the command, or the commands if parts were measured at several times."""
        torch = "" if self._missing("torch") else " TORCH=1"
        # A later run of a part replaces an earlier one; this names the parts of each that are left.
        parts: dict[tuple[str, str], list[str]] = {}
        for name, one in self.found.items():
            parts.setdefault((one["options"], one["machine"]["outlive_commit"]), []).append(name)
        lines = []
        for (options, commit), names in parts.items():
            line = f"    make bench{torch}" + (f' ARGS="{options}"' if options else "")
            said = f"  # {', '.join(names)}; at commit {commit}" if len(parts) > 1 else ""
            lines.append(line + said)
        return "\n".join(lines)

    def _commit(self) -> str:
        commits = dict.fromkeys(self._each("outlive_commit"))
        return f"at commit {next(iter(commits))}" if len(commits) == 1 else "at those commits"

    def _each(self, key: str) -> list[str]:
        return [one["machine"][key] for one in self.found.values()]

    def _busy(self) -> str:
        """Returns the use of the machine by other programs, if it matters."""
        shares = [one["others_share"] for one in self.found.values() if "others_share" in one]
        if max(shares, default=0.0) < 0.05:
            return ""
        return (
            f"Others used up to {percent(max(shares))} of the processors meanwhile, so times are "
            "worse than on an idle machine. "
        )

    def _raw(self) -> str:
        write, read = self.raw.get("write"), self.raw.get("read")
        if write is None or read is None:
            return "a time that was not measured"
        return (
            f"{seconds(write)} s/GiB to write ({GIB / write / 1e9:.2f} GB/s), "
            f"{seconds(read)} s/GiB to read ({GIB / read / 1e9:.2f} GB/s)"
        )

    def _problems(self) -> str:
        lines = [
            f"- {name}: {line}" for name, one in self.found.items() for line in figures.wrong(one)
        ]
        return "\n".join(["\n## What did not work\n", *lines]) if lines else ""

    # --- Tables ---

    def _rows(
        self, found: dict[str, Figures], columns: Sequence[tuple[str, Written]]
    ) -> list[list[str]]:
        """Returns one row for each peer, in the order of `PEERS`, also for those not installed."""
        rows = []
        for name, peer in PEERS.items():
            if name in found:
                rows.append([peer.title, *cells(found[name], columns)])
            elif self._missing(name):
                rows.append([peer.title, "not installed", *[""] * (len(columns) - 1)])
        return rows

    def _missing(self, name: str) -> bool:
        versions = self.any["versions"]
        return any(versions.get(package) == "not installed" for package in PEERS[name].packages)

    def _save_table(self) -> str:
        if not self.save:
            return ABSENT
        columns = [
            ("first_blocked_s", seconds),
            ("first_durable_s", seconds),
            ("first_share", percent),
            ("first_cpu_s", seconds),
            ("first_memory_bytes", percent),
            ("all_blocked_s", seconds),
            ("all_durable_s", seconds),
            ("all_share", percent),
        ]
        head = ["", "first: program goes on", "durable", "share of raw", "CPU", "memory"]
        head += ["all changed: program goes on", "durable", "share of raw"]
        return table(head, self._rows(self.save, columns))

    def _save_notes(self) -> str:
        notes = [
            f"{peer.title}: {peer.note}" for n, peer in PEERS.items() if n in self.save if peer.note
        ]
        smooth = self.found.get("save-smooth")
        if smooth:
            compressible = figures.saves(smooth)
            columns = [
                ("first_blocked_s", seconds),
                ("first_durable_s", seconds),
                ("first_bytes", ratio),
                ("first_cpu_s", seconds),
            ]
            head = ["", "program goes on", "durable", "bytes by state", "CPU"]
            rows = self._rows(compressible, columns)
            notes.append(
                f"\nA compressible state (a smooth field), first save:\n\n{table(head, rows)}"
            )
        return "\n".join(notes)

    def _part_table(self) -> str:
        if not self.save:
            return ABSENT
        columns = [
            ("first_bytes", ratio),
            ("part_bytes", ratio),
            ("part_blocked_s", seconds),
            ("part_durable_s", seconds),
            ("part_cpu_s", seconds),
        ]
        head = ["", "bytes, first save", "bytes, second save", "program goes on", "durable", "CPU"]
        return table(head, self._rows(self.save, columns))

    def _restore_table(self) -> str:
        if not self.save:
            return ABSENT
        columns = [
            ("cold_s", seconds),
            ("cold_share", percent),
            ("warm_s", seconds),
            ("into_s", seconds),
            ("cold_cpu_s", seconds),
            ("warm_cpu_s", seconds),
        ]
        head = ["", "cold", "share of raw read", "warm", "into", "CPU, cold", "CPU, warm"]
        return table(head, self._rows(self.save, columns))

    def _safety_table(self) -> str:
        if not self.flips and not self.kills:
            return ABSENT
        rows = []
        for name, peer in PEERS.items():
            if peer.like is None and (name in self.flips or name in self.kills):
                flips, kills = self.flips.get(name), self.kills.get(name)
                rows.append([peer.title, _flips_in_words(flips), _kills_in_words(kills)])
            elif peer.like is None and self._missing(name):
                rows.append([peer.title, "not installed", ""])
        return table(["", "one flipped bit", "`kill -9` while overwriting"], rows)

    def _slowdown_table(self) -> str:
        if not self.slow and not self.beside:
            return ABSENT
        columns: list[tuple[str, Written]] = [
            ("cache", fine_percent),
            ("memory", fine_percent),
            ("cache_drain_s", seconds),
        ]
        rows = self._rows({n: f for n, f in self.slow.items() if f["cache"] is not None}, columns)
        rows = [row for row in rows if "not installed" not in row]
        names = {"idle": "nothing", "copy": "a copy of memory", "write": "raw writes"}
        for name, found in self.beside.items():
            rows.append([f"*beside {names[name]}*", *cells(found, columns)])
        return table(["", "in cache", "in memory", "persist, s"], rows)

    def _files_table(self) -> str:
        if not self.files:
            return ABSENT
        parts = ("first", "again", "changed", "get")
        columns: list[tuple[str, Written]] = [(f"{part}_took_s", seconds) for part in parts]
        columns += [(f"{part}_cpu_s", seconds) for part in parts]
        columns += [("first_memory_bytes", mib), ("get_memory_bytes", mib)]
        head = ["", "first put, s", "again", "changed", "get"]
        head += ["CPU, first put", "again", "changed", "get", "memory of put, MiB", "of get"]
        return table(head, self._program_rows(columns))

    def _repository_table(self) -> str:
        if not self.files:
            return ""
        parts = ("first", "again", "changed")
        columns: list[tuple[str, Written]] = [(f"{part}_repository_bytes", mib) for part in parts]
        head = ["Repository, MiB", "first put", "again", "changed"]
        return table(head, self._program_rows(columns))

    def _program_rows(self, columns: Sequence[tuple[str, Written]]) -> list[list[str]]:
        rows = []
        for name, backup in BACKUPS.items():
            if name in self.files:
                rows.append([backup.title, *cells(self.files[name], columns)])
            elif self.found["files"]["programs"].get(name) == "not installed":
                rows.append([backup.title, "not installed", *[""] * (len(columns) - 1)])
        return rows

    # --- Pictures ---

    def pictures(self) -> dict[str, str]:
        """Returns the pictures by name."""
        found = {}
        if self.save:
            write, read = self.raw["write"], self.raw["read"]
            found["save"] = svg.bars(
                "First save, seconds for each GiB (less is better)",
                ["until the program goes on", "until durable"],
                _groups(self.save, ("first_blocked_s", "first_durable_s")),
                seconds,
                line=None if write is None else ("raw device", write),
            )
            found["restore"] = svg.bars(
                "Restore, seconds for each GiB (less is better)",
                ["cold", "warm"],
                _groups(self.save, ("cold_s", "warm_s")),
                seconds,
                line=None if read is None else ("raw device", read),
            )
        if self.files:
            parts = ("first", "again", "changed", "get")
            found["files"] = svg.bars(
                "A tree of files, seconds (less is better)",
                ["first put", "put again", "put after changes", "get"],
                _groups(self.files, [f"{part}_took_s" for part in parts]),
                seconds,
            )
            found["repository"] = svg.bars(
                "Repository after the puts, MiB (less is better)",
                ["first put", "put again", "put after changes"],
                _groups(self.files, [f"{part}_repository_bytes" for part in parts[:3]]),
                mib,
            )
        return found


def _groups(found: dict[str, Figures], keys: Sequence[str]) -> list[svg.Group]:
    titles = {name: backup.title for name, backup in BACKUPS.items()}
    titles |= {name: peer.title for name, peer in PEERS.items()}
    return [
        svg.Group(plain(title), [found[name].get(key) for key in keys], name in OURS)
        for name, title in titles.items()
        if name in found
    ]


def _scale(one: Result) -> str:
    if one["gib"] >= 4 or (one["gib"] >= 1 and one["rounds"] >= 3):
        return ""
    return (
        "**This was a small run, to show the form: its figures mean little.** At this size, fixed "
        "costs and caches count for more than the device. "
    )


def _tree(files: Result) -> tuple[str, str]:
    tree = files.get("tree", {})
    if "files" not in tree:
        return "not measured in this run", "none"
    releases = tree["upgrade"]
    upgrade = f"one package from {' to '.join(releases)}" if releases else "no package upgraded"
    size = f"{tree['files']} files, {mib(tree['bytes'])} MiB"
    what = "packages and standard library of Python, one file of random bytes and one smooth array"
    return f"{size}: {what}", upgrade


def _flips_in_words(counts: dict[str, int] | None) -> str:
    if not counts:
        return NONE
    names = {
        "detected": "detected",
        "silent": "**returned**",
        "crashed": "crashed",
        "harmless": "no effect",
    }
    return _counts(counts, names)


def _kills_in_words(counts: dict[str, int] | None) -> str:
    if not counts:
        return NONE
    kept = counts.get("previous", 0) + counts.get("new", 0)
    both = {"kept": kept, "lost": counts.get("lost", 0), "mixed": counts.get("mixed", 0)}
    words = {"kept": "kept", "lost": "**lost**", "mixed": "**mixture returned**"}
    return _counts({name: count for name, count in both.items() if count}, words)


def _counts(counts: dict[str, int], names: dict[str, str]) -> str:
    total = sum(counts.values())
    if len(counts) == 1:
        return names[next(iter(counts))]
    return ", ".join(f"{names[key]} {counts[key]} of {total}" for key in names if key in counts)
