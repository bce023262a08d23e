//! A frozen image.

use crate::ChangeTracker;
use crate::ahead::Ahead;
use crate::fork::ForkImage;
use crate::in_place::InPlace;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::runs;
use crate::snapshot_source::{HeldPiece, SnapshotSource, gather};
use crate::tracker::{FreezeId, Spare, StreamChange};
use outlive_chunk::{Diff, PageHashes, hash_pages};
use outlive_types::sync::plain::Mutex;
use outlive_types::{
    Epoch, Error, FreezeReport, Frozen, PAGE_BYTES, PageRange, RegionDesc, Result, Run,
    SharedImage, SharedRun, StreamDesc, pages_of,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The result of a freeze. Its buffers go back to the tracker when it is dropped. They do not at
/// the commit of the baseline, since slices of them may be in use until the drop.
#[derive(Debug)]
pub(crate) struct FrozenMemory {
    pub tracker: Arc<ChangeTracker>,
    pub freeze: FreezeId,
    pub layout: Arc<Layout>,
    pub attachment: Arc<[u8]>,
    pub outputs: Arc<[u8]>,
    pub runs: Vec<Run>,
    pub changed_pages: u64,
    /// Runs before this one may be live.
    pub live_runs: usize,
    /// Snapshot source of each run.
    pub holds: Vec<SnapshotSource>,
    /// Pieces of the runs that were partly copied ahead.
    pub pieces: Vec<HeldPiece>,
    /// Copies made ahead.
    pub ahead: Option<Ahead>,
    /// The child that holds the forked runs.
    pub fork: Option<ForkImage>,
    /// Memory that can be read in place, until the baseline is committed.
    pub in_place: Option<InPlace>,
    pub report: FreezeReport,
    pub spare: Spare,
    /// Most bytes that either spare buffer may keep.
    pub freeze_bytes_max: u64,
    pub released: AtomicBool,
    /// Changes of each stream, `None` if all of it is new. Taken when the baseline is committed.
    pub diffs: Mutex<Option<Vec<Option<Diff>>>>,
    /// For each stream that had no hashes before, those of its pages; empty before the first one.
    /// They are computed when the store reads a run. So the program waits neither for them nor for
    /// their memory, and its own memory is read once.
    pub fresh: Vec<Option<Mutex<Vec<u128>>>>,
    /// For each other stream, its dirty pages whose hashes are learnt in the same way. A page that
    /// is not read stays without a hash: it counts as changed when it is compared.
    pub learn: Vec<Vec<PageRange>>,
    /// For each run, the number of its pages' hashes that were learnt. (If one page is read twice
    /// in place of another, that other one stays without its hash, and is saved once more.)
    pub hashed: Vec<AtomicU32>,
    /// Whether pages are to be copied ahead of the next freeze.
    pub copies_ahead: bool,
    /// Whether other processes are to read the image.
    pub is_shared: bool,
    pub is_committed: AtomicBool,
}

impl Frozen for FrozenMemory {
    fn regions(&self) -> &[RegionDesc] {
        &self.layout.regions
    }

    fn attachment(&self) -> &[u8] {
        &self.attachment
    }

    fn outputs(&self) -> &[u8] {
        &self.outputs
    }

    fn streams(&self) -> &[StreamDesc] {
        &self.layout.streams
    }

    fn runs(&self) -> &[Run] {
        &self.runs
    }

    fn changed_pages(&self) -> u64 {
        self.changed_pages
    }

    fn live_runs(&self) -> usize {
        self.live_runs
    }

    fn bytes<'a>(&'a self, run: usize, scratch: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let bytes = self.held(run, 0..self.runs[run].pages, scratch)?;
        if !self.is_learnt(run) {
            let learnt = self.learn(run, 0, bytes);
            self.hashed[run].fetch_max(learnt, Ordering::Release);
        }
        Ok(bytes)
    }

    fn read<'a>(
        &'a self,
        run: usize,
        pages: Range<u32>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        let first = pages.start;
        let bytes = self.held(run, pages, scratch)?;
        let learnt = self.learn(run, first, bytes);
        self.hashed[run].fetch_add(learnt, Ordering::Release);
        Ok(bytes)
    }

    fn shared(&self) -> Result<SharedImage> {
        if !self.is_shared {
            return Err(Error::bug("this freeze was not asked to share its image"));
        }
        let left = || {
            Error::invalid(format!(
                "some bytes are in the program's own memory alone ({})",
                self.report.freeze
            ))
        };
        let run = |hold: &SnapshotSource| match hold {
            SnapshotSource::Copied(at) => Ok(SharedRun::Copied(*at as u64)),
            SnapshotSource::Forked(at) => Ok(SharedRun::Forked(*at as u64)),
            SnapshotSource::Live | SnapshotSource::Immutable | SnapshotSource::Pieces(..) => {
                Err(left())
            }
        };
        Ok(SharedImage {
            runs: self.holds.iter().map(run).collect::<Result<_>>()?,
            copies: self.spare.arena.file().cloned(),
            child: self.fork.as_ref().and_then(ForkImage::shared),
        })
    }

    fn report(&self) -> FreezeReport {
        self.report.clone()
    }

    fn release_live(&self) {
        self.released.store(true, Ordering::Release);
    }

    fn commit_baseline(&self, committed: Option<Epoch>) {
        self.release_live();
        let diffs = self.diffs.lock().take();
        let Some(diffs) = diffs else { return };
        match committed {
            Some(epoch) => {
                let changes = self.changes(diffs);
                self.tracker.commit(self.freeze, epoch, &self.layout.streams, changes);
                self.is_committed.store(true, Ordering::Release);
            }
            None => self.tracker.abandon(self.freeze),
        }
    }
}

impl FrozenMemory {
    /// Returns pages of a run, numbered from its first, from their snapshot source.
    fn held<'a>(
        &'a self,
        run: usize,
        pages: Range<u32>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        let stream = self.runs[run].stream as usize;
        let (offset, length) = runs::extent(&self.runs[run], self.layout.streams[stream].bytes);
        let start = pages.start as usize * PAGE_BYTES;
        let part = start..length.min(pages.end as usize * PAGE_BYTES);
        let memory = self.layout.memory(stream);
        let (bytes, offset) = match self.holds[run] {
            SnapshotSource::Immutable => match memory {
                Some(memory) => (memory.bytes(), offset),
                None => (&self.spare.packed[..], offset),
            },
            SnapshotSource::Live => {
                // The program may be writing there by now, so its bytes must not be read.
                assert!(
                    !self.released.load(Ordering::Acquire),
                    "live run {run} was read after the live runs had been released"
                );
                (memory.map_or(&[][..], Memory::bytes), offset)
            }
            SnapshotSource::Copied(at) => (self.spare.arena.bytes(), at),
            SnapshotSource::Pieces(from, to) => {
                let pieces = &self.pieces[from as usize..to as usize];
                let (Some(ahead), Some(first)) = (&self.ahead, pieces.first()) else {
                    return Err(Error::bug("a run was copied ahead, and there is no copy"));
                };
                let start = first.addresses.start;
                scratch.resize(part.len(), 0);
                let addresses = start + part.start..start + part.end;
                gather(pieces, addresses, self.spare.arena.bytes(), ahead, scratch);
                return Ok(scratch);
            }
            SnapshotSource::Forked(at) => {
                let Some(fork) = &self.fork else {
                    return Err(Error::bug("a run is held by a child, and none was forked"));
                };
                scratch.resize(part.len(), 0);
                let from_child = |address, into: &mut [u8]| fork.read(address, into);
                match &self.in_place {
                    Some(in_place) => in_place.read(at + part.start, scratch, from_child)?,
                    None => from_child(at + part.start, scratch)?,
                }
                return Ok(scratch);
            }
        };
        Ok(&bytes[offset..][part])
    }

    /// Whether all hashes of a run that are to be learnt have been.
    fn is_learnt(&self, number: usize) -> bool {
        let run = &self.runs[number];
        let pages = match &self.fresh[run.stream as usize] {
            Some(_) => run.pages,
            None => self.to_learn(run, 0..run.pages).map(|range| range.count as u32).sum(),
        };
        self.hashed[number].load(Ordering::Acquire) >= pages
    }

    /// Returns the pages of a run that are in `learn`, within `pages`, numbered from its first.
    fn to_learn(&self, run: &Run, pages: Range<u32>) -> impl Iterator<Item = PageRange> {
        let first = run.first_page + u64::from(pages.start);
        let end = run.first_page + u64::from(pages.end.min(run.pages));
        let learn = &self.learn[run.stream as usize];
        let from = learn.partition_point(|range| range.first + range.count <= first);
        let overlaps = learn[from..].iter().take_while(move |range| range.first < end);
        overlaps.map(move |range| {
            let from = range.first.max(first);
            PageRange { first: from, count: (range.first + range.count).min(end) - from }
        })
    }

    /// Hashes pages of a run, the first of which is its page `first`, as far as their hashes are to
    /// be learnt. Returns their number.
    fn learn(&self, run: usize, first: u32, bytes: &[u8]) -> u32 {
        let run = &self.runs[run];
        let Some(fresh) = &self.fresh[run.stream as usize] else {
            let end = first + bytes.len().div_ceil(PAGE_BYTES) as u32;
            let start = run.first_page + u64::from(first);
            let mut learnt = 0;
            for range in self.to_learn(run, first..end) {
                let at = (range.first - start) as usize * PAGE_BYTES;
                let end = bytes.len().min(at + range.count as usize * PAGE_BYTES);
                let hashes = hash_pages(&bytes[at..end]);
                learnt += range.count as u32;
                let mut diffs = self.diffs.lock();
                let diffs = diffs.as_mut().and_then(|diffs| diffs.get_mut(run.stream as usize));
                if let Some(Some(diff)) = diffs {
                    diff.learn(range.first, &hashes);
                }
            }
            return learnt;
        };
        let hashes = hash_pages(bytes);
        let first = run.first_page as usize + first as usize;
        let mut fresh = fresh.lock();
        if fresh.is_empty() {
            fresh.resize(pages_of(self.layout.streams[run.stream as usize].bytes) as usize, 0);
        }
        fresh[first..][..hashes.len()].copy_from_slice(&hashes);
        hashes.len() as u32
    }

    /// Combines the known changes of each stream.
    fn changes(&self, diffs: Vec<Option<Diff>>) -> Vec<StreamChange> {
        let mut at = 0;
        let mut changes = Vec::with_capacity(diffs.len());
        for (stream, diff) in diffs.into_iter().enumerate() {
            let count =
                self.runs[at..].iter().take_while(|run| run.stream as usize == stream).count();
            let runs = at..at + count;
            at += count;
            changes.push(match diff {
                Some(diff) => StreamChange::Known(diff),
                None => StreamChange::Fresh(self.fresh_hashes(stream, runs)),
            });
        }
        changes
    }

    /// Returns the hashes of a new stream; `None` if some of its live runs were never read.
    fn fresh_hashes(&self, stream: usize, runs: Range<usize>) -> Option<PageHashes> {
        let mut scratch = Vec::new();
        for run in runs {
            // A run that the store has read is not read again: its only copy may be in a child.
            if self.is_learnt(run) {
                continue;
            }
            if self.holds[run] == SnapshotSource::Live {
                return None;
            }
            self.bytes(run, &mut scratch).ok()?;
        }
        let mut fresh = self.fresh[stream].as_ref()?.lock();
        PageHashes::from_hashes(std::mem::take(&mut *fresh), self.layout.streams[stream].bytes)
    }
}

impl Drop for FrozenMemory {
    fn drop(&mut self) {
        self.commit_baseline(None);
        let mut spare = std::mem::take(&mut self.spare);
        if spare.packed.capacity() as u64 > self.freeze_bytes_max {
            spare.packed = Vec::new();
        }
        // Copies made ahead take the rest of the budget.
        if self.is_committed.load(Ordering::Acquire) && !self.copies_ahead {
            spare.arena.warm();
        }
        self.tracker.keep(spare);
        self.tracker.keep_ahead(self.ahead.take());
        if self.is_committed.load(Ordering::Acquire) {
            if self.copies_ahead {
                self.tracker.begin_ahead(self.freeze_bytes_max);
            }
            // While a child ends, its pages have too many owners.
            self.fork = None;
            self.tracker.restore_huge_pages();
        }
    }
}
