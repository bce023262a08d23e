"""Counts the lines that outlive takes in ten small programs, and prints a table of them.

    python bench/lines.py

`examples/programs` has each program twice: as it was, and with outlive. A line counts if it was
added or changed. The import of outlive is counted apart; blank lines do not count.
"""

import difflib
import json
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent.parent / "examples" / "programs"


def code_of(path: Path) -> str:
    """Returns the code of a program: all cells of a notebook."""
    text = path.read_text()
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n".join("".join(each["source"]) for each in cells if each["cell_type"] == "code")


def counted(name: str) -> tuple[int, int, int]:
    """Returns the lines of a program, those added or changed by outlive, and imports of it."""
    before = code_of(PROGRAMS / "before" / name).splitlines()
    after = code_of(PROGRAMS / "after" / name).splitlines()
    changes = [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    changes = [line for line in changes if line.strip()]
    imports = [line for line in changes if line.startswith("import outlive")]
    lines = [line for line in before if line.strip()]
    return len(lines), len(changes) - len(imports), len(imports)


def main() -> None:
    """Prints the table."""
    print("| Program | Lines before | Added or changed | Imports |")
    print("|---|---|---|---|")
    for path in sorted((PROGRAMS / "before").iterdir()):
        print(f"| `{path.name}` | {' | '.join(map(str, counted(path.name)))} |")


if __name__ == "__main__":
    main()
