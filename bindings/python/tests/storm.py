"""A storm: savers, rivals, prunes, gcs, scrubs and copies as separate processes, two of each kind
at a time, killed and suspended at any moment.

Each life is a fork of this program, which opens no pool itself. A state is a function of its token,
so each restored state can be checked. A saver reports each token that it begins to save, and each
acknowledged save. From time to time all lives end. Then these must hold:

- Every acknowledged checkpoint that no prune was free to drop is there. A saver that took the
  newest checkpoint got none older than those acknowledged when it began.
- Every checkpoint restores to the bits of its token, in the pool and in the copy.
- No epoch was given twice, and no writer has committed after one that followed it.
- `verify` finds nothing in either pool.

Finally each job continues undisturbed, all but the newest checkpoints are dropped, and garbage must
be gone. The storm lasts until every event in `SHOWN` has happened. It prints a summary as JSON.
After a fault the pools stay, and it prints the last events.

    storm.py FOLDER SEED --lives 300
    storm.py FOLDER SEED --minutes 10
    storm.py FOLDER SEED --minutes 10 --striped

With `--striped` the pool has four targets or more, and one of them may be lost. An operator adds,
drains, removes, replaces and repairs targets and moves the log; it is killed and suspended like the
others. Bits flip in one shard of each pack. The log has three replicas; one at a time goes away and
comes back. When all lives have ended, a scrub and a repair must make the pool whole. After that any
one target may be away.
"""

import argparse
import contextlib
import json
import os
import random
import select
import signal
import struct
import sys
import time
import tomllib
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import outlive
from outlive.__main__ import main as command

warnings.simplefilter("ignore")  # newer Pythons warn of forks
RECORD = struct.Struct("<cQQ")  # what, token, epoch
INVALID, DAMAGED, FENCED, RETRY = 2, 3, 5, 6
SAVERS = ("left", "right", "rival", "rival")
"""Jobs, one for each saver: two programs save the same one."""
JOBS = tuple(sorted(set(SAVERS)))
COMMANDS = ("gc", "prune", "scrub", "copy") * 2
SHOWN = (
    *("acknowledged", "restored", "looked at", "suspended", "save killed", "save done"),
    *(f"{what} done" for what in dict.fromkeys(COMMANDS)),
)
"""Events that each storm must have counted, or it would show nothing."""
SHOWN_STRIPED = ("pool done", "flipped", "place away")
"""More such events of a striped pool."""
KEEP_MIN = 1
PAGES = np.random.default_rng(7).integers(0, 1 << 60, (40, 512))
"""Pages for states, so that states share most of their content."""
TARGETS, TARGETS_MAX, PLACES = 4, 6, 3
"""Numbers for a striped pool."""
GCS_MAX = 5
"""Most gcs at the end."""
STRIPE = 3
"""Shards of a pack in it; one of them may be lost."""
CHANGES = ("repair", "repair", "add", "drain", "remove", "replace", "move-log")
"""Actions of an operator."""
SHOWN_LONG = tuple(f"pool {what} done" for what in dict.fromkeys(CHANGES))
"""More such events, for a striped pool and a storm of minutes."""
ROUND_LIVES = 60
HANGS_S = 120.0
"""A life takes a second; one that takes this long, even on a busy machine, never ends."""


def new() -> dict[str, Any]:
    state = {
        "rows": outlive.zeros((96, 512), np.int64),
        "own": np.zeros(5_000, np.int64),
        "token": 0,
        "text": "",
    }
    fill(state, 1)
    return state


def fill(state: dict[str, Any], token: int) -> None:
    """Fills a state with the values of its token: a function of the token only."""
    luck = np.random.Generator(np.random.PCG64(token))
    # Tokens with the same high bits share most rows.
    family = np.random.Generator(np.random.PCG64(token >> 56))
    chosen = family.integers(0, len(PAGES), len(state["rows"]))
    some = luck.integers(0, len(chosen), 9)
    chosen[some] = luck.integers(0, len(PAGES), len(some))
    state["rows"][:] = PAGES[chosen]
    state["own"][:] = luck.integers(0, 1 << 60, len(state["own"]))
    state["token"] = token
    state["text"] = f"token {token}" * (token % 5)


def same(state: dict[str, Any]) -> bool:
    want = new()
    fill(want, state["token"])
    arrays = all(np.array_equal(state[key], want[key]) for key in ("rows", "own"))
    return arrays and state["text"] == want["text"] and state.keys() == want.keys()


def save_all_the_time(pool: str, name: str, tell: int, luck: random.Random) -> int:
    """A life of a saver: restores, checks, saves, and reports each event at once."""
    try:
        job = outlive.open(pool).job(name)
        state = new()
        epochs = [epoch.epoch for epoch in job.epochs()]
        way = luck.random()
        newest = False
        if epochs and way < 0.2:
            with contextlib.suppress(outlive.InvalidError):  # a prune dropped it meanwhile
                job.restore(into=state, epoch=luck.choice(epochs))
        elif way < 0.9:
            newest = True
            job.restore(into=state)
        # Else it begins from its start, as if no checkpoint were there.
        report = job.last_restore
        what = b"N" if newest else b"R"
        if not same(state) or (report is not None and report.skipped):
            what = b"X"
        os.write(tell, RECORD.pack(what, state["token"], (report and report.epoch) or 0))
        for _ in range(luck.randint(1, 40)):
            token = luck.choice((1, 2, 3)) << 56 | luck.getrandbits(40)
            fill(state, token)
            os.write(tell, RECORD.pack(b"B", token, 0))
            pin = luck.random() < 0.08
            save = job.save(state, pin=pin)
            if pin or luck.random() < 0.5:
                save.wait()
                os.write(tell, RECORD.pack(b"P" if pin else b"A", token, save.epoch or 0))
            if luck.random() < 0.05 and (there := job.epochs()):
                with contextlib.suppress(outlive.InvalidError):  # a prune dropped it meanwhile
                    job.note(luck.choice(there).epoch, label="")
        job.close()
    except outlive.FencedError:
        return FENCED
    except outlive.RetryError:
        return RETRY
    return 0


def tell_all(pool: str, name: str, tell: int, unpin: list[int] | None) -> int:
    """Restores every checkpoint of a job, and reports each. Removes these pins, or all."""
    job = outlive.open(pool).job(name)
    if unpin is None:  # the process that pinned may have been killed before its report
        unpin = [epoch.epoch for epoch in job.epochs() if epoch.pinned]
    for number in unpin:
        job.note(number, pin=False)
    for epoch in job.epochs():
        state = new()
        job.restore(into=state, epoch=epoch.epoch)
        what = b"E" if same(state) else b"X"
        os.write(tell, RECORD.pack(what, state["token"], epoch.epoch))
    return 0


@dataclass
class Job:
    """Knowledge about a job's checkpoints."""

    begun: dict[int, int] = field(default_factory=dict)
    """Number of the life that began to save a token."""
    safe: dict[int, int] = field(default_factory=dict)
    """Token that was acknowledged at an epoch."""
    pinned: set[int] = field(default_factory=set)
    newest: int = 0
    """Newest epoch that was acknowledged or restored. The next restored one is no older."""


@dataclass
class Life:
    """A process."""

    number: int
    child: int
    ear: int
    what: str
    job: str
    started: float = field(default_factory=time.monotonic)
    heard: bytes = b""
    due: float | None = None
    """Time at which it is killed or suspended."""
    kill: bool = False
    asleep: int = 0
    """Number of other lives that must end before it wakes up."""
    newest: int = 0
    """Newest known epoch of its job when it began."""


class Storm:
    def __init__(self, folder: Path, seed: int, striped: bool) -> None:
        self.folder = folder
        self.commands = COMMANDS + ("pool",) * 2 * striped
        self.places = TARGETS + PLACES
        """Number of directories named so far, so that each gets a name of its own."""
        self.striped = striped
        self.away: Path | None = None
        """The log replica that is away."""
        self.pool, self.copy = str(folder / "pool"), str(folder / "copy")
        self.luck = random.Random(seed)
        self.jobs = {name: Job() for name in JOBS}
        self.faults: list[str] = []
        self.unneeded: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.number = 0
        self.alive: dict[int, Life] = {}
        self.story: deque[str] = deque(maxlen=400)

    # Lives.

    def fork(self, what: str, job: str, work: Callable[[int], int]) -> Life:
        ear, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ear)
            code = 1
            try:
                code = work(tell)
                sys.stdout.flush()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(tell)
        self.number += 1
        self.story.append(f"{time.monotonic():.3f} {self.number} begins: {what} {job}")
        self.alive[child] = Life(self.number, child, ear, what, job)
        return self.alive[child]

    def saver(self, name: str) -> Life:
        luck = random.Random(self.luck.getrandbits(32))
        return self.with_fate(self.life_of_saver(name, luck), 0.8)

    def life_of_saver(self, name: str, luck: random.Random) -> Life:
        life = self.fork("save", name, lambda tell: save_all_the_time(self.pool, name, tell, luck))
        life.newest = self.jobs[name].newest
        return life

    def run(self, *arguments: str) -> Life:
        def work(tell: int) -> int:
            os.dup2(tell, 1)
            os.dup2(tell, 2)
            sys.argv = ["outlive", *arguments]
            try:
                return int(command() or 0)
            except SystemExit as end:
                return int(end.code or 0)

        return self.fork(arguments[0], " ".join(arguments[1:]), work)

    def any(self, what: str) -> Life:
        luck = self.luck
        # The copy is collected as well.
        where = self.copy if luck.random() < 0.25 else self.pool
        job = luck.choice(JOBS)
        if what == "gc":
            life = self.run("gc", where, "--max-unused", luck.choice(("0.001", "5", "50")))
        elif what == "prune":
            keep = str(luck.choice((KEEP_MIN, 3, 6)))
            life = self.run("prune", where, job, "--keep-last", keep)
        elif what == "scrub":
            life = self.run("scrub", where)
        elif what == "pool":
            life = self.operator()
        else:
            jobs = (job,) if luck.random() < 0.7 else ()
            # Prunes of both may leave no common checkpoint.
            life = self.run("copy", self.pool, self.copy, *jobs, "--same-history")
        return self.with_fate(life, 0.4)

    def operator(self, what: str = "") -> Life:
        """Changes the targets or the log, after a look at `pool.toml`, which may be out of date."""
        luck, what = self.luck, what or self.luck.choice(CHANGES)
        config = tomllib.loads((Path(self.pool) / "pool.toml").read_text())
        rows = config["target"]
        spare = [row["id"] for row in rows if row.get("state", "active") != "active"]
        target = str(
            luck.choice(spare if spare and luck.random() < 0.5 else [r["id"] for r in rows])
        )
        self.places += 1
        new = f"../target {self.places}"
        if what == "add" and len(rows) < TARGETS_MAX:
            words = ["add", self.pool, new]
        elif what in ("drain", "remove"):
            words = [what, self.pool, target]
        elif what == "replace":
            words = ["replace", self.pool, target, new]
        elif what == "move-log" and self.away is None:
            logs = list(config["log"]["locations"])
            logs[luck.randrange(len(logs))] = f"../log {self.places}"
            words = ["move-log", self.pool, *(word for log in logs for word in ("--log", log))]
        else:
            words = ["repair", self.pool]
        return self.run("pool", *words)

    def flip(self) -> None:
        """Flips a bit, for each pack always in the same shard, which redundancy corrects.

        A pack that was written while an operator removed a target has less redundancy until a
        repair, and `pool status` reports it; none of its bits flips.
        """
        shards = sorted(self.folder.glob("target */packs/*/*.shard"))
        flips = [
            shard
            for shard in shards
            if int(shard.name.split(".")[-2]) == int(shard.name[:2], 16) % STRIPE
        ]
        if not flips:
            return
        shard = self.luck.choice(flips)
        pack, staying = shard.name.split(".")[0], self.staying()
        parts = {other.name for other in shards if other.name.startswith(pack)}
        there = {other.name for other in shards if other.parts[-4] in staying} & parts
        if len(there) < STRIPE:
            return
        with contextlib.suppress(FileNotFoundError), shard.open("r+b") as file:
            file.seek(self.luck.randrange(max(os.fstat(file.fileno()).st_size, 1)))
            byte = file.read(1)
            file.seek(-len(byte), os.SEEK_CUR)
            file.write(bytes(b ^ 1 << self.luck.randrange(8) for b in byte))
            self.story.append(f"{time.monotonic():.3f} a bit of {shard.name} flips")
            self.counts["flipped"] += 1

    def staying(self) -> set[str]:
        """Returns the folders of targets that are active in the newest two tables in the log."""
        records = {}
        for record in self.folder.glob("log */**/log/%2Etargets/*.record"):
            with contextlib.suppress(FileNotFoundError):
                bytes_ = record.read_bytes()
                if b"[[target]]" in bytes_:
                    # After a header; a replica has several rounds of one number.
                    text = bytes_[bytes_.index(b"next_target") :].decode()
                    records[record.name[:12]] = tomllib.loads(text)["target"]
        tables = [
            {Path(row["location"]).name for row in records[number] if "state" not in row}
            for number in sorted(records)[-2:]
        ]
        return set.intersection(*tables) if tables else set()

    def with_fate(self, life: Life, longest_s: float) -> Life:
        way = self.luck.random()
        if way < 0.75:
            life.due = life.started + longest_s * self.luck.random() ** 2
            life.kill = way < 0.35
        return life

    def act(self, life: Life) -> None:
        life.due = None
        what = "is killed" if life.kill else "is suspended"
        self.story.append(f"{time.monotonic():.3f} {life.number} {what}")
        os.kill(life.child, signal.SIGKILL if life.kill else signal.SIGSTOP)
        if not life.kill:
            life.asleep = self.luck.randint(1, 25)
            self.counts["suspended"] += 1

    def wake(self, life: Life) -> None:
        self.story.append(f"{time.monotonic():.3f} {life.number} goes on")
        life.asleep = 0
        life.started = time.monotonic()
        os.kill(life.child, signal.SIGCONT)
        # It may also be killed where it would have continued.
        if self.luck.random() < 0.3:
            life.due, life.kill = time.monotonic() + 0.3 * self.luck.random(), True

    def listen(self, lives: list[Life]) -> list[Life]:
        """Reads all reports until something is due; returns the lives that are over."""
        now = time.monotonic()
        left = min([life.due - now for life in lives if life.due is not None], default=1.0)
        ready = select.select([life.ear for life in lives], [], [], max(0.0, left))[0]
        over = []
        for life in lives:
            if life.ear in ready:
                part = os.read(life.ear, 65536)
                life.heard += part
                if not part:
                    over.append(life)
        return over

    def end(self, life: Life) -> int:
        """Returns its exit code; an impossible code is a fault."""
        while part := os.read(life.ear, 65536):
            life.heard += part
        os.close(life.ear)
        code = os.waitstatus_to_exitcode(os.waitpid(life.child, 0)[1])
        del self.alive[life.child]
        self.story.append(f"{time.monotonic():.3f} {life.number} ends with {code}")
        if life.what == "save":
            self.judge(life)
        if code == 0:
            self.counts[f"{life.what} done"] += 1
            if life.what == "pool":
                self.counts[f"pool {life.job.split()[0]} done"] += 1
        elif code == -signal.SIGKILL:
            self.counts[f"{life.what} killed"] += 1
        elif code == FENCED:
            self.counts[f"{life.what} fenced"] += 1
        elif code == RETRY:
            self.counts[f"{life.what} told to retry"] += 1
        elif self.may_end_with(life, code):
            self.counts[f"{life.what} ended with {code}"] += 1
        else:
            said = "" if life.what == "save" else life.heard.decode(errors="replace")
            self.fault(f"{life.number}: {life.what} {life.job} ended with {code}: {said}")
        return code

    def may_end_with(self, life: Life, code: int) -> bool:
        """Whether a command may end with this code while targets come and go, and bits flip."""
        if not self.striped:
            return False
        if life.what == "pool":
            # The targets have changed meanwhile. A repair names none.
            return code == INVALID and not life.job.startswith("repair ")
        # Other commands kept a scrub from repairing the damage. `judge` checks the findings of a
        # verification. No bit flips in the copy.
        is_here = life.job in (self.pool, f"{self.pool} --json")
        return life.what in ("scrub", "verify") and is_here and code == DAMAGED

    def fault(self, text: str) -> None:
        self.story.append(f"{time.monotonic():.3f} FAULT {text}")
        self.faults.append(text)

    # Knowledge about the jobs.

    def judge(self, life: Life) -> None:
        job = self.jobs[life.job]
        whole = life.heard[: len(life.heard) // RECORD.size * RECORD.size]
        for what, token, epoch in RECORD.iter_unpack(whole):
            if what == b"B":
                job.begun.setdefault(token, life.number)
            elif what == b"X":
                self.fault(
                    f"{life.number}: {life.job} restored epoch {epoch} wrong, or passed one over"
                )
            elif what in (b"N", b"R"):
                if what == b"N" and epoch < life.newest:
                    self.fault(
                        f"{life.number}: {life.job} restored epoch {epoch} as its newest, after "
                        f"epoch {life.newest}"
                    )
                job.newest = max(job.newest, epoch)
                self.counts["restored"] += epoch > 0
            else:
                job.newest = max(job.newest, epoch)
                self.counts["acknowledged"] += 1
                if job.safe.setdefault(epoch, token) != token:
                    self.fault(f"epoch {epoch} of {life.job} was acknowledged to two writers")
                if what == b"P":
                    job.pinned.add(epoch)

    def look(self, name: str) -> None:
        """Checks the existing checkpoints once all processes are dead."""
        job = self.jobs[name]
        # A few pins stay, the others are removed.
        unpin = sorted(job.pinned)[4:]
        job.pinned.difference_update(unpin)
        there = self.told(self.pool, name, unpin)
        newest = sorted(there)[-KEEP_MIN:]
        for epoch, token in job.safe.items():
            lost = epoch not in there and (
                epoch in job.pinned or len(newest) < KEEP_MIN or epoch > newest[0]
            )
            if lost:
                self.fault(f"epoch {epoch} of {name} was acknowledged and is gone")
            elif there.get(epoch, token) != token:
                self.fault(f"epoch {epoch} of {name} holds another state than acknowledged")
        lives = []
        for epoch, token in sorted(there.items()):
            if token not in job.begun:
                self.fault(f"epoch {epoch} of {name} holds data that no program has saved: {token}")
            lives.append(job.begun.get(token, 0))
        changes = [life for at, life in enumerate(lives) if at == 0 or lives[at - 1] != life]
        if len(changes) != len(set(changes)):
            self.fault(
                f"a fenced writer of {name} has committed: epochs {sorted(there)} are of {lives}"
            )
        for epoch, token in self.told(self.copy, name, []).items():
            if job.safe.get(epoch, token) != token or token not in job.begun:
                self.fault(f"epoch {epoch} of {name} is another one in the copy")
        self.counts["looked at"] += len(there)

    def told(self, pool: str, name: str, unpin: list[int] | None) -> dict[int, int]:
        life = self.fork("look", name, lambda tell: tell_all(pool, name, tell, unpin))
        self.to_its_end(life)
        there = {}
        for what, token, epoch in RECORD.iter_unpack(life.heard):
            there[epoch] = token
            if what == b"X":
                self.fault(f"epoch {epoch} of {name} in {pool} is not what was saved")
        return there

    def to_its_end(self, life: Life, codes: tuple[int, ...] = (0,)) -> int:
        """Waits for a command that must succeed, since no other process works."""
        while life not in self.listen([life]):
            self.check_time(life)
        code = self.end(life)
        if code not in codes and not self.faults:
            self.fault(f"{life.number}: {life.what} {life.job} ended with {code}, all alone")
        return code

    def check_time(self, life: Life) -> None:
        if time.monotonic() - life.started > HANGS_S and not life.asleep:
            self.fault(f"{life.number}: {life.what} {life.job} hangs")
            os.kill(life.child, signal.SIGKILL)
            life.started = time.monotonic()

    def stop(self) -> None:
        """Kills all processes, however the storm ends."""
        for child in self.alive:
            os.kill(child, signal.SIGKILL)

    # The storm.

    def weather(self) -> None:
        """Bits flip; a log replica goes away or comes back."""
        if not self.striped or self.luck.random() < 0.7:
            return
        self.flip()
        if self.luck.random() < 0.7:
            return
        # A move creates the replicas that it names, also one that is away.
        is_moved = any("move-log" in life.job for life in self.alive.values())
        if self.away is not None:
            self.come_back()
        elif not is_moved:
            places = [at for at in self.folder.glob("log *") if at.suffix != ".away"]
            self.away = self.luck.choice(sorted(places))
            self.away.rename(self.away.with_suffix(".away"))
            self.story.append(f"{time.monotonic():.3f} {self.away.name} goes")
            self.counts["place away"] += 1

    def come_back(self) -> None:
        if self.away is not None:
            self.away.with_suffix(".away").rename(self.away)
            self.story.append(f"{time.monotonic():.3f} {self.away.name} comes back")
            self.away = None

    def round(self, lives_max: int) -> None:
        lives = [self.saver(name) for name in SAVERS] + [self.any(what) for what in self.commands]
        begun = len(lives)
        while lives and not self.faults:
            over = self.listen(lives)
            self.weather()
            for life in over:
                self.end(life)
                lives.remove(life)
                for other in lives:
                    if other.asleep:
                        other.asleep -= 1
                        if other.asleep == 0:
                            self.wake(other)
                if begun < lives_max:
                    begun += 1
                    lives.append(
                        self.saver(life.job) if life.what == "save" else self.any(life.what)
                    )
            if all(life.asleep for life in lives):
                for life in lives:
                    self.wake(life)
            now = time.monotonic()
            for life in lives:
                if life.due is not None and life.due <= now:
                    self.act(life)
                self.check_time(life)
        for life in lives:
            os.kill(life.child, signal.SIGKILL)
            self.end(life)
        self.come_back()

    def has_shown_all(self, is_long: bool) -> bool:
        shown = SHOWN + SHOWN_STRIPED * self.striped + SHOWN_LONG * (self.striped and is_long)
        return all(self.counts[what] > 0 for what in shown)

    def make_whole(self) -> None:
        """Runs a scrub and a repair, which repair everything; then any target may be away."""
        # In a storm most changes meet a collector. This one has the pool for itself.
        change = CHANGES[self.counts["rounds"] % len(CHANGES)]
        self.to_its_end(self.operator(change), (0, INVALID, RETRY))
        scrubbed = self.json("scrub", self.pool, "--json")
        # A killed gc has left too little of these to repair them. The next gc deletes them.
        self.unneeded = set(scrubbed["unneeded"])
        if not scrubbed["whole"]:
            self.fault(f"a scrub did not make the pool whole: {scrubbed}")
        if self.to_its_end(self.run("pool", "repair", self.pool)) != 0:
            self.fault("a repair did not make the pool whole")
        status = self.json("pool", "status", self.pool, "--json")
        if not status["redundancy"]:
            self.fault("the status of the pool names no checkpoint")
        for checkpoint in status["redundancy"]:
            if checkpoint["survives"] != 1:
                self.fault(f"not whole: {checkpoint}")
        for row in status["config"]["target"]:
            there = Path(self.pool, row["location"]).resolve()
            if not there.exists():
                self.fault(f"there is no {there}, which is a target: {row}")
            if not self.faults:
                away = there.with_suffix(".away")
                there.rename(away)
                self.verify(self.pool)
                if self.faults:
                    self.fault(f"{there.name} is away, and checkpoints cannot be read")
                away.rename(there)

    def verify(self, pool: str) -> None:
        """Checks that everything is whole, or that no checkpoint needs the damaged data."""
        found = self.json("verify", pool, "--json", codes=(0, DAMAGED))
        jobs = [job for job in found["jobs"] if job["findings"]]
        shards = found["shards"]["findings"]
        needed = [it for it in shards if it["shard"].split(".")[0] not in self.unneeded]
        if jobs or needed:
            self.fault(f"{pool} is not whole: {jobs} {needed}")

    def json(self, *words: str, codes: tuple[int, ...] = (0,)) -> Any:
        life = self.run(*words)
        self.to_its_end(life, codes)
        text = life.heard.decode()
        return json.loads(text[text.index("{") :])

    def check(self) -> None:
        for name in JOBS:
            self.look(name)
        if self.striped:
            self.make_whole()
        for pool in (self.pool, self.copy):
            self.verify(pool)
        self.counts["rounds"] += 1

    def begin(self) -> None:
        """Creates the pools, which collectors need."""
        if self.striped:
            words = ["pool", "init", self.pool, "--erasure", "2+1"]
            for number in range(TARGETS):
                words += ["--target", f"../target {number}"]
            for number in range(PLACES):
                words += ["--log", f"../log {number}"]
            self.to_its_end(self.run(*words))
        for name in JOBS:
            luck = random.Random(self.luck.getrandbits(32))
            self.to_its_end(self.life_of_saver(name, luck))
        self.to_its_end(self.run("pool", "init", self.copy))
        self.to_its_end(self.run("copy", self.pool, self.copy))

    def calm(self) -> None:
        """Checks that each job continues undisturbed, and that all unneeded data goes."""
        for name in JOBS:
            self.to_its_end(self.life_of_saver(name, random.Random(self.luck.getrandbits(32))))
            self.told(self.pool, name, None)
            self.jobs[name].pinned.clear()
            self.to_its_end(self.run("prune", self.pool, name, "--keep-last", "1"))
            # Programs went back: a prune drops the newest of each earlier chain only by its number.
            earlier = sorted(self.told(self.pool, name, []))[:-1]
            drops = [word for epoch in earlier for word in ("--drop", str(epoch))]
            if drops:
                self.to_its_end(self.run("prune", self.pool, name, *drops))
        if self.striped:
            self.make_whole()
        fences = [argument for name in JOBS for argument in ("--fence", name)]
        for number in range(GCS_MAX):
            # On a busy machine a gc ends before a slow log replica: the next one removes its rest.
            if number < 2 or left(self)["left_overs"]:
                self.to_its_end(self.run("gc", self.pool, "--max-unused", "0.001", *fences))
        self.to_its_end(self.run("verify", self.pool))
        for name in JOBS:
            there = self.told(self.pool, name, [])
            if len(there) != 1:
                self.fault(f"one checkpoint of {name} was to stay, and {sorted(there)} are there")


def left(storm: Storm) -> dict[str, int]:
    """Counts all parts of the pool that are left, without its copy."""
    copy = Path(storm.copy)
    files = [
        path for path in storm.folder.rglob("*") if path.is_file() and copy not in path.parents
    ]
    return {
        "left_files": len(files),
        "left_bytes": sum(path.stat().st_blocks * 512 for path in files),
        "left_overs": sum(
            path.suffix == ".part" or path.name.startswith(".tmp-") for path in files
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--lives", type=int, default=0, help="number of lives, at least")
    parser.add_argument("--minutes", type=float, default=0, help="minutes, at least")
    parser.add_argument("--striped", action="store_true", help="several targets and log places")
    given = parser.parse_args()
    storm = Storm(given.folder, given.seed, given.striped)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        told = blow(storm, given.lives, given.minutes)
    finally:
        storm.stop()
    if storm.faults:
        print("\n".join(storm.story), file=sys.stderr)
    print(json.dumps(told))
    if storm.faults and given.minutes:
        sys.exit(1)


def blow(storm: Storm, lives: int, minutes: float) -> dict[str, Any]:
    storm.begin()
    until = time.monotonic() + 60 * minutes
    while not storm.faults and (
        storm.number < lives or time.monotonic() < until or not storm.has_shown_all(minutes > 0)
    ):
        storm.round(ROUND_LIVES)
        if not storm.faults:
            storm.check()
        if minutes:
            print(f"{storm.number} lives: {dict(storm.counts)}", file=sys.stderr, flush=True)
    if not storm.faults:
        storm.calm()
    return {"lives": storm.number, **storm.counts, **left(storm), "faults": storm.faults}


if __name__ == "__main__":
    main()
