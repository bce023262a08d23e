//! The first stage: dirty pages become chunks, on several threads, block by block.

use super::lane::Lane;
use super::packer::Packer;
use super::plan::SavePlan;
use super::segments::ReusedChunks;
use crate::index::{Fingerprints, Locator, PoolIndex, ReadItem, SharedSegment, StoredChunks};
use outlive_chunk::{PAGES_AT_ONCE, cut, fingerprint, fingerprint_pages, is_zero, on_threads};
use outlive_format::{EntryKind, PageExtent, PageSet, SliceForm};
use outlive_io::{SpareCores, make_way};
use outlive_types::sync::plain::Mutex;
use outlive_types::{BLOCK_PAGES, Error, Fingerprint, Frozen, PAGE_BYTES, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes for each thread while the program runs: 10 ms of work where the pages are adjacent, 60 ms
/// where they are scattered.
const BYTES_A_THREAD: u64 = 16 << 20;

/// A block's new extents.
#[derive(Debug)]
pub struct BlockExtents {
    /// Index into the plan's streams.
    pub stream: u32,
    /// Number of the block.
    pub block: u64,
    /// Extents sorted by page; the chunk is `None` where pages are zero now.
    pub extents: Vec<PageExtent>,
}

/// Figures of this stage.
#[derive(Debug, Default)]
pub struct ChunkCounts {
    /// Bytes of zero pages.
    pub zero_bytes: AtomicU64,
    /// Bytes of chunks stored already.
    pub known_bytes: AtomicU64,
    /// Bytes of new chunks.
    pub raw_bytes: AtomicU64,
}

/// Stores the fingerprinted chunks that are not stored yet, of memory and of files alike.
pub struct ChunkSink<'a> {
    /// Chunks of earlier checkpoints.
    known: &'a StoredChunks,
    /// All chunks that the parent's segments name; for savers that do not keep `known`.
    parent: Option<&'a Locator>,
    /// Chunks of all jobs.
    shared: Option<&'a PoolIndex>,
    /// Chunks of this save; the commit makes them known.
    pub new: Mutex<Fingerprints>,
    /// Chunks that were stored before this save, with their extents where `shared` found them.
    pub hits: Mutex<ReusedChunks>,
    /// Number of these chunks that each segment of `shared` has found.
    told: Mutex<HashMap<u32, usize>>,
    /// Figures.
    pub counts: ChunkCounts,
}

impl<'a> ChunkSink<'a> {
    /// Makes a sink that knows nothing of this save yet.
    pub fn new(
        known: &'a StoredChunks,
        parent: Option<&'a Locator>,
        shared: Option<&'a PoolIndex>,
    ) -> ChunkSink<'a> {
        let (new, hits, told, counts) = Default::default();
        ChunkSink { known, parent, shared, new, hits, told, counts }
    }

    /// Stores a chunk through `lane`, unless it is stored already.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn store(&self, lane: &mut Lane<'_>, chunk: &[u8], fp: Fingerprint) -> Result<()> {
        // The first thread that names a chunk stores it; if that fails, so does the save.
        let is_first = || self.new.lock().insert(fp);
        if self.is_known(fp) || !is_first() {
            self.counts.known_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            return Ok(());
        }
        self.counts.raw_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        lane.append(chunk, fp)
    }

    /// Returns whether a chunk of `bytes` is stored already; then this image refers to it.
    pub fn has(&self, fp: Fingerprint, bytes: u32) -> bool {
        let is_known = self.is_known(fp);
        if is_known {
            self.counts.known_bytes.fetch_add(u64::from(bytes), Ordering::Relaxed);
        }
        is_known
    }

    /// Returns whether a slice in the parent checkpoint has these pages of a chunk; then this image
    /// refers to that slice. A copy uses it, since it knows the pages that it needs, in groups of
    /// `2^group_log2` pages.
    pub fn has_pages(&self, wanted: &ReadItem, pages: PageSet, group_log2: u8) -> bool {
        let forms = self.parent.into_iter().flat_map(|parent| parent.forms(&wanted.fp));
        let mut slices = forms.filter_map(|there| there.slice);
        let Some(there) = slices.find(|form| form.holds(pages, group_log2)) else { return false };
        self.counts.known_bytes.fetch_add(u64::from(wanted.extent.length), Ordering::Relaxed);
        self.hits.lock().slices.push((wanted.fp, there));
        true
    }

    /// Stores a slice through `lane`.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn store_slice(
        &self,
        lane: &mut Lane<'_>,
        slice: &[u8],
        fp: Fingerprint,
        form: SliceForm,
    ) -> Result<()> {
        self.counts.raw_bytes.fetch_add(slice.len() as u64, Ordering::Relaxed);
        lane.append_as(slice, fp, EntryKind::Slice(form))
    }

    fn is_known(&self, fp: Fingerprint) -> bool {
        if self.new.lock().contains(&fp) {
            return true;
        }
        let mut hits = self.hits.lock();
        if hits.chunks.contains_key(&fp) {
            return true;
        }
        if self.known.contains(&fp) || self.parent.is_some_and(|parent| parent.find(&fp).is_ok()) {
            hits.chunks.insert(fp, None);
            return true;
        }
        drop(hits);
        let Some(found) = self.shared.and_then(|shared| shared.find(&fp)) else { return false };
        let mut hits = self.hits.lock();
        if hits.chunks.insert(fp, Some(found.extent)).is_none() {
            let mut told = self.told.lock();
            *told.entry(found.segment).or_default() += 1;
        }
        true
    }

    /// Returns the shared segments, which this save lists as a whole, since it needs much of what
    /// they name.
    pub fn shared_segments(&self) -> Vec<SharedSegment> {
        let told = self.told.lock();
        self.shared.map_or_else(Vec::new, |shared| shared.lend(&told))
    }
}

/// Source of a block's pages.
pub trait Pages {
    /// Returns pages of the run `name`, numbered from its first: a reference, or a copy in
    /// `scratch`.
    ///
    /// # Errors
    /// If the pages cannot be read.
    fn pages<'a>(
        &'a self,
        name: usize,
        pages: Range<u32>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]>;
}

impl Pages for &dyn Frozen {
    fn pages<'a>(
        &'a self,
        name: usize,
        pages: Range<u32>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        self.read(name, pages, scratch)
    }
}

/// Cuts, fingerprints and stores chunks that are not known yet.
pub struct Chunker<'a> {
    /// Takes the new chunks.
    packer: &'a Packer<'a>,
    /// Knows which chunks are new.
    pub sink: ChunkSink<'a>,
    /// Longest chunk.
    chunk_pages_max: u32,
}

impl<'a> Chunker<'a> {
    /// Makes a chunker that knows nothing of this save yet.
    pub fn new(
        packer: &'a Packer<'a>,
        known: &'a StoredChunks,
        shared: Option<&'a PoolIndex>,
        chunk_pages_max: u32,
    ) -> Chunker<'a> {
        Chunker { packer, sink: ChunkSink::new(known, None, shared), chunk_pages_max }
    }

    /// Returns a thread's part of the work.
    pub fn part(&self) -> ChunkerPart<'_> {
        let (scratch, pages, waiting, blocks) = Default::default();
        ChunkerPart { chunker: self, lane: self.packer.lane(), scratch, pages, waiting, blocks }
    }

    /// Works through the plan's blocks with `threads` threads. Calls `live_done` as soon as the
    /// last live block is read.
    ///
    /// # Errors
    /// Errors of the target; the other threads stop soon after one.
    pub fn run(
        &self,
        plan: &SavePlan,
        frozen: &dyn Frozen,
        threads: usize,
        live_done: &(dyn Fn() + Sync),
    ) -> Result<Vec<BlockExtents>> {
        // Each thread fills a container of its own; two more serve the stages that follow. While
        // the program runs, more threads than the work needs would take processor time from it.
        let waited_for = plan.live_blocks > 0;
        let needed = plan.dirty_bytes.div_ceil(BYTES_A_THREAD).try_into().unwrap_or(usize::MAX);
        let threads = if waited_for { threads } else { threads.min(needed) };
        let threads = threads.min(self.packer.lanes_max()).clamp(1, plan.blocks.len().max(1));
        self.packer.set_lanes(threads);
        let next = AtomicUsize::new(0);
        let live_left = AtomicUsize::new(plan.live_blocks);
        let stop = AtomicBool::new(false);
        let out: Mutex<Vec<BlockExtents>> = Mutex::new(Vec::with_capacity(plan.blocks.len()));
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let (spare, helpers) = (SpareCores::new(), AtomicUsize::new(0));
        let work = || {
            // A thread that panics ends the others, too: one of them may be waiting for its turn.
            let _ends = OnPanic(&stop);
            let mut helper = spare.helper(helpers.fetch_add(1, Ordering::Relaxed));
            let mut part = self.part();
            let mut program_waits = live_left.load(Ordering::Acquire) > 0;
            let fail = |error| {
                stop.store(true, Ordering::Relaxed);
                failure.lock().get_or_insert(error);
            };
            let is_work = || {
                !stop.load(Ordering::Relaxed) && next.load(Ordering::Relaxed) < plan.blocks.len()
            };
            while is_work() {
                if live_left.load(Ordering::Acquire) == 0 {
                    if program_waits {
                        program_waits = false;
                        make_way();
                    }
                    part.lane.paused(helper.wait_turn(is_work));
                    self.packer.set_lanes(spare.allowed().min(threads));
                }
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(block) = plan.blocks.get(at) else { break };
                let runs = block.runs.clone().map(|number| {
                    let run = &frozen.runs()[number];
                    ((run.first_page % BLOCK_PAGES as u64) as u32, run.pages, number)
                });
                match part.block((block.stream, block.block), runs, &frozen) {
                    Ok(()) => self.packer.pool.note_progress(),
                    Err(error) => fail(error),
                }
                if at < plan.live_blocks && live_left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    live_done();
                }
            }
            match part.finish() {
                Ok(blocks) => {
                    out.lock().extend(blocks);
                }
                Err(error) => fail(error),
            }
        };
        on_threads(threads, work);
        if let Some(error) = failure.into_inner() {
            return Err(error);
        }
        self.packer.join_lanes()?;
        let mut out = out.into_inner();
        out.sort_unstable_by_key(|done| (done.stream, done.block));
        Ok(out)
    }
}

/// Placeholder for the fingerprint of a page in `ChunkerPart::pages`; no bytes have it.
const WAITS: Fingerprint = Fingerprint([0xFF; 32]);

/// Cuts and stores one thread's blocks.
pub struct ChunkerPart<'a> {
    chunker: &'a Chunker<'a>,
    lane: Lane<'a>,
    /// Holds a chunk that the source cannot return as a reference.
    scratch: Vec<u8>,
    /// Pages whose fingerprints are computed together; each becomes a chunk of its own.
    pages: Vec<u8>,
    /// Their extents: index into `blocks`, and index of the extent in that block.
    waiting: Vec<(usize, usize)>,
    blocks: Vec<BlockExtents>,
}

impl ChunkerPart<'_> {
    /// Cuts a block of a stream, given its dirty runs: first page in the block, number of pages,
    /// and a name by which `from` finds these pages. It asks `from` for each page once, one chunk
    /// at a time. So all work on the bytes of a chunk happens while they are in the cache.
    ///
    /// # Errors
    /// Errors of the target and of `from`.
    pub fn block(
        &mut self,
        (stream, block): (u32, u64),
        runs: impl Iterator<Item = (u32, u32, usize)>,
        from: &impl Pages,
    ) -> Result<()> {
        self.blocks.push(BlockExtents { stream, block, extents: Vec::new() });
        let mut scratch = std::mem::take(&mut self.scratch);
        for (first_page, pages, name) in runs {
            for (page, count) in cut(first_page, pages, self.chunker.chunk_pages_max) {
                let at = page - first_page;
                let bytes = from.pages(name, at..at + count, &mut scratch)?;
                self.piece(page, bytes)?;
            }
        }
        self.scratch = scratch;
        Ok(())
    }

    /// Turns pages into a chunk, or into several with zeros between them.
    fn piece(&mut self, first_page: u32, bytes: &[u8]) -> Result<()> {
        let sink = &self.chunker.sink;
        let pages = bytes.len().div_ceil(PAGE_BYTES);
        let page_bytes =
            |page: usize| &bytes[page * PAGE_BYTES..((page + 1) * PAGE_BYTES).min(bytes.len())];
        let mut at = 0;
        while at < pages {
            let zero = is_zero(page_bytes(at));
            let mut end = at + 1;
            while end < pages && is_zero(page_bytes(end)) == zero {
                end += 1;
            }
            let part = &bytes[at * PAGE_BYTES..(end * PAGE_BYTES).min(bytes.len())];
            let (page, pages) = ((first_page as usize + at) as u16, (end - at) as u16);
            at = end;
            let block = self.blocks.len() - 1;
            let extents = &mut self.blocks[block].extents;
            if zero {
                sink.counts.zero_bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
                match extents.last_mut() {
                    Some(last) if last.chunk.is_none() && last.page + last.pages == page => {
                        last.pages += pages;
                    }
                    _ => extents.push(PageExtent { page, pages, first: 0, chunk: None }),
                }
                continue;
            }
            if part.len() == PAGE_BYTES {
                self.waiting.push((block, extents.len()));
                self.pages.extend_from_slice(part);
                extents.push(PageExtent { page, pages, first: 0, chunk: Some(WAITS) });
                if self.waiting.len() == PAGES_AT_ONCE {
                    self.store_pages()?;
                }
                continue;
            }
            let fp = fingerprint(part);
            sink.store(&mut self.lane, part, fp)?;
            extents.push(PageExtent { page, pages, first: 0, chunk: Some(fp) });
        }
        Ok(())
    }

    /// Stores the collected single pages.
    fn store_pages(&mut self) -> Result<()> {
        let pages: Vec<&[u8; PAGE_BYTES]> = self.pages.as_chunks().0.iter().collect();
        let waiting = self.waiting.drain(..);
        for ((page, fp), (block, extent)) in
            pages.iter().zip(fingerprint_pages(&pages)).zip(waiting)
        {
            self.chunker.sink.store(&mut self.lane, *page, fp)?;
            self.blocks[block].extents[extent].chunk = Some(fp);
        }
        self.pages.clear();
        Ok(())
    }

    /// Returns the extents of the blocks that have any, once all chunks are stored.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn finish(mut self) -> Result<Vec<BlockExtents>> {
        self.store_pages()?;
        self.lane.finish()?;
        self.blocks.retain(|block| !block.extents.is_empty());
        let mut extents = self.blocks.iter().flat_map(|block| &block.extents);
        if extents.any(|extent| extent.chunk == Some(WAITS)) {
            return Err(Error::bug("a page was not stored"));
        }
        Ok(self.blocks)
    }
}

/// Sets a flag if the thread panics.
struct OnPanic<'a>(&'a AtomicBool);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
