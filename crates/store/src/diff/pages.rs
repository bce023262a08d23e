//! Compares two page trees by fingerprints, and descends only where they differ.

use crate::index::Locator;
use crate::read::{read_inner, read_leaves};
use crate::tree::span_of;
use outlive_format::{Leaf, Lookup, NODE_CHILDREN, TreeRef};
use outlive_pool::Pool;
use outlive_types::{BLOCK_PAGES, Fingerprint, PAGE_BYTES, PageRange, Result, blocks_of, pages_of};
use std::collections::HashMap;

/// Pairs of nodes read in one go; it bounds their memory to some 20 MiB.
const BATCH: usize = 512;

/// Pages that differ between two streams, as far as both reach. A page counts as the same if it is
/// in the same chunk; so one that was saved again with the same bytes may count as different.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PageDiff {
    /// Pages that both streams have.
    pub pages: u64,
    /// Number of pages that differ.
    pub changed_pages: u64,
    /// Bytes of these.
    pub changed_bytes: u64,
    /// Their ranges, if the caller asks for them.
    pub ranges: Vec<PageRange>,
}

impl PageDiff {
    /// Notes a page that differs between streams that share `bytes` bytes.
    pub fn add(&mut self, page: u64, bytes: u64, ranges: bool) {
        self.changed_pages += 1;
        self.changed_bytes += (bytes - page * PAGE_BYTES as u64).min(PAGE_BYTES as u64);
        if ranges {
            match self.ranges.last_mut() {
                Some(last) if last.first + last.count == page => last.count += 1,
                _ => self.ranges.push(PageRange { first: page, count: 1 }),
            }
        }
    }
}

/// A node and its level.
type NodeRef = (Fingerprint, u8);

/// Two nodes that span the same blocks, from `first` on.
#[derive(Clone, Copy)]
struct Pair {
    first: u64,
    nodes: [Option<NodeRef>; 2],
}

struct Comparison<'a> {
    pool: &'a Pool,
    locators: [&'a Locator; 2],
    bytes: u64,
    blocks: u64,
    ranges: bool,
    diff: PageDiff,
}

/// Compares two streams as far as both reach.
///
/// # Errors
/// `Damaged` if a node that must be read is missing or wrong.
pub fn compare(
    pool: &Pool,
    locators: [&Locator; 2],
    trees: [TreeRef; 2],
    ranges: bool,
) -> Result<PageDiff> {
    let bytes = trees[0].bytes.min(trees[1].bytes);
    let diff = PageDiff { pages: pages_of(bytes), ..PageDiff::default() };
    let blocks = blocks_of(bytes);
    let mut comparison = Comparison { pool, locators, bytes, blocks, ranges, diff };
    let root = |tree: &TreeRef| (!tree.root.is_zero()).then_some((tree.root, tree.level()));
    let nodes = [root(&trees[0]), root(&trees[1])];
    let level = trees[0].level().max(trees[1].level());
    if bytes > 0 && nodes[0] != nodes[1] {
        comparison.descend(vec![Pair { first: 0, nodes }], level)?;
    }
    Ok(comparison.diff)
}

impl Comparison<'_> {
    fn descend(&mut self, pairs: Vec<Pair>, level: u8) -> Result<()> {
        for batch in pairs.chunks(BATCH) {
            if level == 0 {
                self.leaves(batch)?;
                continue;
            }
            let read = [self.inner(batch, 0, level)?, self.inner(batch, 1, level)?];
            // A few inner nodes may give many pairs: those of each node are handled separately.
            for pair in batch {
                let next = self.children(pair, level, &read);
                self.descend(next, level - 1)?;
            }
        }
        Ok(())
    }

    /// Returns the children of one side's nodes.
    fn inner(
        &self,
        batch: &[Pair],
        side: usize,
        level: u8,
    ) -> Result<HashMap<Fingerprint, Vec<Fingerprint>>> {
        let here = batch.iter().filter_map(|pair| pair.nodes[side]);
        let fps: Vec<Fingerprint> = here.filter(|node| node.1 == level).map(|n| n.0).collect();
        let read = read_inner(self.pool, self.locators[side], &fps, level)?;
        Ok(read.into_iter().map(|(fp, inner)| (fp, inner.children)).collect())
    }

    /// Returns the pairs of children that differ.
    fn children(
        &self,
        pair: &Pair,
        level: u8,
        read: &[HashMap<Fingerprint, Vec<Fingerprint>>; 2],
    ) -> Vec<Pair> {
        let span = span_of(level - 1);
        let child = |side: usize, slot: usize| -> Option<NodeRef> {
            let (fp, of_level) = pair.nodes[side]?;
            if of_level < level {
                // The shorter tree has no node at this level: all of it is the first child.
                return (slot == 0).then_some((fp, of_level));
            }
            let child = read[side].get(&fp)?.get(slot)?;
            (!child.is_zero()).then_some((*child, level - 1))
        };
        let slots = (self.blocks - pair.first).div_ceil(span).min(NODE_CHILDREN as u64) as usize;
        (0..slots)
            .map(|slot| Pair {
                first: pair.first + slot as u64 * span,
                nodes: [child(0, slot), child(1, slot)],
            })
            .filter(|pair| pair.nodes[0] != pair.nodes[1])
            .collect()
    }

    fn leaves(&mut self, batch: &[Pair]) -> Result<()> {
        let read = |side: usize| {
            let fps: Vec<Fingerprint> =
                batch.iter().filter_map(|pair| pair.nodes[side]).map(|node| node.0).collect();
            read_leaves(self.pool, self.locators[side], &fps)
        };
        let leaves = [read(0)?, read(1)?];
        for pair in batch {
            let leaf = |side: usize| pair.nodes[side].and_then(|(fp, _)| leaves[side].get(&fp));
            let (a, b) = (leaf(0), leaf(1));
            let lookup = |leaf: Option<&Leaf>, page| leaf.map_or(Lookup::Zero, |l| l.lookup(page));
            let first = pair.first * BLOCK_PAGES as u64;
            let here = (self.diff.pages - first).min(BLOCK_PAGES as u64) as u16;
            for page in (0..here).filter(|page| lookup(a, *page) != lookup(b, *page)) {
                self.diff.add(first + u64::from(page), self.bytes, self.ranges);
            }
        }
        Ok(())
    }
}
