//! The log of a pool, as the store uses it.

use crate::locks::LogLocks;
use outlive_format::fingerprint;
use outlive_types::{Fingerprint, JobName, Result};
use std::fmt;

/// The record behind which another is appended: its bytes, not only its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Previous {
    /// Number of the record; 0 before the first record.
    pub number: u64,
    /// Fingerprint of its bytes; zero before the first record.
    pub fp: Fingerprint,
}

impl Previous {
    /// The position before the first record.
    pub const NONE: Previous = Previous { number: 0, fp: Fingerprint::ZERO };

    /// Returns the position behind a record with these bytes.
    pub fn of(number: u64, record: &[u8]) -> Previous {
        Previous { number, fp: fingerprint(record) }
    }
}

/// The outcome of a conditional append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Append {
    /// The record is durable, with the number `previous + 1`.
    Done,
    /// Another writer was faster: a different record has that number or a later one. Or record
    /// `previous` differs from the one that the caller means: the log was put back to an older
    /// state.
    Lost,
}

/// Storage for the records of jobs: numbered from 1 without gaps, each written once.
pub trait ManifestLog: LogLocks + Send + Sync + fmt::Debug {
    /// Returns the kind and location, for messages.
    fn describe(&self) -> String;

    /// Returns all jobs that have a record, sorted.
    ///
    /// # Errors
    /// Errors of the medium.
    fn jobs(&self) -> Result<Vec<JobName>>;

    /// Returns the numbers of a job's records, ascending; none for an unknown job. Old records may
    /// have been pruned, so the first number need not be 1.
    ///
    /// # Errors
    /// Errors of the medium.
    fn numbers(&self, job: &JobName) -> Result<Vec<u64>>;

    /// Returns the newest record's number, 0 if there is none.
    ///
    /// # Errors
    /// Errors of the medium.
    fn latest(&self, job: &JobName) -> Result<u64> {
        Ok(self.numbers(job)?.last().copied().unwrap_or(0))
    }

    /// Returns a record's bytes.
    ///
    /// # Errors
    /// `Damaged` if there is no such record.
    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>>;

    /// Appends `record` as number `previous + 1` if `previous` is still the newest record, with the
    /// same bytes; the record is durable when the call returns `Done`. After a lost reply, the call
    /// reads the number back: its own record there means `Done`, so a failed call may be repeated
    /// as it is.
    ///
    /// # Errors
    /// `Damaged` if record `previous` is missing although no newer one is there. After an error the
    /// record may or may not be there.
    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append>;

    /// Removes the records below `number`, oldest first, but never the newest. So the remaining
    /// numbers have no gap, and no writer can append under the number of a removed record. After an
    /// error or a crash, some of the oldest records are gone and the others are there.
    ///
    /// # Errors
    /// Errors of the medium.
    fn remove_before(&self, job: &JobName, number: u64) -> Result<()>;

    /// Makes every visible record of the job durable. A caller that deletes data because of another
    /// process's record calls this first. The writer of that record may have died between the two
    /// steps of its append; a power cut would then remove the record, and the data would stay
    /// deleted.
    ///
    /// # Errors
    /// Errors of the medium.
    fn sync(&self, job: &JobName) -> Result<()>;

    /// Sets the times of a job's records, and of the log's own files, to the present, on a medium
    /// where old files may be purged by age.
    ///
    /// # Errors
    /// Errors of the medium.
    fn freshen(&self, _job: &JobName) -> Result<()> {
        Ok(())
    }
}
