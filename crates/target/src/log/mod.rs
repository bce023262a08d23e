//! Where the records of jobs are kept: one protocol of appending ([`RecordLog`]) above any medium
//! ([`LogMedium`]) that can put a record under a number that nobody has taken.

pub(crate) mod directory;
mod memory;
mod protocol;
pub mod replicas;

pub use directory::DirectoryMedium;
pub use memory::MemoryMedium;
pub use protocol::RecordLog;
pub use replicas::{Asking, Movable, ReplicatedLog};

use crate::{Lease, Lock, LockGuard};
use outlive_types::sync::pause;
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

/// The highest number that a record may have: a medium of several places has other uses for the bits above.
pub const NUMBER_MAX: u64 = (1 << 48) - 1;

/// Records removed between two syncs.
const REMOVED_PER_SYNC: u32 = 256;

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

    /// All jobs that have a record, in any order; others may be among them. What the ranks of a job tell each
    /// other has names of its own ([`JobName::mail_of`], [`JobName::calls_of`]), which are listed as well.
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

    /// Removes all records below a number, oldest first; nobody is to put one there any more.
    ///
    /// # Errors
    /// What the medium reports; then some of them may be left.
    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        let mut removed = 0;
        for old in self.list(job)?.into_iter().filter(|old| *old < number) {
            pause("remove a record");
            self.delete(job, old)?;
            removed += 1;
            // Names vanish in any order at a power cut. That the first is gone must hold before there
            // can be a gap (see `RecordLog::occupied`); the rest is made durable now and then.
            if removed % REMOVED_PER_SYNC == 1 {
                self.sync(job)?;
            }
        }
        if removed > 0 { self.sync(job) } else { Ok(()) }
    }

    /// Makes durable what is visible of a job now: which records there are, and which are not. No error
    /// for a job of which nobody has put anything.
    ///
    /// # Errors
    /// What the medium reports; `Retry` only if the call may be repeated, which a failed fsync may not.
    fn sync(&self, job: &JobName) -> Result<()>;

    /// See [`ManifestLog::freshen`].
    ///
    /// # Errors
    /// What the medium reports.
    fn freshen(&self, _job: &JobName) -> Result<()> {
        Ok(())
    }

    /// Makes one record durable that is visible.
    ///
    /// # Errors
    /// As [`LogMedium::sync`].
    fn keep(&self, job: &JobName, _number: u64) -> Result<()> {
        self.sync(job)
    }

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

    /// As [`ManifestLog::lease`](crate::ManifestLog::lease).
    ///
    /// # Errors
    /// What the medium reports.
    fn lease(&self) -> Result<Option<Lease>> {
        Ok(None)
    }

    /// As [`ManifestLog::has_lease_ended`](crate::ManifestLog::has_lease_ended).
    ///
    /// # Errors
    /// What the medium reports.
    fn has_lease_ended(&self, _token: &str) -> Result<Option<bool>> {
        Ok(None)
    }

    /// What comes instead of this place, if it was sealed: then nothing that is done here counts any more. The seal
    /// is durable by then: the process that wrote it may have died before it was, and the caller acts on it.
    ///
    /// # Errors
    /// It is not known: what the medium reports.
    fn sealed(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Seals this place for good, durably: it says from now on that `successor` comes instead. One that is sealed
    /// stays as it is. Only whoever moves the log does that, and all of them with the same successor.
    ///
    /// # Errors
    /// What the medium reports; then it is not known whether it is sealed.
    fn seal(&self, _successor: &[u8]) -> Result<()> {
        Err(Error::bug(format!("{} cannot be sealed", self.describe())))
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

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        (**self).remove_before(job, number)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        (**self).sync(job)
    }

    fn keep(&self, job: &JobName, number: u64) -> Result<()> {
        (**self).keep(job, number)
    }

    fn tidy(&self, job: &JobName) -> Result<()> {
        (**self).tidy(job)
    }

    fn freshen(&self, job: &JobName) -> Result<()> {
        (**self).freshen(job)
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

    fn lease(&self) -> Result<Option<Lease>> {
        (**self).lease()
    }

    fn has_lease_ended(&self, token: &str) -> Result<Option<bool>> {
        (**self).has_lease_ended(token)
    }

    fn sealed(&self) -> Result<Option<Vec<u8>>> {
        (**self).sealed()
    }

    fn seal(&self, successor: &[u8]) -> Result<()> {
        (**self).seal(successor)
    }
}

/// The error for a record that is not there.
fn no_record(place: &str, job: &JobName, number: u64) -> Error {
    Error::damaged(format!("record {number} of job {job} is missing from {place}"))
}

#[cfg(test)]
mod tests;
