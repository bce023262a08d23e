//! Finds the nodes and chunks that an image needs and its base does not. Subtrees that the base
//! needs, too, are left out whole, and their nodes are not read again.

use crate::index::{Fingerprints, Locator, Pages, ReadItem};
use crate::read::files::{FilesImage, RECIPE, walk_files};
use crate::read::{Live, Once, read_catalog, read_inner, read_leaf_nodes};
use outlive_format::{
    Content, ImageKind, ImageRef, LEVEL_MAX, Leaf, LeafKind, PageSet, SliceForm, TreeRef,
};
use outlive_pool::Pool;
use outlive_types::{Error, Fingerprint, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Leaves read in one go.
const LEAF_BATCH: usize = 1024;

/// The nodes of one image, as far as needed to see that another image has them: 32 bytes a node,
/// and 32 for each node that another one names.
#[derive(Debug, Default)]
pub struct NodeSet {
    /// Children of inner nodes.
    inner: HashMap<Fingerprint, Vec<Fingerprint>>,
    /// Bases below each leaf, newest first.
    leaves: HashMap<Fingerprint, Vec<Fingerprint>>,
    /// All of these bases.
    bases: HashSet<Fingerprint>,
    /// For an image of files: the listing, and the recipes of its items.
    listing: Option<Fingerprint>,
    recipes: HashSet<Fingerprint>,
}

/// Objects to store, unless the destination has them.
#[derive(Debug, Default)]
pub struct CopyNeeds {
    /// Nodes.
    pub nodes: Vec<ReadItem>,
    /// Chunks and slices, each once, with its needed pages.
    pub chunks: Vec<NeededChunk>,
}

/// A chunk or a slice, and its needed pages.
#[derive(Clone, Copy, Debug)]
pub struct NeededChunk {
    /// Object to read.
    pub item: ReadItem,
    /// Needed pages, in groups of the source pool.
    pub pages: PageSet,
}

/// Finds what an image needs besides the needs of the image whose nodes are `base`. Also returns
/// the image's own nodes.
///
/// # Errors
/// `Damaged` if an object that must be read is missing or wrong.
pub fn needs(
    pool: &Pool,
    locator: &Locator,
    files: Option<&FilesImage>,
    image: &ImageRef,
    base: &NodeSet,
) -> Result<(CopyNeeds, NodeSet)> {
    let group_log2 = PageSet::group_log2(pool.config().format.chunk_bytes_max);
    let (needs, seen, chunks) = Default::default();
    let mut found = Finder { locator, needs, seen, chunks, group_log2 };
    let nodes = match (image.kind, files) {
        (ImageKind::Memory, _) => memory(pool, &mut found, image, base)?,
        (ImageKind::Files, Some(files)) => files_nodes(pool, &mut found, image, files, base)?,
        (ImageKind::Files, None) => return Err(Error::bug("an image of files was not opened")),
    };
    Ok((found.needs, nodes))
}

struct Finder<'a> {
    locator: &'a Locator,
    needs: CopyNeeds,
    seen: Fingerprints,
    /// Positions of chunks and slices in `needs`.
    chunks: HashMap<(Fingerprint, Option<SliceForm>), usize>,
    group_log2: u8,
}

impl Finder<'_> {
    fn chunk(&mut self, fp: Fingerprint, pages: Pages) -> Result<()> {
        let extent = self.locator.find_pages(&fp, pages)?;
        let next = self.needs.chunks.len();
        let at = *self.chunks.entry((fp, extent.slice)).or_insert(next);
        if at == next {
            let item = ReadItem { fp, extent };
            self.needs.chunks.push(NeededChunk { item, pages: PageSet::default() });
        }
        let needed = &mut self.needs.chunks[at].pages;
        *needed = needed.with(pages.set(self.group_log2));
        Ok(())
    }

    fn node(&mut self, fp: Fingerprint) -> Result<()> {
        if self.seen.insert(fp) {
            self.needs.nodes.push(ReadItem { fp, extent: self.locator.find(&fp)? });
        }
        Ok(())
    }
}

fn memory(
    pool: &Pool,
    found: &mut Finder<'_>,
    image: &ImageRef,
    base: &NodeSet,
) -> Result<NodeSet> {
    let mut roots: Vec<TreeRef> = vec![image.catalog, image.packed];
    if !image.catalog.root.is_zero() {
        let catalog = read_catalog(pool, &mut &*found.locator, image.catalog)?;
        roots.extend(catalog.regions.iter().filter_map(|region| region.tree()));
    }
    let mut levels: BTreeMap<u8, BTreeSet<Fingerprint>> = BTreeMap::new();
    for root in roots.iter().filter(|root| !root.root.is_zero()) {
        levels.entry(root.level()).or_default().insert(root.root);
    }
    let mut nodes = NodeSet::default();
    for level in (1..=LEVEL_MAX).rev() {
        let here = levels.remove(&level).unwrap_or_default();
        let new: Vec<Fingerprint> =
            here.iter().filter(|fp| !base.inner.contains_key(*fp)).copied().collect();
        let read = read_inner(pool, found.locator, &new, level)?;
        for fp in here {
            let children = match (base.inner.get(&fp), read.get(&fp)) {
                (Some(children), _) => children.clone(),
                (None, Some(inner)) => {
                    found.node(fp)?;
                    inner.children.clone()
                }
                (None, None) => return Err(Error::bug("a node was not read")),
            };
            let below = levels.entry(level - 1).or_default();
            below.extend(children.iter().filter(|child| !child.is_zero()));
            nodes.inner.insert(fp, children);
        }
    }
    let tops = levels.remove(&0).unwrap_or_default();
    let mut new = Vec::new();
    for top in tops {
        match base.leaves.get(&top) {
            Some(chain) => nodes.add_leaf(top, chain.clone()),
            None => new.push(top),
        }
    }
    for batch in new.chunks(LEAF_BATCH) {
        leaves(pool, found, batch, base, &mut nodes)?;
    }
    Ok(nodes)
}

/// Reads new leaves, without their parts in leaves that the base also needs.
fn leaves(
    pool: &Pool,
    found: &mut Finder<'_>,
    tops: &[Fingerprint],
    base: &NodeSet,
    nodes: &mut NodeSet,
) -> Result<()> {
    let mut parts: HashMap<Fingerprint, Leaf> = HashMap::new();
    let mut wave: Vec<Fingerprint> = tops.to_vec();
    while !wave.is_empty() {
        let mut next = Vec::new();
        for (fp, leaf) in read_leaf_nodes(pool, found.locator, &wave)? {
            if !base.bases.contains(&fp) {
                found.node(fp)?;
            }
            if let LeafKind::Delta { base: below, .. } = leaf.kind
                && !base.leaves.contains_key(&below)
            {
                next.push(below);
            }
            parts.insert(fp, leaf);
        }
        next.retain(|fp| !parts.contains_key(fp));
        wave = next;
    }
    for top in tops {
        let (mut chain, mut deltas) = (Vec::new(), Vec::new());
        let mut fp = *top;
        // The leaves read end with a full leaf or one of the base; hashes allow no circle.
        while let Some(leaf) = parts.get(&fp) {
            deltas.push(leaf);
            let LeafKind::Delta { base: below, .. } = leaf.kind else { break };
            chain.push(below);
            fp = below;
        }
        chain.extend(base.leaves.get(&fp).into_iter().flatten());
        let merged = deltas
            .split_last()
            .map(|(oldest, newer)| Leaf::overlay(oldest, newer.iter().rev().copied()));
        for extent in merged.iter().flat_map(Leaf::page_extents) {
            let pages = Pages::From(extent.first.into(), extent.pages.into());
            extent.chunk.map_or(Ok(()), |chunk| found.chunk(chunk, pages))?;
        }
        nodes.add_leaf(*top, chain);
    }
    Ok(())
}

impl NodeSet {
    fn add_leaf(&mut self, top: Fingerprint, chain: Vec<Fingerprint>) {
        self.bases.extend(&chain);
        self.leaves.insert(top, chain);
    }
}

fn files_nodes(
    pool: &Pool,
    found: &mut Finder<'_>,
    image: &ImageRef,
    files: &FilesImage,
    base: &NodeSet,
) -> Result<NodeSet> {
    let mut nodes = NodeSet { listing: Some(image.catalog.root), ..NodeSet::default() };
    let mut items = files.items();
    while let Some(item) = items.next_item()? {
        if let Content::Recipe(recipe) = item.content {
            nodes.recipes.insert(recipe);
        }
    }
    if base.listing == nodes.listing {
        return Ok(nodes);
    }
    let both = nodes.recipes.intersection(&base.recipes);
    let mut visited: HashSet<(Fingerprint, u8)> = both.map(|fp| (*fp, RECIPE)).collect();
    let locator = found.locator;
    let mut each = |live| match live {
        Live::Node(wanted) => found.node(wanted.fp),
        Live::Chunk(fp, pages) => found.chunk(fp, pages),
    };
    let mut needs = Once { visited: &mut visited, each: &mut each };
    walk_files(pool, locator, image.catalog, &mut needs, None)?;
    Ok(nodes)
}
