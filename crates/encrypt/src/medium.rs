//! A medium of records, all encrypted.

use crate::encryption::Encryption;
use outlive_log::{Lease, Lock, LockGuard, LogLocks, LogMedium, LogRecords, LogSeal, Put};
use outlive_types::{JobName, Result};
use std::sync::Arc;

/// A medium that keeps the records of another one encrypted. Job and number are authenticated with
/// the bytes, so no record can stand in for another. The names of jobs stay readable, and so does
/// the successor of a medium that was moved.
#[derive(Debug)]
pub struct EncryptedMedium {
    inner: Arc<dyn LogMedium>,
    encryption: Arc<Encryption>,
}

impl EncryptedMedium {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn LogMedium>, encryption: Arc<Encryption>) -> EncryptedMedium {
        EncryptedMedium { inner, encryption }
    }
}

fn context(job: &JobName, number: u64) -> Vec<u8> {
    [&b"record "[..], &number.to_le_bytes(), job.as_str().as_bytes()].concat()
}

impl LogRecords for EncryptedMedium {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.inner.jobs()
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        self.inner.list(job)
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        let Some(bytes) = self.inner.get(job, number)? else { return Ok(None) };
        let plain = self.encryption.decrypt(&context(job, number), bytes);
        plain.map(Some).map_err(|error| {
            error.context(format!("record {number} of job {job} in {}", self.inner.describe()))
        })
    }

    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        self.inner.has(job, number)
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        let bytes = self.encryption.encrypt(&context(job, number), record)?;
        self.inner.put_new(job, number, &bytes)
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        self.inner.delete(job, number)
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        self.inner.remove_before(job, number)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.inner.sync(job)
    }

    fn freshen(&self, job: &JobName) -> Result<()> {
        self.inner.freshen(job)
    }

    fn keep(&self, job: &JobName, number: u64) -> Result<()> {
        self.inner.keep(job, number)
    }

    fn tidy(&self, job: &JobName) -> Result<()> {
        self.inner.tidy(job)
    }
}

impl LogLocks for EncryptedMedium {
    fn lock_collecting(&self) -> Result<Lock> {
        self.inner.lock_collecting()
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.inner.lock_reading()
    }

    fn is_read(&self) -> Result<bool> {
        self.inner.is_read()
    }

    fn lease(&self) -> Result<Option<Lease>> {
        self.inner.lease()
    }

    fn has_lease_ended(&self, token: &str) -> Result<Option<bool>> {
        self.inner.has_lease_ended(token)
    }
}

impl LogSeal for EncryptedMedium {
    fn sealed(&self) -> Result<Option<Vec<u8>>> {
        self.inner.sealed()
    }

    fn seal(&self, successor: &[u8]) -> Result<()> {
        self.inner.seal(successor)
    }
}
