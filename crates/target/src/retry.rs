//! Repeats what failed in passing.

use crate::relay::{Around, RelayWriter, Written};
use crate::{
    Append, Capacity, Lock, LockGuard, ManifestLog, Previous, ReadRange, ShardName, ShardWriter,
    Target,
};
use outlive_io::{AlignedBuf, DEPTH_DEFAULT, DiskEngine, Ticket};
use outlive_types::{Error, ErrorKind, JobName, Result};
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How often to repeat, and how long to pause before.
#[derive(Clone)]
pub struct RetryPolicy {
    /// Attempts in all, the first one included; at least 1.
    pub attempts_max: u32,
    /// Pause before the second attempt; it doubles before each further one.
    pub pause_first: Duration,
    /// Longest pause.
    pub pause_max: Duration,
    /// Spends a pause. Tests count instead.
    pub sleep: Arc<dyn Fn(Duration) + Send + Sync>,
}

impl Default for RetryPolicy {
    /// Five attempts over about a third of a second.
    fn default() -> Self {
        RetryPolicy {
            attempts_max: 5,
            pause_first: Duration::from_millis(20),
            pause_max: Duration::from_secs(1),
            sleep: Arc::new(thread::sleep),
        }
    }
}

impl RetryPolicy {
    /// True, after a pause, if a call that has failed with `kind` for the `failures`-th time should
    /// be repeated.
    fn again(&self, kind: ErrorKind, failures: u32) -> bool {
        if kind != ErrorKind::Retry || failures >= self.attempts_max {
            return false;
        }
        let doubled = 1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
        (self.sleep)(self.pause_first.saturating_mul(doubled).min(self.pause_max));
        true
    }

    fn run<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        let mut failures = 0;
        loop {
            match call() {
                Err(error) => {
                    failures += 1;
                    if !self.again(error.kind(), failures) {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }
}

impl fmt::Debug for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryPolicy")
            .field("attempts_max", &self.attempts_max)
            .field("pause_first", &self.pause_first)
            .field("pause_max", &self.pause_max)
            .finish_non_exhaustive()
    }
}

impl Around for RetryPolicy {
    fn write(
        &self,
        _length: usize,
        mut buffer: AlignedBuf,
        attempt: &mut dyn FnMut(AlignedBuf) -> Written,
    ) -> Written {
        let mut failures = 0;
        loop {
            match attempt(buffer) {
                Err(fault) => {
                    failures += 1;
                    if !self.again(fault.error.kind(), failures) {
                        return Err(fault);
                    }
                    buffer = fault.buffer;
                }
                done => return done,
            }
        }
    }
}

/// A target whose `Retry` errors are met by repeating the call, except `finish`, which cannot be
/// repeated: after a failed sync nobody knows what is on the medium.
#[derive(Debug)]
pub struct RetryTarget {
    inner: Arc<dyn Target>,
    policy: Arc<RetryPolicy>,
    helpers: Arc<DiskEngine>,
}

impl RetryTarget {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Target>, policy: RetryPolicy) -> RetryTarget {
        let helpers = Arc::new(DiskEngine::new(DEPTH_DEFAULT));
        RetryTarget { inner, policy: Arc::new(policy), helpers }
    }
}

impl Target for RetryTarget {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        let writer = self.policy.run(|| self.inner.create(shard, bytes_max))?;
        Ok(RelayWriter::boxed(writer, self.helpers.clone(), self.policy.clone()))
    }

    fn read_ranges(
        &self,
        shard: ShardName,
        ranges: Vec<ReadRange>,
    ) -> Vec<Ticket<Result<AlignedBuf>>> {
        let places: Vec<_> =
            ranges.iter().map(|range| (range.offset, range.length, range.buffer.len())).collect();
        let tickets = self.inner.read_ranges(shard, ranges);
        let repeated = tickets.into_iter().zip(places).map(|(ticket, (offset, length, room))| {
            let (inner, policy) = (self.inner.clone(), self.policy.clone());
            // In the waiter: reads that fail are rare, and somebody waits for each.
            ticket.map(move |first| {
                let mut first = Some(first);
                policy.run(|| {
                    if let Some(first) = first.take() {
                        return first;
                    }
                    // The first buffer went down with the error.
                    let buffer = AlignedBuf::zeroed(room);
                    read_one(&*inner, shard, ReadRange { offset, length, buffer })
                })
            })
        });
        repeated.collect()
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        self.policy.run(|| self.inner.length(shard))
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        self.policy.run(|| self.inner.list())
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        self.policy.run(|| self.inner.unfinished())
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        self.policy.run(|| self.inner.delete_unfinished(shard))
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.policy.run(|| self.inner.delete(shard))
    }

    fn capacity(&self) -> Result<Capacity> {
        self.policy.run(|| self.inner.capacity())
    }
}

/// Reads one range and waits for it.
pub(crate) fn read_one(
    target: &dyn Target,
    shard: ShardName,
    range: ReadRange,
) -> Result<AlignedBuf> {
    let mut tickets = target.read_ranges(shard, vec![range]);
    let ticket = tickets
        .pop()
        .ok_or_else(|| Error::bug(format!("{} gave no ticket for a range", target.describe())))?;
    ticket.wait()
}

/// A log whose `Retry` errors are met by repeating the call. An append may be repeated because it
/// recognises its own record.
#[derive(Debug)]
pub struct RetryLog {
    inner: Arc<dyn ManifestLog>,
    policy: RetryPolicy,
}

impl RetryLog {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn ManifestLog>, policy: RetryPolicy) -> RetryLog {
        RetryLog { inner, policy }
    }
}

impl ManifestLog for RetryLog {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.policy.run(|| self.inner.jobs())
    }

    fn numbers(&self, job: &JobName) -> Result<Vec<u64>> {
        self.policy.run(|| self.inner.numbers(job))
    }

    fn latest(&self, job: &JobName) -> Result<u64> {
        self.policy.run(|| self.inner.latest(job))
    }

    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>> {
        self.policy.run(|| self.inner.read(job, number))
    }

    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append> {
        self.policy.run(|| self.inner.append_if(job, previous, record))
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        self.policy.run(|| self.inner.remove_before(job, number))
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.policy.run(|| self.inner.sync(job))
    }

    fn lock_collecting(&self) -> Result<Lock> {
        self.inner.lock_collecting()
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.inner.lock_reading()
    }

    fn is_read(&self) -> Result<bool> {
        self.inner.is_read()
    }
}

#[cfg(test)]
mod tests;
