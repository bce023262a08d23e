"""`outlive web` and `outlive report` in a real browser: values, clicks, keys, colours, errors."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Page, page
from commands import command

import outlive

HOSTILE = "</script><img src=x onerror=alert(1)>"
JOB = "train <b>bold</b>"


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with page() as tab:
        yield tab


@pytest.fixture
def clean(tab: Page) -> Iterator[Page]:
    """A tab of usual size; no test may leave an error of the page behind."""
    tab.errors.clear()
    tab.requests.clear()
    tab.show(1200, 900)
    yield tab
    assert tab.errors == []


@pytest.fixture
def pool(folder: Path) -> Path:
    """A pool of two jobs, with metrics, labels, a pin, a bad and two dropped checkpoints."""
    with outlive.open(folder) as pool:
        other = pool.job("other")
        other.save({"step": 0}).wait()
        other.close()
        job = pool.job(JOB)
        state = {"u": np.zeros(1 << 14), "step": 0}
        for step in range(9):
            state["u"][step * 512] += 1
            state["step"] = step
            job.save(state, metrics={"loss": 2.0**-step, "speed": 7.0 + step}).wait()
        job.note(3, label=HOSTILE, pin=True)
        job.note(5, label="half way")
        job.mark(7, "bad")
        job.close()
    command("prune", folder, JOB, "--drop", 1, "--drop", 2, "--no-gc")
    return folder


@contextmanager
def served(pool: Path) -> Iterator[str]:
    """The address of a server of the pool, which Ctrl-C ends."""
    words = [sys.executable, "-m", "outlive", "web", str(pool)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout
            line = child.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert found, line
            yield found[0]
        except BaseException:
            child.kill()
            raise
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == 0


def report(pool: Path, file: Path) -> str:
    command("report", pool, "--to", file)
    return file.as_uri()


def text(tab: Page, selector: str) -> str:
    found: str = tab.value(f"document.querySelector({json.dumps(selector)}).innerText")
    return found


def job_button(name: str) -> str:
    return f"""[...document.querySelectorAll("#jobs button")]
        .find((one) => one.textContent === {json.dumps(name)})"""


def shows_all_of(tab: Page) -> None:
    """The page shows what `pool` made."""
    assert text(tab, "#job h2") == f"Job {JOB}"
    tiles = text(tab, "#summary").split("\n")
    assert tiles[:4] == ["2", "jobs", "8", "checkpoints"]
    assert tab.value("document.querySelectorAll('#jobs tbody tr').length") == 2
    rows = tab.value(
        """[...document.querySelectorAll("#job table[aria-label=Checkpoints] tbody tr")]
            .map((row) => [...row.cells].map((cell) => cell.innerText))"""
    )
    assert [row[0] for row in rows] == ["9", "8", "7", "6", "5", "4", "3"]
    assert rows[0][-2:] == ["0.0039063", "15"]
    assert [row[9] for row in rows] == ["", "", "bad", "", "half way", "", f"{HOSTILE}, pinned"]
    picture = "#job svg[aria-label^=Checkpoints]"
    count = f"(name) => document.querySelectorAll(`{picture} ${{name}}`).length"
    dots = tab.value(f"['.dot.c0', '.dot.c3', '.dot.c5', '.hollow'].map({count})")
    assert dots[2] == 1
    # Saves within a column of two pixels share a mark.
    assert dots[0] <= 5
    assert dots[1] == 1
    assert 1 <= dots[3] <= 2
    titles = tab.value(
        "[...document.querySelectorAll('#job .charts h3')].map((h) => h.textContent)"
    )
    assert titles[:3] == ["Metric loss", "Time of each save", "Bytes of each save"]
    assert "Space that each checkpoint needs" in titles
    assert "keep last 1" in text(tab, "#jobs")
    assert "no redundancy" in text(tab, "#targets")
    # Nothing of the data became HTML.
    assert tab.value("document.querySelectorAll('img, b img, #pool b, #job h2 b').length") == 0


def test_the_served_page_shows_the_pool(clean: Page, pool: Path) -> None:
    with served(pool) as url:
        clean.open(url)
        shows_all_of(clean)
        assert str(pool) in text(clean, "h1")
        assert all(one.startswith((url, "data:,")) for one in clean.requests), clean.requests


def test_a_report_shows_the_same_and_fetches_nothing(
    clean: Page, pool: Path, tmp_path: Path
) -> None:
    clean.open(report(pool, tmp_path / "page.html"))
    shows_all_of(clean)
    assert clean.value("document.getElementById('reload').hidden")
    assert [one for one in clean.requests if not one.startswith(("file:", "data:,"))] == []


def test_the_keyboard_reaches_all(clean: Page, pool: Path, tmp_path: Path) -> None:
    clean.open(report(pool, tmp_path / "page.html"))
    wanted = "document.activeElement.textContent === 'other'"
    for _ in range(10):
        clean.press("Tab")
        if clean.value(wanted):
            break
    assert clean.value(wanted)
    clean.press("Enter")
    assert text(clean, "#job h2") == "Job other"
    assert clean.value(wanted), "the button keeps the focus after it drew the page again"
    clean.click(job_button(JOB))
    chart = "document.querySelector('#job .charts svg')"
    clean.value(f"{chart}.focus()")
    tip = "document.getElementById('tip').textContent"
    assert clean.value(tip).startswith("checkpoint 9, ")
    assert clean.value(tip).endswith(": loss 0.0039063")
    clean.press("ArrowLeft")
    clean.press("ArrowLeft")
    assert clean.value(tip).endswith(": loss 0.015625")
    assert clean.value(f"{chart}.getAttribute('aria-valuetext')") == clean.value(tip)
    clean.press("Home")
    clean.press("ArrowLeft")
    assert clean.value(tip).startswith("checkpoint 3, ")
    # Every picture, button and choice can have the focus, and each has a name.
    lacking = clean.value(
        """[...document.querySelectorAll("svg, button, select")].filter((one) =>
            one.tabIndex < 0 || !(one.ariaLabel || one.textContent || one.labels?.length)).length"""
    )
    assert lacking == 0


def test_clicks_change_the_charts(clean: Page, pool: Path, tmp_path: Path) -> None:
    clean.open(report(pool, tmp_path / "page.html"))
    line = "document.querySelector('#job .charts path.line').getAttribute('d')"
    linear = clean.value(line)
    clean.click("document.getElementById('log')")
    assert clean.value("document.getElementById('log').ariaPressed") == "true"
    # A loss that halves is a straight line on a logarithmic axis: equal steps of y.
    ys = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", clean.value(line))]
    assert clean.value(line) != linear
    assert len(ys) == 7
    assert np.ptp(np.diff(ys)) < 0.3
    change = """(label, value) => {
        const found = [...document.querySelectorAll("#job label")]
            .find((one) => one.textContent.startsWith(label)).querySelector("select");
        found.value = value;
        found.dispatchEvent(new Event("change"));
    }"""
    clean.value(f"({change})('Metric', 'speed')")
    assert text(clean, "#job .charts h3") == "Metric speed"
    clean.value(f"({change})('Axis', 'epoch')")
    assert "epoch 3" in clean.value("document.querySelector('#job .charts svg').textContent")
    xs = [float(x) for x in re.findall(r"[ML]([\d.]+) ", clean.value(line))]
    assert np.ptp(np.diff(xs)) < 0.3, "epochs stand at equal distances"
    box = clean.value("document.querySelector('#job .charts svg').getBoundingClientRect().toJSON()")
    clean.call("Input.dispatchMouseEvent", type="mouseMoved", x=box["x"] + 70, y=box["y"] + 50)
    clean.wait("document.getElementById('tip').textContent.startsWith('checkpoint 3, ')")


def test_tags_are_shown_and_choose_checkpoints(clean: Page, pool: Path, tmp_path: Path) -> None:
    command("tag", pool, f"{JOB}@4", "--add", "good,<i>odd</i>")
    command("tag", pool, f"{JOB}@8", "--add", "good")
    clean.open(report(pool, tmp_path / "page.html"))
    rows = """[...document.querySelectorAll("#job table[aria-label=Checkpoints] tbody tr")]
        .map((row) => [row.cells[0].innerText, row.cells[9].innerText])"""
    shown = dict(clean.value(rows))
    assert (shown["4"], shown["8"], shown["5"]) == ("#<i>odd</i> #good", "#good", "half way")
    clean.value(
        """(() => {
            const found = [...document.querySelectorAll("#job label")]
                .find((one) => one.textContent.startsWith("Tag")).querySelector("select");
            found.value = "good";
            found.dispatchEvent(new Event("change"));
        })()"""
    )
    assert [row[0] for row in clean.value(rows)] == ["8", "4"]
    clean.value("document.querySelector('#job .charts svg').focus()")
    clean.press("Home")
    assert text(clean, "#tip").startswith("checkpoint 4, ")
    # Another job has no such tag: it shows all.
    clean.click(job_button("other"))
    assert len(clean.value(rows)) == 1


def test_the_page_follows_the_pool_and_its_errors(clean: Page, pool: Path, tmp_path: Path) -> None:
    with served(pool) as url:
        clean.open(url)
        error = "document.getElementById('error')"
        assert clean.value(f"{error}.hidden")
        with outlive.open(pool) as opened:
            job = opened.job("new")
            job.save({"step": 1}).wait()
            job.close()
        again = "document.getElementById('reload')"
        clean.click(again)
        clean.wait("document.body.dataset.done === '2'")
        assert text(clean, "#summary").startswith("3\njobs\n9\n")
        pool.rename(tmp_path / "away")
        clean.click(again)
        clean.wait("document.body.dataset.done === '3'")
        said = text(clean, "#error")
        assert said.startswith("The pool cannot be read: "), said
        assert str(pool) in said
        (tmp_path / "away").rename(pool)
        clean.click(again)
        clean.wait("document.body.dataset.done === '4'")
        assert clean.value(f"{error}.hidden")
        # The browser logs each refused reply; that one was meant.
        clean.errors[:] = [one for one in clean.errors if "503" not in one]
    clean.click(again)
    clean.wait("document.body.dataset.done === '5'")
    assert "The server is gone" in text(clean, "#error")
    clean.errors[:] = [one for one in clean.errors if "ERR_CONNECTION_REFUSED" not in one]


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_it_reads_well_in_light_and_dark_on_screens_and_phones(
    clean: Page, pool: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    clean.show(width, 800, scheme)
    clean.open(report(pool, tmp_path / "page.html"))
    ground = clean.value("getComputedStyle(document.body).backgroundColor")
    assert (luminance(ground) > 0.5) == (scheme == "light")
    # Text has the contrast that WCAG 2 asks for, on its own ground.
    colours: list[list[str]] = clean.value(
        """[...document.querySelectorAll("p, td, th, h1, h2, h3, button, select, li, span, text")]
            .map((one) => {
                let under = one;
                const of = (node) => getComputedStyle(node).backgroundColor;
                while (of(under) === "rgba(0, 0, 0, 0)") under = under.parentElement;
                const style = getComputedStyle(one);
                return [one instanceof SVGElement ? style.fill : style.color, of(under)];
            })"""
    )
    for front, back in {tuple(pair) for pair in colours}:
        least, most = sorted([luminance(front), luminance(back)])
        assert (most + 0.05) / (least + 0.05) >= 4.5, (front, back)
    # Only tables scroll sideways, by themselves.
    assert clean.value("document.documentElement.scrollWidth <= window.innerWidth")
    outside: list[Any] = clean.value(
        """[...document.querySelectorAll("button, select, svg, h1, h2, p")]
            .filter((one) => !one.closest(".wide"))
            .filter((one) => one.getBoundingClientRect().right > window.innerWidth + 1)
            .map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert outside == []
    # A finger needs room.
    heights = clean.value(
        "[...document.querySelectorAll('button, select')].map((one) => one.offsetHeight)"
        ".filter((height) => height > 0)"
    )
    assert min(heights) >= 28


def test_damage_that_the_pool_knows_is_named(clean: Page, pool: Path, tmp_path: Path) -> None:
    records = sorted(
        (one for one in (pool / "log").rglob("*") if one.is_file() and one.stat().st_size > 300),
        key=lambda one: one.stat().st_mtime_ns,
    )
    data = bytearray(records[2].read_bytes())
    data[200] ^= 1
    records[2].write_bytes(data)
    clean.open(report(pool, tmp_path / "page.html"))
    assert "cannot be read" in text(clean, "#damage .bad")
    assert clean.value("document.querySelector('.tile.wrong').innerText").endswith("damage known")


def test_attempts_show_kills_and_lost_work(clean: Page, folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, outlive\n"
        f"job = outlive.open({str(folder)!r}).job('run')\n"
        "state = {'step': 0}\n"
        "job.restore(into=state)\n"
        "state['step'] += 1\n"
        "job.save(state, force=True).wait()\n"
        "if state['step'] < 3:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "job.close()\n"
    )
    words = ["run", "--pool", folder, "--job", "run", "--no-helper", "--", sys.executable, program]
    command(*words)
    clean.open(report(folder, tmp_path / "page.html"))
    assert "3 attempts: " in text(clean, "#job")
    clean.click("document.querySelector('#job summary')")
    rows = clean.value(
        "[...document.querySelectorAll('#job table[aria-label=Attempts] tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    assert [row[1] for row in rows] == ["3", "2", "1"]
    assert [row[4] for row in rows] == ["finished", "ended by SIGKILL", "ended by SIGKILL"]
    assert [row[5:8] for row in rows] == [["2", "3", "1"], ["1", "2", "1"], ["-", "1", "1"]]


def test_ten_thousand_checkpoints_stay_usable(clean: Page, pool: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    report(pool, file)
    html = file.read_text()
    start = html.index(">", html.index('id="data"')) + 1
    end = html.index("</script>", start)
    all_ = json.loads(html[start:end])
    job = next(one for one in all_["data"]["jobs"] if one["job"] == JOB)
    first = job["list"][0]
    # One value far away, and one that is no number.
    losses = [1e9 if n == 77 else None if n == 99 else 1 / (n + 1) for n in range(10_000)]
    job["list"] = [
        {
            **first,
            "epoch": n + 1,
            "frozen_ns": first["frozen_ns"] + n * 10**9,
            "label": f"label {n}",
            "metrics": {"loss": loss},
        }
        for n, loss in enumerate(losses)
    ]
    job["checkpoints"] = 10_000
    file.write_text(html[:start] + json.dumps(all_).replace("<", "\\u003c") + html[end:])
    clean.open(file.as_uri())
    assert clean.value("document.querySelectorAll('*').length") < 6000
    shown = text(clean, "#job")
    assert "10,000 checkpoints, drawn as columns of least and greatest values" in shown
    assert "beyond the axis, at its edge" in shown
    assert "1 value missing or no number" in shown
    assert re.search(r"\d+ of 10,000 labels fit; the table has all", shown)
    assert "50 rows of 10,000." in shown
    clean.click("""[...document.querySelectorAll("#job button")]
        .findLast((one) => one.textContent === "Show 50 more")""")
    assert "100 rows of 10,000." in text(clean, "#job")
    clean.value("document.querySelector('#job .charts svg').focus()")
    clean.press("Home")
    assert text(clean, "#tip").startswith("checkpoint 1, ")
