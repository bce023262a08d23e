"""Lets MkDocs build the documents as they are in the repository, where they link to its root.

MkDocs calls the functions: `mkdocs.yml` names this file as a hook.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# Documents beside `docs`, which become pages as well. MkDocs makes the front page of README.md.
OUTSIDE = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
NOTES = "design/index.md"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)((?:#[^)\s]*)?)(?=\))")


def title_of(document: Path) -> str:
    """Returns the first heading of a document."""
    return document.read_text("utf-8").partition("\n")[0].removeprefix("# ")


def list_of_notes() -> str:
    """Returns a page that lists the design notes."""
    notes = sorted((ROOT / "docs" / "design").glob("*.md"))
    rows = [f"- [{title_of(note)}]({note.name})" for note in notes]
    return "# Design notes\n\n" + "\n".join(rows) + "\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the pages that the menu does not name to its guides."""
    menu = config.nav or []
    (guides,) = (entry["Guides"] for entry in menu if isinstance(entry, dict) and "Guides" in entry)
    for page in sorted((ROOT / "docs").glob("*.md")):
        if repr(page.name) not in repr(menu):
            guides.append(page.name)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in `docs`."""
    for name in OUTSIDE:
        text = (ROOT / name).read_text("utf-8")
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, NOTES, content=list_of_notes()))
    return files


def place_of(document: str) -> str:
    """Returns the path on the site of a path in the repository."""
    if document == "docs/design":
        return NOTES
    return document.removeprefix("docs/")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links between files of the repository those between pages."""
    site = page.file.src_uri
    source = site if site in OUTSIDE else f"docs/{site}"

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        return posixpath.relpath(place_of(target), posixpath.dirname(site) or ".") + link[2]

    return LINK.sub(moved, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Shows a bar in the code of a table, which Markdown wants behind a backslash."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.S)
