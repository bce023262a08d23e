"""The check of `make lint` for files that import each other in a circle."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "circles.py"


def check(root: Path, files: dict[str, str]) -> tuple[int, str]:
    """Returns exit code and output for a crate of these files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    run = subprocess.run(
        [sys.executable, "-B", SCRIPT, str(root)], capture_output=True, text=True, check=False
    )
    return run.returncode, run.stdout + run.stderr


def test_a_circle_is_named(tmp_path: Path) -> None:
    code, out = check(
        tmp_path,
        {
            "lib.rs": "mod a;\nmod b;\nmod c;\n",
            "a.rs": "use crate::{b::{B as Other, self}, c};\n",
            "b.rs": "use std::fmt;\nuse super::c::C;\n",
            "c.rs": "use crate::a;\n",
        },
    )
    assert (code, "circle: a, b, c" in out) == (1, True), out


def test_a_circle_through_a_re_export_is_one(tmp_path: Path) -> None:
    code, out = check(
        tmp_path,
        {
            "lib.rs": "mod deep;\nmod user;\npub use user::User;\n",
            "deep/mod.rs": "mod file;\npub use file::Thing;\n",
            "deep/file.rs": "use crate::User;\n",
            "user.rs": "use crate::deep::Thing;\n",
        },
    )
    assert (code, "deep::file, user" in out) == (1, True), out


def test_modules_without_a_circle_pass(tmp_path: Path) -> None:
    code, out = check(
        tmp_path,
        {
            # A file may use definitions of the file above it; tests may use anything.
            "lib.rs": "mod a;\nmod b;\n",
            "a.rs": "mod part;\nuse part::Part;\npub struct A;\n",
            "a/part.rs": "use super::A;\n// use crate::b::B;\n",
            "b.rs": "use crate::a::A;\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\n",
            "a/tests.rs": "use crate::b::B;\n",
        },
    )
    assert (code, out) == (0, "")


def test_a_circle_of_folders_is_named(tmp_path: Path) -> None:
    code, out = check(
        tmp_path,
        {
            "lib.rs": "mod high;\nmod low;\n",
            "high/mod.rs": "mod one;\nmod two;\npub use one::One;\npub use two::Two;\n",
            "high/one.rs": "use crate::low::Low;\npub struct One(Low);\n",
            "high/two.rs": "pub struct Two;\n",
            "low/mod.rs": "mod user;\npub struct Low;\n",
            "low/user.rs": "use crate::high::Two;\n",
        },
    )
    assert (code, "circle: high, low" in out) == (1, True), out


def test_a_path_in_the_code_and_a_public_use_count(tmp_path: Path) -> None:
    code, out = check(
        tmp_path,
        {
            "lib.rs": "mod a;\nmod b;\nmod c;\npub use a::A;\n",
            "a.rs": "pub use crate::b::B;\n",
            "b.rs": "fn b() {\n    crate::c::c();\n}\n",
            "c.rs": "use crate::a::A;\n",
        },
    )
    assert (code, "circle: a, b, c" in out) == (1, True), out


def test_a_folder_without_sources_is_no_success(tmp_path: Path) -> None:
    assert check(tmp_path, {})[0] == 2
