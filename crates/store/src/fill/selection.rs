//! Which checkpoints the slow tier should have, and which packs these need.

use crate::commit::history;
use crate::redundancy::{KnownSegments, packs_of};
use outlive_format::Manifest;
use outlive_pool::Pool;
use outlive_types::{Epoch, JobName, PackId, Result};
use std::collections::{BTreeSet, HashSet};

/// Segments of which it is remembered which packs they name.
const SEGMENTS_MAX: usize = 1 << 12;

/// The checkpoints of one job that `[tiers]` in `pool.toml` chooses, less those that are known to be on the
/// slow tier. What it knows is void when packs were moved: then there must be a new one.
#[derive(Default)]
pub struct FillSelection {
    done: HashSet<Epoch>,
    /// This one and all that are older need not be looked at.
    done_until: Epoch,
    newest: Epoch,
    segments: KnownSegments,
}

impl FillSelection {
    /// Those that are left, newest first.
    ///
    /// # Errors
    /// What the log reports.
    pub fn left(&mut self, pool: &Pool, job: &JobName) -> Result<Vec<Manifest>> {
        let rule = &pool.config().tiers;
        let now_ns = pool.env().clock.unix_ns();
        let mut left = Vec::new();
        for entry in history(pool, job)? {
            let entry = entry.unless_unread()?;
            let Some(manifest) = entry.manifest() else { continue };
            if entry.incomplete {
                continue; // what it lacks is nowhere
            }
            self.newest = self.newest.max(manifest.epoch);
            if manifest.epoch <= self.done_until {
                break;
            }
            // One that a wrong clock has put into the future is new.
            let age_s = now_ns.saturating_sub(manifest.frozen_ns) / 1_000_000_000;
            if rule.takes(manifest.epoch, age_s) && !self.done.contains(&manifest.epoch) {
                left.push(manifest.clone());
            }
        }
        Ok(left)
    }

    /// The packs that a checkpoint needs.
    ///
    /// # Errors
    /// As [`packs_of`].
    pub fn packs(&mut self, pool: &Pool, manifest: &Manifest) -> Result<BTreeSet<PackId>> {
        if self.segments.len() >= SEGMENTS_MAX {
            self.segments.clear();
        }
        packs_of(pool, manifest, &mut self.segments)
    }

    /// A checkpoint is on the slow tier.
    pub fn done(&mut self, epoch: Epoch) {
        self.done.insert(epoch);
    }

    /// All that were left are.
    pub fn all_done(&mut self, pool: &Pool) {
        // Where age decides, one that was too new will be chosen later.
        if pool.config().tiers.older_than_s == 0 {
            self.done_until = self.newest;
            self.done.clear();
        }
    }
}
