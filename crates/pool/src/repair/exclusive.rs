//! Keeps two processes from moving shards at once: by the lock of collectors. If the log has no
//! locks that end with their holder, by a claim in the table of targets.

use crate::Pool;
use crate::targets::{Claim, TargetTable};
use outlive_log::{Lock, LockGuard};
use outlive_types::sync::sleep;
use outlive_types::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

/// Pauses between the attempts of a program that waits for a change.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

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
        self.try_alone(self.lock_collecting()?)?
    }

    /// Does the same with the outcome of an attempt to take the lock. The inner error says that
    /// others are at work, or may be.
    fn try_alone(&self, lock: Lock) -> Result<Result<Exclusive>> {
        let (lock, claim) = match (lock, self.table()) {
            (Lock::Busy, _) => {
                return Ok(Err(Error::retry(
                    "a gc, scrub, repair or another change of the targets is at work in this pool: \
                     try again when it has ended",
                )));
            }
            (Lock::Taken(guard), _) => {
                // A storage node that has just started does not know.
                if let Err(unknown) = guard.check() {
                    return Ok(Err(unknown));
                }
                (Some(Arc::new(guard)), None)
            }
            (Lock::None, Some(table)) => match table.claim(&self.command("pool release", &[])) {
                Err(error) if error.kind() == ErrorKind::Retry => return Ok(Err(error)),
                claim => (None, Some(claim?)),
            },
            (Lock::None, None) => (None, None),
        };
        if let (Some(table), Some(lock)) = (self.table(), &lock) {
            table.is_locked_by(lock);
        }
        self.refresh_targets()?;
        Ok(Ok(Exclusive { _lock: lock, _claim: claim }))
    }

    /// Returns the table, and a guard that keeps others from changing it and from moving shards.
    pub(crate) fn changing(&self) -> Result<(Arc<TargetTable>, Exclusive)> {
        let table = self.table().cloned().ok_or_else(|| {
            Error::invalid("this pool has no table of targets, so its targets cannot be changed")
        })?;
        Ok((table, self.alone()?))
    }

    /// Does the same for a change that another process may be making, or that has to wait for
    /// others. Tries again for about `most`. `None` as soon as `is_wanted` returns false.
    ///
    /// # Errors
    /// `Retry` if others are at work all that time; errors of `is_wanted` and the log.
    pub(crate) fn changing_while(
        &self,
        is_wanted: &dyn Fn() -> Result<bool>,
        most: Duration,
    ) -> Result<Option<(Arc<TargetTable>, Exclusive)>> {
        let (mut waited, mut pause) = (Duration::ZERO, PAUSE_FIRST);
        while is_wanted()? {
            match self.try_alone(self.log().lock_collecting()?)? {
                Ok(alone) => return Ok(self.table().cloned().zip(Some(alone))),
                Err(busy) if waited >= most => return Err(busy),
                Err(_) => sleep(pause),
            }
            waited += pause;
            pause = (2 * pause).min(PAUSE_MAX);
        }
        Ok(None)
    }

    /// Does [`TargetTable::check_alone`], if there is a table.
    pub(crate) fn check_alone(&self) -> Result<()> {
        self.table().map_or(Ok(()), |table| table.check_alone())
    }

    /// Does [`TargetTable::check_locks`], if there is a table.
    pub(crate) fn check_locks(&self) -> Result<()> {
        self.table().map_or(Ok(()), |table| table.check_locks())
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
