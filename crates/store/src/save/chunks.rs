//! The first stage: dirty pages become chunks, on several threads, block by block.

use super::lane::Lane;
use super::mend::Hits;
use super::packer::Packer;
use super::plan::SavePlan;
use crate::index::{Fingerprints, Known, Locator, PoolIndex};
use outlive_chunk::{cut, fingerprint, is_zero};
use outlive_format::PageExtent;
use outlive_types::{BLOCK_PAGES, Error, Fingerprint, Frozen, PAGE_BYTES, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A block's new extents.
#[derive(Debug)]
pub struct BlockExtents {
    /// Index into the plan's streams.
    pub stream: u32,
    /// Number of the block.
    pub block: u64,
    /// Sorted by page; `None` as chunk where pages are zero now.
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

/// Takes fingerprinted chunks and stores those that are not stored yet: of memory and of files alike.
pub struct ChunkSink<'a> {
    /// Chunks of earlier checkpoints.
    known: &'a Known,
    /// All that the parent's segments name; for savers that do not keep `known`.
    parent: Option<&'a Locator>,
    /// Chunks of all jobs.
    shared: Option<&'a PoolIndex>,
    /// Chunks of this save; they become known when it is committed.
    pub new: Mutex<Fingerprints>,
    /// Chunks that were stored before this save; for those of `shared`, where.
    pub hits: Mutex<Hits>,
    /// Figures.
    pub counts: ChunkCounts,
}

impl<'a> ChunkSink<'a> {
    /// A sink that knows nothing of this save yet.
    pub fn new(
        known: &'a Known,
        parent: Option<&'a Locator>,
        shared: Option<&'a PoolIndex>,
    ) -> ChunkSink<'a> {
        let (new, hits, counts) = Default::default();
        ChunkSink { known, parent, shared, new, hits, counts }
    }

    /// Stores a chunk by way of `lane`, unless it is stored already.
    ///
    /// # Errors
    /// What the target reports.
    pub fn store(&self, lane: &mut Lane<'_>, chunk: &[u8], fp: Fingerprint) -> Result<()> {
        if self.is_known(fp) {
            self.counts.known_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            return Ok(());
        }
        self.counts.raw_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        lane.append(chunk, fp)?;
        self.new.lock().unwrap_or_else(PoisonError::into_inner).insert(fp);
        Ok(())
    }

    /// Two threads that meet the same new chunk at the same moment may both store it: that costs
    /// space and nothing else.
    fn is_known(&self, fp: Fingerprint) -> bool {
        if self.new.lock().unwrap_or_else(PoisonError::into_inner).contains(&fp) {
            return true;
        }
        let mut hits = self.hits.lock().unwrap_or_else(PoisonError::into_inner);
        if hits.contains_key(&fp) {
            return true;
        }
        if self.known.contains(&fp) || self.parent.is_some_and(|parent| parent.find(&fp).is_ok()) {
            hits.insert(fp, None);
            return true;
        }
        drop(hits);
        let Some(place) = self.shared.and_then(|shared| shared.find(&fp)) else { return false };
        self.hits.lock().unwrap_or_else(PoisonError::into_inner).insert(fp, Some(place));
        true
    }
}

/// Cuts, fingerprints and stores chunks that are not known yet.
pub struct Chunker<'a> {
    /// Takes the new ones.
    packer: &'a Packer<'a>,
    /// Knows which they are.
    pub sink: ChunkSink<'a>,
    /// Longest chunk.
    chunk_pages_max: u32,
}

impl<'a> Chunker<'a> {
    /// A chunker that knows nothing of this save yet.
    pub fn new(
        packer: &'a Packer<'a>,
        known: &'a Known,
        shared: Option<&'a PoolIndex>,
        chunk_pages_max: u32,
    ) -> Chunker<'a> {
        Chunker { packer, sink: ChunkSink::new(known, None, shared), chunk_pages_max }
    }

    /// The new extents of a block, from its dirty runs: (first page in the block, bytes), sorted.
    ///
    /// # Errors
    /// What the target reports.
    pub fn block<'b>(
        &self,
        lane: &mut Lane<'_>,
        runs: impl Iterator<Item = (u32, &'b [u8])>,
    ) -> Result<Vec<PageExtent>> {
        let mut extents = Vec::new();
        for (first_page, bytes) in runs {
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
                let first = first_page + at as u32;
                if zero {
                    self.sink.counts.zero_bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
                    let pages = (end - at) as u16;
                    extents.push(PageExtent { page: first as u16, pages, first: 0, chunk: None });
                } else {
                    self.cut(lane, first, part, &mut extents)?;
                }
                at = end;
            }
        }
        Ok(extents)
    }

    fn cut(
        &self,
        lane: &mut Lane<'_>,
        first_page: u32,
        bytes: &[u8],
        extents: &mut Vec<PageExtent>,
    ) -> Result<()> {
        let pages = bytes.len().div_ceil(PAGE_BYTES) as u32;
        for (page, count) in cut(first_page, pages, self.chunk_pages_max) {
            let start = (page - first_page) as usize * PAGE_BYTES;
            let end = (start + count as usize * PAGE_BYTES).min(bytes.len());
            let chunk = &bytes[start..end];
            let fp = fingerprint(chunk);
            self.sink.store(lane, chunk, fp)?;
            extents.push(PageExtent {
                page: page as u16,
                pages: count as u16,
                first: 0,
                chunk: Some(fp),
            });
        }
        Ok(())
    }

    /// Works through the plan's blocks with `threads` threads. As soon as the last live block is
    /// read, `live_done` is called.
    ///
    /// # Errors
    /// What the target reports; the other threads stop soon after.
    pub fn run(
        &self,
        plan: &SavePlan,
        frozen: &dyn Frozen,
        threads: usize,
        live_done: &(dyn Fn() + Sync),
    ) -> Result<Vec<BlockExtents>> {
        let next = AtomicUsize::new(0);
        let live_left = AtomicUsize::new(plan.live_blocks);
        let stop = AtomicBool::new(false);
        let out: Mutex<Vec<BlockExtents>> = Mutex::new(Vec::with_capacity(plan.blocks.len()));
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let work = || {
            let mut lane = self.packer.lane();
            let fail = |error| {
                stop.store(true, Ordering::Relaxed);
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            };
            while !stop.load(Ordering::Relaxed) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(block) = plan.blocks.get(at) else { break };
                let runs = block.runs.clone().map(|run| {
                    let first = frozen.runs()[run].first_page % BLOCK_PAGES as u64;
                    (first as u32, frozen.bytes(run))
                });
                match self.block(&mut lane, runs) {
                    Ok(extents) => {
                        let done =
                            BlockExtents { stream: block.stream, block: block.block, extents };
                        out.lock().unwrap_or_else(PoisonError::into_inner).push(done);
                    }
                    Err(error) => fail(error),
                }
                if at < plan.live_blocks && live_left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    live_done();
                }
            }
            if let Err(error) = lane.finish() {
                fail(error);
            }
        };
        // Each thread fills a container of its own; two more are for what comes behind.
        let threads = threads.min(self.packer.lanes_max()).clamp(1, plan.blocks.len().max(1));
        if threads == 1 {
            work();
        } else {
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(work);
                }
            });
        }
        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        self.packer.join_lanes()?;
        let mut out = out.into_inner().unwrap_or_else(PoisonError::into_inner);
        out.sort_unstable_by_key(|done| (done.stream, done.block));
        Ok(out)
    }
}
