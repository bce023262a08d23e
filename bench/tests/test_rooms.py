"""The table of crates in ARCHITECTURE.md lists each crate above all that it depends on."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def crates() -> dict[str, list[str]]:
    """Returns the folder of each crate, and the folders of its dependencies."""
    manifests = [*ROOT.glob("crates/*/Cargo.toml"), *ROOT.glob("bindings/*/Cargo.toml")]
    tables = {path.parent: tomllib.loads(path.read_text()) for path in manifests}
    folder = {table["package"]["name"]: path for path, table in tables.items()}
    return {
        str(path.relative_to(ROOT)): [
            str(folder[name].relative_to(ROOT)) for name in table["dependencies"] if name in folder
        ]
        for path, table in tables.items()
    }


def test_the_table_is_true() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| (`(?:crates|bindings)/.*?`) \|", text, re.M)
    picture = [name.strip("` ") for row in rows for name in row.split(",")]
    depends = crates()
    assert sorted(picture) == sorted(depends)
    for room, others in depends.items():
        for other in others:
            assert picture.index(room) < picture.index(other), f"{room} depends on {other}"
