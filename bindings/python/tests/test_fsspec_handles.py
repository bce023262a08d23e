"""File descriptors of `outlive://`: jobs and pools stay open for the next call, but only some."""

import threading
from pathlib import Path

import outlive
from outlive.fsspec import OutliveFileSystem
from outlive.fsspec._pools import OPEN_MAX, close_all


def handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_jobs_and_pools_leave_few_descriptors(tmp_path: Path) -> None:
    close_all()
    fs = OutliveFileSystem(skip_instance_cache=True)

    def use(pool: str, job: str) -> None:
        path = f"{tmp_path}/{pool}!/{job}/x"
        fs.pipe(path, job.encode())
        assert fs.cat(path) == job.encode()

    for number in range(OPEN_MAX):
        use("pool", f"job {number}")
    most = handles()
    for number in range(3 * OPEN_MAX):
        use("pool", f"another {number}")
    assert handles() <= most
    for number in range(OPEN_MAX):
        use(f"pool {number}", "job")
    many = handles()
    for number in range(OPEN_MAX):
        use(f"another pool {number}", "job")
    assert handles() <= many
    close_all()


def test_a_job_in_use_is_not_opened_again(folder: Path) -> None:
    fs = OutliveFileSystem(pool=folder)
    fs.pipe("job/x", b"1")
    files = fs._files(fs._place("job"))
    job = files._job
    for number in range(50):
        fs.pipe(f"job/{number}", b"%d" % number)
        fs.exists(f"another {number % 3}/x")
    assert files._job is job


def test_close_gives_all_descriptors_back(tmp_path: Path) -> None:
    fs = OutliveFileSystem(pool=tmp_path / "pool")
    other = OutliveFileSystem(pool=tmp_path / "other")
    before = handles()
    fs.pipe({f"job {number}/x": b"0123" for number in range(3)})
    between = handles()
    other.pipe("job/x", b"1")
    with fs.open("job 1/x", block_size=1) as file:
        assert file.read(1) == b"0"
        fs.close()
        # The other file system keeps its own, and an open file the pool.
        assert file.read() == b"123"
        assert handles() > before
    fs.close()
    other.close()
    # The lock between processes stays.
    assert handles() <= before + 1 < between
    # fsspec may give the same object to other parts of the program.
    assert OutliveFileSystem(pool=tmp_path / "pool") is fs
    assert fs.cat("job 2/x") == b"0123"
    fs.pipe("job 2/x", b"again")
    assert fs.cat("job 2/x") == b"again"
    assert outlive.open(tmp_path / "pool").job("job 2").epochs()[-1].epoch == 2
    fs.close()


def test_a_closed_job_can_be_deleted(folder: Path) -> None:
    fs = OutliveFileSystem(pool=folder)
    fs.pipe("job/x", b"1")
    fs.close()
    assert outlive.open(folder).delete_job("job").dropped == [1]
    assert not fs.exists("job/x")


def test_threads_write_more_jobs_than_stay_open(folder: Path) -> None:
    def write(job: int) -> None:
        fs = OutliveFileSystem(pool=folder)
        for number in range(3):
            fs.pipe(f"job {job}/{number}", b"%d" % number)

    threads = [threading.Thread(target=write, args=(job,)) for job in range(2 * OPEN_MAX)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fs = OutliveFileSystem(pool=folder)
    assert len(fs.find("")) == 3 * 2 * OPEN_MAX
    fs.close()
