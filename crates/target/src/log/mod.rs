//! Where the records of jobs are kept: one protocol of appending ([`RecordLog`]) above any medium
//! ([`LogMedium`]) that can put a record under a number that nobody has taken.

pub(crate) mod directory;
mod memory;
mod protocol;

pub use directory::DirectoryMedium;
pub use memory::MemoryMedium;
pub use protocol::RecordLog;

use crate::{Lock, LockGuard};
use outlive_types::{Error, JobName, Result};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A log in a directory.
pub type DirectoryLog = RecordLog<DirectoryMedium>;

impl DirectoryLog {
    /// Uses the directory `log` below `root`; it is made when the first record is appended.
    pub fn open(root: &Path) -> DirectoryLog {
        RecordLog::over(DirectoryMedium::open(root))
    }
}

/// A log in memory.
pub type MemoryLog = RecordLog<MemoryMedium>;

impl MemoryLog {
    /// An empty log, without locks.
    pub fn new() -> MemoryLog {
        MemoryLog::default()
    }

    /// An empty log with locks.
    pub fn with_locks() -> MemoryLog {
        RecordLog::over(MemoryMedium::with_locks())
    }
}

/// What became of a record that was to be put under a new number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// It has the number. It is whole, and visible to everybody; durable after the next
    /// [`LogMedium::sync`].
    Made,
    /// There is a record of that number, and it was left as it is. It may be the caller's own: over a
    /// network the reply to a put may get lost.
    Taken,
}

/// A medium of records: job and number name a record, which is written once. All calls may come from
/// any thread and any process; a record is seen whole or not at all.
///
/// This is all that a medium has to bring. Which number a record may have, whether a reply got lost,
/// and who is fenced is decided above it, by [`RecordLog`]. A second implementation has to pass
/// [`conformance::check_medium`](crate::conformance::check_medium), and
/// [`conformance::check_log`](crate::conformance::check_log) below a `RecordLog`.
pub trait LogMedium: Send + Sync + fmt::Debug {
    /// What and where, for messages.
    fn describe(&self) -> String;

    /// All jobs that have a record, in any order; others may be among them.
    ///
    /// # Errors
    /// What the medium reports.
    fn jobs(&self) -> Result<Vec<JobName>>;

    /// The numbers of a job's records, ascending; empty for an unknown job.
    ///
    /// # Errors
    /// What the medium reports.
    fn list(&self, job: &JobName) -> Result<Vec<u64>>;

    /// A record's bytes; `None` if there surely is no such record.
    ///
    /// # Errors
    /// It is not known whether there is one: what the medium reports. `Damaged` only if it is there and
    /// its bytes are lost.
    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>>;

    /// Whether there is such a record.
    ///
    /// # Errors
    /// As [`LogMedium::get`], but that damage need not be noticed.
    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        Ok(self.get(job, number)?.is_some())
    }

    /// Puts a record under a number, unless there is one.
    ///
    /// # Errors
    /// What the medium reports; then it is not known whether the record is there.
    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put>;

    /// Removes a record; one that is not there is no error. Until the next [`LogMedium::sync`] a power
    /// cut may bring it back.
    ///
    /// # Errors
    /// What the medium reports.
    fn delete(&self, job: &JobName, number: u64) -> Result<()>;

    /// Makes durable what is visible of a job now: which records there are, and which are not. No error
    /// for a job of which nobody has put anything.
    ///
    /// # Errors
    /// What the medium reports; `Retry` only if the call may be repeated, which a failed fsync may not.
    fn sync(&self, job: &JobName) -> Result<()>;

    /// Removes what puts that never ended have left behind. One that is still at work may lose what it
    /// has prepared, and begins anew.
    ///
    /// # Errors
    /// What the medium reports.
    fn tidy(&self, _job: &JobName) -> Result<()> {
        Ok(())
    }

    /// As [`ManifestLog::lock_collecting`](crate::ManifestLog::lock_collecting).
    ///
    /// # Errors
    /// What the medium reports.
    fn lock_collecting(&self) -> Result<Lock> {
        Ok(Lock::None)
    }

    /// As [`ManifestLog::lock_reading`](crate::ManifestLog::lock_reading).
    ///
    /// # Errors
    /// What the medium reports.
    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        Ok(None)
    }

    /// As [`ManifestLog::is_read`](crate::ManifestLog::is_read).
    ///
    /// # Errors
    /// What the medium reports.
    fn is_read(&self) -> Result<bool> {
        Ok(false)
    }
}

impl<M: LogMedium + ?Sized> LogMedium for Arc<M> {
    fn describe(&self) -> String {
        (**self).describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        (**self).jobs()
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        (**self).list(job)
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        (**self).get(job, number)
    }

    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        (**self).has(job, number)
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        (**self).put_new(job, number, record)
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        (**self).delete(job, number)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        (**self).sync(job)
    }

    fn tidy(&self, job: &JobName) -> Result<()> {
        (**self).tidy(job)
    }

    fn lock_collecting(&self) -> Result<Lock> {
        (**self).lock_collecting()
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        (**self).lock_reading()
    }

    fn is_read(&self) -> Result<bool> {
        (**self).is_read()
    }
}

/// The error for a record that is not there.
fn no_record(place: &str, job: &JobName, number: u64) -> Error {
    Error::damaged(format!("record {number} of job {job} is missing from {place}"))
}

#[cfg(test)]
mod tests;
