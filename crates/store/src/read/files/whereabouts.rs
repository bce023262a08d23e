//! Where a checkpoint's chunks are: as its segments said when it was opened and, when a gc has moved
//! them since, as the log has it now. Readers have no session, so a gc does not wait for them.

use super::recipe::read_pieces;
use crate::commit::history;
use crate::images::only_image;
use crate::index::Locator;
use outlive_format::{Manifest, Piece, SegmentRef};
use outlive_pool::Pool;
use outlive_types::{Epoch, ErrorKind, JobName, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The places of one checkpoint.
#[derive(Debug)]
pub struct Whereabouts {
    pool: Pool,
    job: JobName,
    epoch: Epoch,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    /// Number of the log's newest record when this was true.
    as_of: u64,
    segments: Vec<SegmentRef>,
    locator: Arc<Locator>,
}

impl Whereabouts {
    /// Loads the segments of a manifest, which record `as_of` was the last to change.
    ///
    /// # Errors
    /// `Damaged` if one is missing or wrong.
    pub fn load(pool: &Pool, job: &JobName, manifest: &Manifest, as_of: u64) -> Result<Self> {
        let segments = only_image(manifest)?.segments.clone();
        let locator = Arc::new(Locator::load(pool, &segments)?);
        let now = Mutex::new(Now { as_of, segments, locator });
        Ok(Whereabouts { pool: pool.clone(), job: job.clone(), epoch: manifest.epoch, now })
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The places as far as they are known.
    pub fn locator(&self) -> Arc<Locator> {
        self.now().locator.clone()
    }

    /// Reads pieces as [`read_pieces`] does, wherever they are by now.
    ///
    /// # Errors
    /// As [`read_pieces`].
    pub fn read(&self, pieces: &[Piece]) -> Result<Vec<Vec<u8>>> {
        loop {
            let seen = self.locator();
            match read_pieces(&self.pool, &seen, pieces) {
                Err(error) if error.kind() == ErrorKind::Damaged && self.moved_since(&seen)? => {}
                read => return read,
            }
        }
    }

    /// Whether there are other places than `seen` knows, after a look at the log.
    ///
    /// # Errors
    /// What the log reports.
    pub fn moved_since(&self, seen: &Arc<Locator>) -> Result<bool> {
        let mut now = self.now();
        if !Arc::ptr_eq(&now.locator, seen) {
            return Ok(true);
        }
        let Now { as_of, segments, locator } = &mut *now;
        if self.pool.log().latest(&self.job)? == *as_of {
            return Ok(false);
        }
        for entry in history(&self.pool, &self.job)? {
            *as_of = entry.number.max(*as_of);
            let Some(manifest) = entry.manifest().filter(|m| m.epoch == self.epoch) else {
                continue;
            };
            let there = &only_image(manifest)?.segments;
            if there == segments {
                return Ok(false);
            }
            segments.clone_from(there);
            *locator = Arc::new(Locator::load(&self.pool, segments)?);
            return Ok(true);
        }
        // It was pruned.
        Ok(false)
    }
}
