"""Process metrics: the values that saves, restores and prunes add to them."""

import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import command
from prometheus_client.parser import text_string_to_metric_families

import outlive

Run = Callable[..., str]


def added(before: dict[str, Any], name: str) -> int:
    """How much a counter rose since `before`."""
    return outlive.process_metrics()[name] - before[name]


def test_saves_restores_and_prunes_are_counted(tmp_path: Path) -> None:
    before = outlive.process_metrics()
    pool = outlive.open(tmp_path / "pool")
    job = pool.job("job")
    state = {"a": np.arange(1 << 20, dtype=np.uint8)}
    for _ in range(3):
        state["a"][:4096] += 1
        job.save(state).wait()
    assert added(before, "outlive_saves_total") == 3
    assert added(before, "outlive_save_state_bytes_total") == 3 << 20
    changed = added(before, "outlive_save_changed_bytes_total")
    assert 1 << 20 < changed <= (1 << 20) + 2 * 8192, changed
    written = added(before, "outlive_save_written_bytes_total")
    assert written == sum(epoch.new_bytes for epoch in job.epochs())
    for name in ("outlive_save_seconds", "outlive_save_stall_seconds"):
        then, now = before[name], outlive.process_metrics()[name]
        assert now["count"] - then["count"] == 3
        assert now["sum"] > then["sum"]
        assert now["buckets"][-1][1] <= now["count"]
        counts = [count for _, count in now["buckets"]]
        assert counts == sorted(counts)
    assert outlive.process_metrics()["outlive_last_commit_timestamp_seconds"] > 1_700_000_000
    job.restore(into=state)
    assert added(before, "outlive_restores_total") == 1
    assert added(before, "outlive_restored_bytes_total") == 1 << 20
    job.prune(keep_last=1)
    job.close()
    assert added(before, "outlive_gcs_total") >= 1
    pool.close()


def test_a_failed_save_is_counted(folder: Path, run: Run) -> None:
    out = run(
        """
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        job = outlive.open(sys.argv[1]).job("a")
        state = {"u": np.random.default_rng(1).random(1 << 18)}
        job.save(state, wait=True)
        # No file may get longer than 5,000 bytes, as on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, most))
        state["u"] += 1
        try:
            job.save(state).wait()
        except outlive.FullError:
            pass
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        job.save(state, wait=True)
        figures = outlive.process_metrics()
        print(figures["outlive_saves_total"], figures["outlive_saves_failed_total"])
        job.close()
        """,
        folder,
    )
    assert out.split() == ["2", "1"]


def test_the_text_has_the_same_values() -> None:
    text = dict(
        line.rsplit(" ", 1)
        for line in outlive.process_metrics_text().splitlines()
        if not line.startswith("#")
    )
    for name, value in outlive.process_metrics().items():
        if isinstance(value, dict):
            assert int(text[name + "_count"]) == value["count"]
            assert int(text[name + '_bucket{le="+Inf"}']) == value["count"]
        else:
            assert int(text[name]) == value


def scraped(url: str) -> dict[str, Any]:
    """Reads metrics from an address as Prometheus does; returns families by name."""
    with urllib.request.urlopen(url) as reply:
        assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = reply.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_a_program_serves_its_metrics_and_those_of_a_pool(tmp_path: Path) -> None:
    pool = outlive.open(tmp_path)
    hostile = 'a"b\\c{d}'
    with pool.job(hostile) as job:
        job.save({"x": np.arange(1000)}, wait=True)
        with outlive.serve_metrics(pool=pool) as server:
            first = scraped(server.url)
            job.save({"x": np.arange(1001)}, wait=True)
            second = scraped(server.url)
            for nothing in ("", "data.json", "metrics/x"):
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    urllib.request.urlopen(f"http://127.0.0.1:{server.port}/{nothing}")
    for families, number in ((first, 1), (second, 2)):
        (checkpoints,) = families["outlive_pool_checkpoints"].samples
        assert (checkpoints.labels["job"], checkpoints.value) == (hostile, number)
        assert checkpoints.labels["pool"] == str(tmp_path)
    assert first["outlive_saves"].type == "counter"
    assert first["outlive_pool_checkpoints"].type == "gauge"
    seconds = first["outlive_save_seconds"]
    assert seconds.type == "histogram"
    buckets = [s for s in seconds.samples if s.name.endswith("_bucket")]
    assert buckets[-1].labels["le"] == "+Inf"
    assert [b.value for b in buckets] == sorted(b.value for b in buckets)
    saves = [families["outlive_saves"].samples[0].value for families in (first, second)]
    assert saves[1] == saves[0] + 1
    # The command prints the same figures of the pool.
    printed = {f.name: f for f in text_string_to_metric_families(command("metrics", tmp_path))}
    assert printed.keys() <= second.keys()
    assert printed["outlive_pool_checkpoints"].samples == second["outlive_pool_checkpoints"].samples


def test_a_port_is_taken_once_and_given_back(tmp_path: Path) -> None:
    server = outlive.serve_metrics()
    assert "outlive_saves" in scraped(server.url)
    assert not any(name.startswith("outlive_pool") for name in scraped(server.url))
    with pytest.raises(outlive.InvalidError, match=f"port {server.port} of 127"):
        outlive.serve_metrics(server.port)
    port = server.port
    server.close()
    server.close()
    with pytest.raises(urllib.error.URLError):
        scraped(server.url)
    for _ in range(50):
        with outlive.serve_metrics(port) as again:
            assert again.port == port
    for wrong in (-1, 65_536, "x", True, 1.5):
        with pytest.raises(outlive.InvalidError, match="port"):
            outlive.serve_metrics(wrong)  # type: ignore[arg-type]
    with pytest.raises(outlive.InvalidError, match=r"pool\.toml"):
        outlive.serve_metrics(pool=tmp_path / "none")


def test_a_pool_that_cannot_be_read_is_an_error_for_the_collector(tmp_path: Path) -> None:
    outlive.open(tmp_path / "pool").job("a").save({"x": 1}, wait=True)
    with outlive.serve_metrics(pool=tmp_path / "pool") as server:
        scraped(server.url)
        (tmp_path / "pool").rename(tmp_path / "away")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            scraped(server.url)
        (tmp_path / "away").rename(tmp_path / "pool")
        assert "outlive_pool_jobs" in scraped(server.url)
