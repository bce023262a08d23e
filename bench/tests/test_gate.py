"""The recorder of traces for `outlive-bench gate`."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gate import programs, record, tpcc, trace

# Of the preloaded library: two backends of PostgreSQL, of which one waits for the other's sync.
LINES = """\
# 900 /place/data/pg_wal/1
5000000 2000 11 recv 70 0 76
5010000 9000 11 write 900 8192 8192
5015000 470000 12 wait 140000 0 0
5021000 400999 11 sync 900 0 0
5430000 3000 11 wake 140000 0 0
5440000 2000 11 send 70 0 20
# 901 /place/data/base/5
5490000 1000 12 read 901 0 8192
5500000 1000 12 wait 140001 0 0
5510000 1000 11 wake 140002 0 0
5520000 0 12 read 901 8192 0
"""


def test_a_recording_becomes_a_trace() -> None:
    text = trace.trace(trace.parse(LINES.splitlines()), "two backends", root="/place")
    # The wait that found its semaphore free is gone, and so is the wake for which nothing waits.
    assert text == (
        "outlive-io-trace 1\n"
        "program two backends\n"
        "0 0 recv 0 - 76 2\n"
        "file 0 data/pg_wal/1\n"
        "10 0 write 0 8192 8192 9\n"
        "15 1 wait 0 - - 470\n"
        "21 0 sync 0 - - 400\n"
        "430 0 wake 0 - - 3\n"
        "440 0 send 0 - 20 2\n"
        "file 1 data/base/5\n"
        "490 1 read 1 0 8192 1\n"
    )


def test_a_trace_is_a_part_of_a_recording() -> None:
    recording = trace.parse(LINES.splitlines())
    late = trace.trace(recording, "late", from_ns=5_430_000, until_ns=5_495_000)
    assert [line.split()[2] for line in late.splitlines()[2:] if line[0].isdigit()] == [
        "send",
        "read",
    ]
    short = trace.trace(recording, "short", operations_max=3)
    assert sum(line[0].isdigit() for line in short.splitlines()) == 3


def test_connections_may_be_the_flows() -> None:
    lines = [
        "1000 1 7 recv 50 0 9",
        "2000 1 7 write 900 0 90",
        "3000 1 7 recv 51 0 9",
        "4000 1 7 send 50 0 9",
        "5000 1 7 write 900 90 90",
        "6000 1 8 write 901 0 90",
    ]
    text = trace.trace(trace.parse(lines), "event loop", connections=True)
    flows = [line.split()[1] for line in text.splitlines() if line[0].isdigit()]
    assert flows == ["0", "0", "1", "0", "0", "2"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1000 1 7 chew 50 0 9", "no operation is named 'chew'"),
        ("1000 1 7 recv 50 0", "not enough values"),
        ("1000 1 7 recv fifty 0 9", "invalid literal"),
        ("# 900", "index out of range"),
    ],
)
def test_a_wrong_line_is_named(line: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"line 2: .*{says}"):
        trace.parse(["1000 1 7 recv 50 0 9", line])


PROGRAM = """
import os, socket, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.write(file, b"x" * 100)
os.pwrite(file, b"x" * 8192, 4096)
os.fsync(file)
os.pread(file, 50, 10)
os.close(file)
file = os.open(sys.argv[1], os.O_WRONLY | os.O_DSYNC)
os.write(file, b"y" * 512)
ours, theirs = socket.socketpair()
if os.fork() == 0:
    theirs.send(theirs.recv(10) * 2)
    sys.exit()
ours.send(b"request")
ours.recv(100)
os.wait()
begin = time.monotonic()
os.fdatasync(file)
print(time.monotonic() - begin)
"""


def test_a_program_is_recorded_with_its_children(tmp_path: Path) -> None:
    file = tmp_path / "data"
    words = [sys.executable, "-c", PROGRAM, str(file)]
    assert record.record_one(tmp_path / "trace", words, 10_000, False) == 0
    lines = (tmp_path / "trace").read_text().splitlines()
    name = next(line for line in lines if line.startswith("file ") and line.endswith("/data"))
    number = name.split()[1]
    assert name == f"file {number} {str(file)[1:]}"
    operations = [line.split() for line in lines if line[0].isdigit()]
    of_file = [o[2:6] for o in operations if o[3] == number and o[2] not in {"send", "recv"}]
    assert of_file == [
        ["write", number, "0", "100"],
        ["write", number, "4096", "8192"],
        ["sync", number, "-", "-"],
        ["read", number, "10", "50"],
        ["durable", number, "0", "512"],
        ["sync", number, "-", "-"],
    ]
    messages = Counter((o[2], o[5]) for o in operations if o[2] in {"send", "recv"})
    assert messages == {("send", "7"): 1, ("recv", "7"): 1, ("send", "14"): 1, ("recv", "14"): 1}
    sent = [o[1] for o in operations if o[2] == "send"]
    assert len(set(sent)) == 2, "the child has a flow of its own"


def test_syncs_are_delayed(tmp_path: Path) -> None:
    variables = programs.delayed(programs.build_shim(tmp_path), 80)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) >= 0.08


def test_tpcc_has_the_mix_of_the_standard(tmp_path: Path) -> None:
    options = tpcc.write(tmp_path)
    assert sum(share for _, share in tpcc.MIX.values()) == 100
    assert len(options) == 2 * len(tpcc.MIX)
    for name in tpcc.MIX:
        assert (tmp_path / f"{name}.sql").read_text().rstrip().endswith(";")
