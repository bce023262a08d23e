"""Programs that may start few threads."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]

# Saves and restores an array of 32 MiB in a program under a tight limit.
WORK = """
        import resource
        state = {"a": np.random.default_rng(0).random(4 << 20), "n": 1}
        want = state["a"].copy()
        path = sys.argv[1]

        def save_and_restore():
            ended = []
            for step in range(3):
                state["a"] += step
                job = outlive.open(path).job(f"j{step}")
                save = job.save(state, wait=True)
                for lazy in (False, True):
                    into = {"a": np.zeros(4 << 20), "n": 0}
                    job.restore(into=into, lazy=lazy)
                    assert np.array_equal(into["a"], state["a"]), step
                ended.append(save.stats.freeze.split(":")[0])
                job.close()
            return ended
"""


def test_closed_jobs_keep_no_descriptors(folder: Path, run: Run) -> None:
    out = run(
        """
        def descriptors():
            return len(os.listdir("/proc/self/fd"))

        def are_given_back():
            # A look for a request to stop may hold its file for a moment.
            deadline = time.monotonic() + 60
            while descriptors() > before:
                assert time.monotonic() < deadline, descriptors()
            return True

        pool = outlive.open(sys.argv[1])
        other, mine = pool.job("other"), {"a": np.ones(1 << 16), "n": 0}
        other.save(mine, wait=True)
        before = descriptors()
        jobs = []
        for number in range(100):
            # It is let go with the job, and outlives it.
            u = outlive.zeros((256, 256))
            u += number
            jobs.append((pool.job(f"j{number}"), u))
            jobs[-1][0].save({"u": u}, wait=True)
            jobs[-1][0].close()
            assert are_given_back(), number
        for number, (job, u) in enumerate(jobs):
            assert u.sum() == number * 65536
            u[0, 0] += 1
        jobs[3][0].save({"u": jobs[3][1]}, wait=True)
        assert np.array_equal(pool.job("j3").restore()["u"], jobs[3][1])
        jobs[3][0].close()
        mine["a"][7] = 2
        print(other.save(mine, wait=True).changed_bytes <= 8192, are_given_back())
        """,
        folder,
    )
    assert out == "True True"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_few_threads(folder: Path, run: Run) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    for path in folder.parents:
        if path.stat().st_mode & 0o005 != 0o005 and str(path).startswith("/tmp/"):
            path.chmod(0o755)
    out = run(
        WORK
        + """
        os.setgid(65534)
        os.setuid(65534)
        refused = done = 0
        for limit in (1, 2, 3, 4, 5, 6, 8, 16, 30, 60):
            resource.setrlimit(resource.RLIMIT_NPROC, (limit, 200))
            try:
                save_and_restore()
                done += 1
            except outlive.RetryError as error:
                assert "ulimit -u" in str(error), error
                refused += 1
        resource.setrlimit(resource.RLIMIT_NPROC, (200, 200))
        print(save_and_restore(), done + refused, done > 1)
        """,
        folder / "pool",
    )
    assert out.splitlines()[-1].endswith(" 10 True"), out
