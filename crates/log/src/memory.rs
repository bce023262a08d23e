//! Records in memory: for tests, and for logs that need not survive the process.

use crate::locks::{Lock, LockGuard, LogLocks};
use crate::medium::{LogRecords, LogSeal, Put};
use crate::protocol::RecordLog;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{JobName, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A log in memory.
pub type MemoryLog = RecordLog<MemoryMedium>;

impl MemoryLog {
    /// Returns an empty log without locks.
    pub fn new() -> MemoryLog {
        MemoryLog::default()
    }

    /// Returns an empty log with locks.
    pub fn with_locks() -> MemoryLog {
        RecordLog::over(MemoryMedium::with_locks())
    }
}

type Records = BTreeMap<JobName, BTreeMap<u64, Vec<u8>>>;

/// A medium in memory.
#[derive(Debug, Default)]
pub struct MemoryMedium {
    records: Mutex<Records>,
    sealed: Mutex<Option<Vec<u8>>>,
    locks: Option<Arc<Mutex<Locked>>>,
}

/// The holders of a log's locks.
#[derive(Debug, Default)]
struct Locked {
    collecting: bool,
    readers: usize,
}

impl MemoryMedium {
    /// Returns an empty medium with locks; [`MemoryMedium::default`] has none.
    pub fn with_locks() -> MemoryMedium {
        MemoryMedium { locks: Some(Arc::default()), ..MemoryMedium::default() }
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock()
    }
}

/// Returns a lock when it is dropped.
struct Locking {
    locks: Arc<Mutex<Locked>>,
    give_back: fn(&mut Locked),
}

impl Drop for Locking {
    fn drop(&mut self) {
        (self.give_back)(&mut lock(&self.locks));
    }
}

fn lock(locks: &Mutex<Locked>) -> MutexGuard<'_, Locked> {
    locks.lock()
}

impl LogRecords for MemoryMedium {
    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        Ok(self.records().keys().filter(|job| job.is_listed()).cloned().collect())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        let records = self.records();
        Ok(records.get(job).map_or(Vec::new(), |numbered| numbered.keys().copied().collect()))
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        let records = self.records();
        Ok(records.get(job).and_then(|numbered| numbered.get(&number)).cloned())
    }

    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        let records = self.records();
        Ok(records.get(job).is_some_and(|numbered| numbered.contains_key(&number)))
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        let mut records = self.records();
        let numbered = records.entry(job.clone()).or_default();
        if numbered.contains_key(&number) {
            return Ok(Put::Taken);
        }
        numbered.insert(number, record.to_vec());
        Ok(Put::Made)
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        if let Some(numbered) = self.records().get_mut(job) {
            numbered.remove(&number);
        }
        Ok(())
    }

    fn sync(&self, _job: &JobName) -> Result<()> {
        Ok(())
    }
}

impl LogLocks for MemoryMedium {
    fn lock_collecting(&self) -> Result<Lock> {
        let Some(locks) = &self.locks else { return Ok(Lock::None) };
        if std::mem::replace(&mut lock(locks).collecting, true) {
            return Ok(Lock::Busy);
        }
        let give_back = |locked: &mut Locked| locked.collecting = false;
        Ok(Lock::Taken(LockGuard::new(Locking { locks: locks.clone(), give_back })))
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        let Some(locks) = &self.locks else { return Ok(None) };
        lock(locks).readers += 1;
        let give_back = |locked: &mut Locked| locked.readers -= 1;
        Ok(Some(LockGuard::new(Locking { locks: locks.clone(), give_back })))
    }

    fn is_read(&self) -> Result<bool> {
        Ok(self.locks.as_ref().is_some_and(|locks| lock(locks).readers > 0))
    }
}

impl LogSeal for MemoryMedium {
    fn sealed(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.sealed.lock().clone())
    }

    fn seal(&self, successor: &[u8]) -> Result<()> {
        let mut sealed = self.sealed.lock();
        sealed.get_or_insert_with(|| successor.to_vec());
        Ok(())
    }
}
