//! The only place of a log that may be moved. It counts as long as it is not sealed.

use super::who::Asker;
use crate::log::{LogMedium, Put};
use crate::{Lock, LockGuard};
use outlive_types::{JobName, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

#[derive(Debug)]
pub(super) struct Solo {
    medium: Arc<dyn LogMedium>,
    asker: Asker,
    /// Up to which number a job's records are known to have been there before any seal. Only ever tried: a forked
    /// child may inherit it locked.
    sure: Mutex<HashMap<JobName, u64>>,
}

impl Solo {
    pub fn new(medium: Arc<dyn LogMedium>, asker: Asker) -> Solo {
        Solo { medium, asker, sure: Mutex::default() }
    }

    fn is_sure(&self, job: &JobName, number: u64) -> bool {
        self.sure.try_lock().is_ok_and(|sure| sure.get(job).is_some_and(|upto| number <= *upto))
    }

    fn note(&self, job: &JobName, number: u64) {
        if let Ok(mut sure) = self.sure.try_lock() {
            let upto = sure.entry(job.clone()).or_default();
            *upto = number.max(*upto);
        }
    }

    fn ask<T>(&self, question: impl FnOnce(&dyn LogMedium) -> Result<T>) -> Result<T> {
        self.asker.ask(&*self.medium, question)
    }
}

impl LogMedium for Solo {
    fn describe(&self) -> String {
        self.medium.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.ask(|medium| medium.jobs())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        let numbers = self.ask(|medium| medium.list(job))?;
        numbers.last().into_iter().for_each(|newest| self.note(job, *newest));
        Ok(numbers)
    }

    /// One that was listed before needs no look at the seal, which would be a request more in a bucket.
    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        if self.is_sure(job, number)
            && let Some(record) = self.medium.get(job, number)?
        {
            return Ok(Some(record));
        }
        self.ask(|medium| medium.get(job, number))
    }

    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        let is_there = self.is_sure(job, number) && self.medium.has(job, number)?;
        Ok(is_there || self.ask(|medium| medium.has(job, number))?)
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
        self.ask(|medium| medium.remove_before(job, number))
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

    fn lock_collecting(&self) -> Result<Lock> {
        self.ask(|medium| medium.lock_collecting())
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.ask(|medium| medium.lock_reading())
    }

    fn is_read(&self) -> Result<bool> {
        self.ask(|medium| medium.is_read())
    }
}
