//! Finds changed pages by comparing hashes: 16 bytes for each page, independent of how it is
//! written.
//!
//! The hash is XXH3-128 (Collet 2019, seed 0). It is not cryptographic: it finds changes that a
//! program makes by its own work, and misses a changed page with a chance of 2^-128.

use crate::{PARALLEL_FROM_BYTES, parallel};
use outlive_types::{PAGE_BYTES, PageRange, pages_of};
use std::sync::LazyLock;
use twox_hash::XxHash3_128;

/// Unit of work of a thread: small enough to balance threads, large enough to cost nothing.
const PIECE_PAGES: usize = 1024;

/// Streams of fewer pages are hashed without a sample.
const SAMPLE_FROM_PAGES: usize = 16 * SAMPLES;
const SAMPLES: usize = 256;
/// A stream is dense if this many pages of the sample are dirty. A stream that is 19/20 dirty
/// passes once in 1000 times, one that is 9/10 dirty once in 100 million times.
const SAMPLES_DENSE: usize = 253;

/// The hashes of all pages of one stream. The last page may be partial.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct PageHashes {
    hashes: Vec<u128>,
    bytes: u64,
}

/// Difference between a stream and its [`PageHashes`]: the dirty pages, and their new hashes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diff {
    runs: Vec<PageRange>,
    /// Hashes of all pages of the runs, in order.
    hashes: Vec<u128>,
    /// For each run, the number of pages in the runs before it; empty until [`Diff::learn`].
    pages_before: Vec<u64>,
    bytes: u64,
}

impl Diff {
    /// Returns the dirty pages: sorted, with a clean page between any two runs. Pages that the
    /// stream did not have before are dirty, and so is a partial page whose length changed.
    pub fn runs(&self) -> &[PageRange] {
        &self.runs
    }

    /// Returns the number of dirty pages.
    pub fn pages(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// Returns the stream's new length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds pages that count as dirty whatever they hold. They must be sorted, apart, and not dirty
    /// already. Until [`Diff::learn`] sets their hashes, they differ from all later content.
    pub fn with_unknown(self, pages: &[PageRange]) -> Diff {
        if pages.is_empty() {
            return self;
        }
        let mut known = self.runs.iter().copied().peekable();
        let mut hashes = &self.hashes[..];
        let unknown_pages: u64 = pages.iter().map(|range| range.count).sum();
        let mut all = Diff {
            runs: Vec::with_capacity(self.runs.len() + pages.len()),
            hashes: Vec::with_capacity(self.hashes.len() + unknown_pages as usize),
            pages_before: Vec::new(),
            bytes: self.bytes,
        };
        let mut take = |all: &mut Diff, run: PageRange| {
            let (now, later) = hashes.split_at(run.count as usize);
            all.hashes.extend_from_slice(now);
            push_pages(&mut all.runs, run);
            hashes = later;
        };
        for unknown in pages {
            while let Some(run) = known.next_if(|run| run.first < unknown.first) {
                take(&mut all, run);
            }
            all.hashes.resize(all.hashes.len() + unknown.count as usize, 0);
            push_pages(&mut all.runs, *unknown);
        }
        known.for_each(|run| take(&mut all, run));
        all
    }

    /// Sets the hashes of adjacent dirty pages, from page `first` on.
    ///
    /// # Panics
    /// If not all of them are dirty.
    pub fn learn(&mut self, first: u64, hashes: &[u128]) {
        if self.pages_before.is_empty() {
            // No search for each run: random pages make as many runs as there are hashes to learn.
            let before = self.runs.iter().scan(0, |before, run| {
                *before += run.count;
                Some(*before - run.count)
            });
            self.pages_before = before.collect();
        }
        let number = self.runs.partition_point(|run| run.first + run.count <= first);
        let run = self.runs[number];
        let inside = first.checked_sub(run.first).expect("the page is dirty");
        assert!(inside + hashes.len() as u64 <= run.count, "the pages are dirty");
        let at = (self.pages_before[number] + inside) as usize;
        self.hashes[at..][..hashes.len()].copy_from_slice(hashes);
    }
}

impl PageHashes {
    /// Hashes of an empty stream: every page of anything differs from it.
    pub const EMPTY: &PageHashes = &PageHashes { hashes: Vec::new(), bytes: 0 };

    /// Returns the hashes of `bytes`, computed on up to `threads` threads.
    pub fn compute(bytes: &[u8], threads: usize) -> PageHashes {
        let mut hashes = PageHashes::default();
        hashes.apply(hashes.diff(bytes, threads));
        hashes
    }

    /// Builds the hashes of a stream of `bytes` bytes from [`hash_pages`] of its parts. Returns
    /// `None` if their number is not that of the stream's pages.
    pub fn from_hashes(hashes: Vec<u128>, bytes: u64) -> Option<PageHashes> {
        (hashes.len() == page_count(bytes)).then_some(PageHashes { hashes, bytes })
    }

    /// Returns the length of the hashed stream.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the memory that the hashes take.
    pub fn memory_bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<u128>()
    }

    /// Returns whether a page of a stream, which is now `bytes`, has changed. A page beyond the end
    /// of `bytes` does not differ.
    pub fn differs(&self, page: usize, bytes: &[u8]) -> bool {
        let end = bytes.len().min((page + 1) * PAGE_BYTES);
        let now = bytes.get(page * PAGE_BYTES..end).map(XxHash3_128::oneshot);
        now.is_some_and(|now| self.hashes.get(page) != Some(&now))
    }

    /// Returns those of `pages` that were not all zeros.
    pub fn not_zero(&self, pages: &[PageRange]) -> Vec<PageRange> {
        static ZERO: LazyLock<u128> = LazyLock::new(|| XxHash3_128::oneshot(&[0; PAGE_BYTES]));
        let zero = *ZERO;
        let mut runs = Vec::new();
        for range in pages {
            for page in range.first..range.first + range.count {
                if self.hashes.get(page as usize) != Some(&zero) {
                    push_pages(&mut runs, PageRange { first: page, count: 1 });
                }
            }
        }
        runs
    }

    /// Returns whether a sample of the pages shows that nearly all of a stream, which is now
    /// `bytes`, has changed. Short streams are never called dense.
    pub fn is_dense(&self, bytes: &[u8]) -> bool {
        let pages = self.hashes.len().min(bytes.len() / PAGE_BYTES);
        if pages < SAMPLE_FROM_PAGES || self.bytes != bytes.len() as u64 {
            return false;
        }
        let mut clean = 0;
        (0..SAMPLES).all(|number| {
            // Scattered, so that a regular pattern of changes does not look like a change of all
            // pages.
            let step = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            let page = ((step * pages as u64) >> 32) as usize;
            clean += usize::from(!self.differs(page, bytes));
            clean <= SAMPLES - SAMPLES_DENSE
        })
    }

    /// Finds the changes of the stream, which is now `bytes`, on up to `threads` threads.
    pub fn diff(&self, bytes: &[u8], threads: usize) -> Diff {
        let compare = Compare { old: self, bytes, pages: None };
        diff_streams(&[compare], threads).pop().expect("one stream gives one difference")
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

/// Returns the hash of each page of `bytes`, which begin at a page of their stream; the last page
/// may be partial.
pub fn hash_pages(bytes: &[u8]) -> Vec<u128> {
    bytes.chunks(PAGE_BYTES).map(XxHash3_128::oneshot).collect()
}

/// A stream to compare.
#[derive(Clone, Copy, Debug)]
pub struct Compare<'a> {
    /// Hashes of the former content.
    pub old: &'a PageHashes,
    /// The present content.
    pub bytes: &'a [u8],
    /// The pages to compare, sorted and apart, all within `bytes`; the others are known to be
    /// unchanged. `None`: all. Ignored if the stream's length has changed.
    pub pages: Option<&'a [PageRange]>,
}

/// Finds the changes of several streams. Up to `threads` threads share the work of all of them.
pub fn diff_streams(streams: &[Compare<'_>], threads: usize) -> Vec<Diff> {
    let mut pieces = Vec::new();
    let mut total_pages = 0;
    for (number, stream) in streams.iter().enumerate() {
        let whole = [PageRange { first: 0, count: page_count(stream.bytes.len() as u64) as u64 }];
        let same_length = stream.old.bytes == stream.bytes.len() as u64;
        let ranges = stream.pages.filter(|_| same_length).unwrap_or(&whole);
        total_pages += cut_pieces(number, ranges, &mut pieces);
    }
    let threads = if total_pages * PAGE_BYTES < PARALLEL_FROM_BYTES { 1 } else { threads };
    let found = parallel(pieces, threads, |(number, ranges)| {
        (number, diff_pages(&streams[number], &ranges))
    });
    // Counted first: growing vectors would take twice the memory when everything is dirty.
    let mut dirty_pages = vec![0; streams.len()];
    found.iter().for_each(|(stream, (_, hashes))| dirty_pages[*stream] += hashes.len());
    let with_room_for = |(pages, stream): (&usize, &Compare<'_>)| Diff {
        runs: Vec::new(),
        hashes: Vec::with_capacity(*pages),
        pages_before: Vec::new(),
        bytes: stream.bytes.len() as u64,
    };
    let mut diffs: Vec<Diff> = dirty_pages.iter().zip(streams).map(with_room_for).collect();
    for (stream, (runs, hashes)) in found {
        runs.into_iter().for_each(|run| push_pages(&mut diffs[stream].runs, run));
        diffs[stream].hashes.extend(hashes);
    }
    diffs
}

/// Cuts ranges of stream `number` into pieces of about [`PIECE_PAGES`]; returns the number of their
/// pages.
fn cut_pieces(
    number: usize,
    ranges: &[PageRange],
    pieces: &mut Vec<(usize, Vec<PageRange>)>,
) -> usize {
    let (mut piece, mut piece_pages, mut total_pages) = (Vec::new(), 0, 0);
    for range in ranges {
        let (mut first, end) = (range.first, range.first + range.count);
        while first < end {
            let count = (end - first).min((PIECE_PAGES - piece_pages) as u64);
            piece.push(PageRange { first, count });
            first += count;
            piece_pages += count as usize;
            if piece_pages == PIECE_PAGES {
                pieces.push((number, std::mem::take(&mut piece)));
                piece_pages = 0;
            }
        }
        total_pages += range.count as usize;
    }
    if !piece.is_empty() {
        pieces.push((number, piece));
    }
    total_pages
}

fn diff_pages(stream: &Compare<'_>, ranges: &[PageRange]) -> (Vec<PageRange>, Vec<u128>) {
    let (mut runs, mut hashes) = (Vec::new(), Vec::new());
    for range in ranges {
        let first = range.first as usize;
        let end = ((first + range.count as usize) * PAGE_BYTES).min(stream.bytes.len());
        let pages = stream.bytes[first * PAGE_BYTES..end].chunks(PAGE_BYTES);
        for (page, bytes) in (first..).zip(pages) {
            let hash = XxHash3_128::oneshot(bytes);
            // XXH3 includes the length, so a partial page whose length changed differs too.
            let clean = stream.old.hashes.get(page) == Some(&hash);
            if !clean {
                push_pages(&mut runs, PageRange { first: page as u64, count: 1 });
                hashes.push(hash);
            }
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
