"""A million small regions take neither a chunk each nor minutes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive

MANY = 1_000_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["values", "arrays"])
def test_a_million_small_regions(
    folder: Path, kind: str, same: Callable[[Any, Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "values":
        state: dict[str, Any] = {f"k{number}": float(number) for number in range(MANY)}
    else:
        state = {f"k{number}": np.full(3, number, np.int32) for number in range(MANY)}
    job = outlive.open(folder).job("a")
    times_s = [time.process_time()]
    first = job.save(state, wait=True).stats
    times_s.append(time.process_time())
    state["k77"] = state["k77"] + 1
    second = job.save(state, wait=True).stats
    times_s.append(time.process_time())
    tree = job.restore()
    times_s.append(time.process_time())
    job.restore(into=state)
    times_s.append(time.process_time())
    assert first is not None
    assert second is not None
    assert first.packs < 10
    assert first.new_bytes < 200_000_000
    assert second.new_bytes < 200_000
    assert len(tree) == MANY
    for key in ["k0", "k77", f"k{MANY - 1}"]:
        same(tree[key], state[key])
    save_s, again_s, restore_s, into_s = np.diff(times_s)
    with capsys.disabled():
        print(
            f"\n  {MANY} {kind}: save {save_s:.1f} s, again {again_s:.1f} s, "
            f"restore {restore_s:.1f} s, into {into_s:.1f} s of processor time"
        )
    assert max(np.diff(times_s)) < 60
