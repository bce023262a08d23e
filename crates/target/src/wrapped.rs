//! A target and a log's medium with a manner: something that is done around each of their calls.

use crate::log::{LogMedium, Put, RecordLog};
use crate::relay::{Around, RelayWriter};
use crate::{Capacity, Lock, LockGuard, ReadRange, ShardName, ShardWriter, Target};
use outlive_io::{AlignedBuf, DEPTH_DEFAULT, DiskEngine, Ticket};
use outlive_types::{Error, JobName, Result};
use std::fmt;
use std::sync::Arc;

/// What is done around calls.
pub trait Manner: Around + fmt::Debug + Sized + 'static {
    /// Makes a call that carries `bytes`.
    ///
    /// # Errors
    /// What the call reports.
    fn call<T>(&self, bytes: usize, call: impl FnMut() -> Result<T>) -> Result<T>;

    /// Makes a call that brings a record, if there is one.
    ///
    /// # Errors
    /// What the call reports.
    fn bring(&self, call: impl FnMut() -> Result<Option<Vec<u8>>>) -> Result<Option<Vec<u8>>> {
        self.call(0, call)
    }

    /// Reads ranges of a shard.
    fn read_ranges(
        this: &WrappedTarget<Self>,
        shard: ShardName,
        ranges: Vec<ReadRange>,
    ) -> Vec<Ticket<Result<AlignedBuf>>>;
}

/// A target with a manner.
#[derive(Debug)]
pub struct WrappedTarget<M> {
    pub(crate) inner: Arc<dyn Target>,
    pub(crate) manner: Arc<M>,
    pub(crate) helpers: Arc<DiskEngine>,
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
        Ok(RelayWriter::boxed(writer, self.helpers.clone(), self.manner.clone()))
    }

    fn read_ranges(
        &self,
        shard: ShardName,
        ranges: Vec<ReadRange>,
    ) -> Vec<Ticket<Result<AlignedBuf>>> {
        M::read_ranges(self, shard, ranges)
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        self.manner.call(0, || self.inner.length(shard))
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        self.manner.call(0, || self.inner.list())
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
}

/// A log's medium with a manner. Locks are passed on as they are.
#[derive(Debug)]
pub struct WrappedMedium<M> {
    inner: Arc<dyn LogMedium>,
    manner: Arc<M>,
}

impl<M: Manner> RecordLog<WrappedMedium<M>> {
    pub(crate) fn with(inner: Arc<dyn LogMedium>, manner: Arc<M>) -> Self {
        RecordLog::over(WrappedMedium { inner, manner })
    }
}

impl<M: Manner> LogMedium for WrappedMedium<M> {
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
        self.manner.bring(|| self.inner.get(job, number))
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
