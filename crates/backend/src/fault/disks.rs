//! Events on one target of a [`FaultWorld`] while programs and other targets go on.

use super::{CutMode, FaultWorld, Kept, flip};
use crate::ShardName;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The content of a target at some time.
#[derive(Clone, Debug, Default)]
pub struct DiskCopy(BTreeMap<ShardName, Arc<Vec<u8>>>);

impl DiskCopy {
    /// Returns the shards of this copy, with their bytes.
    pub fn shards(&self) -> impl Iterator<Item = (ShardName, &Arc<Vec<u8>>)> {
        self.0.iter().map(|(shard, bytes)| (*shard, bytes))
    }
}

impl FaultWorld {
    /// Returns all finished shards with their bytes, by target. Not a numbered operation.
    pub fn stored(&self) -> Vec<(usize, ShardName, Arc<Vec<u8>>)> {
        let world = self.lock();
        let each = world.shards.iter();
        each.map(|((on, shard), kept)| (*on, *shard, kept.bytes.clone())).collect()
    }

    /// Returns the unfinished shards, by target. Not a numbered operation.
    pub fn begun(&self) -> Vec<(usize, ShardName)> {
        self.lock().parts.keys().copied().collect()
    }

    /// Whether a target cannot be reached now.
    pub fn is_away(&self, number: usize) -> bool {
        self.lock().away.contains(&number)
    }

    /// Flips the bits of `mask` in a byte of a target's shard.
    ///
    /// # Panics
    /// If there is no such byte, or nothing to flip.
    pub fn corrupt_on(&self, number: usize, shard: ShardName, offset: u64, mask: u8) {
        let mut world = self.lock();
        let kept = world.shards.get_mut(&(number, shard));
        flip(kept.expect("a test damages a shard that exists"), offset, mask);
    }

    /// Returns the current content of a target.
    pub fn copy_of(&self, number: usize) -> DiskCopy {
        let there = self.stored().into_iter().filter(|(on, ..)| *on == number);
        DiskCopy(there.map(|(_, shard, bytes)| (shard, bytes)).collect())
    }

    /// Restores an old copy of a target: newer shards are gone, and deleted ones are back.
    pub fn roll_back(&self, number: usize, copy: &DiskCopy) {
        self.lose_target(number);
        let mut world = self.lock();
        for (shard, bytes) in copy.shards() {
            let kept = Kept { bytes: bytes.clone(), durable: true, part: 0, before: None };
            world.shards.insert((number, shard), kept);
        }
    }

    /// Runs `look` on the shards that a power cut would leave; it sees and changes only those.
    pub fn as_after_a_cut<T>(&self, look: impl FnOnce() -> T) -> T {
        let copy = |(key, kept): (&(usize, ShardName), &Kept)| {
            Some((*key, kept.clone().after_cut(CutMode::Lost)?))
        };
        let durable = self.lock().shards.iter().filter_map(copy).collect();
        let now = std::mem::replace(&mut self.lock().shards, durable);
        let seen = look();
        self.lock().shards = now;
        seen
    }

    /// Cuts the power of one target. Names that are not durable are lost or kept, as `mode` says;
    /// unfinished shards are gone. Programs go on.
    pub fn cut_target(&self, number: usize, mode: CutMode) {
        let mut world = self.lock();
        world.parts.retain(|(on, _), _| *on != number);
        world.late.retain(|late| late.target != number);
        let all = std::mem::take(&mut world.shards);
        let after = |((on, shard), kept): ((usize, ShardName), Kept)| {
            let kept = if on == number { kept.after_cut(mode)? } else { kept };
            Some(((on, shard), kept))
        };
        world.shards = all.into_iter().filter_map(after).collect();
    }
}
