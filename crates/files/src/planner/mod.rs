//! Plans the restore of a stream. Chunks must be written in the recipe's order. So chunks of a
//! container that are not due yet are kept in memory, or their container is read again. A restore
//! into memory or files visits each container once and needs no such plan.
//!
//! Each planner is pure: it takes a recipe and a memory size, and returns a [`StreamPlan`] with the
//! read from which each item comes. The recipe is known to its end, and only the last planner uses
//! that fully.
//!
//! - [`lru`]: a cache of whole containers, which drops the least recently used first.
//! - [`asm`]: a forward assembly area and one container's buffer (Lillibridge, Eshghi and Bhagwat,
//!   "Improving restore speed for backup systems that use inline chunk-based deduplication", FAST
//!   2013).
//! - [`dasm`]: the same with a cache of containers, whose share of the memory follows the recipe
//!   (Tan et al., "DASM", NPC 2016). The paper gives no formula; `caches.rs` has our reading.
//! - [`best`]: ours. It keeps single chunks, those first that are due first (Belady, "A study of
//!   replacement algorithms for a virtual-storage computer", 1966). No such rule is optimal where
//!   one read brings many chunks. So it also makes the plans of the others, takes the one with the
//!   fewest reads, and is never worse than they are.

mod belady;
mod caches;
mod trace;

pub use belady::{belady, best};
pub use caches::{asm, dasm, lru};
pub use trace::{Trace, Version};

use std::collections::HashMap;

/// A chunk of a recipe, named by its location.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Item {
    /// Number of the container.
    pub container: u32,
    /// Offset in the container.
    pub offset: u32,
    /// Length in bytes.
    pub length: u32,
}

/// Memory for a restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// All memory: the buffer of the container being read, and the kept chunks.
    pub bytes: u64,
    /// Length of a container.
    pub container_bytes: u64,
}

/// The containers to read, and the read from which each item comes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamPlan {
    /// Containers in the order of the reads, each with the item before which it is read.
    pub reads: Vec<(u32, usize)>,
    /// For each item the number of its read, which is not later than the item.
    pub from: Vec<u32>,
}

impl StreamPlan {
    /// Returns the most bytes that the plan keeps at any time besides the container being read.
    /// Each chunk counts once, from the moment at which its container leaves the buffer to its last
    /// use.
    pub fn kept_bytes_max(&self, recipe: &[Item]) -> u64 {
        // For each read and chunk, the last item that it serves.
        let mut last: HashMap<(u32, Item), usize> = HashMap::new();
        for (at, (item, read)) in recipe.iter().zip(&self.from).enumerate() {
            last.insert((*read, *item), at);
        }
        let mut change = vec![0i64; recipe.len() + 1];
        for ((read, item), at) in last {
            // Until the next read its container is in the buffer; item `at` itself leaves memory
            // then.
            let next_read = self.reads.get(read as usize + 1).map_or(usize::MAX, |(_, at)| *at);
            if at >= next_read {
                change[next_read] += i64::from(item.length);
                change[at] -= i64::from(item.length);
            }
        }
        let mut kept = 0;
        let held = change.into_iter().map(|change| {
            kept += change;
            kept
        });
        held.max().unwrap_or(0).max(0) as u64
    }

    /// Checks that the plan yields the recipe: every item comes from a read of its container that
    /// is not later.
    pub fn is_sound(&self, recipe: &[Item]) -> bool {
        self.from.len() == recipe.len()
            && self.reads.is_sorted_by(|a, b| a.1 <= b.1)
            && recipe.iter().zip(&self.from).enumerate().all(|(at, (item, read))| {
                let read = self.reads.get(*read as usize);
                read.is_some_and(|(container, begun)| *container == item.container && *begun <= at)
            })
    }
}

/// Returns the bytes of a recipe.
pub fn bytes_of(recipe: &[Item]) -> u64 {
    recipe.iter().map(|item| u64::from(item.length)).sum()
}

#[cfg(test)]
mod tests;
