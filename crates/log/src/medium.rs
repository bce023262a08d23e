//! A medium of records.

use crate::locks::{Lease, Lock, LockGuard, LogLocks};
use outlive_types::sync::pause;
use outlive_types::{Error, JobName, Result};
use std::fmt;
use std::sync::Arc;

/// Records removed between two syncs.
const REMOVED_PER_SYNC: u32 = 256;

/// The highest number of a record: a medium of several replicas uses the higher bits for rounds.
pub const NUMBER_MAX: u64 = (1 << 48) - 1;

/// The outcome of putting a record under a new number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// The record has the number. It is whole, and visible to all programs; durable after the next
    /// [`LogRecords::sync`].
    Made,
    /// Another record has that number, unchanged. It may be the caller's own: over a network the
    /// reply to a put may get lost.
    Taken,
}

/// A medium of records: a directory, a bucket, a cluster, or several of them as one.
///
/// A backend must provide only this. [`RecordLog`](crate::RecordLog), above it, decides which
/// number a record may have, whether a reply got lost, and which writer is fenced. An
/// implementation must pass `conformance::check_medium` of the crate `backend`, and
/// `conformance::check_log` below a `RecordLog`.
pub trait LogMedium: LogRecords + LogLocks + LogSeal + Send + Sync + fmt::Debug {}

impl<M: LogRecords + LogLocks + LogSeal + Send + Sync + fmt::Debug + ?Sized> LogMedium for M {}

/// The records of a medium: job and number name a record, which is written once. Calls may come
/// from any thread and any process. Readers see a record whole or not at all.
pub trait LogRecords {
    /// Returns the kind and location, for messages.
    fn describe(&self) -> String;

    /// Returns all jobs that have a record, in any order; names without one may be among them. The
    /// messages of a job's ranks have names of their own ([`JobName::mail_of`],
    /// [`JobName::calls_of`]), which are listed as well.
    ///
    /// # Errors
    /// Errors of the medium.
    fn jobs(&self) -> Result<Vec<JobName>>;

    /// Returns the numbers of a job's records, ascending; none for an unknown job.
    ///
    /// # Errors
    /// Errors of the medium.
    fn list(&self, job: &JobName) -> Result<Vec<u64>>;

    /// Returns a record's bytes; `None` if there surely is no such record.
    ///
    /// # Errors
    /// Errors of the medium: the record may or may not exist. `Damaged` only if it exists and its
    /// bytes are lost.
    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>>;

    /// Whether there is such a record.
    ///
    /// # Errors
    /// As [`LogRecords::get`], except that damage may go unnoticed.
    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        Ok(self.get(job, number)?.is_some())
    }

    /// Puts a record under a number, unless the number has one.
    ///
    /// # Errors
    /// Errors of the medium; then the record may or may not be there.
    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put>;

    /// Removes a record; a missing one is no error. Until the next [`LogRecords::sync`] a power cut
    /// may bring it back.
    ///
    /// # Errors
    /// Errors of the medium.
    fn delete(&self, job: &JobName, number: u64) -> Result<()>;

    /// Removes all records below a number, oldest first. No caller may put a record there any more.
    ///
    /// # Errors
    /// Errors of the medium; then some of the records may be left.
    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        let mut removed = 0;
        for old in self.list(job)?.into_iter().filter(|old| *old < number) {
            pause("remove a record");
            self.delete(job, old)?;
            removed += 1;
            // A power cut brings names back in any order. The first removal must be durable before
            // there can be a gap (see `RecordLog::occupied`); the others are made durable from time
            // to time.
            if removed % REMOVED_PER_SYNC == 1 {
                self.sync(job)?;
            }
        }
        if removed > 0 { self.sync(job) } else { Ok(()) }
    }

    /// Makes the present state of a job durable: its records, and its removals. A job without
    /// records is no error.
    ///
    /// # Errors
    /// Errors of the medium. `Retry` only if the call may be repeated, which a failed fsync may
    /// not.
    fn sync(&self, job: &JobName) -> Result<()>;

    /// See [`ManifestLog::freshen`](crate::ManifestLog::freshen).
    ///
    /// # Errors
    /// Errors of the medium.
    fn freshen(&self, _job: &JobName) -> Result<()> {
        Ok(())
    }

    /// Makes one visible record durable.
    ///
    /// # Errors
    /// As [`LogRecords::sync`].
    fn keep(&self, job: &JobName, _number: u64) -> Result<()> {
        self.sync(job)
    }

    /// Removes leftovers of puts that never ended. A put in progress may lose its temporary file,
    /// and begins again.
    ///
    /// # Errors
    /// Errors of the medium.
    fn tidy(&self, _job: &JobName) -> Result<()> {
        Ok(())
    }
}

/// The seal of a medium, by which a log moves elsewhere.
pub trait LogSeal {
    /// Returns the successor of this medium if it is sealed: then nothing done here counts any
    /// more. The seal is durable when this returns: the process that wrote it may have died
    /// earlier, and the caller acts on it.
    ///
    /// # Errors
    /// Errors of the medium: it may or may not be sealed.
    fn sealed(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Seals this medium forever, durably: from now on it names `successor` as its replacement. A
    /// sealed medium stays as it is. Only movers of the log seal, all with the same successor.
    ///
    /// # Errors
    /// Errors of the medium: it may or may not be sealed.
    fn seal(&self, _successor: &[u8]) -> Result<()> {
        Err(Error::bug("this medium cannot be sealed"))
    }
}

impl<M: LogRecords + ?Sized> LogRecords for Arc<M> {
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
}

impl<M: LogLocks + ?Sized> LogLocks for Arc<M> {
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
}

impl<M: LogSeal + ?Sized> LogSeal for Arc<M> {
    fn sealed(&self) -> Result<Option<Vec<u8>>> {
        (**self).sealed()
    }

    fn seal(&self, successor: &[u8]) -> Result<()> {
        (**self).seal(successor)
    }
}
