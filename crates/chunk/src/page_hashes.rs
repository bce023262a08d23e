//! Finds changed pages by comparing hashes: 16 bytes kept for each page, whatever wrote it.
//!
//! The hash is XXH3-128 (Collet 2019, seed 0). It is not cryptographic: it tells what a program
//! changed by its own work, with a chance of 2^-128 a page of missing a change.

use crate::{PARALLEL_FROM_BYTES, parallel};
use outlive_types::{PAGE_BYTES, PageRange, pages_of};
use std::sync::LazyLock;
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
    /// Of all pages of the runs, one after the other.
    hashes: Vec<u128>,
    /// For each run, how many pages the runs before it have; empty until a hash is learnt.
    pages_before: Vec<u64>,
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

    /// The same, with other pages that are dirty whatever they hold. They are sorted, apart, and none
    /// of the difference's own; those whose hashes are not learnt differ from anything later.
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

    /// Sets the hashes of dirty pages side by side, the first of which is page `first`.
    ///
    /// # Panics
    /// If not all of them are dirty.
    pub fn learn(&mut self, first: u64, hashes: &[u128]) {
        if self.pages_before.is_empty() {
            // Not looked for run by run: random pages make as many runs as there are hashes to learn.
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

    /// Whether a page of a stream, which is now `bytes`, is another than it was. No page that `bytes`
    /// does not have differs.
    pub fn differs(&self, page: usize, bytes: &[u8]) -> bool {
        let end = bytes.len().min((page + 1) * PAGE_BYTES);
        let now = bytes.get(page * PAGE_BYTES..end).map(XxHash3_128::oneshot);
        now.is_some_and(|now| self.hashes.get(page) != Some(&now))
    }

    /// Of these pages, those that were not all zeros.
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
            clean += usize::from(!self.differs(page, bytes));
            clean <= SAMPLES - SAMPLES_DENSE
        })
    }

    /// What has changed in the stream, which is now `bytes`; on up to `threads` threads.
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

/// The hash of each page of `bytes`, which begin at a page of their stream; the last may be partial.
pub fn hash_pages(bytes: &[u8]) -> Vec<u128> {
    bytes.chunks(PAGE_BYTES).map(XxHash3_128::oneshot).collect()
}

/// A stream to be compared.
#[derive(Clone, Copy, Debug)]
pub struct Compare<'a> {
    /// What it was.
    pub old: &'a PageHashes,
    /// What it is now.
    pub bytes: &'a [u8],
    /// The pages to look at, sorted and apart, all within `bytes`; the others are known to be as they
    /// were. `None`: all. Not heeded if the stream's length has changed.
    pub pages: Option<&'a [PageRange]>,
}

/// What has changed in several streams. The work of all of them is shared among up to `threads`
/// threads.
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
    // Counted first: doubling vectors would take twice the memory when everything is dirty.
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

/// Cuts ranges of stream `number` into pieces of about [`PIECE_PAGES`]; answers how many pages they
/// have.
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
            // XXH3 takes in the length, so a partial page whose length changed differs too.
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
