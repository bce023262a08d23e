"""Pictures of a job, as SVG and PNG, and its checkpoints and attempts as CSV."""

import csv
import io
import struct
import sys
import zlib
from pathlib import Path

import pytest
from commands import command

import outlive


def filled(location: Path) -> outlive.Job:
    """A job with metrics, of which one value is far away, a label, a tag and a pin."""
    job = outlive.open(location).job('run, "1"')
    for step in range(12):
        loss = 1e12 if step == 5 else float("inf") if step == 6 else 1.0 / (step + 1)
        metrics = {"loss": loss, "speed": 7.0} if step != 3 else {"speed": 7.0}
        job.save({"x": list(range(step))}, wait=True, metrics=metrics)
    job.note(2, label='half, "way"')
    job.tag(-1, add=["last", "best"])
    job.note(4, pin=True)
    return job


def pixels(png: bytes) -> tuple[int, int, set[bytes]]:
    """The size of a PNG and its colours."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert (depth, kind) == (8, 6)
    at, data = 8, b""
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    rows = zlib.decompress(data)
    assert len(rows) == height * (1 + 4 * width)
    return width, height, {rows[n : n + 1] for n in range(len(rows))}


def test_a_plot_has_metrics_labels_and_times(tmp_path: Path) -> None:
    job = filled(tmp_path / "pool")
    plot = outlive.plot(job)
    for part in ("metric loss", "metric speed", 'half, "way"', "#best #last", "epoch 12<"):
        assert part in plot.svg, part
    assert "2 values are beyond the edge" in plot.svg
    assert "inf" not in plot.svg
    by_time = outlive.plot(job, axis="time")
    assert by_time.svg != plot.svg
    with pytest.raises(outlive.InvalidError, match="give epoch or time"):
        outlive.plot(job, axis="x")  # type: ignore[arg-type]
    plot.save(tmp_path / "a.svg")
    plot.save(tmp_path / "a.PNG")
    assert (tmp_path / "a.svg").read_text() == plot.svg
    width, height, colours = pixels((tmp_path / "a.PNG").read_bytes())
    assert width == 1440
    assert height > 1000
    assert len(colours) > 20
    with pytest.raises(outlive.InvalidError, match=r"\.png"):
        plot.save(tmp_path / "a.pdf")


def test_the_command_draws_the_same(tmp_path: Path) -> None:
    job = filled(tmp_path / "pool")
    job.close()
    for name in ("a.svg", "a.png"):
        said = command("show", tmp_path / "pool", job.name, "--plot", tmp_path / name)
        assert "12 checkpoints" in said
    assert (tmp_path / "a.svg").read_text() == outlive.plot(job).svg
    assert (tmp_path / "a.png").read_bytes() == outlive.plot(job).png
    words = ["show", tmp_path / "pool", job.name]
    command(*words, "--plot", tmp_path / "b.svg", "--axis", "time")
    assert (tmp_path / "b.svg").read_text() == outlive.plot(job, axis="time").svg
    assert "give epoch or time" in command(*words, "--plot", "x.svg", "--axis", "x", code=2)
    assert "ends in .svg or .png" in command(*words, "--plot", tmp_path / "a.jpg", code=2)


def test_checkpoints_are_written_as_csv(tmp_path: Path) -> None:
    job = filled(tmp_path)
    job.close()
    text = command("ls", tmp_path, job.name, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["epoch"] for row in rows] == [str(n) for n in range(1, 13)]
    losses = [row["metric.loss"] for row in rows]
    assert losses[0] == "1.0"
    assert float(losses[1]) == 0.5
    assert losses[3] == ""
    assert float(losses[5]) == 1e12
    assert float(losses[6]) == float("inf")
    assert rows[1]["label"] == 'half, "way"'
    assert rows[11]["tags"] == "best last"
    assert [row["pinned"] for row in rows[3:5]] == ["true", "false"]
    epochs = job.epochs()
    assert [int(row["new_bytes"]) for row in rows] == [epoch.new_bytes for epoch in epochs]
    tagged = command("ls", tmp_path, job.name, "--format", "csv", "--tag", "best")
    assert len(tagged.splitlines()) == 2
    command("ls", tmp_path, "--format", "csv", code=2)


def test_attempts_are_written_as_csv(tmp_path: Path) -> None:
    program = "import sys, outlive; outlive.open(sys.argv[1]).job('run').save({'x': 1}, wait=True)"
    words = [sys.executable, "-c", program, tmp_path]
    command("run", "--pool", tmp_path, "--job", "run", "--", *words)
    text = command("history", tmp_path, "run", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert (row["attempt"], row["cause"], row["commits"]) == ("1", "finished", "1")
    assert float(row["ran_s"]) > 0
    for name in ("a.svg", "a.png"):
        command("history", tmp_path, "run", "--plot", tmp_path / name)
    assert "1 attempt;" in (tmp_path / "a.svg").read_text()
    assert pixels((tmp_path / "a.png").read_bytes())[0] == 1440
