//! A target and a log's medium with a manner: an action around each of their calls.

use crate::operation::{Manner, Operation};
use crate::relay::RelayWriter;
use crate::{Capacity, Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target};
use outlive_io::{AlignedBuf, DEPTH_DEFAULT, DiskEngine, Ticket};
use outlive_log::{Lease, Lock, LockGuard};
use outlive_log::{LogLocks, LogMedium, LogRecords, LogSeal, Put};
use outlive_types::{Error, JobName, Result};
use std::sync::Arc;

/// A target with a manner.
#[derive(Debug)]
pub struct WrappedTarget<M> {
    inner: Arc<dyn Target>,
    manner: Arc<M>,
    helpers: Arc<DiskEngine>,
}

impl<M: Manner> WrappedTarget<M> {
    pub(crate) fn with(inner: Arc<dyn Target>, manner: Arc<M>) -> WrappedTarget<M> {
        WrappedTarget { inner, manner, helpers: Arc::new(DiskEngine::new(DEPTH_DEFAULT)) }
    }
}

impl<M: Manner> Target for WrappedTarget<M> {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        let writer = self.manner.call(0, || self.inner.create(shard, bytes_max))?;
        Ok(RelayWriter::boxed(writer, self.manner.clone(), self.helpers.clone()))
    }

    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        let writer = self.manner.call(0, || self.inner.replace(shard, bytes_max))?;
        Ok(RelayWriter::boxed(writer, self.manner.clone(), self.helpers.clone()))
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        let operation = |offset| {
            let inner = self.inner.clone();
            Operation {
                manner: self.manner.clone(),
                helpers: self.helpers.clone(),
                // A delayed or repeated read asks the medium: the mode of the first read is gone
                // with its range.
                start: Box::new(move |buffer| {
                    read_one(&*inner, shard, ReadRange::new(offset, buffer))
                }),
            }
        };
        let delay = |range: &ReadRange| self.manner.delay(range.buffer.len());
        let delays: Vec<_> = ranges.iter().map(delay).collect();
        if delays.iter().any(|delay| !delay.is_zero()) {
            let each = ranges.into_iter().zip(delays);
            return each
                .map(|(range, delay)| operation(range.offset).begin(delay, range.buffer))
                .collect();
        }
        let offsets: Vec<_> = ranges.iter().map(|range| range.offset).collect();
        let begun = self.inner.read_ranges(shard, ranges);
        offsets.into_iter().zip(begun).map(|(at, first)| operation(at).begun(first)).collect()
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        self.manner.call(0, || self.inner.length(shard))
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        self.manner.call(0, || self.inner.list())
    }

    fn sync(&self, shards: &[ShardName]) -> Result<()> {
        self.manner.call(0, || self.inner.sync(shards))
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        self.manner.call(0, || self.inner.unfinished())
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        self.manner.call(0, || self.inner.delete_unfinished(shard))
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.manner.call(0, || self.inner.delete(shard))
    }

    fn capacity(&self) -> Result<Capacity> {
        self.manner.call(0, || self.inner.capacity())
    }

    fn make_reserve(&self, bytes: u64) -> Result<()> {
        self.manner.call(0, || self.inner.make_reserve(bytes))
    }

    fn delete_reserve(&self) -> Result<u64> {
        self.manner.call(0, || self.inner.delete_reserve())
    }

    fn close_files(&self, all: bool) {
        self.inner.close_files(all);
    }

    fn freshen(&self, shards: &[ShardName]) -> Result<()> {
        self.manner.call(0, || self.inner.freshen(shards))
    }
}

/// A log's medium with a manner. It passes locks on as they are.
#[derive(Debug)]
pub struct WrappedMedium<M> {
    inner: Arc<dyn LogMedium>,
    manner: Arc<M>,
}

impl<M: Manner> WrappedMedium<M> {
    pub(crate) fn with(inner: Arc<dyn LogMedium>, manner: Arc<M>) -> Self {
        WrappedMedium { inner, manner }
    }
}

impl<M: Manner> LogRecords for WrappedMedium<M> {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.manner.call(0, || self.inner.jobs())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        self.manner.call(0, || self.inner.list(job))
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        let record = self.manner.repeat(|| self.inner.get(job, number))?;
        self.manner.spend(self.manner.delay(record.as_ref().map_or(0, Vec::len)));
        Ok(record)
    }

    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        self.manner.call(0, || self.inner.has(job, number))
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        self.manner.call(record.len(), || self.inner.put_new(job, number, record))
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        self.manner.call(0, || self.inner.delete(job, number))
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.manner.call(0, || self.inner.sync(job))
    }

    fn tidy(&self, job: &JobName) -> Result<()> {
        self.manner.call(0, || self.inner.tidy(job))
    }

    fn freshen(&self, job: &JobName) -> Result<()> {
        self.manner.call(0, || self.inner.freshen(job))
    }
}

impl<M: Manner> LogLocks for WrappedMedium<M> {
    fn lock_collecting(&self) -> Result<Lock> {
        self.inner.lock_collecting()
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.inner.lock_reading()
    }

    fn is_read(&self) -> Result<bool> {
        self.inner.is_read()
    }

    fn lease(&self) -> Result<Option<Lease>> {
        self.manner.call(0, || self.inner.lease())
    }

    fn has_lease_ended(&self, token: &str) -> Result<Option<bool>> {
        self.manner.call(0, || self.inner.has_lease_ended(token))
    }
}

impl<M: Manner> LogSeal for WrappedMedium<M> {
    fn sealed(&self) -> Result<Option<Vec<u8>>> {
        self.manner.call(0, || self.inner.sealed())
    }

    fn seal(&self, successor: &[u8]) -> Result<()> {
        self.manner.call(successor.len(), || self.inner.seal(successor))
    }
}

/// Starts to read one range.
pub fn read_one(target: &dyn Target, shard: ShardName, range: ReadRange) -> ReadTicket {
    target.read_ranges(shard, vec![range]).pop().unwrap_or_else(|| {
        let what = format!("{} gave no ticket for a range", target.describe());
        Ticket::done(Err(Fault { error: Error::bug(what), buffer: AlignedBuf::zeroed(0) }))
    })
}
