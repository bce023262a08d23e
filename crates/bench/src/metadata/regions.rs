//! The runs of a sparse space as regions, the form in which programs give their memory to outlive. A
//! region has a page tree of its own, or shares the packed stream with other small ones.

use super::space::{Kind, Space, extents, fingerprint};
use outlive_format::{Catalog, CatalogRegion, InnerNode, Leaf, LeafKind};
use outlive_pool::PackExtent;
use outlive_store::tree::{BlockEdit, LeafNode, Link, Node, PageTree, edit};
use outlive_types::{
    Distribution, Fingerprint, PACKED_BELOW_BYTES, PAGE_BYTES, PackId, RegionDesc, RegionLocation,
    Result, SeededRng,
};
use std::sync::Arc;

/// Metadata of a first version.
#[derive(Clone, Copy, Debug)]
pub struct Regions {
    /// Leaves, inner nodes and catalog.
    pub stored_bytes: u64,
    pub nodes: u64,
    pub chunks: u64,
}

/// Encodes one tree of the regions, as all are alike, and the catalog of all regions.
///
/// # Errors
/// `Bug` if the format refuses them.
pub fn encode(space: &Space, chunk_pages_max: u32) -> Result<Regions> {
    let rng = SeededRng::new(1);
    let runs = space.pages() / space.run_pages;
    let region_bytes = space.run_pages * PAGE_BYTES as u64;
    let is_packed = region_bytes < PACKED_BELOW_BYTES as u64;
    let (trees, tree_pages) = if is_packed { (1, space.pages()) } else { (runs, space.run_pages) };
    let mut one = tree(tree_pages, chunk_pages_max, &rng)?;
    one.stored_bytes *= trees;
    one.nodes *= trees;
    one.chunks *= trees;
    let regions = (0..runs).map(|number| CatalogRegion {
        desc: RegionDesc {
            name: format!("r{number:07}"),
            dtype: "<f8".to_owned(),
            shape: vec![region_bytes / 8],
            bytes: region_bytes,
            location: match is_packed {
                true => RegionLocation::Packed { offset: number * region_bytes },
                false => RegionLocation::Own,
            },
            distribution: Distribution::Local,
        },
        root: if is_packed { Fingerprint::ZERO } else { fingerprint(&rng) },
    });
    let catalog = Catalog { regions: regions.collect(), ..Catalog::default() };
    one.stored_bytes += catalog.encode()?.len() as u64;
    Ok(one)
}

/// Encodes the tree of a full stream of `pages` pages.
fn tree(pages: u64, chunk_pages_max: u32, rng: &SeededRng) -> Result<Regions> {
    let mut found = Regions { stored_bytes: 0, nodes: 0, chunks: 0 };
    let mut edits: Vec<BlockEdit> = Vec::new();
    let space = Space::dense(Kind::Dense, pages);
    extents(space.runs(), chunk_pages_max, rng, &mut |blocks| {
        for block in blocks {
            let leaf = Leaf::build(LeafKind::Full, block.extents)?;
            found.stored_bytes += leaf.encode()?.len() as u64;
            found.chunks += leaf.chunks.len() as u64;
            edits.push((block.block, Some(Arc::new(Node::Leaf(leaf_node(rng))))));
        }
        Ok(())
    })?;
    found.nodes = edits.len() as u64;
    edit(&PageTree::default(), pages * PAGE_BYTES as u64, &edits, &mut |node: &InnerNode| {
        found.stored_bytes += node.encode()?.len() as u64;
        found.nodes += 1;
        Ok(fingerprint(rng))
    })?;
    Ok(found)
}

/// Returns a leaf for inner nodes to name; only its fingerprint counts.
fn leaf_node(rng: &SeededRng) -> LeafNode {
    let pack = PackId([0; PackId::BYTES]);
    let extent = PackExtent { pack, offset: 0, length: 1, frame: None, slice: None };
    let link = Link { fp: fingerprint(rng), extent };
    LeafNode { chain: vec![link], kept: None, merged_bytes: 0 }
}
