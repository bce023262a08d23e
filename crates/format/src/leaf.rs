//! Leaves of the page tree: the extents of one block, and how a save's extents are laid over older
//! ones.

use crate::codec::{Check, Reader, Writer, demand, encodable};
use outlive_types::{BLOCK_PAGES, Error, Fingerprint, Result};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

const WHAT: &str = "leaf";
const MAGIC: &[u8; 4] = b"OLLF";
const HEAD_BYTES: usize = 12;
const EXTENT_BYTES: usize = 6;
const ZERO_INDEX: u16 = 0xFFFF;
const PAGES: u16 = BLOCK_PAGES as u16;

/// Longest chain of delta leaves above a full one.
pub const CHAIN_MAX: u8 = 8;

/// Meaning of pages for which a leaf has no extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeafKind {
    /// They are zero.
    Full,
    /// Another leaf describes them.
    Delta {
        /// Fingerprint of that leaf.
        base: Fingerprint,
        /// 1 + the base's chain (0 for a full leaf); at most [`CHAIN_MAX`].
        chain: u8,
    },
}

/// A run of pages of the block and their location, as the leaf stores them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafExtent {
    /// First page, counted from the block's first.
    pub page: u16,
    /// Number of pages, at least 1.
    pub pages: u16,
    /// Page of the chunk that is the first one; 0 without a chunk.
    pub first: u16,
    /// Index into [`Leaf::chunks`]; `None` in a delta leaf: the pages became zero.
    pub chunk: Option<u16>,
}

impl LeafExtent {
    fn end(&self) -> u16 {
        self.page + self.pages
    }
}

/// An extent with the chunk's name instead of its index; leaves are built from these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageExtent {
    /// First page, counted from the block's first.
    pub page: u16,
    /// Number of pages, at least 1.
    pub pages: u16,
    /// Page of the chunk that is the first one; 0 without a chunk.
    pub first: u16,
    /// The chunk; `None` for zero pages.
    pub chunk: Option<Fingerprint>,
}

/// Location of a page, as far as one leaf knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The base leaf describes it; only from a delta leaf.
    Base,
    /// None: it is zero.
    Zero,
    /// In a chunk.
    Chunk {
        /// The chunk.
        chunk: Fingerprint,
        /// Page of the chunk.
        page: u16,
    },
}

/// One block as a sorted list of extents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// Full, or a delta to another leaf.
    pub kind: LeafKind,
    /// The chunks in order of first use, each once.
    pub chunks: Vec<Fingerprint>,
    /// Extents sorted by page, without overlaps. Neighbours are merged where they continue each
    /// other.
    pub extents: Vec<LeafExtent>,
}

impl Leaf {
    /// Builds a leaf from extents in page order: merges neighbours that continue each other and
    /// drops zero pages from a full leaf (in a delta leaf they matter).
    ///
    /// # Errors
    /// `Bug` for extents out of order, overlapping, empty, or beyond block or chunk.
    pub fn build(kind: LeafKind, extents: impl IntoIterator<Item = PageExtent>) -> Result<Leaf> {
        let extents = extents.into_iter();
        let likely = extents.size_hint().0.min(BLOCK_PAGES);
        let mut builder = Builder::new(kind, likely);
        let mut end = 0;
        for extent in extents {
            let PageExtent { page, pages, first, chunk } = extent;
            let inside = |from: u16| from < PAGES && pages <= PAGES - from;
            if page < end || pages == 0 || !inside(page) || !inside(first) {
                return Err(Error::bug(format!(
                    "wrong extent for a leaf: {extent:?} after page {end}"
                )));
            }
            end = page + pages;
            let chunk = chunk.filter(|chunk| !chunk.is_zero()).map(|chunk| builder.index_of(chunk));
            let first = if chunk.is_some() { first } else { 0 };
            builder.push(LeafExtent { page, pages, first, chunk });
        }
        Ok(builder.leaf)
    }

    /// Lays the extents of `deltas`, the oldest first, over `base`. Old extents are split by
    /// reference. The result is of `base`'s kind, so a chain can be folded from either end.
    pub fn overlay<'a>(base: &'a Leaf, deltas: impl IntoIterator<Item = &'a Leaf>) -> Leaf {
        let leaves: Vec<&Leaf> = [base].into_iter().chain(deltas).collect();
        // For each page, the leaf that determines it, and the number of its extent.
        let mut shown: [Option<(u32, u16)>; BLOCK_PAGES] = [None; BLOCK_PAGES];
        for (leaf, number) in leaves.iter().zip(0..) {
            for (extent, at) in leaf.extents.iter().zip(0..) {
                shown[usize::from(extent.page)..usize::from(extent.end())].fill(Some((number, at)));
            }
        }
        let likely = leaves.iter().map(|leaf| leaf.extents.len()).sum::<usize>().min(BLOCK_PAGES);
        let mut builder = Builder::new(base.kind, likely);
        // For each leaf's chunks, their numbers in the result.
        let mut indices: Vec<Vec<Option<u16>>> =
            leaves.iter().map(|leaf| vec![None; leaf.chunks.len()]).collect();
        let mut page = 0;
        for run in shown.chunk_by(|a, b| a == b) {
            let pages = run.len() as u16;
            if let Some((leaf, extent)) = run[0] {
                let leaf = leaf as usize;
                let extent = &leaves[leaf].extents[usize::from(extent)];
                let chunk = extent.chunk.map(|chunk| {
                    let chunk = usize::from(chunk);
                    *indices[leaf][chunk]
                        .get_or_insert_with(|| builder.index_of(leaves[leaf].chunks[chunk]))
                });
                let first = if chunk.is_some() { extent.first + (page - extent.page) } else { 0 };
                builder.push(LeafExtent { page, pages, first, chunk });
            }
            page += pages;
        }
        builder.leaf
    }

    /// Returns the location of a page of the block.
    pub fn lookup(&self, page: u16) -> Lookup {
        let after = self.extents.partition_point(|extent| extent.page <= page);
        let extent = after.checked_sub(1).map(|at| &self.extents[at]);
        match extent.filter(|extent| page < extent.end()) {
            Some(extent) => match extent.chunk {
                Some(index) => Lookup::Chunk {
                    chunk: self.chunks[usize::from(index)],
                    page: extent.first + (page - extent.page),
                },
                None => Lookup::Zero,
            },
            None if self.kind == LeafKind::Full => Lookup::Zero,
            None => Lookup::Base,
        }
    }

    /// Returns the extents with their chunks' names.
    pub fn page_extents(&self) -> impl Iterator<Item = PageExtent> + '_ {
        self.extents.iter().map(|extent| self.named(extent))
    }

    fn named(&self, extent: &LeafExtent) -> PageExtent {
        let LeafExtent { page, pages, first, chunk } = *extent;
        PageExtent { page, pages, first, chunk: chunk.map(|index| self.chunks[usize::from(index)]) }
    }

    /// Returns the number of pages of the block in each of [`Leaf::chunks`].
    pub fn live_pages_per_chunk(&self) -> Vec<u16> {
        let mut live = vec![0; self.chunks.len()];
        for extent in &self.extents {
            if let Some(index) = extent.chunk {
                live[usize::from(index)] += extent.pages;
            }
        }
        live
    }

    /// Returns true for a full leaf without extents. It is not stored; its fingerprint is
    /// [`Fingerprint::ZERO`].
    pub fn is_zero(&self) -> bool {
        self.kind == LeafKind::Full && self.extents.is_empty()
    }

    /// Returns the length of the chain of leaves below this one.
    pub fn chain(&self) -> u8 {
        match self.kind {
            LeafKind::Full => 0,
            LeafKind::Delta { chain, .. } => chain,
        }
    }

    /// Returns the length of `encode`'s result in bytes.
    pub fn encoded_len(&self) -> usize {
        let base = if self.kind == LeafKind::Full { 0 } else { 32 };
        HEAD_BYTES + base + 32 * self.chunks.len() + EXTENT_BYTES * self.extents.len()
    }

    /// Encodes the leaf.
    ///
    /// # Errors
    /// `Bug` for a leaf without extents and for one that `build` and `overlay` would not make.
    pub fn encode(&self) -> Result<Vec<u8>> {
        encodable(WHAT, self.check())?;
        let mut out = Writer::begin(MAGIC, self.encoded_len());
        out.u8(u8::from(self.kind != LeafKind::Full));
        out.u8(self.chain());
        out.u16(self.chunks.len() as u16);
        out.u16(self.extents.len() as u16);
        if let LeafKind::Delta { base, .. } = self.kind {
            out.bytes(&base.0);
        }
        for chunk in &self.chunks {
            out.bytes(&chunk.0);
        }
        for extent in &self.extents {
            let (page, pages) = (u32::from(extent.page), u32::from(extent.pages - 1));
            out.u32(page | pages << 9 | u32::from(extent.first) << 18);
            out.u16(extent.chunk.unwrap_or(ZERO_INDEX));
        }
        Ok(out.finish())
    }

    /// Reads a leaf from all of `bytes`.
    ///
    /// # Errors
    /// `Damaged` for anything that `encode` does not write, `Invalid` for another version.
    pub fn decode(bytes: &[u8]) -> Result<Leaf> {
        let mut from = Reader::new(WHAT, bytes);
        from.begin(MAGIC)?;
        let (kind, chain) = (from.u8()?, from.u8()?);
        let (chunk_count, extent_count) = (from.u16()?, from.u16()?);
        let kind = match kind {
            0 if chain == 0 => LeafKind::Full,
            1 => LeafKind::Delta { base: from.fingerprint()?, chain },
            _ => return Err(from.damaged(format!("it has kind {kind} and chain {chain}"))),
        };
        let mut chunks = Vec::with_capacity(from.count(chunk_count.into(), 32)?);
        for _ in 0..chunk_count {
            chunks.push(from.fingerprint()?);
        }
        let mut extents = Vec::with_capacity(from.count(extent_count.into(), EXTENT_BYTES)?);
        for _ in 0..extent_count {
            let (bits, index) = (from.u32()?, from.u16()?);
            if bits >> 27 != 0 {
                return Err(from.damaged("reserved bits of an extent are not zero"));
            }
            let field = |shift: u32| (bits >> shift) as u16 & (PAGES - 1);
            let chunk = (index != ZERO_INDEX).then_some(index);
            extents.push(LeafExtent {
                page: field(0),
                pages: field(9) + 1,
                first: field(18),
                chunk,
            });
        }
        let leaf = Leaf { kind, chunks, extents };
        from.accept(leaf.check())?;
        from.end()?;
        Ok(leaf)
    }

    fn check(&self) -> Check {
        if let LeafKind::Delta { base, chain } = self.kind {
            demand!((1..=CHAIN_MAX).contains(&chain), "its chain is {chain}");
            demand!(!base.is_zero(), "its base is zero");
        }
        demand!(!self.extents.is_empty(), "it has no extents");
        let mut used = 0; // chunks are numbered in order of first use
        let mut last: Option<&LeafExtent> = None;
        for extent in &self.extents {
            let LeafExtent { page, pages, first, chunk } = *extent;
            let inside = |from: u16| from < PAGES && pages <= PAGES - from;
            demand!(pages > 0 && inside(page) && inside(first), "{extent:?} leaves block or chunk");
            match chunk {
                Some(index) if index == used => used += 1,
                Some(index) => demand!(index < used, "chunk {index} comes before chunk {used}"),
                None => demand!(
                    first == 0 && self.kind != LeafKind::Full,
                    "{extent:?} is not how zero pages are written"
                ),
            }
            if let Some(last) = last {
                demand!(last.end() <= page, "{last:?} and {extent:?} are out of order");
                demand!(!continues(last, extent), "{last:?} and {extent:?} should be one");
            }
            last = Some(extent);
        }
        demand!(usize::from(used) == self.chunks.len(), "it lists chunks that it does not use");
        demand!(self.chunks.iter().all(|chunk| !chunk.is_zero()), "it lists the zero chunk");
        let hasher = BuildHasherDefault::<PrefixHasher>::default();
        let mut seen = HashSet::with_capacity_and_hasher(self.chunks.len(), hasher);
        demand!(self.chunks.iter().all(|chunk| seen.insert(chunk)), "it lists a chunk twice");
        Ok(())
    }
}

/// Builds a leaf from extents in page order.
struct Builder {
    leaf: Leaf,
    indices: HashMap<Fingerprint, u16, BuildHasherDefault<PrefixHasher>>,
}

impl Builder {
    /// Returns an empty leaf that will have about `likely` extents.
    fn new(kind: LeafKind, likely: usize) -> Builder {
        let leaf = Leaf { kind, chunks: Vec::new(), extents: Vec::with_capacity(likely) };
        Builder { leaf, indices: HashMap::with_capacity_and_hasher(likely, Default::default()) }
    }

    /// Returns the chunk's number in the leaf.
    fn index_of(&mut self, chunk: Fingerprint) -> u16 {
        *self.indices.entry(chunk).or_insert_with(|| {
            self.leaf.chunks.push(chunk);
            (self.leaf.chunks.len() - 1) as u16
        })
    }

    /// Adds an extent. A full leaf has no extents of zero pages.
    fn push(&mut self, extent: LeafExtent) {
        if extent.chunk.is_none() && self.leaf.kind == LeafKind::Full {
            return;
        }
        match self.leaf.extents.last_mut() {
            Some(last) if continues(last, &extent) => last.pages += extent.pages,
            _ => self.leaf.extents.push(extent),
        }
    }
}

/// Returns whether `b` begins where `a` ends, in the block and in the chunk.
fn continues(a: &LeafExtent, b: &LeafExtent) -> bool {
    a.end() == b.page && a.chunk == b.chunk && (a.chunk.is_none() || a.first + a.pages == b.first)
}

/// Uses the first bytes of a fingerprint, which is a hash already.
#[derive(Default)]
struct PrefixHasher(u64);

impl Hasher for PrefixHasher {
    fn write(&mut self, bytes: &[u8]) {
        // A length may be written before the fingerprint; the last value counts.
        self.0 = bytes.first_chunk().map_or(self.0, |first| u64::from_le_bytes(*first));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
