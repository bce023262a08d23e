"""Slow devices: loop devices that the kernel throttles, and a disk with one arm."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
THROTTLE = Path("/sys/fs/cgroup/blkio")
MIB = 1 << 20
UNIT_BYTES = 4 * MIB
# Sparse: only written parts take space.
DEVICE_BYTES = 16 << 30


def command(*words: object) -> str:
    """Returns the output of a command; raises SystemExit with it if the command fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.stdout}")
    return done.stdout.strip()


def check() -> None:
    """Raises SystemExit unless devices can be made and throttled here."""
    if os.geteuid() != 0:
        raise SystemExit("bench/striped makes loop devices and throttles them: run it as root")
    if not (THROTTLE / "blkio.throttle.write_bps_device").exists():
        raise SystemExit(
            "bench/striped throttles devices by the blkio controller of cgroup v1, which is not "
            f"mounted at {THROTTLE}"
        )


@contextlib.contextmanager
def throttled(folder: Path, count: int, bytes_per_s: int) -> Iterator[list[Path]]:
    """Yields the folders of `count` file systems, each on a loop device with this limit."""
    with contextlib.ExitStack() as undo:
        folders = []
        for number in range(count):
            image, mounted = folder / f"device{number}.img", folder / f"device{number}"
            mounted.mkdir()
            undo.callback(mounted.rmdir)
            with image.open("wb") as file:
                file.truncate(DEVICE_BYTES)
            undo.callback(image.unlink)
            device = command("losetup", "--find", "--show", "--direct-io=on", image)
            undo.callback(command, "losetup", "--detach", device)
            # Prevents later writes by the file system itself.
            command("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
            command("mount", "-o", "discard", device, mounted)
            undo.callback(command, "umount", mounted)
            name = Path(device).stat().st_rdev
            for way in ("read", "write"):
                limit = THROTTLE / f"blkio.throttle.{way}_bps_device"
                limit.write_text(f"{os.major(name)}:{os.minor(name)} {bytes_per_s}")
                undo.callback(limit.write_text, f"{os.major(name)}:{os.minor(name)} 0")
            folders.append(mounted)
        yield folders


@contextlib.contextmanager
def one_arm(folder: Path, bytes_per_s: int, seek_ms: float) -> Iterator[Path]:
    """Yields the folder of a disk that serves one request at a time, and must move its arm."""
    program, front, back = folder / "arm", folder / "front", folder / "back"
    flags = command("pkg-config", "--cflags", "--libs", "fuse3").split()
    command("gcc", "-std=gnu11", "-O2", HERE / "arm.c", "-o", program, *flags)
    front.mkdir()
    back.mkdir()
    words = [str(word) for word in (program, front, back, bytes_per_s, seek_ms)]
    with subprocess.Popen(words) as process:
        try:
            while not os.path.ismount(front):
                if process.poll() is not None:
                    raise SystemExit("the disk with one arm has ended; is /dev/fuse there?")
                time.sleep(0.01)
            yield front
        finally:
            # Lazily: this waits for the program's end, and no open file may keep it. Package
            # libfuse3-dev has no fusermount3.
            subprocess.run(["umount", "--lazy", str(front)], check=False)
    for path in (front, back, program):
        command("rm", "-rf", path)


def bound(folders: Sequence[Path], seconds: float, bytes_per_s: int) -> float:
    """Returns the bytes per second that the devices of these folders take together.

    Each gets as many bytes as it takes in about `seconds` at this speed, in writes past the cache.
    """
    data = mmap.mmap(-1, UNIT_BYTES)
    data.write(os.urandom(UNIT_BYTES))
    writes = max(1, int(seconds * bytes_per_s / UNIT_BYTES))

    def fill(folder: Path) -> None:
        path = folder / "bound"
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
        try:
            os.posix_fallocate(file, 0, writes * UNIT_BYTES)
            for number in range(writes):
                if os.pwrite(file, data, number * UNIT_BYTES) != UNIT_BYTES:
                    raise OSError("the file system took only a part of a write")
            os.fsync(file)
        finally:
            os.close(file)
            path.unlink()

    with ThreadPoolExecutor(len(folders)) as threads:
        began = time.perf_counter()
        list(threads.map(fill, folders))
        return len(folders) * writes * UNIT_BYTES / (time.perf_counter() - began)
