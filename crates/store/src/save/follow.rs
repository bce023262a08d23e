//! The base of the next save: the restored checkpoint, or none if data that it would share is gone.

use super::presence::{Lack, lack_of};
use super::writer::{Base, RankWriter};
use crate::commit::mark_suspect;
use crate::index::StoredChunks;
use crate::read::MemoryImage;
use outlive_chunk::PageHashes;
use outlive_pool::Pool;
use outlive_types::{Epoch, JobName, PackId};
use std::collections::BTreeSet;

impl RankWriter {
    /// Forgets all stored chunks, since some were found damaged.
    pub fn forget(&mut self, pool: &Pool) {
        self.base = None;
        self.known = StoredChunks::new(pool.config().tuning.index_bytes_max);
        self.shared = None;
        self.candidates.clear();
    }

    /// Makes a restored checkpoint the base of the next save. If that is impossible, the next save
    /// shares nothing with it, and the pool warns its observer.
    pub fn follow_restored(&mut self, pool: &Pool, checkpoint: &MemoryImage) {
        if checkpoint.is_searched() {
            // The chunks that the next checkpoint would share depend on the damaged segment.
            return self.forget(pool);
        }
        let threads = pool.config().tuning.threads();
        let streams = checkpoint.streams().iter();
        let base = Base {
            epoch: checkpoint.epoch(),
            streams: streams.map(|stream| (stream.name.clone(), stream.tree.clone())).collect(),
            catalog: checkpoint.catalog_tree().clone(),
            catalog_hashes: PageHashes::compute(checkpoint.catalog_bytes(), threads),
            segments: checkpoint.segments().to_vec(),
            in_table: checkpoint.manifest().world_size > 1,
            as_of: checkpoint.as_of(),
        };
        if let Err(error) = self.adopt(pool, base) {
            let (epoch, job) = (checkpoint.epoch(), checkpoint.job());
            pool.warn(format!(
                "the next save of job {job} shares nothing with checkpoint {epoch}: {error}"
            ));
        }
        // After a gc has moved the checkpoint, it may have only slices of some chunks.
        let is_there = |base: &Base| base.segments == checkpoint.segments();
        if !self.base.as_ref().is_some_and(is_there) {
            return;
        }
        let locator = checkpoint.known_extents();
        for stream in checkpoint.streams() {
            stream.tree.for_each_leaf(&mut |_, leaf| {
                if let Some(leaf) = &leaf.kept {
                    let whole = leaf.chunks.iter().filter(|fp| locator.lists(fp));
                    self.known.extend(whole.copied());
                }
            });
        }
    }
}

impl RankWriter {
    /// Forgets the base after a save found shared data of earlier checkpoints damaged or missing.
    /// The next save shares nothing with its base, and nothing that is missing.
    pub fn begin_anew(&mut self, pool: &Pool) {
        self.presence.make_due();
        let missing = self.missing_packs(pool);
        self.forget(pool);
        self.condemned.extend(missing);
    }

    /// Checks after the commit of `epoch` whether its packs exist. If some are gone, the next save
    /// stores everything again, and the pool warns its observer. An error of the check has no
    /// effect: the next check repeats it.
    pub fn check_presence(&mut self, pool: &Pool, job: &JobName, epoch: Epoch) {
        if self.rank == 0
            && let Err(error) = self.presence.freshen(pool, job)
        {
            pool.warn(format!("files of job {job} were not given a fresh time: {error}"));
        }
        let missing = self.missing_packs(pool);
        let Some(first) = missing.first() else { return };
        let rank = self.rank;
        let lack = lack_of(pool, job, (epoch, rank), &missing).unwrap_or(Lack::Nothing);
        let outcome = match lack {
            Lack::Nothing => return,
            Lack::Names => "it needs nothing of them",
            Lack::Needs => "it cannot be restored",
        };
        pool.warn(format!(
            "{} packs that checkpoint {epoch} of job {job} (rank {rank}) names are gone from {} ({first} is one of them); \
             {outcome}. The next save stores everything again. If files are deleted there by age, set freshen_every_s \
             under [tuning] in pool.toml",
            missing.len(),
            pool.describe_targets(),
        ));
        if lack == Lack::Needs
            && let Err(error) = mark_suspect(pool, job, epoch)
        {
            pool.warn(format!("checkpoint {epoch} of job {job} was not marked suspect: {error}"));
        }
        self.forget(pool);
        self.condemned.extend(missing);
    }

    fn missing_packs(&mut self, pool: &Pool) -> BTreeSet<PackId> {
        let RankWriter { base, presence, .. } = self;
        let segments = base.as_ref().map_or(&[][..], |base| &base.segments);
        presence.missing(pool, segments).unwrap_or_default()
    }
}
