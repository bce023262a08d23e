//! Reads page trees, level by level: each level of all streams is one plan in container order.

use super::read::{ReadPlan, Wanted};
use crate::index::Locator;
use crate::tree::{Inner, LeafNode, Link, Node, PageTree};
use outlive_format::{InnerNode, Leaf, LeafKind, TreeRef};
use outlive_pool::{Place, Pool};
use outlive_types::{Error, ErrorKind, Fingerprint, Result};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

/// A decoded node, before its children are known.
enum Raw {
    Inner(InnerNode),
    Leaf(Leaf),
}

/// Nodes by fingerprint. Equal subtrees are read once.
type Nodes = HashMap<Fingerprint, (Place, Raw)>;

/// Reads whole trees.
///
/// # Errors
/// `Damaged` if a node is missing or wrong.
pub fn read_trees(pool: &Pool, locator: &Locator, roots: &[TreeRef]) -> Result<Vec<PageTree>> {
    let mut nodes = Nodes::new();
    // (fingerprint, expected level); a base leaf is expected where its delta was.
    let mut wave: Vec<(Fingerprint, u8)> =
        roots.iter().filter(|r| !r.root.is_zero()).map(|r| (r.root, r.level())).collect();
    while !wave.is_empty() {
        wave.sort_unstable();
        wave.dedup();
        wave.retain(|(fp, _)| !nodes.contains_key(fp));
        let read = read_wave(pool, locator, &wave)?;
        let mut next = Vec::new();
        for (fp, level, place, raw) in read {
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
            nodes.insert(fp, (place, raw));
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

/// Something that a tree needs.
#[derive(Clone, Copy, Debug)]
pub enum Live {
    /// A node, and where it is.
    Node(Wanted),
    /// A chunk.
    Chunk(Fingerprint),
}

/// Called with what is missing or wrong, by whoever wants the rest all the same; without it, that
/// is an error.
pub type Lost<'a> = Option<&'a mut dyn FnMut(Fingerprint)>;

/// A node with all below it: its fingerprint and level. Levels beyond those of trees tell catalogs
/// and recipes apart.
pub type Subtree = (Fingerprint, u8);

/// Takes what a walk over the needs of checkpoints finds.
pub trait Needs {
    /// `of` (the checkpoint itself: none) has the subtree. Returns whether to look into it.
    fn enter(&mut self, subtree: Subtree, of: Option<Subtree>) -> bool;

    /// The subtree needs something, besides the subtrees below it.
    ///
    /// # Errors
    /// Whatever ends the walk.
    fn add(&mut self, of: Subtree, live: Live) -> Result<()>;
}

/// Calls `each` with every node and chunk that is needed, some of them more than once. Subtrees in
/// `visited` were dealt with before, and are left out.
pub struct Once<'a> {
    /// Subtrees that were looked into.
    pub visited: &'a mut HashSet<Subtree>,
    /// Called with what is needed.
    pub each: &'a mut dyn FnMut(Live) -> Result<()>,
}

impl Needs for Once<'_> {
    fn enter(&mut self, subtree: Subtree, _: Option<Subtree>) -> bool {
        self.visited.insert(subtree)
    }

    fn add(&mut self, _: Subtree, live: Live) -> Result<()> {
        (self.each)(live)
    }
}

/// Finds every node and chunk that trees need; each root comes with what it belongs to. The locator
/// must know all nodes.
///
/// # Errors
/// `Damaged` if a node is missing or wrong, unless `lost` takes that; what `needs` reports.
pub fn walk_live(
    pool: &Pool,
    locator: &Locator,
    roots: &[(TreeRef, Option<Subtree>)],
    needs: &mut dyn Needs,
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
        for (fp, level, place, raw) in read_what_is_there(pool, locator, &wave, &mut lost)? {
            match raw {
                Raw::Inner(inner) => {
                    needs.add((fp, level), Live::Node(Wanted { fp, place }))?;
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
                    // A base is needed to know what its delta leaves of it, visited or not.
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
            needs.add(top, Live::Node(Wanted { fp, place: locator.find(&fp)? }))?;
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
        for chunk in merged.page_extents().filter_map(|extent| extent.chunk) {
            needs.add(top, Live::Chunk(chunk))?;
        }
    }
    Ok(())
}

/// Reads inner nodes of one level.
///
/// # Errors
/// `Damaged` if one is missing or wrong.
pub fn read_inner(
    pool: &Pool,
    locator: &Locator,
    fps: &[Fingerprint],
    level: u8,
) -> Result<HashMap<Fingerprint, InnerNode>> {
    let mut wave: Vec<(Fingerprint, u8)> = fps.iter().map(|fp| (*fp, level)).collect();
    wave.sort_unstable();
    wave.dedup();
    let read = read_wave(pool, locator, &wave)?;
    let inner = read.into_iter().map(|(fp, _, _, raw)| match raw {
        Raw::Inner(inner) => Ok((fp, inner)),
        Raw::Leaf(_) => Err(misplaced(fp)),
    });
    inner.collect()
}

/// Reads leaves as they are, without the chains below them.
///
/// # Errors
/// `Damaged` if one is missing or wrong.
pub fn read_leaf_nodes(
    pool: &Pool,
    locator: &Locator,
    fps: &[Fingerprint],
) -> Result<Vec<(Fingerprint, Leaf)>> {
    let mut wave: Vec<(Fingerprint, u8)> = fps.iter().map(|fp| (*fp, 0)).collect();
    wave.sort_unstable();
    wave.dedup();
    let read = read_wave(pool, locator, &wave)?;
    let leaves = read.into_iter().map(|(fp, _, _, raw)| match raw {
        Raw::Leaf(leaf) => Ok((fp, leaf)),
        Raw::Inner(_) => Err(misplaced(fp)),
    });
    leaves.collect()
}

/// Reads leaves, each merged with the chain below it into a full one.
///
/// # Errors
/// `Damaged` if one is missing or wrong.
pub fn read_leaves(
    pool: &Pool,
    locator: &Locator,
    fps: &[Fingerprint],
) -> Result<HashMap<Fingerprint, Leaf>> {
    let mut parts: HashMap<Fingerprint, Leaf> = HashMap::new();
    let mut wave = fps.to_vec();
    while !wave.is_empty() {
        wave.retain(|fp| !parts.contains_key(fp));
        let mut next = Vec::new();
        for (fp, leaf) in read_leaf_nodes(pool, locator, &wave)? {
            if let LeafKind::Delta { base, .. } = leaf.kind {
                next.push(base);
            }
            parts.insert(fp, leaf);
        }
        wave = next;
    }
    fps.iter().map(|fp| Ok((*fp, merge_from(&parts, *fp)?))).collect()
}

/// The leaf `fp` merged with the chain below it.
fn merge_from(leaves: &HashMap<Fingerprint, Leaf>, fp: Fingerprint) -> Result<Leaf> {
    let mut parts: Vec<&Leaf> = Vec::new();
    let mut next = Some(fp);
    while let Some(fp) = next {
        let leaf = leaves.get(&fp).ok_or_else(|| misplaced(fp))?;
        // A delta's chain is one longer than its base's, so this ends.
        if parts.last().is_some_and(|above| leaf.chain() + 1 != above.chain()) {
            return Err(misplaced(fp));
        }
        parts.push(leaf);
        next = match leaf.kind {
            LeafKind::Delta { base, .. } => Some(base),
            LeafKind::Full => None,
        };
    }
    merge(&parts).ok_or_else(|| misplaced(fp))
}

fn read_wave(
    pool: &Pool,
    locator: &Locator,
    wave: &[(Fingerprint, u8)],
) -> Result<Vec<(Fingerprint, u8, Place, Raw)>> {
    read_what_is_there(pool, locator, wave, &mut None)
}

/// The nodes of a wave; `lost` takes those that are not there.
fn read_what_is_there(
    pool: &Pool,
    locator: &Locator,
    wave: &[(Fingerprint, u8)],
    lost: &mut Lost<'_>,
) -> Result<Vec<(Fingerprint, u8, Place, Raw)>> {
    let mut listed: Vec<(Fingerprint, u8)> = Vec::with_capacity(wave.len());
    let mut wanted: Vec<Wanted> = Vec::with_capacity(wave.len());
    for (fp, level) in wave {
        match (locator.find(fp), &mut *lost) {
            (Err(_), Some(lost)) => lost(*fp),
            (place, _) => {
                wanted.push(Wanted { fp: *fp, place: place? });
                listed.push((*fp, *level));
            }
        }
    }
    let wave = &listed;
    let out = Mutex::new(Vec::with_capacity(wave.len()));
    let take = |at: usize, bytes: &[u8]| {
        let (fp, level) = wave[at];
        let raw = match level {
            0 => Raw::Leaf(Leaf::decode(bytes)?),
            _ => {
                let inner = InnerNode::decode(bytes)?;
                if inner.level != level {
                    return Err(Error::damaged(format!(
                        "node {fp:?} has level {} where {level} belongs",
                        inner.level
                    )));
                }
                Raw::Inner(inner)
            }
        };
        let place = wanted[at].place;
        out.lock().unwrap_or_else(PoisonError::into_inner).push((fp, level, place, raw));
        Ok(())
    };
    let threads = pool.config().tuning.threads();
    let faults = ReadPlan::new(pool, &wanted).execute(pool, threads, lost.is_some(), &take);
    for fault in faults {
        match lost {
            Some(lost) if fault.error.kind() == ErrorKind::Damaged => lost(wave[fault.wanted].0),
            _ => return Err(fault.error.context("reading the page tree")),
        }
    }
    Ok(out.into_inner().unwrap_or_else(PoisonError::into_inner))
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
        // A delta's chain is one longer than its base's, so this ends.
        let mut above: Option<u8> = None;
        while let Some(fp) = next {
            let Some((place, Raw::Leaf(leaf))) = self.nodes.get(&fp) else {
                return Err(misplaced(fp));
            };
            if above.is_some_and(|above| leaf.chain() + 1 != above) {
                return Err(misplaced(fp));
            }
            above = Some(leaf.chain());
            chain.push(Link { fp, place: *place });
            parts.push(leaf);
            next = match leaf.kind {
                LeafKind::Delta { base, .. } => Some(base),
                LeafKind::Full => None,
            };
        }
        chain.reverse();
        let parts_bytes: usize = parts.iter().map(|leaf| leaf.encoded_len()).sum();
        // Merging what is too large to keep would be done again by whoever needs it.
        if parts_bytes as u64 > 2 * self.keep_bytes_max {
            return Ok(LeafNode { chain, kept: None, merged_bytes: parts_bytes as u32 });
        }
        let merged = merge(&parts).ok_or_else(|| misplaced(fp))?;
        let merged_bytes = merged.encoded_len() as u32;
        let kept = (u64::from(merged_bytes) <= self.keep_bytes_max).then(|| Arc::new(merged));
        Ok(LeafNode { chain, kept, merged_bytes })
    }
}

/// Merges a chain given newest first; the last is a full leaf.
fn merge(parts: &[&Leaf]) -> Option<Leaf> {
    let (full, deltas) = parts.split_last()?;
    let mut merged = (*full).clone();
    for delta in deltas.iter().rev() {
        merged = Leaf::overlay(&merged, delta);
    }
    Some(merged)
}

fn misplaced(fp: Fingerprint) -> Error {
    Error::damaged(format!("node {fp:?} is not what its parent says"))
}
