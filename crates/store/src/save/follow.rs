//! From a restore to the next save: what was restored is what it follows.

use super::writer::{Base, RankWriter};
use crate::index::StoredChunks;
use crate::read::MemoryImage;
use outlive_chunk::PageHashes;
use outlive_pool::Pool;

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
