//! Reads page trees, level by level: each level of all streams is one plan in container order.

use super::nodes::{Raw, merge, misplaced, read_wave};
use crate::index::Extents;
use crate::tree::{Inner, LeafNode, Link, Node, PageTree};
use outlive_format::{LeafKind, TreeRef};
use outlive_pool::{PackExtent, Pool};
use outlive_types::{Fingerprint, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// Nodes by fingerprint. Equal subtrees are read once.
type Nodes = HashMap<Fingerprint, (PackExtent, Raw)>;

/// Reads whole trees.
///
/// # Errors
/// `Damaged` if a node is missing or wrong.
pub fn read_trees(
    pool: &Pool,
    extents: &mut dyn Extents,
    roots: &[TreeRef],
) -> Result<Vec<PageTree>> {
    let mut nodes = Nodes::new();
    // Pairs of fingerprint and expected level; a base leaf has the level of its delta.
    let mut wave: Vec<(Fingerprint, u8)> =
        roots.iter().filter(|r| !r.root.is_zero()).map(|r| (r.root, r.level())).collect();
    while !wave.is_empty() {
        wave.sort_unstable();
        wave.dedup();
        wave.retain(|(fp, _)| !nodes.contains_key(fp));
        let locator = extents.nodes(&mut wave.iter().map(|(fp, _)| *fp))?;
        let read = read_wave(pool, locator, &wave)?;
        let mut next = Vec::new();
        for (fp, level, extent, raw) in read {
            match &raw {
                Raw::Inner(inner) => {
                    let children = inner.children.iter().filter(|child| !child.is_zero());
                    next.extend(children.map(|child| (*child, level - 1)));
                }
                Raw::Leaf(leaf) => {
                    if let LeafKind::Delta { base, .. } = leaf.kind {
                        next.push((base, 0));
                    }
                }
            }
            nodes.insert(fp, (extent, raw));
        }
        wave = next;
    }
    let keep_bytes_max = pool.config().tuning.leaf_bytes_max;
    let mut builder = Builder { nodes: &nodes, keep_bytes_max, built: HashMap::new() };
    roots
        .iter()
        .map(|root| {
            let node = match root.root.is_zero() {
                true => None,
                false => Some(builder.node(root.root, root.level())?),
            };
            Ok(PageTree { bytes: root.bytes, root: node })
        })
        .collect()
}

struct Builder<'a> {
    nodes: &'a Nodes,
    keep_bytes_max: u64,
    built: HashMap<(Fingerprint, u8), Arc<Node>>,
}

impl Builder<'_> {
    fn node(&mut self, fp: Fingerprint, level: u8) -> Result<Arc<Node>> {
        if let Some(node) = self.built.get(&(fp, level)) {
            return Ok(node.clone());
        }
        let node = Arc::new(match &self.nodes.get(&fp).ok_or_else(|| misplaced(fp))?.1 {
            Raw::Inner(inner) if inner.level == level => {
                let children = inner
                    .children
                    .iter()
                    .map(|child| match child.is_zero() {
                        true => Ok(None),
                        false => self.node(*child, level - 1).map(Some),
                    })
                    .collect::<Result<_>>()?;
                Node::Inner(Inner { fp, children })
            }
            Raw::Leaf(_) if level == 0 => Node::Leaf(self.leaf(fp)?),
            _ => return Err(misplaced(fp)),
        });
        self.built.insert((fp, level), node.clone());
        Ok(node)
    }

    fn leaf(&self, fp: Fingerprint) -> Result<LeafNode> {
        let mut chain = Vec::new();
        let mut parts = Vec::new();
        let mut next = Some(fp);
        // A delta's chain is one longer than its base's, so the loop ends.
        let mut above: Option<u8> = None;
        while let Some(fp) = next {
            let Some((extent, Raw::Leaf(leaf))) = self.nodes.get(&fp) else {
                return Err(misplaced(fp));
            };
            if above.is_some_and(|above| leaf.chain() + 1 != above) {
                return Err(misplaced(fp));
            }
            above = Some(leaf.chain());
            chain.push(Link { fp, extent: *extent });
            parts.push(leaf);
            next = match leaf.kind {
                LeafKind::Delta { base, .. } => Some(base),
                LeafKind::Full => None,
            };
        }
        chain.reverse();
        let parts_bytes: usize = parts.iter().map(|leaf| leaf.encoded_len()).sum();
        // Readers that need a leaf too large to keep would merge it again anyway.
        if parts_bytes as u64 > 2 * self.keep_bytes_max {
            return Ok(LeafNode { chain, kept: None, merged_bytes: parts_bytes as u32 });
        }
        let merged = merge(&parts).ok_or_else(|| misplaced(fp))?;
        let merged_bytes = merged.encoded_len() as u32;
        let kept = (u64::from(merged_bytes) <= self.keep_bytes_max).then(|| Arc::new(merged));
        Ok(LeafNode { chain, kept, merged_bytes })
    }
}
