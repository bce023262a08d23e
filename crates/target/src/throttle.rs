//! Makes a target or a log as slow as another one would be.

use crate::relay::{Around, RelayWriter, Written};
use crate::retry::read_one;
use crate::{
    Append, Capacity, Lock, LockGuard, ManifestLog, Previous, ReadRange, ShardName, ShardWriter,
    Target,
};
use outlive_io::{AlignedBuf, DEPTH_DEFAULT, DiskEngine, Ticket};
use outlive_types::{JobName, Result};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A speed limit. Bytes of all operations share one line; latencies overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Throttle {
    /// Bytes per second, written and read together; `None` is no limit.
    pub bytes_per_s: Option<u64>,
    /// Time that every operation takes besides.
    pub latency: Duration,
}

/// A throttle in use.
#[derive(Debug)]
struct Line {
    throttle: Throttle,
    busy_until: Mutex<Instant>,
}

impl Line {
    fn new(throttle: Throttle) -> Arc<Line> {
        Arc::new(Line { throttle, busy_until: Mutex::new(Instant::now()) })
    }

    /// Waits as long as an operation on `bytes` bytes takes.
    fn pass(&self, bytes: usize) {
        let now = Instant::now();
        let mut until = now;
        if let Some(bytes_per_s) = self.throttle.bytes_per_s {
            let takes = Duration::from_secs_f64(bytes as f64 / bytes_per_s.max(1) as f64);
            let mut busy_until = self.busy_until.lock().unwrap_or_else(PoisonError::into_inner);
            until = now.max(*busy_until) + takes;
            *busy_until = until;
        }
        thread::sleep(until - now + self.throttle.latency);
    }
}

impl Around for Line {
    fn write(
        &self,
        length: usize,
        buffer: AlignedBuf,
        attempt: &mut dyn FnMut(AlignedBuf) -> Written,
    ) -> Written {
        self.pass(length);
        attempt(buffer)
    }

    fn before_finish(&self) {
        self.pass(0);
    }
}

/// A slower target. Buffers stay away as long as the slow medium would keep them, so back-pressure
/// is real. At most eight operations are in flight.
#[derive(Debug)]
pub struct ThrottledTarget {
    inner: Arc<dyn Target>,
    line: Arc<Line>,
    helpers: Arc<DiskEngine>,
}

impl ThrottledTarget {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Target>, throttle: Throttle) -> ThrottledTarget {
        let helpers = Arc::new(DiskEngine::new(DEPTH_DEFAULT));
        ThrottledTarget { inner, line: Line::new(throttle), helpers }
    }
}

impl Target for ThrottledTarget {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.line.pass(0);
        let writer = self.inner.create(shard, bytes_max)?;
        Ok(RelayWriter::boxed(writer, self.helpers.clone(), self.line.clone()))
    }

    fn read_ranges(
        &self,
        shard: ShardName,
        ranges: Vec<ReadRange>,
    ) -> Vec<Ticket<Result<AlignedBuf>>> {
        let slow = |range: ReadRange| {
            let (inner, line) = (self.inner.clone(), self.line.clone());
            self.helpers.submit(move || {
                line.pass(range.length);
                read_one(&*inner, shard, range)
            })
        };
        ranges.into_iter().map(slow).collect()
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        self.line.pass(0);
        self.inner.length(shard)
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        self.line.pass(0);
        self.inner.list()
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        self.line.pass(0);
        self.inner.unfinished()
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        self.line.pass(0);
        self.inner.delete_unfinished(shard)
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.line.pass(0);
        self.inner.delete(shard)
    }

    fn capacity(&self) -> Result<Capacity> {
        self.line.pass(0);
        self.inner.capacity()
    }
}

/// A slower log.
#[derive(Debug)]
pub struct ThrottledLog {
    inner: Arc<dyn ManifestLog>,
    line: Arc<Line>,
}

impl ThrottledLog {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn ManifestLog>, throttle: Throttle) -> ThrottledLog {
        ThrottledLog { inner, line: Line::new(throttle) }
    }
}

impl ManifestLog for ThrottledLog {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.line.pass(0);
        self.inner.jobs()
    }

    fn numbers(&self, job: &JobName) -> Result<Vec<u64>> {
        self.line.pass(0);
        self.inner.numbers(job)
    }

    fn latest(&self, job: &JobName) -> Result<u64> {
        self.line.pass(0);
        self.inner.latest(job)
    }

    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>> {
        let record = self.inner.read(job, number)?;
        self.line.pass(record.len());
        Ok(record)
    }

    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append> {
        self.line.pass(record.len());
        self.inner.append_if(job, previous, record)
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        self.line.pass(0);
        self.inner.remove_before(job, number)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.line.pass(0);
        self.inner.sync(job)
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
mod tests {
    use super::*;
    use crate::MemoryTarget;
    use outlive_io::StagingPool;
    use outlive_types::{PackId, SessionId};

    #[test]
    fn the_line_sets_the_pace_and_buffers_wait_with_it() {
        let throttle = Throttle { bytes_per_s: Some(10 << 20), latency: Duration::from_millis(1) };
        let target = ThrottledTarget::new(Arc::new(MemoryTarget::new()), throttle);
        let pool = StagingPool::new(2 << 16, 1 << 16);
        let shard = ShardName { pack: PackId::new(SessionId([1; 12]), 1), shard: 0 };
        let started = Instant::now();
        let mut writer = target.create(shard, 1 << 20).unwrap();
        let tickets: Vec<_> =
            (0..16).map(|index| writer.write(index << 16, 1 << 16, pool.take())).collect();
        // Of 16 buffers at most 2 are under way, so 14 have passed the line: 87 ms.
        assert!(started.elapsed() >= Duration::from_millis(80), "{:?}", started.elapsed());
        writer.finish(1 << 20).wait().unwrap();
        assert!(started.elapsed() >= Duration::from_millis(100));
        assert!(tickets.into_iter().all(|ticket| ticket.wait().is_ok()));
    }
}
