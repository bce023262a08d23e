//! A pool of a schedule, and what goes wrong there, as the schedule's seed says. Beneath lies a
//! [`FaultWorld`].

use crate::case::LogKind;
use crate::seen::{noted, seen};
use crate::truth::Truth;
use crate::turns::Turns;
use outlive_pool::{Environment, FormatConfig, Pool, PoolConfig, Tuning};
use outlive_target::{CutMode, DirectoryLog, FaultProcess, FaultWorld, ManifestLog, Target};
use outlive_types::sync::pause;
use outlive_types::{
    Clock, Error, Event, JobName, NoObserver, Observer, PackId, Result, SeededRng,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// A bit of the session that has just been opened is flipped, and its writer is held up until
    /// nobody else can go on.
    pub flip_session: u64,
    /// A program cannot read the newest record any more.
    pub unreadable: u64,
    /// Whoever loses a job to the session that has just been opened cannot read that.
    pub hide_session: u64,
}

impl Chances {
    /// Whether records may be damaged.
    pub fn flips_records(&self) -> bool {
        self.flip_record + self.flip_session > 0
    }
}

/// What a log does that no log may do: the checks must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// An append replaces what others have appended meanwhile.
    AppendsReplace,
    /// A record is read with a bit that is wrong, though none has flipped.
    ReadsWrongly,
}

/// What all programs of a schedule share: turns, chances, a clock.
pub struct Luck {
    pub(crate) rng: SeededRng,
    chances: Chances,
    lie: Option<Lie>,
    /// Only while programs are at work.
    active: AtomicBool,
    /// Some operation has failed.
    failed: AtomicBool,
    /// How often each role has done what it is there for.
    achieved: Mutex<BTreeMap<&'static str, u64>>,
    turns: Turns,
    now_ns: AtomicU64,
}

impl Luck {
    /// Nothing goes wrong before [`Luck::begin`].
    pub fn new(seed: u64, chances: Chances, lie: Option<Lie>, turns: Turns) -> Arc<Luck> {
        let rng = SeededRng::new(seed ^ 0x1AC4);
        let (active, failed, achieved, now_ns) = Default::default();
        Arc::new(Luck { rng, chances, lie, active, failed, achieved, turns, now_ns })
    }

    /// From now on things go wrong, or do so no more.
    pub fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Relaxed);
    }

    /// What may go wrong.
    pub fn chances(&self) -> Chances {
        self.chances
    }

    /// Whether some operation has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// A role has done what it is there for.
    pub fn achieved(&self, what: &'static str) {
        if self.active.load(Ordering::Relaxed) {
            *lock(&self.achieved).entry(what).or_default() += 1;
        }
    }

    /// How often each role has done what it is there for.
    pub fn achievements(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.achieved).clone()
    }

    /// The lie that is told now.
    pub fn lies(&self, lie: Lie) -> bool {
        self.lie == Some(lie) && self.active.load(Ordering::Relaxed)
    }

    /// Whose turn it is.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    pub(crate) fn has(&self, chance: u64) -> bool {
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
pub struct PoolWorld {
    /// Its name in messages.
    pub name: &'static str,
    /// What is stored.
    pub world: FaultWorld,
    /// What must be.
    pub truth: Truth,
    /// The log, if it is not that of `world`.
    directory: Option<Arc<(DirectoryLog, TempDir)>>,
    /// Records that somebody cannot read: the program, the job, the number.
    pub(crate) unreadable: Arc<Mutex<BTreeSet<(usize, JobName, u64)>>>,
    pub(crate) luck: Arc<Luck>,
}

impl PoolWorld {
    /// An empty pool.
    pub fn new(name: &'static str, kind: LogKind, luck: &Arc<Luck>) -> PoolWorld {
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
        PoolWorld { name, world, truth, directory, unreadable: Arc::default(), luck: luck.clone() }
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
        let (target, log) = seen(target, log, &me);
        (pool_of(target, log, self.env(seed)), process)
    }

    /// The pool with nobody between, and a note of each pack that is read.
    pub fn quiet_pool(&self, seed: u64) -> (Pool, Arc<Mutex<BTreeSet<PackId>>>) {
        let read = Arc::new(Mutex::default());
        let target = noted(self.world.target(), &read);
        (pool_of(target, self.log(), self.env(seed)), read)
    }

    /// Damages the headers of some shards. No restore reads them; a scrub moves everything out.
    pub fn scratch(&self, rng: &SeededRng) {
        let shards = self.world.target().list().unwrap_or_default();
        for shard in shards.into_iter().filter(|_| rng.below(2) == 0) {
            self.world.corrupt(shard, 16 + rng.below(8), 1 << rng.below(8));
        }
        self.truth.is_scratched();
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
    Pool::new(PoolConfig::new(format, tuning), target, log, env)
}

/// One program at one pool.
pub(crate) struct Me {
    pub number: usize,
    pub place: PoolWorld,
    process: FaultProcess,
}

impl fmt::Debug for Me {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {} at {}", self.number, self.place.name)
    }
}

impl Me {
    /// Lets others in, and then does something, unless it goes wrong.
    pub fn step<T>(
        &self,
        what: impl FnOnce() -> String,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        pause(&what());
        match self.writes_files() && self.is_dead() {
            true => Err(killed()),
            false => self.try_luck(work),
        }
    }

    /// Whether the log is a directory's, which does not know who was killed.
    pub fn writes_files(&self) -> bool {
        self.place.directory.is_some()
    }

    /// Counts a step down to the moment in which the program is killed; true if it is dead.
    pub fn dies(&self) -> bool {
        self.process.step() || self.place.world.crashed()
    }

    pub fn is_dead(&self) -> bool {
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
            self.place.truth.power_is_cut();
            world.cut_now(CutMode::ALL[luck.rng.below(3) as usize]);
        }
        if luck.has(chances.error) {
            tell("this fails");
            luck.failed.store(true, Ordering::Relaxed);
            return Err(Error::retry("simulated: the medium does not answer"));
        }
        let done = work()?;
        if luck.has(chances.lost_reply) {
            tell("the reply to this is lost");
            luck.failed.store(true, Ordering::Relaxed);
            return Err(Error::retry("simulated: the reply was lost"));
        }
        Ok(done)
    }
}

/// What a program hears that was killed.
pub(crate) fn killed() -> Error {
    Error::retry("crashed: the simulated program was killed")
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Me {
    /// A program can never read that record again.
    pub fn hide(&self, program: usize, job: &JobName, number: u64) {
        self.place.luck.failed.store(true, Ordering::Relaxed);
        lock(&self.place.unreadable).insert((program, job.clone(), number));
    }

    /// Whether it can read that record.
    pub fn sees(&self, job: &JobName, number: u64) -> bool {
        !lock(&self.place.unreadable).contains(&(self.number, job.clone(), number))
    }

    /// Notes a record of a directory in the moment in which it gets its number. One that comes too
    /// late, when others have newer numbers, is none: it is taken back.
    pub fn note(
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
