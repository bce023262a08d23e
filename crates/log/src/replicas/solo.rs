//! The only replica of a log that may be moved. It counts until it is sealed.
//!
//! If the log was moved here, a mover may have been held up while it copied. It goes on after
//! copied records were removed, and brings them back. So before such a record is deleted, its
//! removal is recorded, as in a log of several replicas. No mover copies a record that is newer
//! than the move, so newer ones need no second check.

use super::had::decode;
use super::who::Asker;
use super::{COPIED, note_removed, removed_before};
use crate::locks::{Lease, Lock, LockGuard, LogLocks};
use crate::medium::{LogMedium, LogRecords, LogSeal, Put};
use outlive_types::sync::plain::Mutex;
use outlive_types::{JobName, Result};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

#[derive(Debug)]
pub(super) struct Solo {
    medium: Arc<dyn LogMedium>,
    asker: Asker,
    /// The number up to which a job's records surely were there before any seal. Uses `try_lock`
    /// only: a forked child may inherit the lock in use.
    sure: Mutex<HashMap<JobName, u64>>,
    /// The number up to which a job's records were copied here, if the log was moved here.
    copied: OnceLock<HashMap<JobName, u64>>,
}

impl Solo {
    pub fn new(medium: Arc<dyn LogMedium>, asker: Asker) -> Solo {
        Solo { medium, asker, sure: Mutex::default(), copied: OnceLock::new() }
    }

    /// Whether a record that is found surely belongs to the log.
    fn is_sure(&self, job: &JobName, number: u64) -> bool {
        let copied = || self.copied.get().and_then(|copied| copied.get(job)).copied().unwrap_or(0);
        let sure = self.sure.try_lock().and_then(|sure| sure.get(job).copied());
        sure.is_some_and(|upto| number <= upto && copied() < number)
    }

    /// Returns the number up to which a job's records were copied here; 0 if none were.
    fn copied(&self, job: &JobName) -> Result<u64> {
        let copied = match self.copied.get() {
            _ if *job == JobName::moved() => return Ok(0),
            Some(copied) => copied,
            None => {
                // It was put there before the replica was opened.
                let had = self.medium.get(&JobName::moved(), COPIED)?;
                let had = had.map(|had| decode(&had)).transpose()?.unwrap_or_default();
                let copied = had.into_iter().map(|had| (had.job, had.last)).collect();
                self.copied.get_or_init(|| copied)
            }
        };
        Ok(copied.get(job).copied().unwrap_or(0))
    }

    /// Returns the number below which a found record is a copy that came too late. The call follows
    /// the find: removals are recorded before the deletion.
    fn removed(&self, job: &JobName, found: u64) -> Result<u64> {
        match found <= self.copied(job)? {
            true => removed_before(&*self.medium, job),
            false => Ok(0),
        }
    }

    fn note(&self, job: &JobName, number: u64) {
        if let Some(mut sure) = self.sure.try_lock() {
            let upto = sure.entry(job.clone()).or_default();
            *upto = number.max(*upto);
        }
    }

    fn ask<T>(&self, question: impl FnOnce(&dyn LogMedium) -> Result<T>) -> Result<T> {
        self.asker.ask(&*self.medium, question)
    }
}

impl LogRecords for Solo {
    fn describe(&self) -> String {
        self.medium.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.ask(|medium| medium.jobs())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        let numbers = self.ask(|medium| {
            let mut listed = medium.list(job)?;
            loop {
                let Some(first) = listed.first() else { return Ok(listed) };
                let removed = self.removed(job, *first)?;
                let there = |number: &u64| *number >= removed;
                if listed.iter().any(there) {
                    listed.retain(there);
                    return Ok(listed);
                }
                // Others have removed all listed records: they did so because of a newer one.
                let before = std::mem::replace(&mut listed, medium.list(job)?);
                if before == listed {
                    return Ok(Vec::new());
                }
            }
        })?;
        numbers.last().into_iter().for_each(|newest| self.note(job, *newest));
        Ok(numbers)
    }

    /// Reads a record. One that was listed before needs no check for a seal, which would cost one
    /// more request in a bucket.
    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        if self.is_sure(job, number)
            && let Some(record) = self.medium.get(job, number)?
        {
            return Ok(Some(record));
        }
        self.ask(|medium| match medium.get(job, number)? {
            Some(record) if self.removed(job, number)? <= number => Ok(Some(record)),
            _ => Ok(None),
        })
    }

    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        let is_there = self.is_sure(job, number) && self.medium.has(job, number)?;
        let look = |medium: &dyn LogMedium| {
            Ok(medium.has(job, number)? && self.removed(job, number)? <= number)
        };
        Ok(is_there || self.ask(look)?)
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        self.ask(|medium| medium.put_new(job, number, record))
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        self.asker.look(&*self.medium)?;
        self.medium.delete(job, number)
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        self.asker.look(&*self.medium)?;
        self.ask(|medium| {
            let copied = self.copied(job)?;
            // One note is enough for all copies.
            let note = number.min(copied + 1);
            if copied > 0 && removed_before(medium, job)? < note {
                note_removed(medium, job, note)?;
                medium.remove_before(&job.removed(), note)?;
            }
            medium.remove_before(job, number)
        })
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.ask(|medium| medium.sync(job))
    }

    fn keep(&self, job: &JobName, number: u64) -> Result<()> {
        self.ask(|medium| medium.keep(job, number))
    }

    fn tidy(&self, job: &JobName) -> Result<()> {
        self.medium.tidy(job)
    }

    fn freshen(&self, job: &JobName) -> Result<()> {
        self.medium.freshen(job).and_then(|()| self.medium.freshen(&job.removed()))
    }
}

impl LogLocks for Solo {
    fn lock_collecting(&self) -> Result<Lock> {
        self.ask(|medium| medium.lock_collecting())
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.ask(|medium| medium.lock_reading())
    }

    fn is_read(&self) -> Result<bool> {
        self.ask(|medium| medium.is_read())
    }

    fn lease(&self) -> Result<Option<Lease>> {
        self.ask(|medium| medium.lease())
    }

    fn has_lease_ended(&self, token: &str) -> Result<Option<bool>> {
        self.ask(|medium| medium.has_lease_ended(token))
    }
}

impl LogSeal for Solo {}
