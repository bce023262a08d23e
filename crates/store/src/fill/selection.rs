//! Selects the checkpoints that the slow tier should have, and the packs that these need.

use crate::commit::history;
use crate::redundancy::{KnownSegments, packs_of};
use outlive_format::Manifest;
use outlive_pool::Pool;
use outlive_types::{Epoch, JobName, PackId, Result};
use std::collections::{BTreeSet, HashSet};

/// Maximum number of segments whose packs are remembered.
const SEGMENTS_MAX: usize = 1 << 12;

/// The checkpoints of one job that `[tiers]` in `pool.toml` chooses, except those known to be on
/// the slow tier. A selection is void once packs were moved: then a new one must be made.
#[derive(Default)]
pub struct FillSelection {
    done: HashSet<Epoch>,
    /// Epoch up to which all checkpoints are done.
    done_until: Epoch,
    newest: Epoch,
    segments: KnownSegments,
}

impl FillSelection {
    /// Returns the checkpoints that are left, newest first.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn left(&mut self, pool: &Pool, job: &JobName) -> Result<Vec<Manifest>> {
        let rule = &pool.config().tiers;
        let now_ns = pool.env().clock.unix_ns();
        let mut left = Vec::new();
        for entry in history(pool, job)? {
            let entry = entry.unless_unread()?;
            let Some(manifest) = entry.manifest() else { continue };
            if entry.incomplete {
                continue; // no target has its lost data
            }
            self.newest = self.newest.max(manifest.epoch);
            if manifest.epoch <= self.done_until {
                break;
            }
            // A checkpoint that a wrong clock has put into the future is new.
            let age_s = now_ns.saturating_sub(manifest.frozen_ns) / 1_000_000_000;
            if rule.takes(manifest.epoch, age_s) && !self.done.contains(&manifest.epoch) {
                left.push(manifest.clone());
            }
        }
        Ok(left)
    }

    /// Returns the packs that a checkpoint needs.
    ///
    /// # Errors
    /// As [`packs_of`].
    pub fn packs(&mut self, pool: &Pool, manifest: &Manifest) -> Result<BTreeSet<PackId>> {
        if self.segments.len() >= SEGMENTS_MAX {
            self.segments.clear();
        }
        packs_of(pool, manifest, &mut self.segments)
    }

    /// Notes that a checkpoint is on the slow tier.
    pub fn done(&mut self, epoch: Epoch) {
        self.done.insert(epoch);
    }

    /// Notes that all checkpoints that were left are there.
    pub fn all_done(&mut self, pool: &Pool) {
        // Where age decides, a checkpoint that was too new will be chosen later.
        if pool.config().tiers.older_than_s == 0 {
            self.done_until = self.newest;
            self.done.clear();
        }
    }
}
