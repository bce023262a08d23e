//! Selects the checkpoints that the slow tier should have, and the packs that these need.

use crate::commit::history;
use crate::redundancy::{KnownSegments, packs_of};
use outlive_format::Manifest;
use outlive_pool::{FillEvery, Pool};
use outlive_types::{Epoch, JobName, PackId, Result};
use std::collections::{BTreeSet, HashSet};

/// Maximum number of segments whose packs are remembered.
const SEGMENTS_MAX: usize = 1 << 12;

/// The part of a `[tiers]` with `every = "auto"` that the program knows.
#[derive(Clone, Copy, Debug)]
pub struct LearnedStep {
    /// Number of checkpoints for each one on the slow tier, at least 1.
    pub step: u64,
    /// The newest checkpoint that this program has brought there; 0 for none.
    pub last: Epoch,
}

impl Default for LearnedStep {
    fn default() -> LearnedStep {
        LearnedStep { step: 1, last: 0 }
    }
}

/// The checkpoints of one job that `[tiers]` in `pool.toml` chooses, except those known to be on
/// the slow tier. A selection is void once packs were moved: then a new one must be made.
#[derive(Default)]
pub struct FillSelection {
    /// Whether it takes all checkpoints, whatever `[tiers]` says.
    all: bool,
    done: HashSet<Epoch>,
    /// Epoch up to which all checkpoints are done.
    done_until: Epoch,
    newest: Epoch,
    segments: KnownSegments,
}

impl FillSelection {
    /// Returns the selection of all checkpoints.
    pub fn of_all() -> FillSelection {
        FillSelection { all: true, ..FillSelection::default() }
    }

    /// Returns the checkpoints that are left, newest first. Of a rule that is learned it is the newest
    /// one, once as many came after the last as `learned` says.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn left(
        &mut self,
        pool: &Pool,
        job: &JobName,
        learned: LearnedStep,
    ) -> Result<Vec<Manifest>> {
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
            if self.all {
                left.push(manifest.clone());
                continue;
            }
            if age_s < rule.older_than_s {
                continue;
            }
            if takes(rule.every, learned, manifest.epoch) && !self.done.contains(&manifest.epoch) {
                left.push(manifest.clone());
            }
            if rule.every == FillEvery::Auto {
                break; // older ones are superseded
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

/// Returns whether the slow tier gets a checkpoint that is old enough; of a rule that is learned, the
/// newest such one.
fn takes(every: FillEvery, learned: LearnedStep, epoch: Epoch) -> bool {
    match every {
        FillEvery::Multiple(step) => epoch.is_multiple_of(step.max(1)),
        FillEvery::Auto => epoch >= learned.last.saturating_add(learned.step),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_learned_rule_takes_a_checkpoint_once_enough_came_after_the_last() {
        let taken = |step, last| {
            let learned = LearnedStep { step, last };
            (1..=12).filter(|epoch| takes(FillEvery::Auto, learned, *epoch)).collect::<Vec<_>>()
        };
        assert_eq!(taken(1, 0).len(), 12);
        assert_eq!(taken(5, 0), [5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(taken(5, 7), [12]);
        assert_eq!(taken(u64::MAX, 7), [0; 0]);
        let every = |step| FillEvery::Multiple(step);
        let learned = LearnedStep { step: 9, last: 9 };
        assert!(takes(every(5), learned, 10) && !takes(every(5), learned, 11));
    }
}
