//! The injector of the fault model: a world in memory that loses power at a chosen operation.
//!
//! Every durable step is a numbered operation. A test crashes a save at each of them in turn:
//!
//! ```
//! use outlive_backend::{CutMode, FaultWorld};
//! use outlive_log::Previous;
//! use outlive_types::JobName;
//!
//! let job = JobName::new("demo").unwrap();
//! let save = |world: &FaultWorld| world.log().append_if(&job, Previous::NONE, b"record");
//! let calm = FaultWorld::new();
//! save(&calm).unwrap();
//! for number in 0..calm.ops() {
//!     for mode in CutMode::ALL {
//!         let world = FaultWorld::new();
//!         world.cut_at(number, mode);
//!         assert!(save(&world).is_err());
//!         world.reboot();
//!         let left = world.log().numbers(&job).unwrap(); // there or not, never half
//!         assert!(left.is_empty() || world.log().read(&job, 1).unwrap() == b"record");
//!     }
//! }
//! ```

mod disks;
mod log;
mod shards;
mod slow;

pub use disks::DiskCopy;

use crate::{ShardName, Target};
use log::FaultMedium;
use outlive_log::ManifestLog;
use outlive_log::{LogMedium, RecordLog};
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, ErrorKind, JobName};
use shards::FaultTarget;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The effect of a power cut on the current operation, and on names that are visible but not
/// durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutMode {
    /// The operation has no effect; only durable data survives.
    Lost,
    /// The operation takes effect, but its reply is lost; visible names turn out durable.
    Kept,
    /// A write is half done, and unfinished shards are left behind. Some records that were removed
    /// without a sync are back. All else is as in `Lost`.
    Torn,
}

impl CutMode {
    /// All modes, for a loop.
    pub const ALL: [CutMode; 3] = [CutMode::Lost, CutMode::Kept, CutMode::Torn];
}

/// A target and a log with operations that are numbered from 0, and that fail on request.
///
/// A target's `create`, `replace`, each `write` and `delete` are numbered, and the two steps of
/// `finish`: the shard becomes visible, then durable. So are `put_new`, `delete` and `sync` of the
/// log's medium, below the protocol of appending. Reads are numbered only after
/// [`FaultWorld::count_reads`]. Operations take effect within the call, so a single-threaded caller
/// meets the same numbers every time.
///
/// After a cut every operation fails with `Retry`. After [`FaultWorld::reboot`] old handles still
/// do: they belong to the machine before.
#[derive(Clone, Default)]
pub struct FaultWorld(Arc<Mutex<World>>);

type Judge = Box<dyn Fn(u64, &str) -> Option<ErrorKind> + Send>;

#[derive(Default)]
struct World {
    boots: u64,
    crashed: bool,
    history: Vec<String>,
    count_reads: bool,
    cut: Option<(u64, CutMode)>,
    failures: BTreeMap<u64, ErrorKind>,
    judge: Option<Judge>,
    /// The finished shards, by target and name.
    shards: BTreeMap<(usize, ShardName), Kept>,
    /// The data of unfinished shards.
    parts: BTreeMap<(usize, ShardName), Part>,
    /// Number of parts begun so far.
    parts_begun: u64,
    /// Targets that cannot be reached now.
    away: BTreeSet<usize>,
    /// Targets that take long to finish or delete a shard, and whether programs leave them alone then.
    slow: BTreeMap<usize, bool>,
    /// Operations that were given up, and have not happened yet.
    late: Vec<slow::Late>,
    /// The visible records, by log replica and job.
    records: BTreeMap<(usize, JobName), BTreeMap<u64, Kept>>,
    /// Records that were durable, and whose removal is not durable yet.
    removed: BTreeMap<(usize, JobName), BTreeMap<u64, Kept>>,
    locks: Option<Locks>,
}

/// The holders of the locks. A lock ends with its holder.
#[derive(Default)]
struct Locks {
    given: u64,
    collecting: Vec<(u64, Owner)>,
    reading: Vec<(u64, Owner)>,
}

/// Bytes under a name that is visible, and perhaps durable.
#[derive(Clone)]
struct Kept {
    bytes: Arc<Vec<u8>>,
    durable: bool,
    /// Number of the part that became this shard; 0 for a record.
    part: u64,
    /// The bytes that had the name before. They return at a power cut, unless the new ones are
    /// durable.
    before: Option<Box<Kept>>,
}

impl Kept {
    /// Returns bytes that are only visible so far.
    fn visible(bytes: Vec<u8>, before: Option<Kept>) -> Kept {
        Kept { bytes: Arc::new(bytes), durable: false, part: 0, before: before.map(Box::new) }
    }

    fn make_durable(&mut self) {
        (self.durable, self.before) = (true, None);
    }

    /// Returns the bytes under the name after a power cut.
    fn after_cut(mut self, mode: CutMode) -> Option<Kept> {
        if self.durable || mode == CutMode::Kept {
            self.make_durable();
            return Some(self);
        }
        self.before.and_then(|before| before.after_cut(mode))
    }
}

/// The data of an unfinished shard.
struct Part {
    /// Distinguishes this part from others of the same name.
    number: u64,
    bytes: Vec<u8>,
}

/// A program on the simulated machine. All clones are the same program.
#[derive(Clone, Debug)]
pub struct FaultProcess(Arc<AtomicU64>);

impl FaultProcess {
    fn new() -> FaultProcess {
        FaultProcess(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// Kills the program at the `steps`th of its numbered operations from now on, before that one
    /// takes effect. From then on all its operations fail, and it cleans nothing up.
    pub fn kill_after(&self, steps: u64) {
        self.0.store(steps, Ordering::Relaxed);
    }

    /// Whether the program was killed.
    pub fn is_killed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Counts down one step; returns true if the program was killed. Operations of a [`FaultWorld`]
    /// do it themselves.
    pub fn step(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if left < u64::MAX {
            self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        }
        self.is_killed()
    }
}

/// The machine and the program that a handle belongs to.
#[derive(Clone, Debug)]
struct Owner {
    boot: u64,
    process: FaultProcess,
}

/// The outcome of an operation.
enum Step {
    Go,
    /// The operation has no effect and returns this error.
    Fail(Error),
    /// The power is cut during the operation.
    Cut(CutMode),
}

impl Step {
    fn takes_effect(&self) -> bool {
        matches!(self, Step::Go | Step::Cut(CutMode::Kept))
    }
}

impl FaultWorld {
    /// Returns an empty world in which nothing fails.
    pub fn new() -> FaultWorld {
        FaultWorld::default()
    }

    /// Returns an empty world whose log has locks.
    pub fn with_locks() -> FaultWorld {
        let world = FaultWorld::new();
        world.lock().locks = Some(Locks::default());
        world
    }

    /// Whether the log of this world has locks.
    pub fn has_locks(&self) -> bool {
        self.lock().locks.is_some()
    }

    /// Ends the lock of collectors, as a storage node does that has not heard of its holder for too
    /// long.
    pub fn end_collecting(&self) {
        if let Some(locks) = &mut self.lock().locks {
            locks.collecting.clear();
        }
    }

    /// Whether a process holds the lock of collectors.
    pub fn is_collecting(&self, process: &FaultProcess) -> bool {
        let world = self.lock();
        let mut holders = world.locks.iter().flat_map(|locks| &locks.collecting);
        holders.any(|(_, owner)| Arc::ptr_eq(&owner.process.0, &process.0))
    }

    /// Returns the target, for the machine that runs now.
    pub fn target(&self) -> Arc<dyn Target> {
        self.process().0
    }

    /// Returns the log, for the machine that runs now.
    pub fn log(&self) -> Arc<dyn ManifestLog> {
        self.process().1
    }

    /// Returns the medium of the log, for the machine that runs now.
    pub fn medium(&self) -> Arc<dyn LogMedium> {
        let owner = Owner { boot: self.lock().boots, process: FaultProcess::new() };
        self.medium_of(&owner, 0)
    }

    /// Returns target and log for a new program on the machine, which can be killed by itself.
    pub fn process(&self) -> (Arc<dyn Target>, Arc<dyn ManifestLog>, FaultProcess) {
        let owner = Owner { boot: self.lock().boots, process: FaultProcess::new() };
        (self.target_of(&owner, 0), self.log_of(&owner), owner.process)
    }

    /// Returns the same, with the first `count` targets of the machine.
    pub fn process_with(
        &self,
        count: usize,
    ) -> (Vec<Arc<dyn Target>>, Arc<dyn ManifestLog>, FaultProcess) {
        let owner = Owner { boot: self.lock().boots, process: FaultProcess::new() };
        let targets = (0..count).map(|number| self.target_of(&owner, number)).collect();
        (targets, self.log_of(&owner), owner.process)
    }

    fn target_of(&self, owner: &Owner, number: usize) -> Arc<dyn Target> {
        Arc::new(FaultTarget { world: self.clone(), owner: owner.clone(), number })
    }

    fn log_of(&self, owner: &Owner) -> Arc<dyn ManifestLog> {
        Arc::new(RecordLog::over(self.medium_of(owner, 0)))
    }

    fn medium_of(&self, owner: &Owner, place: usize) -> Arc<dyn LogMedium> {
        Arc::new(FaultMedium { world: self.clone(), owner: owner.clone(), place })
    }

    /// Returns `count` log replicas with separate records, as a program sees them; without
    /// `process`, as the machine that runs now sees them.
    pub fn log_replicas(
        &self,
        count: usize,
        process: Option<&FaultProcess>,
    ) -> Vec<Arc<dyn LogMedium>> {
        let process = process.cloned().unwrap_or_else(FaultProcess::new);
        let owner = Owner { boot: self.lock().boots, process };
        (0..count).map(|place| self.medium_of(&owner, place)).collect()
    }

    /// Returns the number of operations over all boots: the number of the next one.
    pub fn ops(&self) -> u64 {
        self.lock().history.len() as u64
    }

    /// Describes operation `number`, for a test's message.
    pub fn op_name(&self, number: u64) -> Option<String> {
        let index = usize::try_from(number).ok()?;
        self.lock().history.get(index).cloned()
    }

    /// Cuts the power during operation `number`.
    pub fn cut_at(&self, number: u64, mode: CutMode) {
        self.lock().cut = Some((number, mode));
    }

    /// Makes operation `number` fail once with `kind`, without effect. After a failed sync the
    /// record is visible; whether it is durable is unknown.
    pub fn fail_at(&self, number: u64, kind: ErrorKind) {
        self.lock().failures.insert(number, kind);
    }

    /// Makes every operation fail for which `judge` returns an error; it gets the number and the
    /// name.
    pub fn fail_when(&self, judge: impl Fn(u64, &str) -> Option<ErrorKind> + Send + 'static) {
        self.lock().judge = Some(Box::new(judge));
    }

    /// Sets whether reads are numbered operations, too. They are not at first.
    pub fn count_reads(&self, count: bool) {
        self.lock().count_reads = count;
    }

    /// Cuts the power between two operations.
    pub fn cut_now(&self, mode: CutMode) {
        self.lock().crash(mode);
    }

    /// Returns true between a cut and the next boot.
    pub fn crashed(&self) -> bool {
        self.lock().crashed
    }

    /// Restarts the machine with the surviving data, and returns its handles. Without an earlier
    /// cut only the program died: visible data is still visible. A cut that was not reached is
    /// cancelled.
    pub fn reboot(&self) -> (Arc<dyn Target>, Arc<dyn ManifestLog>) {
        let mut world = self.lock();
        world.boots += 1;
        world.crashed = false;
        world.cut = None;
        drop(world);
        (self.target(), self.log())
    }

    /// Deletes all data of a target: a new disk has replaced it.
    pub fn lose_target(&self, number: usize) {
        let mut world = self.lock();
        world.late.retain(|late| late.target != number);
        world.shards.retain(|(on, _), _| *on != number);
        world.parts.retain(|(on, _), _| *on != number);
    }

    /// Sets whether a target cannot be reached; it keeps its data. Returns whether it was away
    /// before.
    pub fn set_away(&self, number: usize, is_away: bool) -> bool {
        let mut world = self.lock();
        match is_away {
            true => !world.away.insert(number),
            false => world.away.remove(&number),
        }
    }

    /// Flips the bits of `mask` in a byte of a finished shard.
    ///
    /// # Panics
    /// If there is no such byte, or nothing to flip.
    pub fn corrupt(&self, shard: ShardName, offset: u64, mask: u8) {
        let mut world = self.lock();
        flip(world.shard_mut(shard), offset, mask);
    }

    /// Cuts off a finished shard after `length` bytes.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn truncate(&self, shard: ShardName, length: u64) {
        let mut world = self.lock();
        Arc::make_mut(&mut world.shard_mut(shard).bytes)
            .truncate(usize::try_from(length).unwrap_or(usize::MAX));
    }

    /// Flips the bits of `mask` in a byte of a record.
    ///
    /// # Panics
    /// If there is no such byte, or nothing to flip.
    pub fn corrupt_record(&self, job: &JobName, number: u64, offset: u64, mask: u8) {
        let mut world = self.lock();
        let numbered = world.records.get_mut(&(0, job.clone()));
        let kept = numbered.and_then(|numbered| numbered.get_mut(&number));
        flip(kept.expect("a test damages a record that exists"), offset, mask);
    }

    /// Removes a record, as a prune or a careless user does.
    pub fn remove_record(&self, job: &JobName, number: u64) {
        if let Some(numbered) = self.lock().records.get_mut(&(0, job.clone())) {
            numbered.remove(&number);
        }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock()
    }
}

/// Returns the names that a power cut leaves.
fn after_cut<K: Ord>(kept: BTreeMap<K, Kept>, mode: CutMode) -> BTreeMap<K, Kept> {
    kept.into_iter().filter_map(|(name, kept)| Some((name, kept.after_cut(mode)?))).collect()
}

fn flip(kept: &mut Kept, offset: u64, mask: u8) {
    assert_ne!(mask, 0, "a damage of no bits is none");
    let bytes = Arc::make_mut(&mut kept.bytes);
    let at = usize::try_from(offset).ok().filter(|at| *at < bytes.len());
    bytes[at.expect("a test damages a byte that exists")] ^= mask;
}

impl World {
    /// Fails unless the owner's machine and program are running.
    fn alive(&self, owner: &Owner) -> Result<(), Error> {
        if self.crashed || self.boots != owner.boot {
            return Err(Error::retry("crashed: the simulated machine has lost its power"));
        }
        match owner.process.is_killed() {
            true => Err(Error::retry("crashed: the simulated program was killed")),
            false => Ok(()),
        }
    }

    /// Returns a finished shard of any target.
    fn shard_mut(&mut self, shard: ShardName) -> &mut Kept {
        let mut found = self.shards.iter_mut().filter(|((_, name), _)| *name == shard);
        found.next().expect("a test damages a shard that exists").1
    }

    /// The same as `step` for an operation on a target.
    fn target_step(&mut self, owner: &Owner, target: usize, name: impl FnOnce() -> String) -> Step {
        let is_there = !self.away.contains(&target) && !self.is_left_alone(owner, target);
        match self.alive(owner).is_ok() && !is_there {
            true => Step::Fail(Error::retry("the simulated target cannot be reached")),
            false => self.step(owner, name),
        }
    }

    /// Numbers one operation and decides its outcome.
    fn step(&mut self, owner: &Owner, name: impl FnOnce() -> String) -> Step {
        let alive = self.alive(owner).and_then(|()| match owner.process.step() {
            true => self.alive(owner),
            false => Ok(()),
        });
        if let Err(error) = alive {
            return Step::Fail(error);
        }
        let number = self.history.len() as u64;
        let name = name();
        let judged = self.judge.as_ref().and_then(|judge| judge(number, &name));
        let failure = self.failures.remove(&number).or(judged);
        let step = match (self.cut, failure) {
            (Some((at, mode)), _) if at == number => Step::Cut(mode),
            (_, Some(kind)) => Step::Fail(Error::new(
                kind,
                format!("simulated fault at operation {number}, {name}"),
            )),
            _ => Step::Go,
        };
        self.history.push(name);
        step
    }

    /// Numbers an operation that has no effect of its own.
    fn read_step(&mut self, owner: &Owner, name: impl FnOnce() -> String) -> Result<(), Error> {
        if !self.count_reads {
            return self.alive(owner);
        }
        let step = self.step(owner, name);
        self.end(step)
    }

    /// The same for an operation on a target.
    fn target_read_step(
        &mut self,
        owner: &Owner,
        target: usize,
        name: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        match self.away.contains(&target) || self.is_left_alone(owner, target) {
            true => {
                let step = self.target_step(owner, target, name);
                self.end(step)
            }
            false => self.read_step(owner, name),
        }
    }

    /// Ends an operation after its effect, if any, was applied.
    fn end(&mut self, step: Step) -> Result<(), Error> {
        match step {
            Step::Go => Ok(()),
            Step::Fail(error) => Err(error),
            Step::Cut(mode) => Err(self.crash(mode)),
        }
    }

    /// Cuts the power and returns the error for the current operation.
    fn crash(&mut self, mode: CutMode) -> Error {
        self.crashed = true;
        self.late.clear();
        if mode == CutMode::Lost {
            self.parts.clear();
        }
        self.shards = after_cut(std::mem::take(&mut self.shards), mode);
        for numbered in self.records.values_mut() {
            *numbered = after_cut(std::mem::take(numbered), mode);
        }
        // A name removed since the last sync may be back or not, in any order.
        for (job, removed) in std::mem::take(&mut self.removed) {
            let numbered = self.records.entry(job).or_default();
            numbered.extend(removed.into_iter().filter(|(number, _)| match mode {
                CutMode::Lost => true,
                CutMode::Kept => false,
                CutMode::Torn => number % 2 == 0,
            }));
        }
        Error::retry("crashed: the simulated machine has lost its power")
    }
}

impl fmt::Debug for FaultWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let world = self.lock();
        f.debug_struct("FaultWorld")
            .field("boots", &world.boots)
            .field("crashed", &world.crashed)
            .field("ops", &world.history.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
