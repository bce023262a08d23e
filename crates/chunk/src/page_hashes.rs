//! Finds changed pages by comparing hashes: 16 bytes kept for each page, whatever wrote it.
//!
//! The hash is XXH3-128 (Collet 2019, seed 0). It is not cryptographic: it tells what a program
//! changed by its own work, with a chance of 2^-128 a page of missing a change.

use crate::{PARALLEL_FROM_BYTES, parallel};
use outlive_types::{PAGE_BYTES, PageRange, pages_of};
use twox_hash::XxHash3_128;

/// A thread's piece of work: small enough to balance threads, large enough to cost nothing.
const PIECE_PAGES: usize = 1024;

/// Streams of fewer pages are hashed without a sample.
const SAMPLE_FROM_PAGES: usize = 16 * SAMPLES;
const SAMPLES: usize = 256;
/// So many dirty pages of the sample make a stream dense: of one that is 19/20 dirty once in 1000
/// times, of one that is 9/10 dirty once in 100 million times.
const SAMPLES_DENSE: usize = 253;

/// The hashes of all pages of one stream. The last page may be partial.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct PageHashes {
    hashes: Vec<u128>,
    bytes: u64,
}

/// How a stream differs from its [`PageHashes`]: which pages are dirty, and the new hashes of those
/// pages alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diff {
    runs: Vec<PageRange>,
    hashes: Vec<u128>,
    bytes: u64,
}

impl Diff {
    /// The dirty pages: sorted, with a clean page between any two runs. Pages that the stream did
    /// not have before are dirty, and so is a partial page whose length changed.
    pub fn runs(&self) -> &[PageRange] {
        &self.runs
    }

    /// How many pages are dirty.
    pub fn pages(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// The stream's new length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl PageHashes {
    /// Hashes of an empty stream: every page of anything differs from it.
    pub const EMPTY: &PageHashes = &PageHashes { hashes: Vec::new(), bytes: 0 };

    /// The hashes of `bytes`, worked out on up to `threads` threads.
    pub fn compute(bytes: &[u8], threads: usize) -> PageHashes {
        let mut hashes = PageHashes::default();
        hashes.apply(hashes.diff(bytes, threads));
        hashes
    }

    /// The hashes of a stream of `bytes` bytes, put together from [`hash_pages`] of its parts. `None`
    /// if they are not as many as the stream has pages.
    pub fn from_hashes(hashes: Vec<u128>, bytes: u64) -> Option<PageHashes> {
        (hashes.len() == page_count(bytes)).then_some(PageHashes { hashes, bytes })
    }

    /// Length of the stream that was hashed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory that the hashes take.
    pub fn memory_bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<u128>()
    }

    /// Whether a sample of the pages says that nearly all of a stream, which is now `bytes`, has
    /// changed. Short streams are never called dense.
    pub fn is_dense(&self, bytes: &[u8]) -> bool {
        let pages = self.hashes.len().min(bytes.len() / PAGE_BYTES);
        if pages < SAMPLE_FROM_PAGES || self.bytes != bytes.len() as u64 {
            return false;
        }
        let mut clean = 0;
        (0..SAMPLES).all(|number| {
            // Scattered, so that no regular pattern of changes passes for all.
            let step = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            let page = ((step * pages as u64) >> 32) as usize;
            let now = XxHash3_128::oneshot(&bytes[page * PAGE_BYTES..(page + 1) * PAGE_BYTES]);
            clean += usize::from(now == self.hashes[page]);
            clean <= SAMPLES - SAMPLES_DENSE
        })
    }

    /// What has changed in the stream, which is now `bytes`; on up to `threads` threads.
    pub fn diff(&self, bytes: &[u8], threads: usize) -> Diff {
        diff_streams(&[(self, bytes)], threads).pop().expect("one stream gives one difference")
    }

    /// Makes these the hashes of the changed stream. `diff` must come from these hashes.
    pub fn apply(&mut self, diff: Diff) {
        let pages = page_count(diff.bytes);
        self.bytes = diff.bytes;
        if diff.hashes.len() == pages {
            self.hashes = diff.hashes;
            return;
        }
        self.hashes.truncate(pages);
        self.hashes.reserve_exact(pages - self.hashes.len());
        self.hashes.resize(pages, 0);
        let mut rest = &diff.hashes[..];
        for run in &diff.runs {
            let (now, later) = rest.split_at(run.count as usize);
            self.hashes[run.first as usize..][..now.len()].copy_from_slice(now);
            rest = later;
        }
    }
}

/// The hash of each page of `bytes`, which begin at a page of their stream; the last may be partial.
pub fn hash_pages(bytes: &[u8]) -> Vec<u128> {
    bytes.chunks(PAGE_BYTES).map(XxHash3_128::oneshot).collect()
}

/// What has changed in several streams, each given by its old hashes and its present bytes. The
/// work of all of them is shared among up to `threads` threads.
pub fn diff_streams(streams: &[(&PageHashes, &[u8])], threads: usize) -> Vec<Diff> {
    let total_bytes: usize = streams.iter().map(|(_, bytes)| bytes.len()).sum();
    let threads = if total_bytes < PARALLEL_FROM_BYTES { 1 } else { threads };
    let pieces = streams.iter().enumerate().flat_map(|(stream, (old, bytes))| {
        let pieces = bytes.chunks(PIECE_PAGES * PAGE_BYTES).enumerate();
        pieces.map(move |(at, piece)| (stream, *old, at * PIECE_PAGES, piece))
    });
    let found = parallel(pieces.collect(), threads, |(stream, old, first_page, piece)| {
        (stream, diff_piece(old, first_page, piece))
    });
    // Counted first: doubling vectors would take twice the memory when everything is dirty.
    let mut dirty_pages = vec![0; streams.len()];
    found.iter().for_each(|(stream, (_, hashes))| dirty_pages[*stream] += hashes.len());
    let with_room_for = |(pages, (_, bytes)): (&usize, &(_, &[u8]))| Diff {
        runs: Vec::new(),
        hashes: Vec::with_capacity(*pages),
        bytes: bytes.len() as u64,
    };
    let mut diffs: Vec<Diff> = dirty_pages.iter().zip(streams).map(with_room_for).collect();
    for (stream, (runs, hashes)) in found {
        runs.into_iter().for_each(|run| push_pages(&mut diffs[stream].runs, run));
        diffs[stream].hashes.extend(hashes);
    }
    diffs
}

fn diff_piece(old: &PageHashes, first_page: usize, piece: &[u8]) -> (Vec<PageRange>, Vec<u128>) {
    let (mut runs, mut hashes) = (Vec::new(), Vec::new());
    for (page, bytes) in (first_page..).zip(piece.chunks(PAGE_BYTES)) {
        let hash = XxHash3_128::oneshot(bytes);
        // XXH3 takes in the length, so a partial page whose length changed differs too.
        let clean = old.hashes.get(page) == Some(&hash);
        if !clean {
            push_pages(&mut runs, PageRange { first: page as u64, count: 1 });
            hashes.push(hash);
        }
    }
    (runs, hashes)
}

/// Appends pages that come after all those in `runs`.
fn push_pages(runs: &mut Vec<PageRange>, next: PageRange) {
    match runs.last_mut() {
        Some(last) if last.first + last.count == next.first => last.count += next.count,
        _ => runs.push(next),
    }
}

fn page_count(bytes: u64) -> usize {
    usize::try_from(pages_of(bytes)).expect("the stream is in memory")
}

#[cfg(test)]
mod tests;
