//! Keeps two processes from moving shards at once: by the lock of collectors. If the log has no
//! locks that end with their holder, by a claim in the table of targets.

use crate::Pool;
use crate::targets::{Claim, TargetTable};
use outlive_log::{Lock, LockGuard};
use outlive_types::{Error, ErrorKind, Result};
use std::sync::Arc;

/// Number of attempts of a program that waits for a change: about a minute.
const WANTED_TRIES: usize = 3000;

/// Guard that keeps others from moving shards as long as it exists.
#[derive(Debug)]
pub struct Exclusive {
    _lock: Option<Arc<LockGuard>>,
    _claim: Option<Claim>,
}

impl Pool {
    /// Keeps other processes from collecting and from moving shards: by the log's locks, or else by
    /// a claim in the table.
    ///
    /// # Errors
    /// `Retry` while another process does so; errors of the log.
    pub(crate) fn alone(&self) -> Result<Exclusive> {
        self.alone_with(self.lock_collecting()?)
    }

    fn alone_with(&self, lock: Lock) -> Result<Exclusive> {
        if matches!(lock, Lock::Busy) {
            return Err(Error::retry(
                "a gc, scrub, repair or another change of the targets is at work in this pool: try \
                 again when it has ended",
            ));
        }
        let (lock, claim) = match (lock, self.table()) {
            (Lock::Taken(guard), _) => {
                // A storage node may have started a moment ago.
                guard.check()?;
                (Some(Arc::new(guard)), None)
            }
            (_, Some(table)) => (None, Some(table.claim(&self.command("pool release", &[]))?)),
            (_, None) => (None, None),
        };
        if let Some(table) = self.table() {
            table.is_locked_by(lock.as_ref());
        }
        self.refresh_targets()?;
        Ok(Exclusive { _lock: lock, _claim: claim })
    }

    /// Returns the table, and a guard that keeps others from changing it and from moving shards.
    pub(crate) fn changing(&self) -> Result<(Arc<TargetTable>, Exclusive)> {
        let table = self.table().cloned().ok_or_else(|| {
            Error::invalid("this pool has no table of targets, so its targets cannot be changed")
        })?;
        Ok((table, self.alone()?))
    }

    /// Does the same for a program that cannot continue before a change is made. Another process may
    /// make it, or may be at work for longer: `None` as soon as `is_wanted` returns false.
    ///
    /// # Errors
    /// `Retry` if others are at work for [`WANTED_TRIES`] looks; errors of `is_wanted` and the log.
    pub(crate) fn changing_while(
        &self,
        is_wanted: &dyn Fn() -> Result<bool>,
    ) -> Result<Option<(Arc<TargetTable>, Exclusive)>> {
        for left in (0..WANTED_TRIES).rev() {
            if !is_wanted()? {
                return Ok(None);
            }
            match self.log().lock_collecting().and_then(|lock| self.alone_with(lock)) {
                Err(error) if error.kind() == ErrorKind::Retry && left > 0 => self.pause(),
                alone => return Ok(self.table().cloned().zip(Some(alone?))),
            }
        }
        Ok(None)
    }

    /// Ends the claim of a command that was killed while it moved shards, where the log has no
    /// locks. Returns the claim's holder, which must not run any more.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn release_targets(&self) -> Result<Option<String>> {
        self.table().map_or(Ok(None), |table| table.release())
    }
}
