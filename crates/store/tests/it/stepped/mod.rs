//! Pools whose every operation can be stopped: a hook is called before each call of the target or
//! the log, from any thread.
#![allow(dead_code)] // each test file uses its part

use crate::common::pool_of;
use outlive_backend::{
    Capacity, FaultWorld, MemoryTarget, ReadRange, ReadTicket, ShardName, ShardWriter, Target,
    WriteTicket,
};
use outlive_io::{SharedBuf, Ticket};
use outlive_log::{Append, Lock, LockGuard, LogLocks, ManifestLog, MemoryLog, Previous};
use outlive_pool::Pool;
use outlive_types::sync::plain::{Condvar, Mutex};
use outlive_types::{ErrorKind, JobName, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

type Hook = Arc<dyn Fn(u64, &str) + Send + Sync>;

/// Counts operations and calls the hook before each.
#[derive(Clone, Default)]
pub struct Steps(Arc<Mutex<(u64, Option<Hook>)>>, Arc<AtomicU64>);

impl Steps {
    /// From now on counts from 0 again, and calls `hook` with each operation's number and name.
    pub fn hook(&self, hook: impl Fn(u64, &str) + Send + Sync + 'static) {
        *self.0.lock() = (0, Some(Arc::new(hook)));
    }

    /// Returns the number of operations.
    pub fn count(&self) -> u64 {
        self.0.lock().0
    }

    /// Returns the bytes that were read from shards in all.
    pub fn read_bytes(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }

    fn step(&self, what: &str) {
        let (number, hook) = {
            let mut steps = self.0.lock();
            steps.0 += 1;
            (steps.0 - 1, steps.1.clone())
        };
        if let Some(hook) = hook {
            hook(number, what);
        }
    }
}

impl std::fmt::Debug for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Steps({})", self.count())
    }
}

/// A target that calls the hook.
#[derive(Debug)]
pub struct SteppedTarget(pub Arc<dyn Target>, pub Steps);

impl Target for SteppedTarget {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.1.step("create");
        let writer = self.0.create(shard, bytes_max)?;
        Ok(Box::new(SteppedWriter(writer, self.1.clone())))
    }
    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.1.step("replace");
        let writer = self.0.replace(shard, bytes_max)?;
        Ok(Box::new(SteppedWriter(writer, self.1.clone())))
    }
    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        let is_urgent = ranges.iter().any(|range| range.mode.is_urgent);
        self.1.step(if is_urgent { "read shard urgently" } else { "read shard" });
        let bytes: u64 = ranges.iter().map(|range| range.buffer.len() as u64).sum();
        self.1.1.fetch_add(bytes, Ordering::Relaxed);
        self.0.read_ranges(shard, ranges)
    }
    fn length(&self, shard: ShardName) -> Result<u64> {
        self.0.length(shard)
    }
    fn list(&self) -> Result<Vec<ShardName>> {
        self.1.step("list");
        self.0.list()
    }
    fn unfinished(&self) -> Result<Vec<ShardName>> {
        self.1.step("list unfinished");
        self.0.unfinished()
    }
    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        self.1.step("delete unfinished");
        self.0.delete_unfinished(shard)
    }
    fn delete(&self, shard: ShardName) -> Result<()> {
        self.1.step("delete");
        self.0.delete(shard)
    }
    fn capacity(&self) -> Result<Capacity> {
        self.0.capacity()
    }
}

struct SteppedWriter(Box<dyn ShardWriter>, Steps);

impl ShardWriter for SteppedWriter {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket {
        self.0.write(offset, bytes)
    }
    fn finish(self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        self.1.step("finish");
        self.0.finish(length)
    }
}

/// A log that calls the hook.
#[derive(Debug)]
pub struct SteppedLog(pub Arc<dyn ManifestLog>, pub Steps);

impl ManifestLog for SteppedLog {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.1.step("jobs");
        self.0.jobs()
    }

    fn numbers(&self, job: &JobName) -> Result<Vec<u64>> {
        self.1.step("numbers");
        self.0.numbers(job)
    }

    fn latest(&self, job: &JobName) -> Result<u64> {
        self.1.step("latest");
        self.0.latest(job)
    }

    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>> {
        self.1.step("read record");
        self.0.read(job, number)
    }

    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append> {
        self.1.step("append");
        self.0.append_if(job, previous, record)
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        self.1.step("remove");
        self.0.remove_before(job, number)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.1.step("sync");
        self.0.sync(job)
    }
}

impl LogLocks for SteppedLog {
    fn lock_collecting(&self) -> Result<Lock> {
        self.0.lock_collecting()
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.0.lock_reading()
    }

    fn is_read(&self) -> Result<bool> {
        self.0.is_read()
    }
}

/// A pool in memory that several processes use.
pub struct World {
    pub target: Arc<dyn Target>,
    pub log: Arc<dyn ManifestLog>,
}

impl World {
    pub fn new() -> World {
        World { target: Arc::new(MemoryTarget::new()), log: Arc::new(MemoryLog::new()) }
    }

    /// Returns the pool as one process opens it.
    pub fn pool(&self) -> Pool {
        pool_of(self.target.clone(), self.log.clone())
    }

    /// Returns the same, with its steps counted.
    pub fn stepped(&self, steps: &Steps) -> Pool {
        pool_of(
            Arc::new(SteppedTarget(self.target.clone(), steps.clone())),
            Arc::new(SteppedLog(self.log.clone(), steps.clone())),
        )
    }
}

/// A point where a thread stops until it is let through.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Default)]
struct GateState {
    reached: bool,
    open: bool,
}

impl Gate {
    /// Stops here until the gate is opened.
    pub fn stop(&self) {
        let mut state = self.0.0.lock();
        state.reached = true;
        self.0.1.notify_all();
        while !state.open {
            state = self.0.1.wait(state);
        }
    }

    /// Waits until a thread stops here, or until `over` returns true.
    pub fn wait_reached(&self, over: impl Fn() -> bool) {
        let mut state = self.0.0.lock();
        while !state.reached && !over() {
            let pause = Duration::from_micros(200);
            state = self.0.1.wait_timeout(state, pause).0;
        }
    }

    /// Lets all threads through, now and from now on.
    pub fn open(&self) {
        self.0.0.lock().open = true;
        self.0.1.notify_all();
    }
}

/// A process that stops at a step, and its outcome.
pub struct Stopped<T> {
    gate: Gate,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Stopped<T> {
    /// Does `work` in a pool of its own until its operation `op` comes for the time number `nth`,
    /// from 0, while `when` holds.
    pub fn at(
        world: &World,
        (op, nth): (&'static str, u64),
        when: impl Fn() -> bool + Send + Sync + 'static,
        work: impl FnOnce(Pool) -> T + Send + 'static,
    ) -> Stopped<T> {
        let (steps, gate, over) =
            (Steps::default(), Gate::default(), Arc::new(AtomicBool::new(false)));
        let pool = world.stepped(&steps);
        let (count, stop) = (AtomicU64::new(0), gate.clone());
        steps.hook(move |_, what| {
            if what == op && when() && count.fetch_add(1, Ordering::AcqRel) == nth {
                stop.stop();
            }
        });
        let done = over.clone();
        let thread = std::thread::spawn(move || {
            let outcome = work(pool);
            done.store(true, Ordering::Release);
            outcome
        });
        gate.wait_reached(|| over.load(Ordering::Acquire));
        Stopped { gate, thread }
    }

    pub fn go_on(self) -> T {
        self.gate.open();
        self.thread.join().unwrap()
    }
}

/// Makes one operation after the other fail, in every way, each in a pool of its own, until none is
/// left. `attempt` gets the pool and the failure, and returns whether it has failed.
pub fn at_each_failure(attempt: &mut dyn FnMut(&Pool, &str) -> bool) {
    for kind in [ErrorKind::Retry, ErrorKind::Full] {
        let (mut number, mut failures) = (0, 0);
        loop {
            let world = FaultWorld::new();
            world.fail_at(number, kind);
            let to = pool_of(world.target(), world.log());
            failures += usize::from(attempt(&to, &format!("{kind:?} at {number}")));
            if world.ops() <= number {
                break;
            }
            number += 1;
        }
        assert!(number > 8 && failures > 4, "{failures} failures in {number} steps");
    }
}
