//! A pool as the programs of a schedule see it: every operation is a moment at which others may go
//! on, and may fail as the schedule's seed says. Beneath lies a [`FaultWorld`].

use crate::case::LogKind;
use crate::truth::Truth;
use crate::turns::{Turns, noticing};
use outlive_io::{AlignedBuf, Ticket};
use outlive_pool::{Environment, FormatConfig, Pool, PoolConfig, Tuning};
use outlive_target::{
    Append, Capacity, CutMode, DirectoryLog, FaultProcess, FaultWorld, Lock, LockGuard,
    ManifestLog, Previous, ReadRange, ShardName, ShardWriter, Target, WriteTicket,
};
use outlive_types::sync::pause;
use outlive_types::{Clock, Error, Event, JobName, NoObserver, Observer, Result, SeededRng};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// What may go wrong, each with a chance in 65,536 for every operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chances {
    /// The program is killed, now or within an operation soon.
    pub kill: u64,
    /// The whole machine loses its power.
    pub power_cut: u64,
    /// The operation fails and has no effect.
    pub error: u64,
    /// It has its effect, and fails all the same.
    pub lost_reply: u64,
    /// The program is held up for long.
    pub hold: u64,
    /// A bit of a record that has just been appended is flipped.
    pub flip_record: u64,
    /// A bit of a shard that has just been finished is flipped.
    pub flip_shard: u64,
    /// A program cannot read the newest record any more.
    pub unreadable: u64,
}

impl Chances {
    /// Whether operations may fail.
    pub fn errors(&self) -> bool {
        self.error + self.lost_reply + self.unreadable > 0
    }

    /// Whether anything stored may be damaged.
    pub fn damage(&self) -> bool {
        self.flip_record + self.flip_shard > 0
    }
}

/// What all programs of a schedule share: turns, chances, a clock.
pub struct Luck {
    rng: SeededRng,
    chances: Chances,
    /// Only while programs are at work.
    active: AtomicBool,
    turns: Turns,
    now_ns: AtomicU64,
}

impl Luck {
    /// Nothing goes wrong before [`Luck::begin`].
    pub fn new(seed: u64, chances: Chances, turns: Turns) -> Arc<Luck> {
        let rng = SeededRng::new(seed ^ 0x1AC4);
        let (active, now_ns) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Luck { rng, chances, active, turns, now_ns })
    }

    /// From now on things go wrong, or do so no more.
    pub fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Relaxed);
    }

    /// What may go wrong.
    pub fn chances(&self) -> Chances {
        self.chances
    }

    /// Whose turn it is.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    fn has(&self, chance: u64) -> bool {
        chance > 0 && self.active.load(Ordering::Relaxed) && self.rng.below(1 << 16) < chance
    }
}

/// Each look takes a while.
impl Clock for Luck {
    fn unix_ns(&self) -> u64 {
        self.now_ns.fetch_add(1_000, Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.unix_ns())
    }
}

/// One pool of a schedule.
#[derive(Clone)]
pub struct Place {
    /// Its name in messages.
    pub name: &'static str,
    /// What is stored.
    pub world: FaultWorld,
    /// What must be.
    pub truth: Truth,
    /// The log, if it is not that of `world`.
    directory: Option<Arc<(DirectoryLog, TempDir)>>,
    /// Records that somebody cannot read: the program, the job, the number.
    unreadable: Arc<Mutex<BTreeSet<(usize, JobName, u64)>>>,
    luck: Arc<Luck>,
}

impl Place {
    /// An empty pool.
    pub fn new(name: &'static str, kind: LogKind, luck: &Arc<Luck>) -> Place {
        let world = match kind {
            LogKind::Locks => FaultWorld::with_locks(),
            LogKind::Plain | LogKind::Directory => FaultWorld::new(),
        };
        let directory = (kind == LogKind::Directory).then(|| {
            // In memory, where there is such a place: many files are made and synced.
            let dir = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new());
            let dir = dir.expect("a directory for a log can be made");
            Arc::new((DirectoryLog::open(dir.path()), dir))
        });
        let truth = Truth::default();
        Place { name, world, truth, directory, unreadable: Arc::default(), luck: luck.clone() }
    }

    /// The log with nobody between.
    pub fn log(&self) -> Arc<dyn ManifestLog> {
        match &self.directory {
            Some(directory) => Arc::new(DirectoryLog::open(directory.1.path())),
            None => self.world.log(),
        }
    }

    /// Whether its log has locks.
    pub fn has_locks(&self) -> bool {
        self.directory.is_some() || self.world.has_locks()
    }

    /// The pool as the program `number` sees it.
    pub fn pool(&self, number: usize, seed: u64) -> (Pool, FaultProcess) {
        let (target, mut log, process) = self.world.process();
        if self.directory.is_some() {
            log = self.log();
        }
        let me = Arc::new(Me { number, place: self.clone(), process: process.clone() });
        let target = Arc::new(SeenTarget { inner: target, me: me.clone() });
        (pool_of(target, Arc::new(SeenLog { inner: log, me }), self.env(seed)), process)
    }

    /// The pool with nobody between, and a note of each shard that is read.
    pub fn quiet_pool(&self, seed: u64) -> (Pool, Arc<Mutex<BTreeSet<ShardName>>>) {
        let read = Arc::new(Mutex::default());
        let target = Noting { inner: self.world.target(), read: read.clone() };
        (pool_of(Arc::new(target), self.log(), self.env(seed)), read)
    }

    /// What was going on here, for a message.
    fn env(&self, seed: u64) -> Environment {
        Environment {
            clock: self.luck.clone(),
            rng: Arc::new(SeededRng::new(seed)),
            observer: Arc::new(Remarks(self.luck.clone())),
        }
    }
}

/// Writes warnings into the trace.
struct Remarks(Arc<Luck>);

impl Observer for Remarks {
    fn event(&self, event: Event) {
        match event {
            Event::Warning(text) => self.0.turns.remark(|| text),
            other => NoObserver.event(other),
        }
    }
}

/// Small sizes, and nothing that depends on how fast the machine is.
fn pool_of(target: Arc<dyn Target>, log: Arc<dyn ManifestLog>, env: Environment) -> Pool {
    let format = FormatConfig {
        container_bytes: 64 << 10,
        pack_bytes: 64 << 10,
        chunk_bytes_max: 4 << 10,
        ..FormatConfig::new([7; 16])
    };
    let tuning = Tuning {
        staging_bytes: 512 << 10,
        freeze_bytes_max: 1 << 20,
        freeze: "copy".to_owned(),
        tracker: "hash".to_owned(),
        threads: 1,
        compression: "none".to_owned(),
        ..Tuning::default()
    };
    Pool::new(PoolConfig { format, tuning }, target, log, env)
}

/// One program at one pool.
struct Me {
    number: usize,
    place: Place,
    process: FaultProcess,
}

impl fmt::Debug for Me {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {} at {}", self.number, self.place.name)
    }
}

impl Me {
    /// Lets others in, and then does something, unless it goes wrong.
    fn step<T>(
        &self,
        what: impl FnOnce() -> String,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        pause(&what());
        // A directory does not know who was killed.
        match self.place.directory.is_some() && self.is_dead() {
            true => Err(Error::retry("crashed: the simulated program was killed")),
            false => self.try_luck(work),
        }
    }

    fn is_dead(&self) -> bool {
        self.process.is_killed() || self.place.world.crashed()
    }

    fn try_luck<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let (luck, world) = (&self.place.luck, &self.place.world);
        let chances = luck.chances;
        if self.is_dead() {
            return work();
        }
        let tell = |what: &str| luck.turns.remark(|| what.to_owned());
        if luck.has(chances.hold) {
            let steps = 1 << luck.rng.below(12);
            tell("this program is held up");
            luck.turns.hold(self.number, steps);
            pause("held up");
        }
        if luck.has(chances.kill) {
            tell("this program will be killed");
            self.process.kill_after(1 + luck.rng.below(3));
        }
        if luck.has(chances.power_cut) {
            tell("the power is cut");
            world.cut_now(CutMode::ALL[luck.rng.below(3) as usize]);
        }
        if luck.has(chances.error) {
            tell("this fails");
            return Err(Error::retry("simulated: the medium does not answer"));
        }
        let done = work()?;
        if luck.has(chances.lost_reply) {
            tell("the reply to this is lost");
            return Err(Error::retry("simulated: the reply was lost"));
        }
        Ok(done)
    }
}

impl Me {
    /// Notes a record of a directory in the moment in which it gets its number. One that comes too
    /// late, when others have newer numbers, is none: it is taken back.
    fn note(
        self: Arc<Self>,
        job: JobName,
        number: u64,
        record: Vec<u8>,
        noted: Arc<AtomicBool>,
    ) -> impl FnOnce() + 'static {
        move || {
            let log = self.place.log();
            if log.latest(&job).is_ok_and(|latest| latest == number) {
                self.place.truth.appended(self.number, &job, &record, &*log);
            }
            noted.store(true, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
struct SeenTarget {
    inner: Arc<dyn Target>,
    me: Arc<Me>,
}

impl Target for SeenTarget {
    fn describe(&self) -> String {
        format!("the simulated target {}", self.me.place.name)
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        let writer =
            self.me.step(|| format!("create {shard}"), || self.inner.create(shard, bytes_max))?;
        Ok(Box::new(SeenWriter { inner: writer, shard, me: self.me.clone() }))
    }

    fn read_ranges(
        &self,
        shard: ShardName,
        ranges: Vec<ReadRange>,
    ) -> Vec<Ticket<Result<AlignedBuf>>> {
        let one = |range: ReadRange| {
            let what = format!("read {shard} at {}", range.offset);
            let read = self.me.step(
                || what,
                || {
                    let ticket = self.inner.read_ranges(shard, vec![range]).pop();
                    ticket.ok_or_else(|| Error::bug("a read without a ticket"))?.wait()
                },
            );
            Ticket::done(read)
        };
        ranges.into_iter().map(one).collect()
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        self.me.step(|| format!("length of {shard}"), || self.inner.length(shard))
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        self.me.step(|| "list shards".to_owned(), || self.inner.list())
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        self.me.step(|| "list unfinished shards".to_owned(), || self.inner.unfinished())
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        self.me.step(
            || format!("delete {shard} unless it is finished"),
            || self.inner.delete_unfinished(shard),
        )
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.me.step(|| format!("delete {shard}"), || self.inner.delete(shard))
    }

    fn capacity(&self) -> Result<Capacity> {
        self.inner.capacity()
    }
}

struct SeenWriter {
    inner: Box<dyn ShardWriter>,
    shard: ShardName,
    me: Arc<Me>,
}

impl ShardWriter for SeenWriter {
    fn write(&mut self, offset: u64, length: usize, buffer: AlignedBuf) -> WriteTicket {
        // Nobody sees a part's bytes before it is finished: no turn is needed here.
        self.inner.write(offset, length, buffer)
    }

    fn finish(self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        let SeenWriter { inner, shard, me } = *self;
        let finish = move || {
            let finished = me.step(|| format!("finish {shard}"), || inner.finish(length).wait());
            let luck = &me.place.luck;
            if finished.is_ok() && luck.has(luck.chances.flip_shard) {
                let offset = luck.rng.below(length);
                luck.turns.remark(|| format!("a bit of {shard} is flipped at {offset}"));
                me.place.world.corrupt(shard, offset, 1 << luck.rng.below(8));
            }
            finished
        };
        // A disk does it at once, or only when it is waited for.
        Ticket::done(finish())
    }
}

#[derive(Debug)]
struct SeenLog {
    inner: Arc<dyn ManifestLog>,
    me: Arc<Me>,
}

impl ManifestLog for SeenLog {
    fn describe(&self) -> String {
        format!("the simulated log {}", self.me.place.name)
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.me.step(|| "list jobs".to_owned(), || self.inner.jobs())
    }

    fn numbers(&self, job: &JobName) -> Result<Vec<u64>> {
        self.me.step(|| format!("list records of {job}"), || self.inner.numbers(job))
    }

    fn latest(&self, job: &JobName) -> Result<u64> {
        self.me.step(|| format!("newest record of {job}"), || self.inner.latest(job))
    }

    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>> {
        let Me { number: me, place, .. } = &*self.me;
        self.me.step(
            || format!("read record {number} of {job}"),
            || {
                let luck = &place.luck;
                let mut unreadable =
                    place.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
                let refused = (*me, job.clone(), number);
                if luck.has(luck.chances.unreadable) {
                    luck.turns.remark(|| "this program can never read this record".to_owned());
                    unreadable.insert(refused.clone());
                }
                match unreadable.contains(&refused) {
                    true => Err(Error::retry("simulated: permission denied")),
                    false => self.inner.read(job, number),
                }
            },
        )
    }

    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append> {
        let place = &self.me.place;
        let number = previous.number + 1;
        self.me.step(
            || format!("append record {number} to {job}"),
            || {
                let there = || place.log().read(job, number);
                let was_there = there().is_ok();
                let noted = Arc::new(AtomicBool::new(false));
                let appended = noticing(
                    "the record has its number",
                    self.me.clone().note(job.clone(), number, record.to_vec(), noted.clone()),
                    || self.inner.append_if(job, previous, record),
                );
                // Whatever it answers, as it may have been killed half-way.
                let is_noted = noted.load(Ordering::Relaxed);
                if !is_noted && !was_there && there().is_ok_and(|bytes| bytes == record) {
                    place.truth.appended(self.me.number, job, record, &*place.log());
                }
                let luck = &place.luck;
                if there().is_ok_and(|bytes| bytes == record) && luck.has(luck.chances.flip_record)
                {
                    luck.turns.remark(|| format!("a bit of record {number} is flipped"));
                    let offset = luck.rng.below(record.len() as u64);
                    place.world.corrupt_record(job, number, offset, 1 << luck.rng.below(8));
                }
                appended
            },
        )
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        self.me.step(
            || format!("remove records of {job} before {number}"),
            || self.inner.remove_before(job, number),
        )
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.me.step(|| format!("sync the log of {job}"), || self.inner.sync(job))
    }

    fn lock_collecting(&self) -> Result<Lock> {
        self.me.step(|| "lock for collecting".to_owned(), || self.inner.lock_collecting())
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.me.step(|| "lock for reading".to_owned(), || self.inner.lock_reading())
    }

    fn is_read(&self) -> Result<bool> {
        self.me.step(|| "is somebody reading?".to_owned(), || self.inner.is_read())
    }
}

/// Notes which shards are read.
#[derive(Debug)]
struct Noting {
    inner: Arc<dyn Target>,
    read: Arc<Mutex<BTreeSet<ShardName>>>,
}

impl Target for Noting {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.inner.create(shard, bytes_max)
    }

    fn read_ranges(
        &self,
        shard: ShardName,
        ranges: Vec<ReadRange>,
    ) -> Vec<Ticket<Result<AlignedBuf>>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(shard);
        self.inner.read_ranges(shard, ranges)
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        self.inner.length(shard)
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        self.inner.list()
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        self.inner.unfinished()
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        self.inner.delete_unfinished(shard)
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.inner.delete(shard)
    }

    fn capacity(&self) -> Result<Capacity> {
        self.inner.capacity()
    }
}
