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
BAD = [
    ("a.md", "Good.\n\nWho saves looks again.\n", 3, "begins with 'Who'"),
    ("a.md", "- good\n- What it was is lost.\n", 2, "begins with 'What'"),
    ("a.md", "Good words\nand more. It is told so.\n", 2, "begins with 'It'"),
    ("a.md", "If it fails, nobody hears of it.\n", 1, "'nobody'"),
    ("a.md", f"{LONG}\n", 1, "33 words"),
    ("a.md", "```\nnobody\n```\n\nThis lasts for ever.\n", 5, "'for ever'"),
    ("a.md", "```one `line` of it```\n\nThis lasts for ever.\n", 3, "'for ever'"),
    ("a.md", "One etc. Nobody knows etc.\n", 1, "'Nobody'"),
    ("a.rs", "fn a() {}\n/// The log place.\n", 2, "log replica"),
    ("a.rs", "// SAFETY: nobody has it.\n", 1, "'nobody'"),
    ("a.rs", 'fn a() {\n    b("and nobody was told");\n}\n', 2, "in a text"),
    ("a.py", 'async def a():\n    """Made anew."""\n', 2, "'anew'"),
    ("a.py", "x = 1\n# Whoever comes.\n", 2, "begins with 'Whoever'"),
    ("a.py", 'x = f"{y} is made anew at once"\n', 1, "in a text"),
    ("a.c", "/* Nobody reads it. */\n", 1, "'Nobody'"),
    ("a.f90", "! Nobody reads it.\n", 1, "'Nobody'"),
    ("a.toml", "# Nobody reads it.\n", 1, "'Nobody'"),
    ("script", "#!/bin/sh\n# Nobody reads it.\n", 2, "'Nobody'"),
]


@pytest.mark.parametrize(("name", "text", "line", "what"), BAD)
def test_a_bad_sentence_is_named(
    tmp_path: Path, name: str, text: str, line: int, what: str
) -> None:
    (tmp_path / name).write_text(text)
    code, out = check(tmp_path)
    assert code == 1, out
    assert f"{name}:{line}: " in out, out
    assert what in out, out


def test_good_sentences_pass(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "What is a job? A saver syncs its shards, reads the table again, then commits.\n\n"
        f"| {LONG} |\n|---|\n\n    nobody, in code\n\nOne of those who save `nobody` may wait.\n"
    )
    (tmp_path / "a.rs").write_text('//! Reads.\nconst NAME: &str = "nobody";\n')
    assert check(tmp_path) == (0, "")


def test_nothing_to_read_is_no_success(tmp_path: Path) -> None:
    assert check(tmp_path)[0] == check("docs/nowhere.md")[0] == check("/etc/hostname")[0] == 2
