//! Finds the data that page trees need: every node and chunk below their roots.

use super::nodes::{Lost, Raw, merge_from, read_what_is_there};
use crate::index::{Locator, Pages, ReadItem};
use outlive_format::{Leaf, LeafKind, TreeRef};
use outlive_pool::Pool;
use outlive_types::{Fingerprint, Result};
use std::collections::{HashMap, HashSet};

/// A node or chunk that a tree needs.
#[derive(Clone, Copy, Debug)]
pub enum Live {
    /// A node, and its pack extent.
    Node(ReadItem),
    /// A chunk, or some pages of it.
    Chunk(Fingerprint, Pages),
}

/// A node with everything below it: its fingerprint and level. Levels beyond those of trees
/// distinguish catalogs and recipes.
pub type Subtree = (Fingerprint, u8);

/// Receives the results of a walk over the needs of checkpoints.
pub trait NeedsVisitor {
    /// Notes that `of` (`None`: the checkpoint itself) has the subtree. Returns whether to walk it.
    fn enter(&mut self, subtree: Subtree, of: Option<Subtree>) -> bool;

    /// Notes that the subtree needs a node or chunk, besides the subtrees below it.
    ///
    /// # Errors
    /// An error ends the walk.
    fn add(&mut self, of: Subtree, live: Live) -> Result<()>;
}

/// Calls `each` for every node and chunk that is needed, some of them more than once. Skips the
/// subtrees in `visited`.
pub struct Once<'a> {
    /// Subtrees that were walked.
    pub visited: &'a mut HashSet<Subtree>,
    /// Called with each need.
    pub each: &'a mut dyn FnMut(Live) -> Result<()>,
}

impl NeedsVisitor for Once<'_> {
    fn enter(&mut self, subtree: Subtree, _: Option<Subtree>) -> bool {
        self.visited.insert(subtree)
    }

    fn add(&mut self, _: Subtree, live: Live) -> Result<()> {
        (self.each)(live)
    }
}

/// Finds every node and chunk that trees need; each root comes with the subtree to which it
/// belongs. The locator must know all nodes.
///
/// # Errors
/// `Damaged` if a node is missing or wrong, unless `lost` takes that; errors of `needs`.
pub fn walk_live(
    pool: &Pool,
    locator: &Locator,
    roots: &[(TreeRef, Option<Subtree>)],
    needs: &mut dyn NeedsVisitor,
    mut lost: Lost<'_>,
) -> Result<()> {
    let mut leaves: HashMap<Fingerprint, Leaf> = HashMap::new();
    let mut tops: Vec<Fingerprint> = Vec::new();
    let mut wave: Vec<Subtree> = Vec::new();
    for (root, of) in roots {
        let root = (root.root, root.level());
        if !root.0.is_zero() && needs.enter(root, *of) {
            wave.push(root);
        }
    }
    tops.extend(wave.iter().filter(|root| root.1 == 0).map(|root| root.0));
    while !wave.is_empty() {
        wave.sort_unstable();
        wave.dedup();
        wave.retain(|(fp, level)| *level > 0 || !leaves.contains_key(fp));
        let mut next = Vec::new();
        for (fp, level, extent, raw) in read_what_is_there(pool, locator, &wave, &mut lost)? {
            match raw {
                Raw::Inner(inner) => {
                    needs.add((fp, level), Live::Node(ReadItem { fp, extent }))?;
                    for child in inner.children.into_iter().filter(|child| !child.is_zero()) {
                        if needs.enter((child, level - 1), Some((fp, level))) {
                            next.push((child, level - 1));
                            if level == 1 {
                                tops.push(child);
                            }
                        }
                    }
                }
                Raw::Leaf(leaf) => {
                    // A base shows which of its extents its delta still uses, so it is read even if
                    // it was visited.
                    if let LeafKind::Delta { base, .. } = leaf.kind {
                        next.push((base, 0));
                    }
                    leaves.insert(fp, leaf);
                }
            }
        }
        wave = next;
    }
    for fp in tops {
        let top = (fp, 0);
        let mut link = Some(fp);
        while let Some((fp, leaf)) = link.and_then(|fp| Some((fp, leaves.get(&fp)?))) {
            needs.add(top, Live::Node(ReadItem { fp, extent: locator.find(&fp)? }))?;
            link = match leaf.kind {
                LeafKind::Delta { base, .. } => Some(base),
                LeafKind::Full => None,
            };
        }
        let merged = match (merge_from(&leaves, fp), &mut lost) {
            (Err(_), Some(lost)) => {
                lost(fp);
                continue;
            }
            (merged, _) => merged?,
        };
        for extent in merged.page_extents() {
            let pages = Pages::From(extent.first.into(), extent.pages.into());
            extent.chunk.map_or(Ok(()), |chunk| needs.add(top, Live::Chunk(chunk, pages)))?;
        }
    }
    Ok(())
}
