//! What the next save follows: what was restored, or nothing, if something that it would share is gone.

use super::presence::still_named;
use super::writer::{Base, RankWriter};
use crate::commit::mark_suspect;
use crate::index::StoredChunks;
use crate::read::MemoryImage;
use outlive_chunk::PageHashes;
use outlive_format::SegmentRef;
use outlive_pool::Pool;
use outlive_types::{Epoch, JobName};

impl RankWriter {
    /// Forgets all stored chunks, since some were found damaged.
    pub fn forget(&mut self, pool: &Pool) {
        self.base = None;
        self.known = StoredChunks::new(pool.config().tuning.index_bytes_max);
        self.shared = None;
        self.wishes.clear();
    }

    /// Makes a restored checkpoint what the next save follows. If that cannot be, the next save shares
    /// nothing with it, and the pool's observer is told.
    pub fn follow_restored(&mut self, pool: &Pool, checkpoint: &MemoryImage) {
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
        // Once a gc has moved it, it may have only slices of some.
        let is_there = |base: &Base| base.segments == checkpoint.segments();
        if !self.base.as_ref().is_some_and(is_there) {
            return;
        }
        let locator = checkpoint.locator();
        for stream in checkpoint.streams() {
            stream.tree.for_each_leaf(&mut |_, leaf| {
                if let Some(leaf) = &leaf.kept {
                    let whole = leaf.chunks.iter().filter(|fp| locator.find(fp).is_ok());
                    self.known.extend(whole.copied());
                }
            });
        }
    }
}

impl RankWriter {
    /// A save met damage in what it shares with earlier checkpoints, or what it shares has vanished. The next one shares
    /// nothing that has vanished, and nothing with its base.
    pub fn begin_anew(&mut self, pool: &Pool) {
        let mut look = std::mem::take(&mut self.look);
        look.make_due();
        let missing = look.missing(pool, self.base_segments()).unwrap_or_default();
        self.look = look;
        self.forget(pool);
        self.condemned.extend(missing);
    }

    /// Looks behind the commit of `epoch` whether its packs are there. If some are gone, the next save stores
    /// everything anew, and the pool's observer is told. What keeps this from looking is left to the next save.
    pub fn look_behind(&mut self, pool: &Pool, job: &JobName, epoch: Epoch) {
        let mut look = std::mem::take(&mut self.look);
        if self.rank == 0
            && let Err(error) = look.freshen(pool, job)
        {
            pool.warn(format!("files of job {job} were not given a fresh time: {error}"));
        }
        let missing = look.missing(pool, self.base_segments()).unwrap_or_default();
        self.look = look;
        let missing = match missing.is_empty() {
            true => return,
            false => still_named(pool, job, epoch, missing).unwrap_or_default(),
        };
        let Some(first) = missing.first() else { return };
        let rank = self.rank;
        pool.warn(format!(
            "{} packs that checkpoint {epoch} of job {job} (rank {rank}) needs are gone from {} ({first} is one of them), so it \
             cannot be restored. The next save stores everything anew. If files are deleted there by age, set \
             freshen_every_s under [tuning] in pool.toml",
            missing.len(),
            pool.describe_targets(),
        ));
        if let Err(error) = mark_suspect(pool, job, epoch) {
            pool.warn(format!("checkpoint {epoch} of job {job} was not marked suspect: {error}"));
        }
        self.forget(pool);
        self.condemned.extend(missing);
    }

    fn base_segments(&self) -> &[SegmentRef] {
        self.base.as_ref().map_or(&[], |base| &base.segments)
    }
}
