"""Process metrics: the values that saves, restores and prunes add to them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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
