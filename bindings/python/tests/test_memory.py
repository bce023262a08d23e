"""Memory for large arrays: the size of its pages."""

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np

import outlive

Run = Callable[..., str]


def test_the_memory_of_large_arrays_is_measured_and_logged(folder: Path, run: Run) -> None:
    out = run(
        """
        import logging
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
        state = {"w": outlive.zeros(9_000_000), "x": outlive.zeros((3, 100_000))}
        state["w"][::1000] = 1.5
        outlive.open(sys.argv[1]).job("a").save(state, wait=True)
        job = outlive.open(sys.argv[1]).job("a")
        tree = job.restore()
        assert tree["w"].sum() == 9000 * 1.5
        # Used memory is told of no more.
        print("again")
        job.restore(into=tree)
        """,
        folder,
    )
    first, again = out.split("again\n")
    assert "large arrays are made of " in first
    assert "s/GiB of first touches" in first
    assert "job a: fresh memory: " in first
    assert "fresh memory" not in again


def test_arrays_of_all_sizes_are_zero_and_writable() -> None:
    for size in (1, 70_000, 2 << 20, 33 << 20, (64 << 20) + 1, 70 << 20):
        array = outlive.zeros(size, np.uint8)
        assert not array.any()
        array[:] = 3
        assert (array == 3).all()


def test_the_offer_of_an_arrays_memory_ends_before_the_memory_goes() -> None:
    array = outlive.zeros(8 << 20, np.uint8)
    address = array.ctypes.data
    assert type(array.base.offered).__name__ == "Offered"  # type: ignore[union-attr]
    mapped: list[bool] = []

    class Witness:
        def __del__(self) -> None:
            ranges = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines()]
            ends = [[int(end, 16) for end in ends.split("-")] for ends in ranges]
            mapped.append(any(start <= address < end for start, end in ends))

    array.base.offered = Witness()  # type: ignore[union-attr]
    del array
    assert mapped == [True]


def test_a_dropped_job_tracks_no_memory(folder: Path) -> None:
    state = {"w": outlive.zeros(1 << 20, np.uint8)}
    # No code asks for the result of the save, so the job is kept until the end of the program.
    outlive.open(folder).job("dropped").save(state)
    gc.collect()
    saved = outlive.open(folder).job("other").save(state, wait=True)
    if saved.stats.tracker.startswith("hash"):
        return  # nothing is tracked here
    assert "dropped" not in saved.stats.tracker
    assert saved.stats.tracker.endswith("the rest by hash")
