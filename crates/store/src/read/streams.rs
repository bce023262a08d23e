//! The restore plan: the destination of each chunk. The destination takes writes in any order, so
//! chunks are read in container order, each once, and scattered.

use super::chunks::ReadPlan;
use super::nodes::read_merged;
use super::verified::Verified;
use crate::index::{Locator, Pages, ReadItem};
use crate::tree::{LeafNode, PageTree};
use outlive_format::Leaf;
use outlive_pool::Pool;
use outlive_types::{
    BLOCK_BYTES, Error, Event, Fingerprint, PAGE_BYTES, Progress, Result, blocks_of, metrics,
};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Leaves merged at a time: bounds the memory for those that are not kept.
const LEAF_BATCH: usize = 256;

/// Receives verified bytes, from several threads, in any order, no byte twice. Offsets are within
/// the stream; ranges never reach beyond its end.
pub trait RestoreSink: Sync {
    /// Takes bytes of a stream.
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]);
    /// Takes a range of zeros.
    fn zero(&self, stream: usize, offset: u64, length: u64);
}

/// Part of a chunk, and its destination.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    pub stream: u32,
    /// Bytes from the chunk's start.
    from: u32,
    /// Length in bytes.
    pub length: u32,
    /// Bytes from the stream's start.
    pub to: u64,
}

impl Transfer {
    /// Returns its part of the chunk.
    ///
    /// # Errors
    /// `Damaged` if the chunk is too short.
    pub fn of<'a>(&self, chunk: Verified<'a>) -> Result<&'a [u8]> {
        chunk.get(self.from, self.length)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Zeros {
    pub stream: u32,
    pub to: u64,
    pub length: u64,
}

/// The pieces of chunks that streams need, or parts of them, before the chunks are located.
#[derive(Debug, Default)]
pub struct SoughtPieces {
    /// The chunk of each piece.
    chunks: Vec<Fingerprint>,
    pieces: Vec<Transfer>,
    zeros: Vec<Zeros>,
}

/// Sources of the bytes of streams, or of parts of them: for each piece the chunk that it needs.
#[derive(Debug, Default)]
pub struct Transfers {
    pub wanted: Vec<ReadItem>,
    pub pieces: Vec<Transfer>,
    pub zeros: Vec<Zeros>,
}

/// Reads and writes of a restore.
#[derive(Debug)]
pub struct RestorePlan {
    reads: ReadPlan,
    pieces: Vec<Transfer>,
    zeros: Vec<Zeros>,
    /// Bytes that the sink will get, including zeros.
    pub total_bytes: u64,
}

/// Figures of a restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RestoreStats {
    /// Bytes that the sink got, including zeros.
    pub total_bytes: u64,
    /// Bytes read from the target, including gaps.
    pub read_bytes: u64,
    /// Number of read operations.
    pub reads: u64,
}

impl RestoreStats {
    /// Adds the figures of another image.
    pub fn add(&mut self, more: RestoreStats) {
        self.total_bytes += more.total_bytes;
        self.read_bytes += more.read_bytes;
        self.reads += more.reads;
    }

    /// Adds a restore that has succeeded to the metrics.
    pub fn count(&self) {
        metrics::RESTORED.add(self.total_bytes);
        metrics::RESTORE_READ.add(self.read_bytes);
    }
}

impl RestorePlan {
    /// Plans the reading of trees, each with the number of its stream in the sink.
    ///
    /// # Errors
    /// `Damaged` if no segment lists a chunk, a chunk is too short, or a leaf that was not kept
    /// cannot be read.
    pub fn new(
        pool: &Pool,
        locator: &Locator,
        trees: &[(usize, &PageTree)],
    ) -> Result<RestorePlan> {
        let transfers = Transfers::of(pool, locator, trees)?;
        let total_bytes = trees.iter().map(|(_, tree)| tree.bytes).sum();
        Ok(RestorePlan::of(pool, transfers, total_bytes))
    }

    /// Plans the reading of parts of streams, `total_bytes` in total.
    pub fn of(pool: &Pool, transfers: Transfers, total_bytes: u64) -> RestorePlan {
        let Transfers { wanted, pieces, zeros } = transfers;
        RestorePlan { reads: ReadPlan::new(pool, &wanted), pieces, zeros, total_bytes }
    }

    /// Returns the chunks of trees, once for each use.
    ///
    /// # Errors
    /// As for [`RestorePlan::new`].
    pub fn wanted(
        pool: &Pool,
        locator: &Locator,
        trees: &[(usize, &PageTree)],
    ) -> Result<Vec<ReadItem>> {
        Transfers::of(pool, locator, trees).map(|pieces| pieces.wanted)
    }

    /// Reads and verifies the chunks, and passes their bytes to the sink.
    ///
    /// # Errors
    /// `Damaged` for the first chunk that is missing or wrong.
    pub fn execute(&self, pool: &Pool, sink: &dyn RestoreSink) -> Result<RestoreStats> {
        for zeros in &self.zeros {
            sink.zero(zeros.stream as usize, zeros.to, zeros.length);
        }
        let total_bytes: u64 = self.pieces.iter().map(|p| u64::from(p.length)).sum();
        let done = AtomicU64::new(0);
        let step_bytes = (total_bytes / 256).max(1 << 20);
        let take = |at: usize, chunk: Verified<'_>| {
            let piece = &self.pieces[at];
            sink.write(piece.stream as usize, piece.to, piece.of(chunk)?);
            let length = u64::from(piece.length);
            let before = done.fetch_add(length, Ordering::Relaxed);
            if before / step_bytes != (before + length) / step_bytes {
                let done_bytes = before + length;
                let progress = Progress { what: "restore", done_bytes, total_bytes };
                pool.env().observer.event(Event::Progress(progress));
            }
            Ok(())
        };
        let threads = pool.config().tuning.threads();
        match self.reads.execute_in_turns(pool, threads, false, &take).into_iter().next() {
            Some(fault) => Err(fault.error),
            None => Ok(RestoreStats {
                total_bytes: self.total_bytes,
                read_bytes: self.reads.read_bytes,
                reads: self.reads.reads() as u64,
            }),
        }
    }
}

impl fmt::Display for RestorePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "restore {} bytes: {} reads of {} bytes in all for {} pieces, {} ranges of zeros",
            self.total_bytes,
            self.reads.reads(),
            self.reads.read_bytes,
            self.pieces.len(),
            self.zeros.len()
        )
    }
}

impl Transfers {
    /// Returns the transfers of whole trees.
    ///
    /// # Errors
    /// Those of [`SoughtPieces::of`] and [`SoughtPieces::locate`].
    pub fn of(pool: &Pool, locator: &Locator, trees: &[(usize, &PageTree)]) -> Result<Transfers> {
        SoughtPieces::of(pool, trees)?.locate(locator)
    }
}

impl SoughtPieces {
    /// Returns the pieces of whole trees.
    ///
    /// # Errors
    /// `Damaged` if a leaf that was not kept cannot be read.
    pub fn of(pool: &Pool, trees: &[(usize, &PageTree)]) -> Result<SoughtPieces> {
        let mut sought = SoughtPieces::default();
        for (number, tree) in trees {
            let mut part = StreamRange { stream: *number as u32, range: 0..tree.bytes };
            for_each_leaf(pool, tree, &mut |block, leaf| sought.leaf(&mut part, block, leaf))?;
            sought.zeros_until(&mut part, tree.bytes);
        }
        Ok(sought)
    }

    /// Adds a part of a stream. `leaf_of` returns the leaf of a block, `None` where all pages are
    /// zero.
    ///
    /// # Errors
    /// Errors of `leaf_of`.
    pub fn range(
        &mut self,
        stream: u32,
        range: Range<u64>,
        leaf_of: &mut dyn FnMut(u64) -> Result<Option<Arc<Leaf>>>,
    ) -> Result<()> {
        let (first, end) = (range.start / BLOCK_BYTES as u64, range.end);
        let mut part = StreamRange { stream, range };
        for block in first..blocks_of(end) {
            if let Some(leaf) = leaf_of(block)? {
                self.leaf(&mut part, block, &leaf);
            }
        }
        self.zeros_until(&mut part, end);
        Ok(())
    }

    /// Returns the chunk of each piece.
    pub fn chunks(&self) -> &[Fingerprint] {
        &self.chunks
    }

    /// Returns the pieces with the pack extents of their chunks.
    ///
    /// # Errors
    /// `Damaged` if no segment lists a chunk, or a chunk is too short.
    pub fn locate(self, locator: &Locator) -> Result<Transfers> {
        let SoughtPieces { chunks, pieces, zeros } = self;
        let located = chunks.into_iter().zip(&pieces).map(|(fp, piece)| {
            let Transfer { from, length, .. } = *piece;
            let extent = locator.find_pages(&fp, Pages::of_bytes(from, length))?;
            let is_short = |last| extent.slice.is_none() && last > extent.length;
            if from.checked_add(length).is_none_or(is_short) {
                return Err(Error::damaged(format!(
                    "chunk {fp:?} has {} bytes, its leaf wants {length} from {from}",
                    extent.length
                )));
            }
            Ok(ReadItem { fp, extent })
        });
        let wanted = located.collect::<Result<Vec<ReadItem>>>()?;
        Ok(Transfers { wanted, pieces, zeros })
    }

    fn leaf(&mut self, part: &mut StreamRange, block: u64, leaf: &Leaf) {
        let page = PAGE_BYTES as u64;
        for extent in leaf.page_extents() {
            let Some(fp) = extent.chunk else { continue };
            let begin = block * BLOCK_BYTES as u64 + u64::from(extent.page) * page;
            // A stream that has become shorter may end within an extent.
            let end = (begin + u64::from(extent.pages) * page).min(part.range.end);
            let to = begin.max(part.range.start);
            if begin >= part.range.end {
                break;
            }
            if to >= end {
                continue;
            }
            let from = u32::from(extent.first) * PAGE_BYTES as u32 + (to - begin) as u32;
            let length = (end - to) as u32;
            self.zeros_until(part, to);
            part.range.start = end;
            self.chunks.push(fp);
            self.pieces.push(Transfer { stream: part.stream, from, length, to });
        }
    }

    fn zeros_until(&mut self, part: &mut StreamRange, end: u64) {
        let to = part.range.start;
        if to < end {
            self.zeros.push(Zeros { stream: part.stream, to, length: end - to });
            part.range.start = end;
        }
    }
}

/// Calls `each` with the leaves of a tree, merged. Reads those that are not kept.
///
/// # Errors
/// `Damaged` if a leaf is missing or wrong.
fn for_each_leaf(pool: &Pool, tree: &PageTree, each: &mut dyn FnMut(u64, &Leaf)) -> Result<()> {
    let mut leaves: Vec<(u64, &LeafNode)> = Vec::new();
    tree.for_each_leaf(&mut |block, leaf| leaves.push((block, leaf)));
    for batch in leaves.chunks(LEAF_BATCH) {
        let unkept: Vec<&LeafNode> =
            batch.iter().map(|(_, leaf)| *leaf).filter(|leaf| leaf.kept.is_none()).collect();
        let mut read = read_merged(pool, &unkept)?.into_iter();
        for (block, node) in batch {
            match &node.kept {
                Some(kept) => each(*block, kept),
                None => {
                    let leaf = read.next().ok_or_else(|| Error::bug("a leaf was not read"))?;
                    each(*block, &leaf);
                }
            }
        }
    }
    Ok(())
}

/// The part of a stream that still lacks sources; each transfer removes its range from the start.
struct StreamRange {
    stream: u32,
    range: Range<u64>,
}
