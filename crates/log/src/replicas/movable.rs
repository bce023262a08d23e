//! A log that may be moved to other replicas while it is used: a program that meets a seal follows
//! it, and repeats its operation there. So the layers above see one log.

use super::Asking;
use super::moving::seen_by;
use super::who::Asker;
use crate::locks::{Lease, Lock, LockGuard, LogLocks};
use crate::medium::{LogMedium, LogRecords, LogSeal, Put};
use outlive_types::{Error, JobName, Result};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Opens the replicas of a successor, and completes the move if needed.
pub type Follow = Box<dyn Fn(&[u8]) -> Result<Vec<Arc<dyn LogMedium>>> + Send + Sync>;

/// A log that may be moved.
pub struct Movable {
    first: Link,
    asking: Asking,
    follow: Follow,
}

/// A configuration, and the next one. No thread ever waits for a lock here: a forked child may
/// inherit it in any state.
struct Link {
    log: Arc<dyn LogMedium>,
    asker: Asker,
    next: OnceLock<Box<Link>>,
}

impl Link {
    fn new(media: &[Arc<dyn LogMedium>], asking: Asking) -> Result<Link> {
        let asker = Asker::user();
        Ok(Link { log: seen_by(&asker, media, asking)?, asker, next: OnceLock::new() })
    }
}

impl Movable {
    /// Returns the log in these replicas, and in all their successors.
    ///
    /// # Errors
    /// `Invalid` unless their number is one, three, five, or seven.
    pub fn new(media: &[Arc<dyn LogMedium>], asking: Asking, follow: Follow) -> Result<Movable> {
        Ok(Movable { first: Link::new(media, asking)?, asking, follow })
    }

    fn now(&self) -> &Link {
        let mut link = &self.first;
        while let Some(next) = link.next.get() {
            link = next;
        }
        link
    }

    fn with<T>(&self, work: impl Fn(&dyn LogMedium) -> Result<T>) -> Result<T> {
        loop {
            let link = self.now();
            match (work(&*link.log), link.asker.successor()) {
                (Err(_), Some(successor)) => {
                    let media = (self.follow)(successor)?;
                    // Another thread may have been first.
                    let _ = link.next.set(Box::new(Link::new(&media, self.asking)?));
                }
                (done, _) => return done,
            }
        }
    }
}

impl fmt::Debug for Movable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.now().log.fmt(f)
    }
}

impl LogRecords for Movable {
    fn describe(&self) -> String {
        self.now().log.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.with(|log| log.jobs())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        self.with(|log| log.list(job))
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        self.with(|log| log.get(job, number))
    }

    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        self.with(|log| log.has(job, number))
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        self.with(|log| log.put_new(job, number, record))
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        self.with(|log| log.delete(job, number))
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        self.with(|log| log.remove_before(job, number))
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.with(|log| log.sync(job))
    }

    fn keep(&self, job: &JobName, number: u64) -> Result<()> {
        self.with(|log| log.keep(job, number))
    }

    fn tidy(&self, job: &JobName) -> Result<()> {
        self.with(|log| log.tidy(job))
    }

    fn freshen(&self, job: &JobName) -> Result<()> {
        self.with(|log| log.freshen(job))
    }
}

impl LogLocks for Movable {
    fn lock_collecting(&self) -> Result<Lock> {
        self.with(|log| log.lock_collecting())
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.with(|log| log.lock_reading())
    }

    fn is_read(&self) -> Result<bool> {
        self.with(|log| log.is_read())
    }

    fn lease(&self) -> Result<Option<Lease>> {
        self.with(|log| log.lease())
    }

    fn has_lease_ended(&self, token: &str) -> Result<Option<bool>> {
        self.with(|log| log.has_lease_ended(token))
    }
}

impl LogSeal for Movable {
    /// Fails: each replica is sealed by itself.
    fn seal(&self, _successor: &[u8]) -> Result<()> {
        Err(Error::bug("a log is sealed replica by replica"))
    }
}
