//! Keeps two processes from moving shards at once: by the lock of collectors, or by a claim in the table of targets where
//! the log has no locks that end with their holder.

use crate::Pool;
use crate::targets::{Claim, TargetTable};
use outlive_target::Lock;
use outlive_types::{Error, Result};
use std::sync::Arc;

/// What keeps others from moving shards, as long as it is there.
#[derive(Debug)]
pub struct Exclusive {
    _lock: Lock,
    _claim: Option<Claim>,
}

impl Pool {
    /// Keeps other processes from collecting and from moving shards, where the log has locks by these, otherwise by a
    /// claim in the table.
    ///
    /// # Errors
    /// `Retry` while another is at work; what the log reports.
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

    /// The table, and what keeps others from changing it and from moving shards.
    pub(crate) fn changing(&self) -> Result<(Arc<TargetTable>, Exclusive)> {
        let table = self.table().cloned().ok_or_else(|| {
            Error::invalid("this pool has no table of targets, so its targets cannot be changed")
        })?;
        Ok((table, self.alone()?))
    }

    /// Ends the claim of a command that was killed while it moved shards, where the log has no locks.
    /// Returns its holder. That command must not be at work any more.
    ///
    /// # Errors
    /// What the log reports.
    pub fn release_targets(&self) -> Result<Option<String>> {
        self.table().map_or(Ok(None), |table| table.release())
    }
}
