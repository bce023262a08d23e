//! Keeps two processes from moving shards at once: by the lock of collectors. If the log has no
//! locks that end with their holder, by a claim in the table of targets.

use crate::Pool;
use crate::targets::{Claim, TargetTable};
use outlive_log::Lock;
use outlive_types::{Error, Result};
use std::sync::Arc;

/// Guard that keeps others from moving shards as long as it exists.
#[derive(Debug)]
pub struct Exclusive {
    _lock: Lock,
    _claim: Option<Claim>,
}

impl Pool {
    /// Keeps other processes from collecting and from moving shards: by the log's locks, or else by
    /// a claim in the table.
    ///
    /// # Errors
    /// `Retry` while another process does so; errors of the log.
    pub(crate) fn alone(&self) -> Result<Exclusive> {
        let lock = self.lock_collecting()?;
        if matches!(lock, Lock::Busy) {
            return Err(Error::retry(
                "a gc, scrub, repair or another change of the targets is at work in this pool: try \
                 again when it has ended",
            ));
        }
        let claim = match (&lock, self.table()) {
            (Lock::None, Some(table)) => Some(table.claim(&self.command("pool release", &[]))?),
            _ => None,
        };
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

    /// Ends the claim of a command that was killed while it moved shards, where the log has no
    /// locks. Returns the claim's holder, which must not run any more.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn release_targets(&self) -> Result<Option<String>> {
        self.table().map_or(Ok(None), |table| table.release())
    }
}
