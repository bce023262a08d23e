//! The second stage: new extents become leaves. The stage writes a leaf as a delta upon the last
//! one while that is cheap, and merges it into a full leaf otherwise. A merge shows how fragmented
//! a block has become, so it also chooses the pages to rewrite.

use super::chunks::BlockExtents;
use super::packer::Packer;
use crate::read::read_merged;
use crate::tree::{BlockEdit, LeafNode, Link, Node, PageTree};
use outlive_format::{CHAIN_MAX, Leaf, LeafKind};
use outlive_pool::Pool;
use outlive_types::{BLOCK_PAGES, Epoch, Error, PAGE_BYTES, PageRange, Result, pages_of};
use std::sync::Arc;

/// A chunk is rewritten when at most a third of it is still in use.
const EVACUATE_BELOW: (u16, u16) = (1, 3);
/// Saves between two merges of a block that changes at every save: each save merges a ninth of the
/// blocks.
const MERGE_PERIOD: u64 = CHAIN_MAX as u64 + 1;
/// Leaves read back and merged at once; bounds the memory for it to about 10 MiB.
const MERGE_BATCH: usize = 256;

/// Clean pages to rewrite in the next save, so that a restore need not read a nearly dead chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RewriteCandidate {
    /// Name of the stream.
    pub stream: String,
    /// The pages.
    pub range: PageRange,
    /// Pages of the chunk in use, and its pages as far as the leaf shows them.
    pub use_of_chunk: (u16, u16),
}

/// Turns extents into leaves.
pub struct LeafStage<'a> {
    /// The pool from which leaves are read back.
    pub pool: &'a Pool,
    /// Takes the new leaves.
    pub packer: &'a Packer<'a>,
    /// The new epoch: decides which blocks are merged in this save.
    pub epoch: Epoch,
    /// Candidates for rewriting that merges have found.
    pub candidates: Vec<RewriteCandidate>,
    /// Bytes of leaves stored.
    pub stored_bytes: u64,
}

enum LeafUpdate {
    /// Every page of the block is new: the old leaf does not matter.
    Fresh,
    /// A delta upon the old chain.
    Delta,
    /// The old chain and the new extents become one.
    Merge,
}

impl LeafStage<'_> {
    /// Returns the edits of stream `name`, which has `bytes` bytes now and had the tree `old`.
    ///
    /// # Errors
    /// Errors of the target; `Damaged` if an old leaf is needed and cannot be read.
    pub fn edits(
        &mut self,
        name: &str,
        old: &PageTree,
        bytes: u64,
        blocks: &[BlockExtents],
    ) -> Result<Vec<BlockEdit>> {
        let mut edits = Vec::with_capacity(blocks.len());
        for batch in blocks.chunks(MERGE_BATCH) {
            let old_nodes: Vec<Option<&LeafNode>> =
                batch.iter().map(|new| leaf_of(old, new.block)).collect();
            let choices: Vec<LeafUpdate> = batch
                .iter()
                .zip(&old_nodes)
                .map(|(new, old)| choose(new, *old, bytes, self.epoch))
                .collect::<Result<_>>()?;
            let to_read: Vec<&LeafNode> = choices
                .iter()
                .zip(&old_nodes)
                .filter_map(|(choice, old)| match (choice, old) {
                    (LeafUpdate::Merge, Some(old)) if old.kept.is_none() => Some(*old),
                    _ => None,
                })
                .collect();
            let mut read = read_merged(self.pool, &to_read)?.into_iter();
            for ((new, old), choice) in batch.iter().zip(&old_nodes).zip(choices) {
                let leaf = match (choice, old) {
                    (LeafUpdate::Fresh, _) | (_, None) => self.full(name, None, new)?,
                    (LeafUpdate::Delta, Some(old)) => self.delta(old, new)?,
                    (LeafUpdate::Merge, Some(old)) => {
                        let merged = match &old.kept {
                            Some(kept) => kept.clone(),
                            None => Arc::new(
                                read.next()
                                    .ok_or_else(|| Error::bug("a leaf was not read back"))?,
                            ),
                        };
                        self.full(name, Some(&merged), new)?
                    }
                };
                edits.push((new.block, leaf));
            }
        }
        Ok(edits)
    }

    fn full(
        &mut self,
        name: &str,
        old: Option<&Leaf>,
        new: &BlockExtents,
    ) -> Result<Option<Arc<Node>>> {
        let leaf = match old {
            None => Leaf::build(LeafKind::Full, new.extents.iter().copied())?,
            Some(old) => Leaf::overlay(old, [&upon_anything(new)?]),
        };
        if old.is_some() {
            self.candidate(name, new.block, &leaf);
        }
        if leaf.is_zero() {
            return Ok(None);
        }
        let link = self.store(&leaf)?;
        Ok(Some(self.node(vec![link], leaf)))
    }

    fn delta(&mut self, old: &LeafNode, new: &BlockExtents) -> Result<Option<Arc<Node>>> {
        let kind = LeafKind::Delta { base: old.fp(), chain: old.chain.len() as u8 };
        let leaf = Leaf::build(kind, new.extents.iter().copied())?;
        let link = self.store(&leaf)?;
        let mut chain = Vec::with_capacity(old.chain.len() + 1);
        chain.extend_from_slice(&old.chain);
        chain.push(link);
        Ok(Some(match &old.kept {
            Some(kept) => self.node(chain, Leaf::overlay(kept, [&leaf])),
            None => Arc::new(Node::Leaf(LeafNode {
                chain,
                kept: None,
                // Each new extent may split an old one: an upper bound.
                merged_bytes: old.merged_bytes + leaf.encoded_len() as u32,
            })),
        }))
    }

    fn store(&mut self, leaf: &Leaf) -> Result<Link> {
        let bytes = leaf.encode()?;
        self.stored_bytes += bytes.len() as u64;
        self.packer.append_node(&bytes)
    }

    fn node(&self, chain: Vec<Link>, merged: Leaf) -> Arc<Node> {
        let merged_bytes = merged.encoded_len() as u32;
        let keep = u64::from(merged_bytes) <= self.pool.config().tuning.leaf_bytes_max;
        let kept = keep.then(|| Arc::new(merged));
        Arc::new(Node::Leaf(LeafNode { chain, kept, merged_bytes }))
    }

    /// Notes the pages of the merged leaf that are alone in large, mostly dead chunks.
    fn candidate(&mut self, name: &str, block: u64, leaf: &Leaf) {
        // A leaf does not store the lengths of its chunks. The last page in use is a lower bound;
        // most chunks are cut at powers of two, and an estimate that is too short only misses some.
        let mut size = vec![0u16; leaf.chunks.len()];
        for extent in &leaf.extents {
            if let Some(chunk) = extent.chunk {
                let seen = &mut size[usize::from(chunk)];
                *seen = (*seen).max((extent.first + extent.pages).next_power_of_two());
            }
        }
        let live = leaf.live_pages_per_chunk();
        for extent in &leaf.extents {
            let Some(chunk) = extent.chunk.map(usize::from) else { continue };
            if live[chunk] * EVACUATE_BELOW.1 <= size[chunk] * EVACUATE_BELOW.0 {
                let first = block * BLOCK_PAGES as u64 + u64::from(extent.page);
                self.candidates.push(RewriteCandidate {
                    stream: name.to_owned(),
                    range: PageRange { first, count: u64::from(extent.pages) },
                    use_of_chunk: (live[chunk], size[chunk]),
                });
            }
        }
    }
}

fn leaf_of(tree: &PageTree, block: u64) -> Option<&LeafNode> {
    match tree.leaf(block)?.as_ref() {
        Node::Leaf(leaf) => Some(leaf),
        Node::Inner(_) => None,
    }
}

fn choose(
    new: &BlockExtents,
    old: Option<&LeafNode>,
    bytes: u64,
    epoch: Epoch,
) -> Result<LeafUpdate> {
    let Some(old) = old else { return Ok(LeafUpdate::Fresh) };
    let pages_here = (pages_of(bytes) - new.block * BLOCK_PAGES as u64).min(BLOCK_PAGES as u64);
    let covered: u64 = new.extents.iter().map(|e| u64::from(e.pages)).sum();
    if covered >= pages_here {
        return Ok(LeafUpdate::Fresh);
    }
    // A delta that is half as long as the merged leaf saves nothing in the long run.
    let delta_bytes = upon_anything(new)?.encoded_len() as u32;
    // The epoch spreads the work: otherwise all blocks of a full save would be due at once.
    let is_due = old.chain.len() > usize::from(CHAIN_MAX)
        || old.chain.len() > 1 && (epoch + new.block).is_multiple_of(MERGE_PERIOD);
    Ok(if is_due || delta_bytes * 2 > old.merged_bytes {
        LeafUpdate::Merge
    } else {
        LeafUpdate::Delta
    })
}

/// Returns the extents as a delta leaf in memory, including zero pages; its base is never read.
fn upon_anything(new: &BlockExtents) -> Result<Leaf> {
    let base = outlive_types::Fingerprint([0xFF; 32]);
    Leaf::build(LeafKind::Delta { base, chain: 1 }, new.extents.iter().copied())
}

/// Returns the candidates that fit into `budget_bytes`, worst chunks first, and their bytes.
pub fn within_budget(
    mut candidates: Vec<RewriteCandidate>,
    budget_bytes: u64,
) -> (Vec<(String, PageRange)>, u64) {
    // Compares live/size without division: a/b < c/d.
    candidates.sort_by(|a, b| {
        let (a_live, a_size) = a.use_of_chunk;
        let (b_live, b_size) = b.use_of_chunk;
        let left = u32::from(a_live) * u32::from(b_size);
        left.cmp(&(u32::from(b_live) * u32::from(a_size)))
    });
    let mut granted_bytes = 0;
    let mut granted = Vec::new();
    for candidate in candidates {
        let bytes = candidate.range.count * PAGE_BYTES as u64;
        if granted_bytes + bytes > budget_bytes {
            break;
        }
        granted_bytes += bytes;
        granted.push((candidate.stream, candidate.range));
    }
    (granted, granted_bytes)
}
