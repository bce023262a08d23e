//! The page tree of this project: the stages of a save that make leaves and inner nodes, in a pool on
//! a disk, and the comparison of `outlive diff`. Only the pages' bytes are missing.

use super::space::{Space, extents, fingerprint, runs_of};
use super::structure::{Found, Structure, Update, timed};
use outlive_format::{
    Directory, DirectoryEntry, EntryKind, InnerNode, Leaf, LeafExtent, SegmentRef, TreeRef,
};
use outlive_pool::Pool;
use outlive_store::diff::compare_trees;
use outlive_store::index::{Locator, MERGE_AT, merge};
use outlive_store::save::{BlockExtents, LeafStage, PackNumbers, Packer};
use outlive_store::tree::{BlockEdit, Link, Node, PageTree, edit};
use outlive_types::{BLOCK_PAGES, Fingerprint, PAGE_BYTES, PackId, Result, SeededRng, SessionId};
use std::mem::size_of;
use std::sync::Arc;

/// Name of the only stream.
const STREAM: &str = "space";
/// Bytes of a leaf or of its part of an inner node, by which packs are prepared.
const LIKELY_NODE_BYTES: u64 = 128;

/// A page tree in memory, with the nodes of its last two versions on the disk.
pub struct StoredTree<'a> {
    pool: &'a Pool,
    numbers: PackNumbers,
    rng: SeededRng,
    /// Length of the stream.
    bytes: u64,
    chunk_pages_max: u32,
    /// Bytes that locate a chunk of one page.
    page_location_bytes: f64,
    now: Version,
    before: StoredVersion,
    /// Bytes of the first version.
    pub first: StoredBytes,
}

#[derive(Default)]
struct Version {
    tree: PageTree,
    segments: Vec<SegmentRef>,
    epoch: u64,
}

/// The version before, of which no node is in memory.
struct StoredVersion {
    root: TreeRef,
    segments: Vec<SegmentRef>,
}

/// Bytes of one version on the disk.
#[derive(Clone, Copy, Default, Debug)]
pub struct StoredBytes {
    /// Leaves and inner nodes.
    pub nodes: u64,
    /// Directories, segments and padding of the packs that hold them.
    pub node_locations: u64,
    /// Number of chunks that the leaves name.
    pub chunks: u64,
    /// Number of leaves and inner nodes.
    pub node_count: u64,
}

/// A build that needs too much memory: an estimate of its bytes.
pub struct TooLarge(pub u64);

impl<'a> StoredTree<'a> {
    /// Builds and stores the first version. It gives up if the tree needs more than `ram_bytes_max`
    /// bytes of memory.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn build(
        pool: &'a Pool,
        space: &Space,
        chunk_pages_max: u32,
        ram_bytes_max: u64,
        seed: u64,
    ) -> Result<std::result::Result<StoredTree<'a>, TooLarge>> {
        let rng = SeededRng::new(seed);
        let mut session = [0; 12];
        session.copy_from_slice(&fingerprint(&rng).0[..12]);
        let mut built = StoredTree {
            pool,
            numbers: PackNumbers::new(SessionId(session), 0),
            rng,
            bytes: space.range_pages * PAGE_BYTES as u64,
            chunk_pages_max,
            page_location_bytes: chunk_location_bytes(pool, 1)?,
            now: Version::default(),
            before: StoredVersion { root: TreeRef::EMPTY, segments: Vec::new() },
            first: StoredBytes::default(),
        };
        let blocks = space.touched(BLOCK_PAGES as u64);
        let mut saving = Saving::new(&built, blocks * LIKELY_NODE_BYTES);
        let mut ram_bytes = 0;
        let mut too_large = None;
        extents(space.runs(), chunk_pages_max, &built.rng, &mut |batch| {
            if too_large.is_none() {
                let made = saving.leaves(&built.now, &batch)?;
                ram_bytes += saving.edits[made..].iter().map(edit_ram_bytes).sum::<u64>();
                if ram_bytes > ram_bytes_max {
                    too_large = Some(TooLarge(ram_bytes / saving.edits.len() as u64 * blocks));
                }
            }
            Ok(())
        })?;
        if let Some(too_large) = too_large {
            return Ok(Err(too_large));
        }
        let (version, stored, _) = saving.finish(&built.now)?;
        built.now = version;
        built.first = stored;
        Ok(match built.ram_bytes() {
            most if most > ram_bytes_max => Err(TooLarge(most)),
            _ => Ok(built),
        })
    }
}

impl Structure for StoredTree<'_> {
    fn update(&mut self, pages: &[u64], _version: u64) -> Result<Update> {
        let mut blocks = Vec::new();
        extents(runs_of(pages), self.chunk_pages_max, &self.rng, &mut |batch| {
            blocks.extend(batch);
            Ok(())
        })?;
        let expected_bytes = blocks.len() as u64 * LIKELY_NODE_BYTES;
        let (saved, took_s) = timed(|| -> Result<_> {
            let mut saving = Saving::new(self, expected_bytes);
            saving.leaves(&self.now, &blocks)?;
            saving.finish(&self.now)
        });
        let (version, stored, durable_s) = saved?;
        let Version { tree, segments, .. } = std::mem::replace(&mut self.now, version);
        self.before = StoredVersion { root: tree.reference(), segments };
        let of_chunks = (stored.chunks as f64 * self.page_location_bytes) as u64;
        let written_bytes = stored.nodes + stored.node_locations + of_chunks;
        Ok(Update { took_s: took_s - durable_s, durable_s, written_bytes })
    }

    /// A page tree has no marks: the update makes the delta itself, as new nodes.
    fn delta(&mut self) -> Option<Found> {
        None
    }

    fn compare(&mut self) -> Result<Option<Found>> {
        let (locators, open_s) = timed(|| -> Result<_> {
            let load = |segments: &[SegmentRef]| Locator::load(self.pool, segments);
            Ok([load(&self.before.segments)?, load(&self.now.segments)?])
        });
        let [before, now] = locators?;
        let roots = [self.before.root, self.now.tree.reference()];
        let (diff, took_s) = timed(|| compare_trees(self.pool, [&before, &now], roots, true));
        Ok(Some(Found { took_s, open_s, pages: diff?.changed_pages }))
    }

    fn ram_bytes(&self) -> u64 {
        self.now.tree.root.as_ref().map_or(0, |root| tree_ram_bytes(root))
    }
}

/// The nodes of one version, on their way to the disk.
struct Saving<'a> {
    packer: Packer<'a>,
    pool: &'a Pool,
    bytes: u64,
    epoch: u64,
    edits: Vec<BlockEdit>,
    leaf_bytes: u64,
    chunks: u64,
}

impl<'a> Saving<'a> {
    fn new(stored: &StoredTree<'a>, expected_bytes: u64) -> Saving<'a> {
        Saving {
            packer: Packer::new(stored.pool, &stored.numbers, expected_bytes),
            pool: stored.pool,
            bytes: stored.bytes,
            epoch: stored.now.epoch + 1,
            edits: Vec::new(),
            leaf_bytes: 0,
            chunks: 0,
        }
    }

    /// Makes the leaves of some blocks. Returns the number of leaves before them.
    fn leaves(&mut self, old: &Version, blocks: &[BlockExtents]) -> Result<usize> {
        let made = self.edits.len();
        let mut stage = LeafStage {
            pool: self.pool,
            packer: &self.packer,
            epoch: self.epoch,
            candidates: Vec::new(),
            stored_bytes: 0,
        };
        self.edits.extend(stage.edits(STREAM, &old.tree, self.bytes, blocks)?);
        self.leaf_bytes += stage.stored_bytes;
        self.chunks += blocks.iter().map(|block| block.extents.len() as u64).sum::<u64>();
        Ok(made)
    }

    /// Makes the inner nodes, and waits until all is durable. Returns also the seconds of the wait.
    fn finish(self, old: &Version) -> Result<(Version, StoredBytes, f64)> {
        let (mut inner_bytes, mut inner_count) = (0, 0);
        let tree = edit(&old.tree, self.bytes, &self.edits, &mut |node: &InnerNode| {
            let bytes = node.encode()?;
            inner_bytes += bytes.len() as u64;
            inner_count += 1;
            Ok(self.packer.append_node(&bytes)?.fp)
        })?;
        let before = old.segments.iter().map(|segment| (*segment, None)).collect();
        let (packed, durable_s) = timed(|| self.packer.finish(before));
        let (packed, _) = packed?;
        let nodes = self.leaf_bytes + inner_bytes;
        let stored = StoredBytes {
            nodes,
            node_locations: packed.stored_bytes.saturating_sub(nodes),
            chunks: self.chunks,
            node_count: self.edits.len() as u64 + inner_count,
        };
        Ok((Version { tree, segments: packed.segments, epoch: self.epoch }, stored, durable_s))
    }
}

/// Returns the bytes that locate one chunk of `chunk_pages` pages. These are its entry in the
/// directory of a full pack, and the one in the segment into which a later save merges that
/// directory.
///
/// # Errors
/// `Bug` if the format refuses the entries.
pub fn chunk_location_bytes(pool: &Pool, chunk_pages: u32) -> Result<f64> {
    let format = &pool.config().format;
    let rng = SeededRng::new(1);
    let length = chunk_pages * PAGE_BYTES as u32;
    let count = format.pack_bytes / u64::from(length);
    let directory = |number: u32| {
        let pack = PackId::new(SessionId([1; 12]), 0, number);
        let entries = (0..count as u32).map(|at| DirectoryEntry {
            fp: fingerprint(&rng),
            pack: 0,
            offset: at * length,
            length,
            kind: EntryKind::Chunk,
            frame: None,
        });
        Directory::new(vec![pack], entries.collect())
    };
    let own = directory(0).encode()?.len();
    let merged = (format.container_bytes as usize / own).clamp(1, MERGE_AT);
    let parts: Vec<Directory> = (0..merged as u32).map(directory).collect();
    let segment = merge(&parts).encode()?.len();
    Ok(own as f64 / count as f64 + segment as f64 / (merged as u64 * count) as f64)
}

/// Returns the bytes of memory behind one new leaf.
fn edit_ram_bytes((_, leaf): &BlockEdit) -> u64 {
    leaf.as_ref().map_or(0, |leaf| node_ram_bytes(leaf))
}

/// Returns the bytes of memory of a node and of all nodes below it.
fn tree_ram_bytes(node: &Node) -> u64 {
    let below = match node {
        Node::Leaf(_) => 0,
        Node::Inner(inner) => {
            inner.children.iter().flatten().map(|child| tree_ram_bytes(child)).sum()
        }
    };
    below + node_ram_bytes(node)
}

/// Returns the bytes of memory of one node.
fn node_ram_bytes(node: &Node) -> u64 {
    let counted = |bytes: usize| allocated(bytes + 2 * size_of::<usize>());
    let parts = match node {
        Node::Inner(inner) => allocated(inner.children.capacity() * size_of::<Option<Arc<Node>>>()),
        Node::Leaf(leaf) => {
            let kept = leaf.kept.as_ref().map_or(0, |kept| {
                counted(size_of::<Leaf>())
                    + allocated(kept.chunks.capacity() * size_of::<Fingerprint>())
                    + allocated(kept.extents.capacity() * size_of::<LeafExtent>())
            });
            kept + allocated(leaf.chain.capacity() * size_of::<Link>())
        }
    };
    counted(size_of::<Node>()) + parts
}

/// Returns the bytes that the allocator of the C library takes: eight more, in units of 16.
fn allocated(bytes: usize) -> u64 {
    if bytes == 0 { 0 } else { (bytes as u64 + 8).next_multiple_of(16).max(32) }
}
