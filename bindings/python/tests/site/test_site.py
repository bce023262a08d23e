"""The site of the documents works in a browser. Run by `make docs`."""

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, page

PAGES = ["index", "tutorial", "coming-from", "api", "pool-toml", "cli"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and writes no lines."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with page() as tab:
        yield tab


def visit(tab: Page, url: str, scheme: str = "light") -> None:
    """Opens a page, and waits until it has its colours."""
    tab.value("window.isOld = true")
    tab.call("Page.navigate", url=url)
    palette = {"light": "default", "dark": "slate"}[scheme]
    tab.wait(
        "!window.isOld && document.readyState === 'complete' "
        f"&& document.body.dataset.mdColorScheme === '{palette}'"
    )


def brightness(tab: Page) -> int:
    """Returns the sum of red, green and blue behind the text."""
    text = tab.value("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", text)[:3]))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_all_windows_and_colours(tab: Page, address: str, name: str) -> None:
    for width, scheme in [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]:
        tab.show(width, 900, scheme)
        visit(tab, f"{address}{name}.html", scheme)
        assert tab.value("document.documentElement.scrollWidth") <= width, (name, width)
        assert (brightness(tab) < 380) == (scheme == "dark"), (name, scheme)
        # Nothing hides below the heading of the page.
        assert tab.value("document.querySelector('article h1').getBoundingClientRect().top") > 40
    assert tab.errors == []
    assert all(url.startswith((address, "data:")) for url in tab.requests)


def test_the_search_finds_a_call(tab: Page, address: str) -> None:
    tab.show(1280, 900)
    visit(tab, address + "index.html")
    tab.value("document.querySelector('.md-search__input').focus()")
    tab.call("Input.insertText", text="freshen_every_s")
    tab.wait("document.querySelectorAll('.md-search-result__link').length > 0")
    links = "[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"
    assert any("pool-toml.html" in link for link in tab.value(links))


def test_a_link_leads_to_another_page(tab: Page, address: str) -> None:
    visit(tab, address + "tutorial.html")
    links = "[...document.querySelectorAll('.md-content a')]"
    found = tab.value(f"{links}.find((link) => link.innerText === 'NumPy').href")
    assert found == address + "guides/numpy.html"
    visit(tab, found)
    assert tab.value("document.querySelector('h1').innerText").startswith("NumPy")
