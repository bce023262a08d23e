//! Finds the present redundancy of each checkpoint.

use crate::commit::history;
use crate::images::{pages_of, segments_of_all};
use crate::index::read_segment;
use outlive_format::{Manifest, SegmentKind, SegmentRef};
use outlive_pool::{PackRedundancy, Pool, Tier};
use outlive_types::{Epoch, Error, ErrorKind, JobName, PackId, Result};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Packs that the segments read so far name; `None` for damaged segments.
pub type KnownSegments = HashMap<SegmentRef, Option<Vec<PackId>>>;

/// Returns the packs that a checkpoint names: those that it needs, and perhaps others that its job
/// needs. Contents of damaged segments are left out.
///
/// # Errors
/// `Damaged` if its image table is; errors of data that cannot be read at the moment.
pub fn packs_of(
    pool: &Pool,
    manifest: &Manifest,
    known: &mut KnownSegments,
) -> Result<BTreeSet<PackId>> {
    let mut named = packs_of_segments(pool, &segments_of_all(pool, manifest)?, known)?;
    named.extend(pages_of(manifest).map(|page| page.pack));
    Ok(named)
}

/// Returns the packs that segments name, and those that they lie in.
///
/// # Errors
/// Errors of data that cannot be read at the moment.
pub fn packs_of_segments(
    pool: &Pool,
    segments: &[SegmentRef],
    known: &mut KnownSegments,
) -> Result<BTreeSet<PackId>> {
    let mut named = BTreeSet::new();
    for segment in segments {
        named.insert(segment.pack);
        // A directory lists its own pack only.
        if segment.kind == SegmentKind::Directory {
            continue;
        }
        let packs = match known.entry(*segment) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(match read_segment(pool, segment) {
                Ok(directory) => Some(directory.packs),
                Err(error) if error.kind() == ErrorKind::Damaged => None,
                Err(error) => return Err(error),
            }),
        };
        named.extend(packs.iter().flatten());
    }
    Ok(named)
}

/// Redundancy of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointRedundancy {
    /// The job.
    pub job: JobName,
    /// The checkpoint.
    pub epoch: Epoch,
    /// Number of further fast targets that may be lost; negative if it cannot be read without those
    /// that are away or lost. Or the reason why that is not known.
    pub spare: std::result::Result<i64, Error>,
    /// Number of packs that it names with less redundancy than the pool's rule asks for.
    pub degraded: usize,
    /// Whether the log says that it has lost data. Then it names the remaining data.
    pub incomplete: bool,
    /// Whether each pack that it names is on one of the tiers, if not all on the same one.
    pub is_there: bool,
    /// Tiers from which alone it can be read now; none if that is not known, or if it is
    /// incomplete.
    pub tiers: Vec<Tier>,
}

/// Returns for every checkpoint how many targets may still be lost.
///
/// # Errors
/// Errors of log and targets.
pub fn checkpoint_redundancy(pool: &Pool) -> Result<Vec<CheckpointRedundancy>> {
    let (mut look, mut found) = (RedundancyLook::new(pool)?, Vec::new());
    for job in pool.jobs()? {
        for entry in history(pool, &job)? {
            found
                .extend(entry.manifest().map(|manifest| look.at(&job, manifest, entry.incomplete)));
        }
    }
    Ok(found)
}

/// Finds the redundancy of checkpoints, from the shards that the targets had when it was made.
pub struct RedundancyLook<'a> {
    pool: &'a Pool,
    there: BTreeMap<PackId, PackRedundancy>,
    known: KnownSegments,
}

impl<'a> RedundancyLook<'a> {
    /// Lists the shards of all targets.
    ///
    /// # Errors
    /// As [`Pool::redundancy`].
    pub fn new(pool: &'a Pool) -> Result<RedundancyLook<'a>> {
        Ok(RedundancyLook { pool, there: pool.redundancy()?, known: KnownSegments::new() })
    }

    /// Returns the redundancy of a checkpoint, which the log may call `incomplete`.
    pub fn at(
        &mut self,
        job: &JobName,
        manifest: &Manifest,
        incomplete: bool,
    ) -> CheckpointRedundancy {
        let full = self.pool.config().redundancy.survives() as i64;
        let (mut spare, mut slow_spare, mut degraded) = (Ok(full), full, 0);
        let (mut is_on_fast, mut is_there, is_trimming) =
            (true, true, self.pool.config().tiers.keep_fast > 0);
        match packs_of(self.pool, manifest, &mut self.known) {
            Ok(packs) => {
                for pack in packs {
                    let there = self.there.get(&pack);
                    let (left, slow_left) = there.map_or((-1, -1), |it| (it.spare, it.slow_spare));
                    slow_spare = slow_spare.min(slow_left);
                    is_on_fast &= left >= 0;
                    is_there &= left >= 0 || slow_left >= 0;
                    if is_trimming && there.is_some_and(PackRedundancy::is_slow_only) {
                        continue; // trimmed on purpose
                    }
                    degraded += usize::from(left < full);
                    spare = spare.map(|spare| spare.min(left));
                }
            }
            Err(error) => (spare, is_there) = (Err(error), false),
        }
        let is_safe = |tier: &Tier| match (tier, &spare) {
            (_, Err(_)) => false,
            _ if incomplete => false,
            (Tier::Fast, Ok(_)) => is_on_fast,
            (Tier::Slow, Ok(_)) => slow_spare >= 0 && self.pool.has_slow_tier(),
        };
        let tiers = [Tier::Fast, Tier::Slow].into_iter().filter(is_safe).collect();
        let (job, epoch) = (job.clone(), manifest.epoch);
        CheckpointRedundancy { job, epoch, spare, degraded, incomplete, is_there, tiers }
    }
}
