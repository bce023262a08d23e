"""Cost of incremental saves: stall, time, bytes and processor time.

Sixteen arrays are saved whole once. Then two of them change before each save, others each time;
then 1 % of the pages of all, at random. At the end another job saves the state of two saves before,
and shares data that is in the pool.

    .venv/bin/python bench/incremental.py DIR --state 4GiB
"""

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import outlive
from sizes import PAGE_BYTES, size

ARRAYS = 16
PAGE_WORDS = PAGE_BYTES // 8
SAVES = 6
State = dict[str, np.ndarray]


def processor_s() -> float:
    """Returns the seconds of this process and of the children that it has waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(one.ru_utime + one.ru_stime for one in used)


def stored_bytes(folder: str) -> int:
    """Returns the bytes that the files of a pool take."""
    return sum(file.stat().st_blocks * 512 for file in Path(folder).rglob("*"))


class Row:
    """Saves of one kind."""

    def __init__(self, what: str, folder: str) -> None:
        """Opens a pool in `folder`."""
        self.what, self.folder = what, folder
        self.stall_ms: list[float] = []
        self.durable_s: list[float] = []
        self.new_mib: list[float] = []
        self.cpu_s_per_gb: list[float] = []

    def save(self, job: outlive.Job, state: State) -> None:
        """Saves, and waits for the commit."""
        before, cpu_s, started = stored_bytes(self.folder), processor_s(), time.perf_counter()
        handle = job.save(state, force=True)
        self.stall_ms.append((time.perf_counter() - started) * 1e3)
        stats = handle.wait()
        assert stats is not None, "a wait without a limit ends with the save"
        self.durable_s.append(time.perf_counter() - started)
        self.cpu_s_per_gb.append((processor_s() - cpu_s) / max(stats.changed_bytes, 1) * 1e9)
        self.new_mib.append((stored_bytes(self.folder) - before) / 2**20)

    def show(self) -> None:
        """Prints the medians."""
        stall, durable, new, cpu = map(
            statistics.median, (self.stall_ms, self.durable_s, self.new_mib, self.cpu_s_per_gb)
        )
        print(
            f"{self.what}: stall {stall:.1f} ms (at most {max(self.stall_ms):.1f}), durable after "
            f"{durable:.2f} s, {new:.1f} MiB stored, processor time {cpu:.2f} s a GB changed",
            flush=True,
        )


def fill(array: np.ndarray, rng: np.random.Generator) -> None:
    """Fills an array with new random words, in parts that fit into the caches."""
    for part in np.array_split(array, max(1, array.nbytes >> 23)):
        part[:] = rng.integers(0, 1 << 63, len(part), dtype=np.uint64)


def touch(state: State, rng: np.random.Generator) -> None:
    """Changes 1 % of the pages."""
    for array in state.values():
        pages = array.reshape(-1, PAGE_WORDS)
        changed = rng.choice(len(pages), max(1, len(pages) // 100), replace=False)
        pages[changed, 5] += np.uint64(1)


def main() -> None:
    """Reads the arguments, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dir", help="directory for the pool, which is deleted")
    parser.add_argument("--state", type=size, default=4 << 30, help="size of the state [4GiB]")
    options = parser.parse_args()
    words = max(1, options.state // ARRAYS // PAGE_BYTES) * PAGE_WORDS
    rng = np.random.Generator(np.random.SFC64(1))
    state = {f"a{at:02}": outlive.empty((words,), dtype=np.uint64) for at in range(ARRAYS)}
    for array in state.values():
        fill(array, rng)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder, outlive.open(folder) as pool:
        job = pool.job("incremental")
        first = Row("first save", folder)
        first.save(job, state)
        first.show()
        two = Row(f"two of {ARRAYS} arrays changed", folder)
        for number in range(SAVES):
            for at in (2 * number, 2 * number + 1):
                fill(state[f"a{at:02}"], rng)
            two.save(job, state)
        two.show()
        scattered = Row("1 % of the pages changed", folder)
        for _ in range(SAVES):
            touch(state, rng)
            scattered.save(job, state)
        scattered.show()
        older = {name: array.copy() for name, array in state.items()}
        for _ in range(2):
            touch(state, rng)
            job.save(state, force=True, wait=True)
        other = Row("another job saves an older state", folder)
        other.save(pool.job("other"), older)
        other.show()


if __name__ == "__main__":
    main()
