//! Restoring a stream: chunks must be written in the recipe's order, so those of a container that are
//! not due yet are kept in memory, or their container is read again. (A restore into memory or files
//! needs none of this: it visits each container once.)
//!
//! Each planner is pure: recipe and memory in, a [`StreamPlan`] out, which says of every item which
//! read it comes from. The recipe is known to its end, and only the last planner uses that fully.
//!
//! - [`lru`]: a cache of whole containers, least recently used first out.
//! - [`asm`]: a forward assembly area beside one container's buffer (Lillibridge, Eshghi and Bhagwat,
//!   "Improving restore speed for backup systems that use inline chunk-based deduplication", FAST 2013).
//! - [`dasm`]: the same with a cache of containers, whose share of the memory follows the recipe (Tan et
//!   al., "DASM", NPC 2016). The paper gives no formula; ours is in `caches.rs`, and is our reading.
//! - [`best`]: ours. Chunks are kept one by one, those first that are due first (Belady, "A study of
//!   replacement algorithms for a virtual-storage computer", 1966); and since no such rule is optimal
//!   where one read brings many chunks, the plans of the others are made as well and the one with
//!   the fewest reads is taken: so it is never worse than the best of them.

mod belady;
mod caches;
mod trace;

pub use belady::{belady, best};
pub use caches::{asm, dasm, lru};
pub use trace::{Trace, Version};

use std::collections::HashMap;

/// A chunk of a recipe: where it lies, which is also its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Item {
    /// Number of the container.
    pub container: u32,
    /// Its offset in it.
    pub offset: u32,
    /// Its length in bytes.
    pub length: u32,
}

/// Memory for a restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// In all: the buffer of the container being read, and what is kept.
    pub bytes: u64,
    /// Of a container.
    pub container_bytes: u64,
}

/// Which containers are read, and which read each item comes from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamPlan {
    /// Containers in the order in which they are read, with the item before which each is.
    pub reads: Vec<(u32, usize)>,
    /// For each item the number of its read, which is not later than the item.
    pub from: Vec<u32>,
}

impl StreamPlan {
    /// The most bytes that the plan keeps at any time beside the container being read: each chunk
    /// once, from the moment at which its container gives way to its last use.
    pub fn kept_bytes_max(&self, recipe: &[Item]) -> u64 {
        // By read and chunk: the last item that it serves.
        let mut last: HashMap<(u32, Item), usize> = HashMap::new();
        for (at, (item, read)) in recipe.iter().zip(&self.from).enumerate() {
            last.insert((*read, *item), at);
        }
        let mut change = vec![0i64; recipe.len() + 1];
        for ((read, item), at) in last {
            // Until the next read its container is in the buffer, and the item at hand goes out.
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

    /// Checks that the plan yields the recipe: every item from a read of its container that was made
    /// by then.
    pub fn is_sound(&self, recipe: &[Item]) -> bool {
        self.from.len() == recipe.len()
            && self.reads.is_sorted_by(|a, b| a.1 <= b.1)
            && recipe.iter().zip(&self.from).enumerate().all(|(at, (item, read))| {
                let read = self.reads.get(*read as usize);
                read.is_some_and(|(container, begun)| *container == item.container && *begun <= at)
            })
    }
}

/// Bytes of a recipe.
pub fn bytes_of(recipe: &[Item]) -> u64 {
    recipe.iter().map(|item| u64::from(item.length)).sum()
}

#[cfg(test)]
mod tests;
