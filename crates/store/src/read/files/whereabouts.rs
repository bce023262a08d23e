//! Pack extents of a checkpoint's chunks: those of its segments when it was opened, or those that
//! the log has now, after a gc has moved chunks.

use super::recipe::read_pieces;
use crate::commit::history;
use crate::images::only_image;
use crate::index::Locator;
use crate::read::reload::Current;
use outlive_format::{Manifest, Piece, SegmentRef};
use outlive_pool::Pool;
use outlive_types::{JobName, Result};
use std::sync::Arc;

/// The pack extents of one checkpoint.
#[derive(Debug)]
pub struct Whereabouts(Current<PackExtents>);

/// The pack extents as of some record of the log.
#[derive(Debug)]
pub struct PackExtents {
    segments: Vec<SegmentRef>,
    /// The entries of the segments, in memory.
    pub locator: Locator,
}

impl PackExtents {
    fn load(pool: &Pool, segments: Vec<SegmentRef>) -> Result<PackExtents> {
        Ok(PackExtents { locator: Locator::load(pool, &segments)?, segments })
    }
}

impl Whereabouts {
    /// Loads the segments of a manifest, which are up to date as of record `as_of`.
    ///
    /// # Errors
    /// `Damaged` if a segment is missing or wrong.
    pub fn load(pool: &Pool, job: &JobName, manifest: &Manifest, as_of: u64) -> Result<Self> {
        let extents = PackExtents::load(pool, only_image(manifest)?.segments.clone())?;
        let (of, name, epoch) = (pool.clone(), job.clone(), manifest.epoch);
        let reopen = move |seen: &PackExtents| {
            for entry in history(&of, &name)? {
                let manifest = entry.manifest().filter(|manifest| manifest.epoch == epoch);
                let Some(manifest) = manifest else { continue };
                let there = &only_image(manifest)?.segments;
                let has_moved = *there != seen.segments;
                return has_moved.then(|| PackExtents::load(&of, there.clone())).transpose();
            }
            // The checkpoint was pruned.
            Ok(None)
        };
        Ok(Whereabouts(Current::new(pool, job, as_of, extents, Box::new(reopen))))
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        self.0.pool()
    }

    /// Returns the pack extents, as far as they are known.
    pub fn extents(&self) -> Arc<PackExtents> {
        self.0.get()
    }

    /// Reads pieces as [`read_pieces`] does, also after a gc has moved them.
    ///
    /// # Errors
    /// As for [`read_pieces`].
    pub fn read(&self, pieces: &[Piece]) -> Result<Vec<Vec<u8>>> {
        self.0.read(&mut |extents| read_pieces(self.pool(), &extents.locator, pieces))
    }

    /// Returns whether there are newer pack extents than `seen`, after a look at the log.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn moved_since(&self, seen: &Arc<PackExtents>) -> Result<bool> {
        self.0.moved_since(seen)
    }
}
