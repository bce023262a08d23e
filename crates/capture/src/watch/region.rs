//! One region's memory under a tracker, from freeze to freeze: the pages that must be compared.
//!
//! The policy is ACCK's (Shi et al., "Application-Based Coarse-Grained Incremental Checkpointing",
//! NPC 2016), on this mechanism. Blocks that are written sparsely are *armed* page by page. Blocks
//! that are written densely are *coarse*: unmonitored except for canary pages, and filtered by
//! hash. Blocks that turn cold are armed again. docs/capture.md has the costs.

use super::policy::{Filter, Front, Patience, sampled, scattered};
use super::ranges::{joined, without};
use crate::ahead::Ahead;
use crate::track::{PageTracker, Pages, Refusal, Then};
use outlive_chunk::{Diff, PageHashes, parallel};
use outlive_types::{BLOCK_BYTES, PAGE_BYTES, PageRange, pages_of};
use std::ops::Range;

/// Pages of a coarse block that are checked first. Eight: if a tenth of a block's pages is written,
/// they show it two times in three; the comparison finds what they miss.
const CANARIES: u64 = 8;
/// Most freezes that a block stays coarse if it turned dense again soon after it was armed.
const WAIT_MAX: u8 = 32;
/// Freezes of an armed block after which its past no longer counts.
const STEADY: u8 = 16;
/// Freezes of a coarse block after which it gets back the huge page that tracking has split.
const COLLAPSED_AFTER: u8 = 3;
/// Number of blocks, each a system call, from which a second thread costs less than it saves.
const BLOCKS_ASKED_TWICE: usize = 256;

/// A block of hardware pages, 2 MiB by address as huge pages are.
#[derive(Clone, Copy, Default, Debug)]
struct Block {
    armed: bool,
    /// Freezes that a coarse block still waits before its canaries are checked.
    wait: u8,
    /// Wait when it turns coarse the next time.
    next_wait: u8,
    /// Freezes since it was armed, or turned coarse.
    age: u8,
    /// Whether it was a huge page when it was armed; the first write since has split it.
    was_huge: bool,
    /// Whether it was armed, and dense at the freeze before.
    was_dense: bool,
    /// Whether nearly all of its pages had changed when it was compared, or when the last block of
    /// the sweep that is expected there was.
    full: bool,
    /// Whether it was not compared at this freeze, since its canaries gave the same result.
    taken: bool,
    /// Whether it is coarse only because a sweep is expected to come here.
    expected: bool,
    /// Whether it was checked for writes while an image was persisted.
    tried: bool,
}

/// Location of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RegionSpan {
    /// Address of the first byte.
    pub start: usize,
    /// Length in bytes.
    pub length: usize,
}

impl RegionSpan {
    /// Returns the hardware pages that hold only the region. Its other pages are shared with other
    /// data of the program, and are compared at each freeze.
    pub fn inner(self) -> Option<Pages> {
        let start = self.start.checked_next_multiple_of(PAGE_BYTES)?;
        let end = self.start.checked_add(self.length)? / PAGE_BYTES * PAGE_BYTES;
        (start < end).then_some(Pages { start, end })
    }

    /// Returns the region's pages, counted from its first byte, that lie in these hardware pages,
    /// wholly or partly.
    fn region_pages(self, pages: Pages) -> PageRange {
        let first = (pages.start.max(self.start) - self.start) / PAGE_BYTES;
        let end = (pages.end.min(self.start + self.length) - self.start).div_ceil(PAGE_BYTES);
        PageRange { first: first as u64, count: (end - first) as u64 }
    }
}

impl RegionSpan {
    /// Returns the region's pages that lie mostly in these hardware pages, which hold only the
    /// region. If the region does not begin at a page, each hardware page also has the end of
    /// another of its pages.
    fn mostly_in(self, pages: Pages) -> PageRange {
        let touched = self.region_pages(pages);
        let shift = self.start % PAGE_BYTES;
        match shift {
            0 => touched,
            _ if shift <= PAGE_BYTES / 2 => {
                PageRange { first: touched.first + 1, count: touched.count - 1 }
            }
            _ => PageRange { count: touched.count - 1, ..touched },
        }
    }
}

/// Pages that a freeze must consider; each list sorted and disjoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FreezePages {
    /// Pages that may have changed.
    pub compare: Vec<PageRange>,
    /// Other pages, which count as changed: to compare them would only keep the program waiting.
    /// Their hashes are learnt while the image is persisted.
    pub dirty: Vec<PageRange>,
}

#[cfg(test)]
thread_local! {
    /// Number of blocks for which written pages were counted.
    pub static COUNTED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A watched region.
#[derive(Debug)]
pub(crate) struct RegionWatch {
    pub place: RegionSpan,
    inner: Pages,
    blocks: Vec<Block>,
    /// Pages that may differ from the baseline although they are armed again: found by a freeze
    /// whose baseline is not committed.
    pending: Vec<PageRange>,
    /// Number of written pages from which a block is cheaper compared than tracked.
    dense_pages: usize,
    /// Freezes so far; moves the canaries.
    freezes: u64,
    filter: Filter,
    front: Front,
    /// Written pages that this freeze compares.
    judged: Vec<PageRange>,
    /// Blocks before this one were checked, since the last commit, for huge pages to recreate.
    healed: usize,
}

impl RegionWatch {
    /// Begins to watch a region. Large ones start coarse: a program that allocates much at once
    /// mostly sweeps over it, and armed memory costs the sweep a fault a page (the paper's a-priori
    /// hint).
    ///
    /// # Errors
    /// Errors of [`PageTracker::watch`] and [`PageTracker::arm`].
    ///
    /// # Safety
    /// As [`PageTracker::watch`].
    #[allow(unsafe_code)]
    pub unsafe fn begin(
        tracker: &dyn PageTracker,
        place: RegionSpan,
        dense_pages: usize,
    ) -> Result<RegionWatch, Refusal> {
        let too_small = || Refusal("it has no page of its own".into());
        let inner = place.inner().ok_or_else(too_small)?;
        // SAFETY: passed on to the caller.
        unsafe { tracker.watch(inner)? };
        let armed = place.length < BLOCK_BYTES;
        if armed && let Err(refusal) = tracker.arm(inner) {
            tracker.unwatch(inner);
            return Err(refusal);
        }
        let blocks = (inner.end - 1) / BLOCK_BYTES - inner.start / BLOCK_BYTES + 1;
        let block = Block { armed, ..Block::default() };
        let blocks = vec![block; blocks];
        // This freeze compares all of it. If its save fails, the next one must do so, too.
        let pending = vec![PageRange { first: 0, count: pages_of(place.length as u64) }];
        Ok(RegionWatch {
            place,
            inner,
            blocks,
            pending,
            dense_pages,
            freezes: 0,
            filter: Filter::default(),
            front: Front::default(),
            judged: Vec::new(),
            healed: 0,
        })
    }

    /// Hardware pages that it watches.
    pub fn inner(&self) -> Pages {
        self.inner
    }

    /// Returns the memory whose writes are noted page by page.
    pub fn armed(&self) -> impl Iterator<Item = Pages> {
        let armed = self.blocks.iter().zip(0..).filter(|(block, _)| block.armed);
        armed.map(|(_, at)| self.block(at))
    }

    /// Returns all watched memory, and whether writes are noted there.
    pub fn parts(&self) -> impl Iterator<Item = (Pages, bool)> {
        let groups = self.groups().into_iter();
        groups.map(|group| (self.joined_blocks(&group), self.blocks[group.start].armed))
    }

    /// Keeps blocks armed that were armed only while an image was persisted (`areas`, sorted and
    /// disjoint) and are hardly written; disarms the others. None of them has to be compared: they
    /// were armed before the child had its image, so later writes are noted. Blocks qualify only if
    /// the child holds all of them (`forked`, sorted and disjoint): other pages were compared
    /// before they were armed. Blocks that ever were dense do not qualify, and each block is tried
    /// once. Armed blocks that the program comes to later cost it a fault a page.
    pub fn keep_armed(
        &mut self,
        tracker: &dyn PageTracker,
        areas: &[Pages],
        forked: &[Range<usize>],
    ) {
        let is_held = |pages: Pages| {
            let after = forked.partition_point(|range| range.end < pages.end);
            forked.get(after).is_some_and(|range| range.start <= pages.start)
        };
        let number = |address: usize| address / BLOCK_BYTES - self.inner.start / BLOCK_BYTES;
        let blocks = |area: &Pages| number(area.start)..number(area.end - 1) + 1;
        let areas: Vec<_> = areas.iter().map(|area| (*area, blocks(area))).collect();
        for (area, blocks) in areas {
            let mut written = Vec::new();
            let known = tracker.collect(area, Then::Leave, &mut written).is_ok();
            let counts = self.counts(&blocks, &written);
            for (at, count) in blocks.zip(counts) {
                let (block, pages) = (self.blocks[at], self.block(at));
                let is_new = !block.tried && !block.expected && block.next_wait == 0;
                self.blocks[at].tried = true;
                if known && is_new && count < self.dense_pages && is_held(pages) {
                    let was_huge = block.was_huge || tracker.is_huge(pages);
                    let armed = Block { armed: true, age: 0, was_huge, ..self.blocks[at] };
                    self.blocks[at] = Block { full: false, taken: false, ..armed };
                } else {
                    // Unmapped memory needs no disarming.
                    let _ = tracker.disarm(pages);
                }
            }
        }
    }

    /// Records that the findings of the last freeze are in a committed checkpoint.
    pub fn settle(&mut self) {
        self.pending.clear();
        self.healed = 0;
    }

    /// Whether written pages are still compared.
    #[cfg(test)]
    pub fn compares_written(&self) -> bool {
        self.filter.pays()
    }

    /// Number of pages that the last freeze considered, until its baseline is committed.
    #[cfg(test)]
    pub fn pending_pages(&self) -> u64 {
        self.pending.iter().map(|range| range.count).sum()
    }

    /// Returns a block that should be one huge page again, as it stays coarse. Random accesses then
    /// take a third less time, and a fork a sixteenth (docs/design/011-tracking.md). Each is
    /// returned once.
    pub fn next_split(&mut self) -> Option<Pages> {
        let is_split =
            |block: &Block| block.was_huge && !block.armed && block.age >= COLLAPSED_AFTER;
        let next = self.blocks[self.healed..].iter().position(is_split);
        let at = next.map(|next| self.healed + next);
        self.healed = at.map_or(self.blocks.len(), |at| at + 1);
        self.blocks[at?].was_huge = false;
        Some(self.block(at?))
    }

    /// Allows one of its blocks to be returned again.
    pub fn is_still_split(&mut self, pages: Pages) {
        let at = (pages.start / BLOCK_BYTES).checked_sub(self.inner.start / BLOCK_BYTES);
        if let Some(at) = at.filter(|at| *at < self.blocks.len() && self.block(*at) == pages) {
            self.blocks[at].was_huge |= !self.blocks[at].armed;
        }
    }

    /// Records a freeze that did not check the region, since nearly all of it has changed: all of
    /// it counts as coarse.
    pub fn pass(&mut self, patience: &mut Patience) {
        for at in 0..self.blocks.len() {
            if !self.blocks[at].armed {
                self.stayed_coarse(at, false, patience);
                self.blocks[at].wait = self.blocks[at].wait.saturating_sub(1);
            }
        }
    }

    /// Returns the pages to be compared at this freeze: all that may differ from `hashes`, which
    /// are those of the last committed image. `bytes` are the region's. All memory that is to be
    /// armed is armed before anything is compared or copied. Runs on up to `threads` threads.
    ///
    /// # Errors
    /// The state of the memory is lost.
    pub fn collect(
        &mut self,
        tracker: &dyn PageTracker,
        hashes: &PageHashes,
        bytes: &[u8],
        ahead: Option<&mut Ahead>,
        patience: &mut Patience,
        threads: usize,
    ) -> Result<FreezePages, Refusal> {
        self.freezes += 1;
        let mut look = std::mem::take(&mut self.pending);
        let (armed, coarse): (Vec<Range<usize>>, _) =
            self.groups().into_iter().partition(|group| self.blocks[group.start].armed);
        let mut written = self.written(tracker, &armed)?;
        let given_up =
            self.absent(tracker, &armed, &self.counts(&self.all(), &written), threads)?;
        let absent: Vec<_> = given_up.iter().map(|p| self.place.region_pages(*p)).collect();
        look.extend(hashes.not_zero(&absent));
        let mut copied = Vec::new();
        if let Some(ahead) = ahead {
            // The copies of pages written or dropped after the last collection are outdated.
            ahead.outdate(&written);
            ahead.outdate(&given_up);
            copied.extend(ahead.copied(self.inner).map(|pages| self.place.region_pages(pages)));
            written.extend(ahead.written_in(self.inner));
        }
        let of_region = |pages: &Pages| self.place.region_pages(*pages);
        let written_pages = joined(written.iter().map(of_region).collect());
        let mut dirty = joined(copied);
        // Whether comparing pays is decided by pages that lie mostly in written memory. The others
        // lie there only in small part and are compared in any case: mostly they have not changed.
        let mostly = |pages: &Pages| self.place.mostly_in(*pages);
        let mostly = joined(written.iter().map(mostly).collect());
        self.filter.ask(&mostly, |page| hashes.differs(page as usize, bytes));
        if self.filter.pays() {
            self.judged = without(&mostly, &dirty);
        } else {
            let sampled = sampled(&mostly, self.freezes);
            self.judged = without(&sampled, &dirty);
            dirty.extend(without(&mostly, &sampled));
        }
        look.extend(written_pages);
        let mut dense = self.coarsen(tracker, &written, patience)?;
        for group in coarse {
            for at in group.clone() {
                let changed = self.changed_canaries(at, hashes, bytes);
                self.stayed_coarse(at, changed == 0, patience);
                self.judge_coarse(tracker, at, changed)?;
                dense[at] = changed * 2 >= CANARIES;
                if self.blocks[at].taken {
                    dirty.push(self.place.region_pages(self.block(at)));
                }
            }
            look.push(self.place.region_pages(self.joined_blocks(&group)));
        }
        for run in self.front.learn(dense).to_vec() {
            // The first one is compared in any case: the others follow its result.
            let armed: Vec<usize> = run.filter(|at| self.blocks[*at].armed).collect();
            for at in &armed {
                let at = *at;
                tracker.disarm(self.block(at))?;
                let full = self.front.is_full && at > armed[0];
                let block = Block { armed: false, expected: true, ..self.blocks[at] };
                self.blocks[at] = Block { age: 0, full, taken: false, ..block };
            }
        }
        look.extend(self.edges());
        self.pending = joined(look);
        let dirty = joined(dirty);
        Ok(FreezePages { compare: without(&self.pending, &dirty), dirty })
    }

    /// Returns the written pages of armed blocks, and arms them again. One thread does it: each
    /// block with a written page is flushed from the address caches of every processor that runs
    /// one of our threads.
    fn written(
        &self,
        tracker: &dyn PageTracker,
        armed: &[Range<usize>],
    ) -> Result<Vec<Pages>, Refusal> {
        let mut written = Vec::new();
        let mut groups = armed.iter().map(|group| self.joined_blocks(group));
        groups.try_for_each(|pages| tracker.collect(pages, Then::Rearm, &mut written))?;
        Ok(written)
    }

    /// Returns the dropped pages of armed blocks, of which `counts` pages each were found written.
    /// A dropped page counts as written, unless nothing is left of its block's page table; then no
    /// page of the block could be marked.
    fn absent(
        &self,
        tracker: &dyn PageTracker,
        armed: &[Range<usize>],
        counts: &[usize],
        threads: usize,
    ) -> Result<Vec<Pages>, Refusal> {
        let unmarked = armed.iter().flat_map(Range::clone).filter(|at| counts[*at] == 0);
        let mut unmarked: Vec<Pages> = unmarked.map(|at| self.block(at)).collect();
        let firsts: Vec<usize> = unmarked.iter().map(|block| block.start).collect();
        if let Some(present) = tracker.present(&firsts) {
            let mut present = present.into_iter();
            unmarked.retain(|_| present.next() == Some(false));
        }
        let threads = if unmarked.len() < BLOCKS_ASKED_TWICE { 1 } else { threads };
        let parts = unmarked.chunks(BLOCKS_ASKED_TWICE / 2).collect();
        let found = parallel(parts, threads, |blocks: &[Pages]| {
            let (mut absent, mut first) = (Vec::new(), Vec::new());
            for block in blocks {
                // One page of the block shows it.
                first.clear();
                tracker.absent(Pages { end: block.start + PAGE_BYTES, ..*block }, &mut first)?;
                if !first.is_empty() {
                    tracker.absent(*block, &mut absent)?;
                }
            }
            Ok(absent)
        });
        let found: Vec<Vec<Pages>> = found.into_iter().collect::<Result<_, Refusal>>()?;
        Ok(found.concat())
    }

    /// Returns adjacent blocks of the same kind.
    fn groups(&self) -> Vec<Range<usize>> {
        let mut groups: Vec<Range<usize>> = Vec::new();
        for (at, block) in self.blocks.iter().enumerate() {
            match groups.last_mut() {
                Some(last) if self.blocks[last.start].armed == block.armed => last.end = at + 1,
                _ => groups.push(at..at + 1),
            }
        }
        groups
    }

    /// Learns from a comparison whether blocks that were armed because of it should stay armed.
    pub fn compared(&mut self, tracker: &dyn PageTracker, diff: &Diff) -> Result<(), Refusal> {
        let mut changed = vec![0usize; self.blocks.len()];
        for run in diff.runs() {
            let start = self.place.start + run.first as usize * PAGE_BYTES;
            let pages = Pages { start, end: start + run.count as usize * PAGE_BYTES };
            self.count(pages, 0, &mut changed);
        }
        for (at, changed) in changed.into_iter().enumerate() {
            let block = self.blocks[at];
            let full = changed * 100 >= self.block(at).count() * 99;
            match block {
                Block { taken: true, .. } => {}
                // A sweep has just passed.
                Block { armed: true, age: 0, was_dense: true, .. } => self.front.is_full = full,
                Block { armed: true, age: 0, .. } if changed >= self.dense_pages => {
                    // The canaries were wrong.
                    self.make_coarse(tracker, at)?;
                }
                // It is compared at the next freeze.
                Block { expected: true, age: 0, .. } | Block { armed: true, .. } => {}
                _ => self.blocks[at].full = full,
            }
        }
        let judged = std::mem::take(&mut self.judged);
        let pages = |ranges: &[PageRange]| ranges.iter().map(|range| range.count).sum::<u64>();
        self.filter.add(pages(&judged), pages(&without(&judged, diff.runs())));
        Ok(())
    }

    /// Stops monitoring blocks whose many written pages make a comparison cheaper. Returns which
    /// blocks are that dense, whether they were made coarse or not.
    fn coarsen(
        &mut self,
        tracker: &dyn PageTracker,
        written: &[Pages],
        patience: &Patience,
    ) -> Result<Vec<bool>, Refusal> {
        let mut dense = vec![false; self.blocks.len()];
        for (at, count) in self.counts(&self.all(), written).into_iter().enumerate() {
            if !self.blocks[at].armed {
                continue;
            }
            let is_dense = count >= self.dense_pages;
            dense[at] = is_dense;
            if is_dense && (self.blocks[at].was_dense || !patience.pays()) {
                self.make_coarse(tracker, at)?;
            } else {
                let block = &mut self.blocks[at];
                block.was_dense = is_dense;
                block.age = block.age.saturating_add(1);
                if block.age >= STEADY {
                    block.next_wait = 0;
                }
            }
        }
        Ok(dense)
    }

    fn make_coarse(&mut self, tracker: &dyn PageTracker, at: usize) -> Result<(), Refusal> {
        tracker.disarm(self.block(at))?;
        let block = &mut self.blocks[at];
        let next_wait = (block.next_wait * 2 + 1).min(WAIT_MAX);
        let wait = block.next_wait;
        let coarse = Block { armed: false, wait, next_wait, age: 0, ..*block };
        *block = Block { was_dense: false, taken: false, ..coarse };
        Ok(())
    }

    /// Returns the canary pages of a block at a freeze, counted from 1 after the one that began to
    /// watch.
    pub(super) fn canaries(&self, at: usize, freeze: u64) -> impl Iterator<Item = u64> + use<> {
        let pages = self.place.region_pages(self.block(at));
        (0..CANARIES)
            .map(move |number| pages.first + scattered(freeze, pages.first ^ number, pages.count))
    }

    /// Returns the number of changed canary pages of a coarse block. They are read, not armed: an
    /// armed one would split its huge page and cost a fault.
    fn changed_canaries(&self, at: usize, hashes: &PageHashes, bytes: &[u8]) -> u64 {
        let canaries = self.canaries(at, self.freezes);
        canaries.filter(|page| hashes.differs(*page as usize, bytes)).count() as u64
    }

    /// Counts a freeze at which a block is coarse; `quiet`: it was not written since the last one.
    fn stayed_coarse(&mut self, at: usize, quiet: bool, patience: &mut Patience) {
        let block = &mut self.blocks[at];
        block.age = block.age.saturating_add(1);
        // (A block that is coarse from the start was never made so.)
        if block.age == 1 && block.next_wait > 0 && !block.expected {
            patience.learn(quiet);
        }
    }

    /// Arms a coarse block if none of its canary pages has changed, or if the expected sweep has
    /// come and gone. Notes whether it need not be compared.
    fn judge_coarse(
        &mut self,
        tracker: &dyn PageTracker,
        at: usize,
        changed_canaries: u64,
    ) -> Result<(), Refusal> {
        let block = self.blocks[at];
        let (quiet, all) = (changed_canaries == 0, changed_canaries == CANARIES);
        let swept = block.expected && all;
        self.blocks[at].taken = all && block.full;
        if block.wait > 0 && !block.expected {
            self.blocks[at].wait -= 1;
        } else if quiet || swept {
            let pages = self.block(at);
            let was_huge = tracker.is_huge(pages);
            tracker.arm(pages)?;
            let armed = Block { armed: true, age: 0, was_huge, full: false, ..self.blocks[at] };
            self.blocks[at] = Block { expected: false, was_dense: swept, ..armed };
        }
        Ok(())
    }

    /// Numbers of all blocks.
    fn all(&self) -> Range<usize> {
        0..self.blocks.len()
    }

    /// Returns how many of these pages are in each of some blocks; all pages lie in these blocks.
    fn counts(&self, blocks: &Range<usize>, pages: &[Pages]) -> Vec<usize> {
        #[cfg(test)]
        COUNTED.with(|counted| counted.set(counted.get() + blocks.len()));
        let mut counts = vec![0; blocks.len()];
        pages.iter().for_each(|pages| self.count(*pages, blocks.start, &mut counts));
        counts
    }

    /// Adds to the number of pages of each block from the `first` on.
    fn count(&self, pages: Pages, first: usize, counts: &mut [usize]) {
        let mut at = pages.start.max(self.inner.start);
        let end = pages.end.min(self.inner.end);
        while at < end {
            let number = at / BLOCK_BYTES - self.inner.start / BLOCK_BYTES;
            let stop = ((at / BLOCK_BYTES + 1) * BLOCK_BYTES).min(end);
            counts[number - first] += (stop - at).div_ceil(PAGE_BYTES);
            at = stop;
        }
    }

    /// Returns the watched part of some adjacent blocks.
    fn joined_blocks(&self, blocks: &Range<usize>) -> Pages {
        Pages { start: self.block(blocks.start).start, end: self.block(blocks.end - 1).end }
    }

    /// Returns the watched part of a block.
    fn block(&self, at: usize) -> Pages {
        let start = (self.inner.start / BLOCK_BYTES + at) * BLOCK_BYTES;
        let end = (start + BLOCK_BYTES).min(self.inner.end);
        Pages { start: start.max(self.inner.start), end }
    }

    /// Returns pages of the region that lie in hardware pages shared with other data.
    fn edges(&self) -> impl Iterator<Item = PageRange> {
        let pages = pages_of(self.place.length as u64);
        let head = (self.inner.start - self.place.start).div_ceil(PAGE_BYTES) as u64;
        let tail = ((self.inner.end - self.place.start) / PAGE_BYTES) as u64;
        let head = PageRange { first: 0, count: head };
        let tail = PageRange { first: tail, count: pages - tail };
        [head, tail].into_iter().filter(|range| range.count > 0)
    }
}
