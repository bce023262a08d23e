//! The protocol of appending on any medium. An append is conditional on the bytes of the record
//! before it, gives each number once, and settles a lost reply by reading back. docs/faults.md has
//! the rules.

use crate::locks::{Lease, Lock, LockGuard, LogLocks};
use crate::manifest_log::{Append, ManifestLog, Previous};
use crate::medium::{LogMedium, NUMBER_MAX, Put};
use outlive_format::{Record, fingerprint};
use outlive_types::sync::pause;
use outlive_types::{Error, JobName, Result};

/// The log of a pool, on a medium.
#[derive(Debug, Default)]
pub struct RecordLog<M> {
    pub(crate) medium: M,
}

impl<M: LogMedium> RecordLog<M> {
    /// Returns the log whose records are on `medium`.
    pub fn over(medium: M) -> RecordLog<M> {
        RecordLog { medium }
    }

    /// Returns the medium of the records.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Returns the outcome if an append behind `previous` cannot go on; `None` if the number is
    /// free.
    pub(crate) fn occupied(
        &self,
        job: &JobName,
        previous: Previous,
        record: &[u8],
    ) -> Result<Option<Append>> {
        let number = next_number(previous.number)?;
        match self.medium.get(job, number)? {
            // Ours, from a call whose reply got lost, perhaps before the record was durable.
            Some(bytes) if bytes == record => return self.settle(job, number, record).map(Some),
            Some(_) => return Ok(Some(Append::Lost)),
            None => {}
        }
        // A log that was never pruned has no gaps: if its newest number is `previous`, nothing
        // newer exists. This spares a listing per append while the log is long. A pruned log is
        // short, but a power cut may have left a gap among its oldest records.
        let before = previous.number;
        let there = if before > 0 { self.medium.get(job, before)? } else { None };
        if there.is_none() || !self.medium.has(job, 1)? {
            match self.latest(job)? {
                latest if latest > before => return Ok(Some(Append::Lost)),
                latest if latest < before => {
                    return Err(no_record(&self.describe(), job, before));
                }
                _ => {}
            }
        }
        if before == 0 {
            return Ok(None);
        }
        Ok(match there {
            Some(bytes) if fingerprint(&bytes) == previous.fp => None,
            // The record differs from the one meant, or it was pruned just now and newer ones
            // exist.
            Some(_) | None => Some(Append::Lost),
        })
    }

    /// Returns the outcome of an append after its put.
    pub(crate) fn answer(
        &self,
        job: &JobName,
        previous: Previous,
        record: &[u8],
        put: Result<Put>,
    ) -> Result<Append> {
        let number = next_number(previous.number)?;
        if put.as_ref().is_ok_and(|put| *put == Put::Made) {
            pause("the record has its number");
            return self.settle(job, number, record);
        }
        // Another record has the number, or ours has: the reply may have been lost.
        if let Some(append) = self.occupied(job, previous, record)? {
            return Ok(append);
        }
        put.and_then(|_| {
            Err(Error::retry(format!(
                "record {number} of job {job} was there and is not any more, in {}: try again",
                self.describe()
            )))
        })
    }

    /// Our record has its number: makes that durable, unless it came too late.
    fn settle(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Append> {
        if self.is_behind(job, number, record)? {
            pause("take back a record that came too late");
            // A log that was put back to an older state since may have another record there.
            if self.medium.get(job, number).is_ok_and(|there| there.as_deref() == Some(record)) {
                // No reader uses it, and without it the log has no gap again.
                let _ = self.medium.delete(job, number);
            }
            return Ok(Append::Lost);
        }
        self.medium.keep(job, number).map(|()| Append::Done)
    }

    /// Whether record `number` got its name too late: others used the number, and pruned it. A
    /// writer may be suspended for hours between its check of the log and the put.
    fn is_behind(&self, job: &JobName, number: u64, record: &[u8]) -> Result<bool> {
        // A removal begins with record 1, durably. So if the log has record 1 and the one before
        // ours, our number was free all along. The one before may alone be back after a power cut
        // (see `RecordLog::occupied`), and record 1 may alone be one that came too late, as ours.
        let is_whole =
            number > 1 && self.medium.has(job, 1)? && self.medium.has(job, number - 1)?;
        if is_whole || self.latest(job)? <= number {
            return Ok(false);
        }
        pause("look behind the record");
        Ok(match self.medium.get(job, number + 1)? {
            Some(next) => {
                Record::previous_of(&next).is_some_and(|previous| previous != fingerprint(record))
            }
            None => true,
        })
    }
}

impl<M: LogMedium> ManifestLog for RecordLog<M> {
    fn describe(&self) -> String {
        self.medium.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        let mut jobs = Vec::new();
        for job in self.medium.jobs()? {
            // Messages of ranks are no job.
            if !job.is_reserved() && !self.medium.list(&job)?.is_empty() {
                jobs.push(job);
            }
        }
        jobs.sort_unstable();
        Ok(jobs)
    }

    fn numbers(&self, job: &JobName) -> Result<Vec<u64>> {
        self.medium.list(job)
    }

    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>> {
        let record = self.medium.get(job, number)?;
        record.ok_or_else(|| no_record(&self.describe(), job, number))
    }

    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append> {
        if let Some(append) = self.occupied(job, previous, record)? {
            return Ok(append);
        }
        let put = self.medium.put_new(job, next_number(previous.number)?, record);
        self.answer(job, previous, record, put)
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        let newest = self.medium.list(job)?.last().copied().unwrap_or(0);
        self.medium.remove_before(job, number.min(newest))?;
        self.medium.tidy(job)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.medium.sync(job)
    }

    fn freshen(&self, job: &JobName) -> Result<()> {
        self.medium.freshen(job)
    }
}

impl<M: LogMedium> LogLocks for RecordLog<M> {
    fn lock_collecting(&self) -> Result<Lock> {
        self.medium.lock_collecting()
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.medium.lock_reading()
    }

    fn is_read(&self) -> Result<bool> {
        self.medium.is_read()
    }

    fn lease(&self) -> Result<Option<Lease>> {
        self.medium.lease()
    }

    fn has_lease_ended(&self, token: &str) -> Result<Option<bool>> {
        self.medium.has_lease_ended(token)
    }
}

/// Returns the number behind `previous`.
fn next_number(previous: u64) -> Result<u64> {
    match previous < NUMBER_MAX {
        true => Ok(previous + 1),
        false => Err(Error::bug("a log's record numbers have run out")),
    }
}

/// Returns the error for a missing record.
fn no_record(log: &str, job: &JobName, number: u64) -> Error {
    Error::damaged(format!("record {number} of job {job} is missing from {log}"))
}

#[cfg(test)]
mod tests;
