//! A pool of a schedule, and the faults there, by the schedule's seed. It is built on a
//! [`FaultWorld`].

use crate::authors::ReplicasOracle;
use crate::blows::Harm;
use crate::chance::Chance;
use crate::emissions::Emissions;
use crate::leases::Leases;
use crate::oracle::Oracle;
use crate::space::Space;
use crate::table::{Markers, WrittenDown, markers_of};
use outlive_backend::{CutMode, FaultProcess, FaultWorld, Target};
use outlive_dir::{DirectoryLog, DirectoryMedium};
use outlive_log::RecordLog;
use outlive_types::sync::pause;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, JobName, Result, SeededRng};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tempfile::TempDir;

/// The kind of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogKind {
    /// Memory, without locks.
    Plain,
    /// Memory, with locks that end with their holder.
    Locks,
    /// A directory: others may also run between the steps of an append.
    Directory,
    /// Three replicas, of which one may be away: others may run at each step of each replica.
    Places,
}

/// One pool of a schedule.
#[derive(Clone)]
pub struct PoolWorld {
    /// Name of the pool in messages.
    pub name: &'static str,
    /// The stored data.
    pub world: FaultWorld,
    /// The data that must be there.
    pub oracle: Oracle,
    /// Its targets.
    pub(crate) space: Space,
    /// The target at each location.
    pub(crate) markers: Markers,
    /// The targets that its descriptor names, or has named.
    pub(crate) written_down: WrittenDown,
    /// The log, unless it is that of `world`.
    pub(crate) directory: Option<Arc<(DirectoryLog, TempDir)>>,
    /// Records that a program cannot read: the program, the job, the number.
    pub(crate) unreadable: Arc<Mutex<BTreeSet<(usize, JobName, u64)>>>,
    /// The leases of its log.
    pub(crate) leases: Leases,
    /// The state of its log's replicas, if it has several.
    pub(crate) replicas: Arc<ReplicasOracle>,
    /// The harm done to single targets.
    pub(crate) harm: Arc<Harm>,
    /// The outputs of its programs with a gate.
    pub(crate) emissions: Arc<Mutex<Emissions>>,
    /// Number of disks that new hosts have brought.
    disks: Arc<AtomicUsize>,
    kind: LogKind,
    pub(crate) dice: Arc<Chance>,
}

impl PoolWorld {
    /// Returns a disk that no host has brought yet, if there is one.
    pub(crate) fn new_disk(&self) -> Option<usize> {
        let first = self.space.used() - self.space.spare;
        let disk = first + self.disks.fetch_add(1, Ordering::Relaxed);
        (disk < self.space.used()).then_some(disk)
    }

    /// Returns an empty pool.
    pub fn new(name: &'static str, kind: LogKind, space: &Space, dice: &Arc<Chance>) -> PoolWorld {
        let world = match kind {
            LogKind::Locks => FaultWorld::with_locks(),
            LogKind::Plain | LogKind::Directory | LogKind::Places => FaultWorld::new(),
        };
        let directory = (kind == LogKind::Directory).then(|| {
            // In memory, if possible: the log makes and syncs many files.
            let dir = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new());
            let dir = dir.expect("a directory for a log can be made");
            Arc::new((RecordLog::over(DirectoryMedium::open(dir.path())), dir))
        });
        let oracle = Oracle::default();
        let (unreadable, dice) = (Arc::default(), dice.clone());
        let space = space.clone();
        let markers = markers_of(&space);
        let (written_down, leases, replicas, harm, emissions) = Default::default();
        PoolWorld {
            name,
            world,
            oracle,
            space,
            markers,
            written_down,
            directory,
            unreadable,
            leases,
            replicas,
            harm,
            emissions,
            disks: Arc::default(),
            kind,
            dice,
        }
    }

    /// Returns its targets without faults.
    pub(crate) fn all_targets(&self) -> Vec<Arc<dyn Target>> {
        self.world.process_with(self.space.targets_max()).0
    }

    /// Whether its log is in a directory, which does not notice kills.
    pub fn is_directory(&self) -> bool {
        self.directory.is_some()
    }

    /// Whether its log has several replicas.
    pub fn has_replicas(&self) -> bool {
        self.kind == LogKind::Places
    }

    /// Whether its log has locks.
    pub fn has_locks(&self) -> bool {
        self.is_directory() || self.world.has_locks()
    }

    /// Whether operations fail only by a draw for each.
    pub fn never_fails(&self) -> bool {
        let Space { moves, slow, operated, .. } = self.space;
        !(moves || slow || operated || self.space.survives() > 0 || self.has_replicas())
    }

    /// Whether an operator repairs it at the end: redundancy makes up for all harm.
    pub fn settles(&self) -> bool {
        let Space { volatile, redundancy, .. } = &self.space;
        !volatile && (redundancy.survives() > 0 || self.space.has_table())
    }

    /// Damages the headers of some shards. No restore reads them; a scrub copies all data out.
    pub fn scratch(&self, rng: &SeededRng) {
        let all = self.all_targets();
        let shards = all.iter().flat_map(|target| target.list().unwrap_or_default());
        for shard in shards.filter(|_| rng.below(2) == 0) {
            self.world.corrupt(shard, 16 + rng.below(8), 1 << rng.below(8));
        }
        self.oracle.is_scratched();
    }
}

/// One program at one pool.
pub(crate) struct Me {
    pub number: usize,
    /// Name of its thread, which is held up with the threads that it has started.
    pub who: String,
    pub pool_world: PoolWorld,
    pub process: FaultProcess,
    /// Whether one of its own operations has failed.
    pub has_failed: AtomicBool,
}

impl fmt::Debug for Me {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {} at {}", self.who, self.pool_world.name)
    }
}

impl Me {
    /// Lets others run, and then does the work, unless a fault is drawn.
    pub fn step<T>(
        &self,
        what: impl FnOnce() -> String,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let what = what();
        pause(&what);
        match self.writes_files() && self.is_dead() {
            true => Err(killed()),
            false => self.try_luck(&what, work),
        }
    }

    /// Whether the log is in a directory, which does not notice kills.
    pub fn writes_files(&self) -> bool {
        self.pool_world.is_directory()
    }

    /// Counts down one step to the kill of the program; returns true if it is dead.
    pub fn dies(&self) -> bool {
        self.process.step() || self.pool_world.world.crashed()
    }

    pub fn is_dead(&self) -> bool {
        self.process.is_killed() || self.pool_world.world.crashed()
    }

    /// Notes that an operation of this program fails.
    pub fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
        self.pool_world.dice.fail();
    }

    fn try_luck<T>(&self, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let (dice, world) = (&self.pool_world.dice, &self.pool_world.world);
        let chances = dice.chances();
        if self.is_dead() {
            return work();
        }
        let tell = |what: &str| dice.turns().remark(|| what.to_owned());
        if dice.has(chances.hold) {
            let steps = 1 << dice.rng.below(12);
            tell("this program is held up");
            dice.turns().hold(&self.who, steps);
            // It has just looked at its lock before it deletes something.
            let is_checked = what.starts_with("delete");
            if !is_checked && world.is_collecting(&self.process) && dice.rng.below(2) == 0 {
                tell("its lock ends, as with a session of a storage node");
                dice.lock_ends(self.number);
                world.end_collecting();
            }
            pause("held up");
        }
        if dice.has(chances.kill) {
            tell("this program will be killed");
            dice.kill();
            self.process.kill_after(1 + dice.rng.below(3));
        }
        if dice.has(chances.power_cut) {
            tell("the power is cut");
            dice.kill();
            self.pool_world.oracle.power_is_cut();
            world.cut_now(CutMode::ALL[dice.rng.below(3) as usize]);
        }
        if dice.has(chances.error) {
            tell("this fails");
            self.fail();
            return Err(Error::retry("simulated: the medium does not answer"));
        }
        let done = work()?;
        if dice.has(chances.lost_reply) {
            tell("the reply to this is lost");
            self.fail();
            return Err(Error::retry("simulated: the reply was lost"));
        }
        Ok(done)
    }
}

/// Whether these are messages of ranks.
pub(crate) fn is_mail(job: &JobName) -> bool {
    job.is_reserved() && !job.is_gc()
}

/// Returns the error for a killed program.
pub(crate) fn killed() -> Error {
    Error::retry("crashed: the simulated program was killed")
}

impl Me {
    /// Makes a record unreadable forever for a program.
    pub fn hide(&self, program: usize, job: &JobName, number: u64) {
        self.fail();
        self.pool_world.unreadable.lock().insert((program, job.clone(), number));
    }

    /// Whether this program can read a record.
    pub fn sees(&self, job: &JobName, number: u64) -> bool {
        !self.pool_world.unreadable.lock().contains(&(self.number, job.clone(), number))
    }

    /// Notes a record of a directory when it gets its number. One that comes too late, after newer
    /// numbers, does not count: it is taken back.
    pub fn note(
        self: Arc<Self>,
        job: JobName,
        number: u64,
        record: Vec<u8>,
        noted: Arc<AtomicBool>,
    ) -> impl FnOnce() + 'static {
        move || {
            let log = self.pool_world.log();
            if !is_mail(&job) && log.latest(&job).is_ok_and(|latest| latest == number) {
                self.pool_world.oracle.appended(self.number, &job, &record, &*log);
            }
            noted.store(true, Ordering::Relaxed);
        }
    }
}
