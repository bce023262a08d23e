"""The fate of each checkpoint (`Job.events`): in order, once for each subscription, and true."""

import itertools
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import outlive

Run = Callable[..., str]
Program = Callable[..., "subprocess.Popen[str]"]

# Longer than any event may take: a test that waits for so long has failed.
LONG_S = 60.0


def some(step: int) -> dict[str, Any]:
    return {"step": step, "a": outlive.zeros(1000) + step}


def taken(events: outlive.CommitEvents, count: int) -> list[tuple[int, bool]]:
    """Takes events, which must come."""
    found = []
    for _ in range(count):
        event = events.next(LONG_S)
        assert event is not None
        found.append((event.epoch, event.committed))
    return found


def in_a_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Starts a thread, and returns a function that waits for its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()

    def join() -> Any:
        thread.join(LONG_S)
        assert not thread.is_alive()
        return results[0]

    return join


def test_each_commit_gives_an_event_in_order(job: outlive.Job) -> None:
    events = job.events()
    late = job.events()
    for step in range(20):
        job.save(some(step))
    found = list(itertools.islice(events, 20))
    assert found == [outlive.CommitEvent(epoch=epoch, job="job") for epoch in range(1, 21)]
    assert all(event.committed and event.error is None for event in found)
    # The other subscription has kept its own.
    assert taken(late, 20) == [(epoch, True) for epoch in range(1, 21)]
    # A put is a checkpoint as well, and an event is there before `wait` returns.
    job.put_files(__file__)
    assert taken(events, 1) == [(21, True)]
    job.save(some(21), wait=True)
    event = events.next(0)
    assert event is not None
    assert event.epoch == 22
    assert events.next(0) is None
    # Nothing of the past: "from now on".
    assert job.events().next(0) is None
    with pytest.raises(AttributeError):
        event.epoch = 1  # type: ignore[misc]
    assert repr(events) == "<outlive.CommitEvents of job 'job'>"


def test_the_checkpoint_is_stored_when_its_event_comes(folder: Path, run: Run) -> None:
    run(
        """
        import subprocess
        job = outlive.open(sys.argv[1]).job("a")
        events = job.events()
        # A second process opens the pool at each event, while the next saves go on.
        look = "import outlive, sys; print(outlive.open(sys.argv[1]).job('a').restore()['step'])"
        state = {"step": 0, "a": np.zeros(300_000)}
        def train():
            for step in range(1, 6):
                state["step"] = step
                state["a"][:] = step
                job.save(state)
        thread = threading.Thread(target=train)
        thread.start()
        for epoch in range(1, 6):
            event = events.next(60)
            assert event.epoch == epoch and event.committed, event
            command = [sys.executable, "-c", look, sys.argv[1]]
            seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            assert int(seen) >= epoch, (seen, epoch)
        thread.join()
        """,
        folder,
    )


def test_a_failed_save_gives_its_error(folder: Path, run: Run) -> None:
    out = run(
        """
        import resource, warnings
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        warnings.simplefilter("ignore")
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

        def full(is_full):
            # No file may get longer than 5,000 bytes, as on a full disk.
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000 if is_full else most, most))

        job = outlive.open(sys.argv[1]).job("a", on_failure="warn")
        events, other = job.events(), job.events()
        state = {"u": np.random.default_rng(1).random(1 << 18)}
        job.save(state, wait=True)
        full(True)
        texts = []
        for _ in range(3):
            state["u"] += 1
            try:
                job.save(state).wait()
            except outlive.FullError as error:
                texts.append(str(error))
        full(False)
        job.save(state, wait=True)
        for of in (events, other):
            found = [of.next(60) for _ in range(5)]
            assert [(it.epoch, it.committed) for it in found] == [
                (1, True), (2, False), (2, False), (2, False), (2, True)], found
            for event, text in zip(found[1:4], texts, strict=True):
                assert isinstance(event.error, outlive.FullError) and event.job == "a"
                assert str(event.error) == text, (event.error, text)
            assert of.next(0) is None
        # The program may raise it.
        try:
            raise found[1].error
        except outlive.FullError:
            print("raised")
        """,
        folder,
    )
    assert out == "raised"


def test_timeouts(job: outlive.Job) -> None:
    events = job.events()
    for timeout in (0, 0.0, -1, -float("inf"), 0.01, 1e-300):
        assert events.next(timeout) is None
    assert not events.ended
    with pytest.raises(outlive.InvalidError, match="a timeout must be a number"):
        events.next(float("nan"))
    job.save(some(1))
    for timeout_of in (float("inf"), 1e300, None):
        event = events.next(timeout_of)
        assert event is not None
        assert event.committed
        job.save(some(2))


def test_subscriptions_of_several_jobs_and_handles(folder: Path) -> None:
    pool = outlive.open(folder)
    first, second, other = pool.job("a"), outlive.open(folder).job("a"), pool.job("b")
    of_first, of_second, of_other = first.events(), second.events(), other.events()
    join = in_a_thread(lambda: taken(of_second, 6))
    for step in range(3):
        first.save(some(step))
        other.save(some(step))
        second.save(some(step))
    assert taken(of_first, 6) == [(epoch, True) for epoch in range(1, 7)]
    assert join() == [(epoch, True) for epoch in range(1, 7)]
    assert taken(of_other, 3) == [(epoch, True) for epoch in range(1, 4)]
    # Threads share a subscription: each event goes to one of them.
    shares = [in_a_thread(lambda: [event.epoch for event in of_first]) for _ in range(3)]
    for step in range(30):
        first.save(some(step))
    first.close()
    found = [share() for share in shares]
    assert all(share == sorted(share) for share in found)
    assert sorted(itertools.chain(*found)) == list(range(7, 37))
    # The end of one handle leaves the other's subscription.
    second.save(some(1))
    assert taken(of_second, 31) == [(epoch, True) for epoch in range(7, 38)]


def test_a_close_wakes_a_thread_that_waits(job: outlive.Job) -> None:
    events = job.events()
    waiting = [in_a_thread(lambda: list(events)), in_a_thread(events.next)]
    events.close()
    assert [join() for join in waiting] == [[], None]
    job.save(some(1), wait=True)
    assert events.next() is None
    assert events.ended
    events.close()
    assert list(events) == []
    # A close drops the events that were not taken.
    with job.events() as again:
        job.save(some(2), wait=True)
    assert again.ended
    assert list(again) == []
    # An exception of the program passes through.
    with pytest.raises(KeyError), job.events() as again:
        raise KeyError
    assert again.ended


def test_the_end_of_the_job_ends_the_iteration(folder: Path) -> None:
    with outlive.open(folder).job("a") as job:
        events = job.events()
        join = in_a_thread(lambda: [event.epoch for event in events])
        kept = job.events()
        for step in range(5):
            job.save(some(step))
    assert join() == [1, 2, 3, 4, 5]
    assert not kept.ended
    assert [event.epoch for event in kept] == [1, 2, 3, 4, 5]
    assert kept.ended
    assert kept.next() is None
    # A job can be used again, and so can its events.
    again = job.events()
    job.save(some(6))
    assert taken(again, 1) == [(6, True)]
    assert kept.next() is None


def test_ctrl_c_ends_a_wait_and_loses_no_event(folder: Path, program: Program) -> None:
    child = program(
        """
        job = outlive.open(sys.argv[1]).job("a")
        events = job.events()
        for wait in (events.next, lambda: events.next(600), lambda: next(iter(events))):
            try:
                print("waiting", flush=True)
                wait()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        job.save({"step": 1}, wait=True)
        print(events.next().epoch, flush=True)
        """,
        folder,
    )
    assert child.stdout is not None
    for _ in range(3):
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
    out, errors = child.communicate(timeout=100)
    assert (out, child.returncode) == ("1\n", 0), errors


def test_a_signal_just_before_an_event_does_not_lose_it(folder: Path, run: Run) -> None:
    out = run(
        """
        import os, threading
        job = outlive.open(sys.argv[1]).job("a")
        events, taken, interrupted = job.events(), [], 0
        ready = threading.Event()

        def save():
            for step in range(60):
                ready.wait()
                ready.clear()
                os.kill(os.getpid(), signal.SIGINT)
                job.save({"step": step}, wait=True, force=True)

        thread = threading.Thread(target=save)
        thread.start()
        while len(taken) < 60:
            try:
                ready.set()
                if event := events.next(60):
                    taken.append(event.epoch)
            except KeyboardInterrupt:
                interrupted += 1
        thread.join()
        print(taken == list(range(1, 61)), interrupted > 0)
        job.close()
        """,
        folder,
    )
    assert out == "True True"


def test_a_forked_child_gets_no_events(folder: Path, run: Run) -> None:
    out = run(
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        job = outlive.open(sys.argv[1]).job("a")
        events = job.events()
        state = {"step": 0, "a": np.zeros(1_000_000)}

        def child():
            for call in (events.next, lambda: events.next(0), lambda: next(events), job.events,
                         lambda: events.ended):
                try:
                    call()
                except outlive.InvalidError as error:
                    assert "forked" in str(error), error
                else:
                    raise AssertionError(call)
            events.close()  # does nothing
            with outlive.open(sys.argv[1]).job(f"child {step}") as own:
                mine = own.events()
                own.save({"step": 1})
            assert [event.epoch for event in mine] == [1]

        # A thread takes events all the time, and others come: locks may be held at a fork.
        found = []
        thread = threading.Thread(target=lambda: found.extend(event.epoch for event in events))
        thread.start()
        for step in range(10):
            state["step"] = step
            job.save(state)
            pid = os.fork()
            if pid == 0:
                try:
                    child()
                    del events  # in a child, too, it drops no lock
                except BaseException as error:
                    print(repr(error), flush=True)
                    os._exit(1)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        job.close()
        thread.join()
        assert found == list(range(1, 11)), found
        print("done")
        """,
        folder,
    )
    assert out == "done"


def test_a_daemon_that_iterates_ends_with_the_program(folder: Path, run: Run) -> None:
    out = run(
        """
        job = outlive.open(sys.argv[1]).job("a")
        events = job.events()
        def tell():
            for event in events:
                print("committed", event.epoch, flush=True)
        threading.Thread(target=tell, daemon=True).start()
        job.save({"step": 1}, wait=True)
        """,
        folder,
    )
    assert out in ("committed 1", "")


def test_a_thousand_saves_and_subscriptions_leave_nothing(folder: Path, run: Run) -> None:
    run(
        """
        import gc
        job = outlive.open(sys.argv[1]).job("a", keep_last=2)
        events = job.events()
        state = {"step": 0}

        def resident_kb():
            with open("/proc/self/status") as lines:
                return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

        def saves(first, count):
            for step in range(first, first + count):
                state["step"] = step
                job.save(state)
                # Some are closed, and some only dropped.
                dropped = job.events()
                if step % 2:
                    dropped.close()
                if step % 10 == 0:
                    for epoch in range(step - 9, step + 1):
                        assert events.next(60).epoch == epoch

        saves(1, 200)
        gc.collect()
        descriptors, resident = len(os.listdir("/proc/self/fd")), resident_kb()
        saves(201, 800)
        gc.collect()
        assert events.next(0) is None
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
        assert resident_kb() < resident + 8192, (resident, resident_kb())
        job.close()
        assert list(events) == []
        """,
        folder,
    )


def test_each_rank_sees_the_events_of_its_job(folder: Path, program: Program) -> None:
    text = """
        rank = int(sys.argv[2])
        pool = outlive.open(sys.argv[1])
        job = pool.job("a", group=outlive.ranks(rank, 2, run="run"))
        events = job.events()
        for step in range(5):
            job.save({"step": step, "own": np.zeros(1000) + rank})
        job.close()
        print([(event.epoch, event.committed) for event in events])
        """
    outlive.open(folder)
    programs = [program(text, folder, rank) for rank in range(2)]
    for child in programs:
        out, errors = child.communicate(timeout=100)
        assert out.strip() == str([(epoch, True) for epoch in range(1, 6)]), errors
