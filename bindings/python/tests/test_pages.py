"""The pages that a reader follows are true: their Python and their commands run, in order."""

import os
import re
import tomllib
from pathlib import Path

import pytest
from pages import DOCS, FRAMEWORK_PAGES, PAGES, ROOT, Reader, blocks_of, matches

import outlive

LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


# A page starts many programs.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    Reader(page, folder).read()


def test_a_reader_sees_differences(tmp_path: Path) -> None:
    assert matches("a …\n…\nend\n", "a b\n1\n2\nend\n")
    assert matches("…\nend\n", "end\n")
    assert not matches("a …\n", "b\n")
    assert not matches("a\n", "a\nb\n")
    assert not matches("a.c\n", "abc\n")


def test_all_guides_run() -> None:
    guides = {str(page.relative_to(DOCS)) for page in (DOCS / "guides").glob("*.md")}
    assert guides <= {*PAGES, *FRAMEWORK_PAGES}
    assert all(blocks_of(page) for page in guides)


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))]


def anchors_of(document: Path) -> set[str]:
    text = FENCE.sub("", document.read_text("utf-8"))
    titles = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title) for title in HEADING.findall(text)]
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_all_links_lead_to_a_heading() -> None:
    broken = []
    for document in documents():
        for place, anchor in LINK.findall(FENCE.sub("", document.read_text("utf-8"))):
            target = Path(os.path.normpath(document.parent / place)) if place else document
            if not target.exists() or (anchor and anchor not in anchors_of(target)):
                broken.append((document.name, place, anchor))
    assert not broken


def test_the_page_on_installing_names_the_files_of_the_release() -> None:
    script = (ROOT / "scripts" / "release").read_text("utf-8")
    glibc = re.search(r"^glibc=(.*)$", script, re.M)
    assert glibc
    version, text = outlive.__version__, (DOCS / "install.md").read_text("utf-8")
    tag = f"manylinux_{glibc[1].replace('.', '_')}_x86_64"
    assert f"outlive-{version}-cp311-abi3-{tag}.whl" in text
    assert f"outlive-{version}-linux-x86_64.tar.gz" in text
    assert f"`outlive-{version}.tar.gz`" in text


def test_every_call_is_in_the_reference() -> None:
    listed = set(re.findall(r"^::: outlive\.([\w.]+)", (DOCS / "api.md").read_text("utf-8"), re.M))
    # The package of PyTorch's part needs PyTorch.
    text = (ROOT / "bindings/python/python/outlive/torch/__init__.py").read_text("utf-8")
    names = re.search(r"^__all__ = \[(.*?)\]", text, re.M | re.S)
    assert names
    torch = {f"torch.{name}" for name in re.findall(r"\w+", names[1])}
    assert listed == {*outlive.__all__, *torch} - {"__version__"}


def documented_keys() -> dict[str, dict[str, str]]:
    """Returns the defaults that docs/pool-toml.md has for the keys of each table."""
    text = (DOCS / "pool-toml.md").read_text("utf-8")
    found = {}
    for section in re.split(r"^## `", text, flags=re.M)[1:]:
        rows = re.findall(r"^\| `(\w+)` \| `?(.*?)`? ?(?:\(.*?\) )?\|", section, re.M)
        found[section.partition("`")[0].strip("[]")] = dict(rows)
    return found


def test_the_page_of_pool_toml_has_every_default(tmp_path: Path) -> None:
    outlive.open(tmp_path / "pool").close()
    written = tomllib.loads((tmp_path / "pool" / "pool.toml").read_text("utf-8"))
    documented = documented_keys()
    assert documented["format"].pop("pool_id") == "random"
    written["format"].pop("pool_id")
    for table in ("format", "tuning"):
        shown = {key: tomllib.loads(f"x = {text}")["x"] for key, text in documented[table].items()}
        assert shown == written[table]


def test_the_page_of_pool_toml_has_every_key() -> None:
    folder = ROOT / "crates" / "pool" / "src" / "descriptor"
    sources = "".join(
        (folder / name).read_text("utf-8")
        for name in ("config.rs", "encryption.rs", "redundancy.rs")
    )
    tables = {
        "format": "FormatConfig",
        "tuning": "Tuning",
        "redundancy": "Redundancy",
        "log": "LogConfig",
        "encryption": "EncryptionConfig",
        "tiers": "TiersConfig",
        "target": "TargetConfig",
    }
    documented = documented_keys()
    assert set(documented) == set(tables)
    for table, struct in tables.items():
        body = re.search(rf"^pub struct {struct} \{{(.*?)^\}}", sources, re.M | re.S)
        assert body, struct
        assert set(re.findall(r"^    pub (\w+):", body[1], re.M)) == set(documented[table]), table
