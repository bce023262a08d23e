"""The output gate: outputs leave once, in order, after the checkpoint that covers them."""

import concurrent.futures
import contextlib
import gc
import io
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gate_servers
import numpy as np
import pytest

import outlive
from outlive._sinks import _Query

Run = Callable[..., str]
NURSERY = Path(__file__).with_name("gate_nursery.py")
KILLS = int(os.environ.get("OUTLIVE_KILLS", "100"))


def nursery(
    folder: Path, way: str, kills: int, servers: dict[str, Any] | None = None
) -> dict[str, Any]:
    seed = int.from_bytes(os.urandom(4), "little")
    command = [sys.executable, NURSERY, folder, str(kills), str(seed), way]
    if servers is not None:
        command.append(json.dumps(servers))
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["code"] == 0, f"seed {seed}: {done.stderr}"
    assert result["alive"] > 0, f"seed {seed}: no life was killed while it ran"
    return result


def test_every_sink_gets_each_line_once_although_the_program_is_killed(folder: Path) -> None:
    result = nursery(folder, "gate", KILLS)
    assert set(result["faults"]) >= {"file", "events", "events below"}
    assert set(result["faults"].values()) == {0}, result
    assert result["left"] == [], result


def test_without_a_gate_the_same_program_repeats_lines(folder: Path) -> None:
    result = nursery(folder, "bare", 60)
    for sink in ("file", "socket", "database"):
        assert result["faults"][sink] > 0, result


def first_transactions_at_the_same_moment(folder: Path) -> None:
    """Eight jobs make the gate's table in PostgreSQL, each in a thread of its own."""
    together = threading.Barrier(8)

    def work(number: int) -> None:
        job = outlive.open(folder / f"pool-{number}").job("j")
        database = job.gate().transaction(gate_servers.connect)
        with database as transaction:
            transaction.execute("create table if not exists others (number integer)")
        with database as transaction:
            transaction.execute("insert into others values (%s)", (number,))
        together.wait()
        job.gate().flush({"step": 1})
        job.close()

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    with contextlib.closing(gate_servers.connect()) as there:
        rows = there.execute("select number from others order by number").fetchall()
    assert [row[0] for row in rows] == [*range(8)]


def test_databases_and_brokers_get_each_line_once(tmp_path: Path) -> None:
    if not gate_servers.are_installed():
        assert "CI" not in os.environ, "CI needs postgresql, redis-server and rabbitmq-server"
        pytest.skip("postgresql, redis-server or rabbitmq-server is not installed")
    with gate_servers.servers(tmp_path) as servers:
        first_transactions_at_the_same_moment(tmp_path)
        result = nursery(tmp_path / "program", "gate", 40, servers)
    assert set(result["faults"]) >= {"postgres", "redis", "rabbit"}
    assert set(result["faults"].values()) == {0}, result


calls: list[tuple[Any, ...]] = []
trouble: list[BaseException] = []


def note(*args: Any, key: str = "", **kwargs: Any) -> int:
    """Notes a call, or raises the trouble there is."""
    if trouble:
        raise trouble[0]
    calls.append((*args, *kwargs.values(), key))
    return len(calls)


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()
    trouble.clear()


@pytest.fixture
def pool(folder: Path) -> outlive.Pool:
    return outlive.open(folder / "pool")


def keys() -> list[str]:
    """Returns the keys of the calls, without the pool's name."""
    return [call[-1].partition(":")[2] for call in calls]


def fresh(step: int = 0) -> dict[str, Any]:
    return {"step": step, "u": np.zeros(1000)}


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until another thread has made a condition true; pytest ends a test that hangs."""
    while not condition():
        threading.Event().wait(0.001)


def test_an_output_waits_for_the_commit_of_the_save_after_it(
    pool: outlive.Pool, folder: Path
) -> None:
    state = fresh()
    with pool.job("j") as job:
        job.save(state, wait=True)
        gate = job.gate()
        lines = gate.open(folder / "lines.txt")
        gate.call(note, "one", key=True)
        print("one", file=lines)
        print("two", file=lines)
        assert lines.buffer.tell() == 8
        assert gate.status.uncovered == 2
        with pytest.raises(outlive.InvalidError, match="no save covers 2 outputs"):
            gate.flush()
        assert calls == []
        assert not (folder / "lines.txt").exists()
        job.save(state)
        print("three", file=lines)
        wait_for(lambda: gate.status.outputs == 1)
        assert keys() == ["j@2/0"]
        assert (folder / "lines.txt").read_text() == "one\ntwo\n"
        gate.flush(state)
        assert (folder / "lines.txt").read_text() == "one\ntwo\nthree\n"
        assert gate.status == outlive.GateStatus(outputs=0, uncovered=0, bytes=0, sinks=())
        # The gate is one per job, and a second open of a file is the same file.
        assert job.gate() is gate
        print("four", file=gate.open(folder / "lines.txt", "w"))
        gate.flush(state)
    assert (folder / "lines.txt").read_text().splitlines()[-1] == "four"


def test_a_close_releases_what_is_covered_and_names_the_rest(
    pool: outlive.Pool, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = pool.job("j")
    gate = job.gate()
    gate.call(note, 1)
    job.save(fresh())
    gate.call(note, 2)
    job.close()
    assert calls == [(1, "")]
    assert "1 output since the last save is not released" in caplog.text
    with pytest.raises(outlive.InvalidError, match="the gate is closed"):
        gate.call(note, 3)
    # The job goes on: the state contains the call, so the next save covers it.
    job.gate()
    job.save(fresh())
    job.close()
    assert calls == [(1, ""), (2, "")]


PROGRAM = """
    def note(text, key=""):
        with open(sys.argv[2], "a") as out:
            out.write(f"{text} {key}\\n")

    job = outlive.open(sys.argv[1]).job("j")
    state = {"step": 0}
    job.restore(into=state)
    gate = job.gate()
    lines = gate.open(sys.argv[3], "w")
    """


def test_a_run_after_a_normal_end_releases_nothing_again(folder: Path, run: Run) -> None:
    folder.mkdir()
    for number in range(3):
        out = run(
            PROGRAM
            + """
    state["step"] += 1
    gate.call(note, state["step"], key=True)
    gate.print("printed", state["step"])
    print(state["step"], file=lines)
    job.save(state)
    job.close()
    """,
            folder / "pool",
            folder / "calls",
            folder / "lines",
        )
        assert out == f"printed {number + 1}"
    called = (folder / "calls").read_text().split()
    assert called[::2] == ["1", "2", "3"]
    assert [key.partition(":")[2] for key in called[1::2]] == ["j@1/1", "j@2/3", "j@3/6"]
    assert (folder / "lines").read_text() == "1\n2\n3\n"
    out = run(
        PROGRAM + "job.close(); print(gate.status.outputs)",
        *(folder / n for n in ("pool", "calls", "lines")),
    )
    assert out == "0"


def test_outputs_that_were_committed_outlive_a_kill_before_their_release(
    folder: Path, run: Run, program: Callable[..., "subprocess.Popen[str]"]
) -> None:
    folder.mkdir()
    names = [folder / name for name in ("pool", "calls", "lines")]
    child = program(
        PROGRAM
        + """
    def stuck(key):
        os.kill(os.getpid(), signal.SIGKILL)

    gate.call(stuck, key=True)
    for step in range(1, 4):
        gate.call(note, step, key=True)
    gate.print("printed")
    job.save(state)
    while True: pass
    """,
        *names,
    )
    child.communicate(timeout=100)
    assert child.returncode == -9
    # The next run makes the interrupted call again, with the same key, and then the others.
    out = run(
        "def stuck(key): note('again', key)\n"
        + PROGRAM.replace("    ", "", 1).replace("\n    ", "\n")
        + "gate.flush(state); job.close()\n",
        *names,
    )
    assert out == "printed"
    lines = [line.split() for line in (folder / "calls").read_text().splitlines()]
    assert [text for text, _ in lines] == ["again", "1", "2", "3"]
    assert [key.partition(":")[2] for _, key in lines] == ["j@1/1", "j@1/2", "j@1/3", "j@1/4"]


def test_a_restore_of_an_older_checkpoint_takes_outputs_back(
    pool: outlive.Pool, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, state = folder / "lines.txt", fresh()
    job = pool.job("j")
    gate = job.gate()
    lines = gate.open(path)
    for step in range(1, 5):
        state["step"] = step
        print(step, file=lines)
        gate.call(note, step, key=True)
        job.save(state)
    gate.flush()
    assert path.read_text() == "1\n2\n3\n4\n"
    print("given up", file=lines)
    gate.call(note, "given up")
    # A look at an older checkpoint changes nothing.
    assert job.restore(epoch=1)["step"] == 1
    assert gate.status.uncovered == 2
    job.restore(into=state, epoch=2)
    print("three", file=lines)
    gate.call(note, "three", key=True)
    # Until the next commit, a crash would continue from checkpoint 4.
    assert path.read_text() == "1\n2\n3\n4\n"
    gate.flush(state)
    assert path.read_text() == "1\n2\nthree\n"
    # Repeated outputs have other keys than those that were released before.
    assert keys() == ["j@1/1", "j@2/3", "j@3/5", "j@4/7", "j@5/5"]
    job.close()
    assert "4 bytes more than the restored checkpoint" in caplog.text


def test_a_fenced_program_releases_nothing_more(pool: outlive.Pool, folder: Path, run: Run) -> None:
    job, state = pool.job("j"), fresh()
    gate = job.gate()
    lines = gate.open(folder / "lines.txt")
    print("mine", file=lines)
    gate.flush(state)
    run(
        """
        job = outlive.open(sys.argv[1]).job("j")
        state = {"step": 0, "u": np.zeros(1000)}
        job.restore(into=state)
        lines = job.gate().open(sys.argv[2])
        print("other", file=lines)
        job.save(state, wait=True)
        job.close()
        """,
        folder / "pool",
        folder / "lines.txt",
    )
    print("fenced", file=lines)
    gate.call(note, "fenced")
    with pytest.raises(outlive.FencedError):
        job.save(state, wait=True)
    with pytest.raises(outlive.InvalidError, match="no save covers 2 outputs"):
        gate.flush()
    job.close()
    assert calls == []
    assert (folder / "lines.txt").read_text() == "mine\nother\n"


def test_a_failed_save_holds_its_outputs_for_the_next_one(folder: Path, run: Run) -> None:
    out = run(
        """
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        pool = outlive.open(sys.argv[1])
        job, state = pool.job("j", on_failure="warn"), {"u": np.zeros(1 << 16), "step": 0}
        gate = job.gate()
        job.save(state, wait=True)
        lines = gate.open(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, most))
        print("one", file=lines)
        state["u"][:] = np.random.default_rng(1).random(1 << 16)
        job.save(state, wait=True)
        print(job.status.failed, gate.status.outputs, os.path.exists(sys.argv[2]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        print("two", file=lines)
        gate.flush(state)
        print(open(sys.argv[2]).read().split(), job.status.failed_in_a_row)
        """,
        folder / "pool",
        folder / "lines.txt",
    )
    assert out.splitlines() == ["1 1 False", "['one', 'two'] 0"]


def test_a_sink_that_fails_for_a_while_keeps_its_order(
    pool: outlive.Pool, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pool.job("j") as job:
        gate = job.gate()
        trouble.append(ConnectionError("no route"))
        for number in range(3):
            gate.call(note, number)
        print("goes on", file=gate.open(folder / "lines.txt"))
        job.save(fresh())
        wait_for((folder / "lines.txt").exists)
        wait_for(lambda: gate.status.sinks[0].trouble is not None)
        assert not gate.status.sinks[0].is_stopped
        with pytest.raises(outlive.RetryError, match=r"3 to call .ConnectionError: no route"):
            gate.flush(timeout_s=0.01)
        trouble.clear()
        gate.flush()
        assert calls == [(0, ""), (1, ""), (2, "")]
    assert caplog.text.count("outputs to call wait: ConnectionError: no route") == 1


def test_a_sink_that_fails_for_good_stops_and_the_next_run_goes_on(
    pool: outlive.Pool, folder: Path
) -> None:
    state = fresh()
    job = pool.job("j")
    gate = job.gate()
    trouble.append(ValueError("wrong"))
    gate.call(note, 0)
    gate.call(note, 1)
    job.save(state)
    with pytest.raises(outlive.RetryError, match=r"2 to call .ValueError: wrong"):
        gate.flush()
    (status,) = gate.status.sinks
    assert status.is_stopped
    trouble.clear()
    job.save(state)
    with pytest.raises(outlive.RetryError, match="2 to call"):
        gate.flush()
    assert calls == []
    job.close()
    job = pool.job("j")
    job.restore(into=state)
    job.gate().flush()
    assert calls == [(0, ""), (1, "")]
    job.close()


def test_a_job_that_is_opened_again_keeps_what_waits(pool: outlive.Pool) -> None:
    state = fresh()
    trouble.append(ValueError("wrong"))
    job = pool.job("j")
    job.gate().call(note, "waits")
    job.save(state)
    job.close()
    del job
    trouble.clear()
    job = pool.job("j")
    job.save(state, wait=True)  # without a restore, and before the gate is open
    job.gate().flush(state)
    assert calls == [("waits", "")]
    job.close()


def test_published_files_appear_at_the_commit(pool: outlive.Pool, folder: Path) -> None:
    temporary, final, state = folder / "tmp", folder / "model.bin", fresh()
    with pool.job("j") as job:
        gate = job.gate()
        for content in ("one", "two"):
            temporary.write_text(content)
            gate.publish(temporary, final)
        assert not temporary.exists()
        assert not final.exists()
        job.save(state, wait=True)
        gate.flush()
        assert final.read_text() == "two"
        with pytest.raises(outlive.InvalidError):
            gate.publish(folder / "missing", final)
        with pytest.raises(outlive.InvalidError, match="no regular file"):
            gate.publish(folder, final)
    assert sorted(entry.name for entry in folder.iterdir()) == ["model.bin", "pool"]


class Bank:
    """A receiver with two phases."""

    def __init__(self) -> None:
        self.given: list[bytes] = []
        self.prepared: list[bytes] = []
        self.committed: list[bytes] = []
        self.aborted: list[bytes] = []
        self.recovered: list[list[bytes]] = []

    def prepare(self) -> list[bytes]:
        tokens, self.given = self.given, []
        self.prepared += tokens
        return tokens

    def commit(self, tokens: list[bytes]) -> None:
        self.committed += [token for token in tokens if token not in self.committed]

    def abort(self, tokens: list[bytes]) -> None:
        self.aborted += tokens

    def recover(self, tokens: list[bytes]) -> None:
        self.recovered.append(tokens)


def test_a_sink_with_two_phases(pool: outlive.Pool) -> None:
    bank, state = Bank(), fresh()
    job = pool.job("j")
    gate = job.gate()
    gate.sink("bank", bank)
    bank.given = [b"1", b"2"]
    job.save(state, wait=True)
    gate.flush()
    assert (bank.prepared, bank.committed) == ([b"1", b"2"], [b"1", b"2"])
    bank.given = [b"3"]
    job.save(state, wait=True)
    gate.flush()
    bank.given = [b"lost"]
    job.restore(into=state, epoch=1)
    assert bank.recovered == [[]]
    assert bank.committed == [b"1", b"2", b"3"]
    job.close()

    class Broken(Bank):
        def prepare(self) -> list[bytes]:
            raise OSError("no room")

    job = pool.job("k")
    job.gate().sink("bank", Broken())
    with pytest.raises(outlive.InvalidError, match="no room"):
        job.save(state)
    job.gate().sink("bank", Bank())
    job.save(state, wait=True)
    job.close()


def test_more_outputs_than_the_gate_may_hold_force_a_save_that_waits(
    pool: outlive.Pool, folder: Path
) -> None:
    state = fresh()
    job = pool.job("j", every_s=1e6)
    gate = job.gate(bytes_max=10_000)
    lines = gate.open(folder / "lines.txt", "ab")
    assert job.save(state)
    assert not job.save(state)
    lines.write(b"x" * 9_000)
    assert not job.save(state)
    lines.write(b"x" * 2_000)
    assert job.save(state)
    assert (folder / "lines.txt").stat().st_size == 11_000
    assert gate.status.outputs == 0
    job.close()


@pytest.mark.parametrize("value", [object(), [object()], {1: object()}])
def test_arguments_that_no_later_run_could_have_are_refused(
    pool: outlive.Pool, value: object
) -> None:
    with pool.job("j") as job:
        gate = job.gate()
        with pytest.raises(outlive.InvalidError, match="of type object"):
            gate.call(note, value)
        with pytest.raises(outlive.InvalidError, match="at the top level"):
            gate.call(lambda: None)
        with pytest.raises(outlive.InvalidError, match="mode 'r'"):
            gate.open("x", "r")
        with pytest.raises(outlive.InvalidError, match="no regular file"):
            gate.open("/dev/null")
        with pytest.raises(outlive.InvalidError, match="use `gate"):
            gate.print("x", file=io.StringIO())
        assert gate.status.outputs == 0


def test_arguments_come_as_they_were_given(pool: outlive.Pool) -> None:
    args = [None, True, 7, 1.5, float("inf"), "ü", b"\0\xff", [1, (2, {3})], {"a": {1: b""}}]
    with pool.job("j") as job:
        gate = job.gate()
        gate.call(note, *args, np.float32(0.5), np.int64(3), word="w")
        answer = gate.call(note)
        assert not answer.done()
        with pytest.raises(outlive.RetryError, match="save before"):
            answer.result()
        job.save(fresh())
        assert answer.result() == 2
    assert calls[0] == (*args, 0.5, 3, "w", "")


def test_bytes_go_through_a_socket_after_the_commit(pool: outlive.Pool) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(server.getsockname())
    theirs, _ = server.accept()
    with server, ours, theirs, pool.job("j") as job:
        gate = job.gate()
        for word in (b"one ", b"two "):
            gate.send(ours, word)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        gate.flush(fresh())
        assert theirs.recv(100) == b"one two "
        left, right = socket.socketpair()
        with left, right:
            with pytest.raises(outlive.InvalidError, match="give `name`"):
                gate.send(left, b"x")
            gate.send(left, b"named", name="pair")
            gate.flush(fresh())
            assert right.recv(100) == b"named"


def test_a_forked_child_has_no_gate(folder: Path, run: Run) -> None:
    out = run(
        """
        job = outlive.open(sys.argv[1]).job("j")
        gate = job.gate()
        lines = gate.open(sys.argv[2])
        gate.flush({"step": 1})
        child = os.fork()
        if child == 0:
            for call in (lambda: gate.print("x"), lambda: lines.write("x"), job.gate):
                try:
                    call()
                except outlive.InvalidError:
                    continue
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print("parent", file=lines)
        gate.flush({"step": 2})
        job.close()
        print(open(sys.argv[2]).read().strip())
        """,
        folder / "pool",
        folder / "lines.txt",
    )
    assert out.split() == ["0", "parent"]


def test_a_thousand_saves_leave_no_threads_and_no_descriptors(folder: Path, run: Run) -> None:
    out = run(
        """
        def descriptors():
            return len(os.listdir("/proc/self/fd")) + len(os.listdir("/proc/self/task"))

        pool = outlive.open(sys.argv[1])
        state = {"step": 0}
        counts = []
        for round in range(10):
            job = pool.job("j", keep_last=2)
            if round:
                job.restore(into=state)
            gate = job.gate()
            lines = gate.open(sys.argv[2])
            for step in range(100):
                state["step"] += 1
                print(state["step"], file=lines)
                job.save(state)
            job.close()
            counts.append(descriptors())
        print(counts[-1] <= counts[1] + 2, counts[1], counts[-1])
        print(open(sys.argv[2]).read() == "".join(f"{n}\\n" for n in range(1, 1001)))
        """,
        folder / "pool",
        folder / "lines.txt",
    )
    assert out.splitlines()[0].startswith("True"), out
    assert out.splitlines()[1] == "True"


def test_a_job_that_is_dropped_releases_at_the_end_of_the_program(folder: Path, run: Run) -> None:
    run(
        """
        def work():
            job = outlive.open(sys.argv[1]).job("j")
            lines = job.gate().open(sys.argv[2])
            print("one", file=lines)
            job.save({"step": 1})

        work()
        """,
        folder / "pool",
        folder / "lines.txt",
    )
    assert (folder / "lines.txt").read_text() == "one\n"


def test_two_programs_of_other_pools_share_a_database(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    database = folder / "results.db"
    with sqlite3.connect(database) as there:
        there.execute("create table results (word text)")
    for word in ("first", "second"):
        job = outlive.open(folder / word).job("j")
        results = job.gate().transaction(lambda: sqlite3.connect(database))
        with results as outer:
            outer.execute("insert into results values (?)", (word,))
            with results as inner:
                inner.execute("insert into results values (?)", (word + " inner",))
            with pytest.raises(outlive.InvalidError, match="is over"):
                inner.execute("insert into results values (?)", ("late",))
        job.gate().flush(fresh())
        job.close()
    rows = sqlite3.connect(database).execute("select word from results").fetchall()
    assert [row[0] for row in rows] == ["first inner", "first", "second inner", "second"]


def test_a_database_that_commits_by_itself_is_refused(pool: outlive.Pool, folder: Path) -> None:
    job = pool.job("j")
    gate = job.gate()
    bare = gate.transaction(lambda: sqlite3.connect(folder / "x.db", isolation_level=None))
    with bare as transaction:
        transaction.execute("create table results (word text)")
    with pytest.raises(outlive.RetryError, match="turn autocommit off"):
        gate.flush(fresh())
    job.close()


@pytest.mark.parametrize("style", ["qmark", "format", "pyformat", "numeric", "named"])
def test_statements_have_the_style_of_the_module(style: str) -> None:
    text, values = _Query(style).of("set a = {b} where c = {a}", {"a": 1, "b": 2})
    want: dict[str, tuple[str, Any]] = {
        "qmark": ("set a = ? where c = ?", (2, 1)),
        "format": ("set a = %s where c = %s", (2, 1)),
        "pyformat": ("set a = %(b)s where c = %(a)s", {"b": 2, "a": 1}),
        "numeric": ("set a = :1 where c = :2", (2, 1)),
        "named": ("set a = :b where c = :a", {"b": 2, "a": 1}),
    }
    assert (text, values) == want[style]


def test_a_sink_that_blocks_holds_up_neither_the_close_nor_the_exit(folder: Path, run: Run) -> None:
    out = run(
        """
        def blocks():
            threading.Event().wait()

        job = outlive.open(sys.argv[1]).job("j")
        gate = job.gate()
        gate.call(blocks)
        job.save({"step": 1}, wait=True)

        def interrupt(*_):
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            job.close()
        except KeyboardInterrupt:
            print("interrupted")
        job.close()
        print("closed")
        """,
        folder / "pool",
    )
    assert out.split() == ["interrupted", "closed"]


def test_a_stopped_sink_forces_no_saves_and_holds_up_none(pool: outlive.Pool, folder: Path) -> None:
    job = pool.job("j", every_s=1e6)
    gate = job.gate(bytes_max=1000)
    trouble.append(ValueError("wrong"))
    gate.call(note, "x" * 2000)
    job.save(fresh())
    with pytest.raises(outlive.RetryError):
        gate.flush()
    assert not job.save(fresh())
    answer = gate.call(note)
    job.save(fresh(), force=True)
    with pytest.raises(outlive.RetryError):
        answer.result()
    job.close()


def test_two_handles_of_a_job_share_its_gate(pool: outlive.Pool, folder: Path) -> None:
    first, second = pool.job("j"), pool.job("j")
    gate = first.gate()
    assert second.gate() is gate
    answer = gate.call(note, 1)
    first.save(fresh())
    assert answer.result() == 1
    first.close()
    gate.call(note, 2)
    second.save(fresh())
    second.close()
    assert [call[0] for call in calls] == [1, 2]
    old = gate.open
    with pytest.raises(outlive.InvalidError, match="closed"):
        old(folder / "lines.txt")
    third = pool.job("j")
    again = third.gate()
    assert again is not gate
    again.call(note, 3)
    third.save(fresh())
    third.close()
    assert [call[0] for call in calls] == [1, 2, 3]


def test_a_look_at_an_older_checkpoint_cuts_nothing(pool: outlive.Pool, folder: Path) -> None:
    path, state = folder / "lines.txt", fresh()
    job = pool.job("j")
    lines = job.gate().open(path)
    for step in range(1, 5):
        state["step"] = step
        print(step, file=lines)
        job.save(state)
    job.close()
    job = pool.job("j")
    lines = job.gate().open(path)
    assert job.restore(epoch=1)["step"] == 1
    job.restore(into=state)
    print(5, file=lines)
    job.gate().flush(state)
    # A part of an older checkpoint is no rollback either.
    job.restore(epoch=2)
    job.restore(into=state, epoch=3, only="u")
    print(6, file=lines)
    job.gate().flush(state)
    job.close()
    assert path.read_text().split() == ["1", "2", "3", "4", "5", "6"]


def test_a_slow_receiver_gets_each_byte_once(pool: outlive.Pool) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(server.getsockname())
    theirs, _ = server.accept()
    ours.settimeout(0.01)
    data = os.urandom(8 << 20)
    got = bytearray()
    with server, ours, theirs, pool.job("j") as job:
        gate = job.gate(bytes_max=1 << 30)
        gate.send(ours, data)
        job.save(fresh())
        wait_for(lambda: any(sink.trouble for sink in gate.status.sinks))
        while len(got) < len(data):
            got += theirs.recv(1 << 20)
        gate.flush()
        other = socket.create_connection(server.getsockname())
        with other, pytest.raises(outlive.InvalidError, match="another connection"):
            gate.send(other, b"x")
    assert bytes(got) == data


def test_a_program_that_was_fenced_and_begins_again_drops_its_outputs(
    pool: outlive.Pool, folder: Path, run: Run
) -> None:
    job = pool.job("j")
    gate = job.gate()
    job.save(fresh(), wait=True)
    run(
        """
        job = outlive.open(sys.argv[1]).job("j")
        state = {"step": 0, "u": np.zeros(1000)}
        job.restore(into=state)
        state["step"] = 7
        job.save(state, wait=True)
        job.close()
        """,
        folder / "pool",
    )
    gate.call(note, "of a state that is gone")
    with pytest.raises(outlive.FencedError):
        job.save(fresh(), wait=True)
    job.close()
    job = pool.job("j")
    state = job.restore()
    assert state["step"] == 7
    gate = job.gate()
    gate.call(note, "goes on")
    gate.flush(state)
    job.close()
    assert [call[0] for call in calls] == ["goes on"]


def test_a_close_gives_the_reason_why_outputs_are_left(
    pool: outlive.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    job = pool.job("j")
    gate = job.gate()
    trouble.append(ValueError("wrong"))
    gate.call(note, 1)
    job.save(fresh())
    gate.call(note, 2)
    job.close()
    left = [text for text in caplog.messages if "not released yet" in text]
    assert len(left) == 1
    assert "1 output to call is not released yet (ValueError: wrong)" in left[0]


def test_two_spellings_of_a_file_are_one(pool: outlive.Pool, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "sub").mkdir()
    (folder / "link").symlink_to(folder / "lines.txt")
    job = pool.job("j")
    gate = job.gate()
    print("one", file=gate.open(folder / "lines.txt"))
    print("two", file=gate.open(folder / "sub" / ".." / "lines.txt"))
    gate.flush(fresh())
    print("three", file=gate.open(folder / "link"))
    gate.flush(fresh())
    job.close()
    assert (folder / "lines.txt").read_text() == "one\ntwo\nthree\n"


def test_odd_values_are_printed_or_refused(
    pool: outlive.Pool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pool.job("j") as job:
        gate = job.gate()
        gate.print("lone \ud800 half", "ü")
        with pytest.raises(outlive.InvalidError, match="of type longdouble"):
            gate.call(note, np.longdouble(1))
        with pytest.raises(outlive.InvalidError, match="too long"):
            gate.call(note, 10**5000)
        (folder / "tmp").write_text("x")
        with pytest.raises(outlive.InvalidError, match="too long to be published"):
            gate.publish(folder / "tmp", folder / ("n" * 250))
        assert (folder / "tmp").exists()
        gate.flush(fresh())
    assert "lone \\ud800 half ü" in capsys.readouterr().out


class Rows(sqlite3.Connection):
    """A connection of a program's own, whose rows are dicts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.row_factory = lambda cursor, row: {
            column[0]: value for column, value in zip(cursor.description, row, strict=True)
        }


def test_connections_may_be_of_a_subclass_and_have_other_rows(
    pool: outlive.Pool, folder: Path
) -> None:
    job = pool.job("j")
    gate = job.gate()
    database = gate.transaction(lambda: sqlite3.connect(folder / "x.db", factory=Rows))
    with database as transaction:
        transaction.execute("create table results (number integer)")
    for number in range(2):
        with database as transaction:
            transaction.execute("insert into results values (:number)", {"number": number})
    gate.flush(fresh())
    job.close()
    rows = sqlite3.connect(folder / "x.db").execute("select number from results").fetchall()
    assert rows == [(0,), (1,)]


class Refusing(sqlite3.Connection):
    """A connection that another program keeps from inserting, as often as `left` says."""

    left = 0
    attempts = 0

    def commit(self) -> None:
        """Refuses what is to be committed, or commits it."""
        if Refusing.left > 0 and self.in_transaction:
            Refusing.left -= 1
            Refusing.attempts += 1
            raise sqlite3.IntegrityError("the other one was first")
        super().commit()


@pytest.mark.parametrize(("refusals", "attempts"), [(4, 4), (100, 5)])
def test_a_refused_transaction_is_tried_five_times(
    pool: outlive.Pool, folder: Path, refusals: int, attempts: int
) -> None:
    with contextlib.closing(sqlite3.connect(folder / "x.db")) as there:
        there.execute("create table results (number integer)")
    job = pool.job("j")
    database = job.gate().transaction(lambda: sqlite3.connect(folder / "x.db", factory=Refusing))
    with database as transaction:
        transaction.execute("insert into results values (0)")
    job.gate().flush(fresh())
    Refusing.left, Refusing.attempts = refusals, 0
    with database as transaction:
        transaction.execute("insert into results values (1)")
    if refusals > attempts:
        with pytest.raises(outlive.RetryError, match="the other one was first"):
            job.gate().flush(fresh(1))
        assert job.gate().status.sinks[0].is_stopped
        assert Refusing.attempts == attempts
        job.restore(into=fresh())
        with pytest.raises(outlive.RetryError, match="the other one was first"):
            job.gate().flush()
        attempts += 5
    else:
        job.gate().flush(fresh(1))
    assert Refusing.attempts == attempts
    Refusing.left = 0
    job.close()
    rows = sqlite3.connect(folder / "x.db").execute("select number from results").fetchall()
    assert rows == ([(0,)] if refusals > attempts else [(0,), (1,)])


class Slow(Bank):
    """A sink whose commit lasts until a save asks it to prepare, or a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.is_committing = threading.Event()
        self.is_asked = threading.Event()
        self.overlaps = False
        self.is_busy = False

    def prepare(self) -> list[bytes]:
        self.overlaps |= self.is_busy
        self.is_asked.set()
        return super().prepare()

    def commit(self, tokens: list[bytes]) -> None:
        self.is_asked.clear()
        self.is_busy = True
        self.is_committing.set()
        self.is_asked.wait(0.3)
        super().commit(tokens)
        self.is_busy = False


def test_the_methods_of_a_sink_do_not_overlap(pool: outlive.Pool) -> None:
    slow = Slow()
    with pool.job("j") as job:
        gate = job.gate()
        gate.sink("slow", slow)
        slow.given = [b"1"]
        job.save(fresh(), wait=True)
        slow.is_committing.wait()
        job.save(fresh(), wait=True)
        gate.flush()
    assert slow.committed == [b"1"]
    assert not slow.overlaps


def test_a_dropped_job_with_an_unanswered_call_is_freed(pool: outlive.Pool) -> None:
    job = pool.job("j")
    gate = job.gate()
    answer = gate.call(note, 1)
    gone = weakref.ref(gate)
    del job, gate
    gc.collect()
    assert gone() is None
    with pytest.raises(outlive.RetryError):
        answer.result()


def test_a_forked_child_that_drops_the_job_closes_nothing(folder: Path, run: Run) -> None:
    out = run(
        """
        import gc, logging
        job = outlive.open(sys.argv[1]).job("j")
        gate = job.gate()
        job.save({"step": 1}, wait=True)
        gate.print("waits")

        class Told(logging.Handler):
            def emit(self, record):
                os._exit(1)

        child = os.fork()
        if child == 0:
            logging.getLogger("outlive").addHandler(Told())
            del job, gate
            gc.collect()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        gate.flush({"step": 2})
        job.close()
        """,
        folder / "pool",
    )
    assert out.split() == ["0", "waits"]
