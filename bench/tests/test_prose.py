"""The check of `make lint` for the English of documents, comments and texts."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "prose.py"


def check(*paths: Path | str) -> tuple[int, str]:
    """Returns exit code and output."""
    command = [sys.executable, "-B", SCRIPT, *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.returncode, run.stdout + run.stderr


LONG = "It is " + "very " * 30 + "long."
# In pieces, since this file is checked as well.
OLD = " ".join(["The", "file", "is", "made", "anew."])
OPENINGS = ["Who saves", "Whoever saves", "What it was", "Which there are", "It is told"]
NO_THINGS = ["nobody", "Nobody", "somebody", "anyone", "everybody", "whoever"]


def named(folder: Path, name: str, text: str) -> list[str]:
    """Returns the findings in a file, without its folder."""
    (folder / name).write_text(text)
    code, out = check(folder)
    found = [line.partition(f"{name}:")[2] for line in out.splitlines() if f"{name}:" in line]
    assert code == (1 if found else 0), out
    return found


@pytest.mark.parametrize("opening", OPENINGS)
def test_an_opening_that_is_no_subject_is_named(tmp_path: Path, opening: str) -> None:
    first = opening.split()[0]
    for text, line in [(f"Good.\n\n{opening} in the log.\n", 3), (f"- good\n- {opening} it.\n", 2)]:
        found = named(tmp_path, "a.md", text)
        assert found[0].startswith(f"{line}: begins with '{first}"), found


@pytest.mark.parametrize("subject", NO_THINGS)
def test_a_subject_that_is_no_thing_is_named(tmp_path: Path, subject: str) -> None:
    (found,) = named(tmp_path, "a.md", f"If it fails, {subject} reads it.\n")
    assert found.startswith("1: "), found
    assert subject in found, found


def test_a_long_sentence_is_named(tmp_path: Path) -> None:
    (found,) = named(tmp_path, "a.md", f"{LONG}\n")
    assert "33 words" in found


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.md", f"Good words\nand more. {OLD}\n", 2),
        ("a.md", f"```\n{OLD}\n```\n\n{OLD}\n", 5),
        ("a.md", f"```one `line` of it```\n\n{OLD}\n", 3),
        ("a.md", f"One etc. {OLD}\n", 1),
        ("a.rs", f"fn a() {{}}\n/// {OLD}\n", 2),
        ("a.rs", f"// SAFETY: {OLD}\n", 1),
        ("a.rs", f'fn a() {{\n    b("and {OLD.lower()}");\n}}\n', 2),
        ("a.py", f'async def a():\n    """{OLD}"""\n', 2),
        ("a.py", f"x = 1\n# {OLD}\n", 2),
        ("a.py", f'x = f"{{y}} and {OLD.lower()}"\n', 1),
        ("a.c", f"/* {OLD} */\n", 1),
        ("a.f90", f"! {OLD}\n", 1),
        ("a.toml", f"# {OLD}\n", 1),
        ("script", f"#!/bin/sh\n# {OLD}\n", 2),
    ],
)
def test_sentences_are_found_in_each_kind_of_file(
    tmp_path: Path, name: str, text: str, line: int
) -> None:
    (found,) = named(tmp_path, name, text)
    assert found.startswith(f"{line}: "), found
    assert "'anew'" in found, found


def test_a_word_that_the_glossary_replaced_is_named(tmp_path: Path) -> None:
    (found,) = named(tmp_path, "a.rs", " ".join(["fn a() {}\n///", "The", "log", "place.\n"]))
    assert "log replica" in found


def test_good_sentences_pass(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "What is a job? A saver syncs its shards, reads the table again, then commits.\n\n"
        f"| {LONG} |\n|---|\n\n    {OLD}\n\nOne of those who save `{OLD[-5:]}` may wait.\n"
    )
    (tmp_path / "a.rs").write_text(f'//! Reads.\nconst NAME: &str = "{OLD.split()[-1]}";\n')
    assert check(tmp_path) == (0, "")


def test_nothing_to_read_is_no_success(tmp_path: Path) -> None:
    assert check(tmp_path)[0] == check("docs/nowhere.md")[0] == check("/etc/hostname")[0] == 2
