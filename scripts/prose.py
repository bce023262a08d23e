"""Checks the English of documents and comments: subjects, lengths, the glossary's words.

```
python3 scripts/prose.py                  # all of it, as `make lint` does
python3 scripts/prose.py docs/pool.md crates/pool/src
python3 scripts/prose.py --count          # how many findings each file has
```

Each finding is one line: file, line, what is wrong, what to write. Exits with 1 if there is one.
It skips code, tables and quotations, the changelog and vendored texts.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
WORDS_MAX = 30
# History.
IGNORED = {"CHANGELOG.md"}
# How a comment line begins, by the suffix of its file; scripts and the Makefile have none.
COMMENTS = {
    ".rs": r"//[/!]?",
    **dict.fromkeys([".c", ".cpp", ".h", ".hpp"], r"//|/\*+|\*(?=[ /]|$)"),
    ".f90": r"!",
    ".toml": r"#(?!define|if|endif|include)",
    "": r"#(?!!)",
}
SUFFIXES = {".md", ".py", ".pyi", *COMMENTS}


class Finding(NamedTuple):
    """One problem in a text."""

    path: Path
    line: int
    what: str


ACTOR = "name the program, command, rank or user"

# Openings that make a clause the subject of a sentence, instead of a thing.
OPENINGS = [
    (r"who(ever|so)?\b(?!.*\?$)", "name the program, command, rank or reader that acts"),
    (r"what(ever)?\b(?!.*\?$)(?! follows:)", "name the thing instead of `what …`"),
    (r"which(ever)? there\b", "say what lists them"),
    (r"which(ever)?\b(?!.*\?$)", "name the thing instead of `which …`"),
    (r"it is (told|looked|said|asked)\b", "say which thing acts"),
]
# Phrases that no sentence may contain.
PHRASES = [
    (r"\b((some|any)(body|one)|every(body|one)(?! of)|nobody)\b", ACTOR),
    (r"\bwho(ever|soever)\b", ACTOR),
    (r"(^|[;:(] ?)((and|or|but|so|if|that|for) )*who (\w+s|is|was|has|had|can|must|may)\b", ACTOR),
    (r"\bis looked for\b", "say which thing looks"),
    (r"\bfor ever\b", "forever"),
    (r"\banew\b", "again, or `recreate`"),
    (r"\bis not to be had\b|\bare not to be had\b", "cannot allocate, or is not available"),
    (r"\bso many\b(?! that)", "say the number"),
]  # fmt: skip
# Words that the glossary replaced, and its own.
SPELLINGS = [
    (r"\blog places?\b|\bplaces? of (a|the) log\b", "log replica"),
    (r"\bset of places\b", "configuration"),
    (r"\b(make|makes|made|making) way\b", "yield"),
    (r"\bsqueez(e|es|ed|ing)\b", "frame compression"),
    (r"\bde-?dupe?(d|s)?\b", "deduplicate"),
    (r"\bcheck-?points? ?file\b", "checkpoint"),
    (r"\bhurt checkpoints?\b|\bcheckpoints? (is|are) hurt\b", "incomplete"),
    (r"\bgarbage-collect(s|ed|ing)?\b", "a gc deletes"),
    (r"\bfile-system\b", "file system"),
    (r"\bmanifest-log\b", "log"),
]

SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*\]]*\s+(?=[\"'(*\[`]*(?:[A-Z0-9`\"']|outlive\b|--))")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|cf|etc|vs|et al|approx)\.$")


def plain(text: str) -> str:
    """Returns Markdown without its marks; code and links count as one word."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"``.+?``|`[^`]*`", "CODE", text)
    text = re.sub(r"\$[^$\n]*\$", "MATH", text)
    text = re.sub(r"<[^>\s]*>|https?://\S+", "LINK", text)
    text = re.sub(r"\"[^\"]*\"|“[^”]*”", "QUOTE", text)
    return text.replace("**", "").replace("*", "")


def sentences(paragraph: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yields the sentences of a paragraph's lines, each with the line that it begins in."""
    text, starts = "", []
    for number, line in paragraph:
        starts.append((len(text), number))
        text += line.strip() + " "
    begin = 0
    ends = [m.end() for m in SENTENCE_END.finditer(text)]
    for end in [*ends, len(text)]:
        piece = text[begin:end].strip()
        if not piece or (ABBREVIATION.search(piece) and end < len(text)):
            continue
        yield next(n for at, n in reversed(starts) if at <= begin), piece
        begin = end


def paragraphs(lines: list[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Yields paragraphs and list items of Markdown; no code, tables, headings."""
    paragraph: list[tuple[int, str]] = []
    fenced = False
    for number, line in lines:
        stripped = line.strip()
        fence = re.match(r"(```|~~~)[^`]*$", stripped) is not None
        fenced ^= fence
        code = fenced or fence
        indented = line.startswith("    ") and not paragraph
        if code or indented or not stripped or stripped.startswith(("#", "|", "<", ">")):
            yield paragraph
            paragraph = []
        elif item := re.match(
            r"\s*([-*+]|\d+\.) +|(\w+: )(?=[A-Z])|(Args|Attributes|Returns|Yields|Raises):$", line
        ):
            yield paragraph
            paragraph = [(number, line[item.end() :])]
        else:
            paragraph.append((number, line))
    yield paragraph


DIRECTIVE = re.compile(r"^(type: |noqa|fmt: |ruff: |mypy: |pragma|shellcheck|!)")
Lines = list[tuple[int, str]]


def comments(text: str, mark: str) -> Iterator[Lines]:
    """Blocks of lines that hold nothing but a comment."""
    comment = re.compile(rf"^\s*(?:{mark}) ?(.*?)(?:\*+/)?$")
    block: Lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := comment.match(line):
            # A command with its explanation, as the heads of scripts list them.
            is_command = re.match(r" {2,}(scripts/|fuzz/|make |[a-z_]+ [A-Z-])", found.group(1))
            block.append((number, "" if is_command else found.group(1)))
        elif block:
            yield block
            block = []
    yield block


def python_comments(text: str) -> Iterator[Lines]:
    """The docstrings, and blocks of lines that hold nothing but a comment."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and (docstring := ast.get_docstring(node, clean=False)):
            first = node.body[0].lineno
            yield [(first + at, line.strip()) for at, line in enumerate(docstring.splitlines())]
    block: Lines = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            if block and token.start[0] > block[-1][0] + 1:
                yield block
                block = []
            block.append((token.start[0], token.string.lstrip("#").removeprefix(" ")))
    yield block


def prose(path: Path) -> Iterator[Lines]:
    """The paragraphs of a document, or of the comments of a source."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from paragraphs(list(enumerate(text.splitlines(), 1)))
        return
    is_python = path.suffix in (".py", ".pyi")
    for block in python_comments(text) if is_python else comments(text, COMMENTS[path.suffix]):
        lines = [(number, "" if DIRECTIVE.match(line) else line) for number, line in block]
        yield from paragraphs([(n, line.removeprefix("SAFETY: ")) for n, line in lines])


STRING = re.compile(r"//[^\n]*|'\\?.'|\"(?:[^\"\\]|\\.)*\"", re.S)


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the literals of a source that have three words or more, each with its line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".rs":
        for found in STRING.finditer(text):
            if found.group().startswith('"') and found.group().count(" ") > 1:
                yield text.count("\n", 0, found.start()) + 1, found.group()
    elif path.suffix == ".py":
        nodes = list(ast.walk(ast.parse(text)))
        # Docstrings are read as prose.
        alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            match node:
                case ast.Constant(value=str(value)) if (
                    value.count(" ") > 1 and id(node) not in alone
                ):
                    yield node.lineno, value


def findings(path: Path) -> Iterator[Finding]:
    """Yields all findings in one file."""
    source = path.suffix != ".md"
    for number, literal in strings(path):
        for pattern, advice in PHRASES:
            if found := re.search(pattern, " ".join(literal.split()), re.IGNORECASE):
                yield Finding(path, number, f"{found.group(0).strip()!r} in a text: {advice}")
    for paragraph in prose(path):
        if not paragraph:
            continue
        # Code stands for one word before the text is cut into sentences: it may hold full stops.
        joined = plain("\n".join(line for _, line in paragraph)).split("\n")
        numbers = [number for number, _ in paragraph]
        if len(joined) != len(numbers):  # a quotation or link over a line's end
            joined = [" ".join(joined)]
            numbers = numbers[:1]
        for number, sentence in sentences(list(zip(numbers, joined, strict=True))):
            for pattern, advice in OPENINGS:
                # A comment or list item may be a noun by itself: "What a reader sees".
                if re.match(rf"[\"'(]*{pattern}", sentence, re.IGNORECASE) and (
                    not source or sentence.rstrip().endswith((".", ";", ":"))
                ):
                    yield Finding(path, number, f"begins with {sentence.split()[0]!r}: {advice}")
            for pattern, advice in [*PHRASES, *SPELLINGS]:
                if found := re.search(pattern, sentence, re.IGNORECASE):
                    yield Finding(path, number, f"{found.group(0).strip(' ,;:(')!r}: {advice}")
            if (words := len(re.findall(r"[\w'-]+", sentence))) > WORDS_MAX:
                yield Finding(path, number, f"{words} words in one sentence: {sentence[:50]}…")


def is_script(path: Path) -> bool:
    """Returns whether a file without a suffix is a shell script."""
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def shown(path: Path) -> Path:
    """Returns the path as counted from the project's root, if it is there."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def main() -> int:
    """Prints the findings; returns the exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders (default: all)")
    parser.add_argument("--count", action="store_true", help="findings of each file, not each one")
    arguments = parser.parse_args()
    files = sorted(f for path in arguments.paths for f in (path, *path.rglob("*")) if f.is_file())
    if not arguments.paths:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        files = [ROOT / name for name in sorted(tracked.stdout.split("\0")[:-1])]
    files = [f for f in files if f.suffix in SUFFIXES and f.name not in IGNORED and f.is_file()]
    files = [f for f in files if f.suffix or f.name == "Makefile" or is_script(f)]
    if not files:
        print("no file here has prose that this reads", file=sys.stderr)
        return 2
    found = [finding for file in files for finding in findings(file)]
    if arguments.count:
        for path, count in Counter(finding.path for finding in found).most_common():
            print(f"{count:5}  {shown(path)}")
    else:
        for path, line, what in found:
            print(f"{shown(path)}:{line}: {what}")
    if found:
        print(f"{len(found)} findings", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
