//! Reads nodes of page trees: many of one level are one plan in container order.

use super::chunks::ReadPlan;
use super::verified::Verified;
use crate::index::{Locator, ReadItem};
use crate::tree::LeafNode;
use outlive_format::{InnerNode, Leaf, LeafKind};
use outlive_pool::{PackExtent, Pool};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, ErrorKind, Fingerprint, Result};
use std::collections::HashMap;

/// Called with each missing or wrong node, for callers that want the rest all the same; without it,
/// such a node is an error.
pub type Lost<'a> = Option<&'a mut dyn FnMut(Fingerprint)>;

/// A decoded node, before its children are known.
pub(super) enum Raw {
    Inner(InnerNode),
    Leaf(Leaf),
}

/// Reads inner nodes of one level.
///
/// # Errors
/// `Damaged` if a node is missing or wrong.
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

/// Reads single leaves, without the chains below them.
///
/// # Errors
/// `Damaged` if a leaf is missing or wrong.
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
/// `Damaged` if a leaf is missing or wrong.
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

/// Returns the leaf `fp`, merged with the chain below it.
pub(super) fn merge_from(leaves: &HashMap<Fingerprint, Leaf>, fp: Fingerprint) -> Result<Leaf> {
    let mut parts: Vec<&Leaf> = Vec::new();
    let mut next = Some(fp);
    while let Some(fp) = next {
        let leaf = leaves.get(&fp).ok_or_else(|| misplaced(fp))?;
        // A delta's chain is one longer than its base's, so the loop ends.
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

pub(super) fn read_wave(
    pool: &Pool,
    locator: &Locator,
    wave: &[(Fingerprint, u8)],
) -> Result<Vec<(Fingerprint, u8, PackExtent, Raw)>> {
    read_what_is_there(pool, locator, wave, &mut None)
}

/// Reads the nodes of a wave; `lost` takes the missing ones.
pub(super) fn read_what_is_there(
    pool: &Pool,
    locator: &Locator,
    wave: &[(Fingerprint, u8)],
    lost: &mut Lost<'_>,
) -> Result<Vec<(Fingerprint, u8, PackExtent, Raw)>> {
    let mut listed: Vec<(Fingerprint, u8)> = Vec::with_capacity(wave.len());
    let mut wanted: Vec<ReadItem> = Vec::with_capacity(wave.len());
    for (fp, level) in wave {
        match (locator.find(fp), &mut *lost) {
            (Err(_), Some(lost)) => lost(*fp),
            (extent, _) => {
                wanted.push(ReadItem { fp: *fp, extent: extent? });
                listed.push((*fp, *level));
            }
        }
    }
    let wave = &listed;
    let out = Mutex::new(Vec::with_capacity(wave.len()));
    let take = |at: usize, node: Verified<'_>| {
        let (fp, level) = wave[at];
        let bytes = node.whole()?;
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
        let extent = wanted[at].extent;
        out.lock().push((fp, level, extent, raw));
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
    Ok(out.into_inner())
}

/// Reads the chains of leaves that are not kept, each merged into one full leaf.
///
/// # Errors
/// `Damaged`; errors of the target.
pub fn read_merged(pool: &Pool, leaves: &[&LeafNode]) -> Result<Vec<Leaf>> {
    if leaves.is_empty() {
        return Ok(Vec::new());
    }
    let wanted: Vec<ReadItem> = leaves
        .iter()
        .flat_map(|leaf| &leaf.chain)
        .map(|link| ReadItem { fp: link.fp, extent: link.extent })
        .collect();
    let decoded: Mutex<HashMap<usize, Leaf>> = Mutex::default();
    let take = |at: usize, node: Verified<'_>| {
        let leaf = Leaf::decode(node.whole()?)?;
        decoded.lock().insert(at, leaf);
        Ok(())
    };
    let faults = ReadPlan::new(pool, &wanted).execute(pool, 1, false, &take);
    if let Some(fault) = faults.into_iter().next() {
        return Err(fault.error.context("reading back a leaf of the page tree"));
    }
    let decoded = decoded.into_inner();
    let mut next = 0;
    leaves
        .iter()
        .map(|leaf| {
            let numbers = next..next + leaf.chain.len();
            next = numbers.end;
            let chain: Option<Vec<&Leaf>> = numbers.map(|number| decoded.get(&number)).collect();
            let chain = chain.ok_or_else(|| Error::bug("a leaf was not read"))?;
            let (full, deltas) =
                chain.split_first().ok_or_else(|| Error::bug("a leaf without a chain"))?;
            Ok(Leaf::overlay(full, deltas.iter().copied()))
        })
        .collect()
}

/// Merges a chain that is given newest first; its last part is a full leaf.
pub(super) fn merge(parts: &[&Leaf]) -> Option<Leaf> {
    let (full, deltas) = parts.split_last()?;
    Some(Leaf::overlay(full, deltas.iter().rev().copied()))
}

pub(super) fn misplaced(fp: Fingerprint) -> Error {
    Error::damaged(format!("node {fp:?} is not what its parent says"))
}
