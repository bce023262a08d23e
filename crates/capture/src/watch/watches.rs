//! The watched regions of a job.

use super::policy::Patience;
use super::region::{FreezePages, RegionSpan, RegionWatch};
use crate::ahead::{self, Ahead};
use crate::in_place::{Guard, InPlace};
use crate::track::{OpenTracker, PageTracker, Pages, Pins, Refusal, TrackerKind};
use outlive_chunk::{Diff, PageHashes};
use outlive_types::BLOCK_BYTES;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Length of the smallest watched region. Smaller ones are compared: that costs less than a system
/// call.
const WATCHED_FROM_BYTES: usize = 128 << 10;
/// Most regions that are watched: each may split the memory map of the process in three, of which
/// the system allows 65,530 pieces.
const WATCHES_MAX: usize = 4096;

/// The watched regions, and the reasons why others are not watched.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    tracker: Option<Arc<dyn PageTracker>>,
    dense_pages: usize,
    by_name: HashMap<String, RegionWatch>,
    patience: Patience,
    /// Bytes of regions that are only compared, by reason, in the last freeze.
    refused: BTreeMap<String, u64>,
    /// Guard of memory that is read in place while an image is persisted.
    guard: Guard,
    /// Part of that memory that is coarse, and armed only for this.
    guarded: Vec<Pages>,
    /// Addresses that the child holds, sorted and disjoint.
    forked: Vec<Range<usize>>,
}

impl Watches {
    /// Returns a set without regions. Without a tracker everything is compared.
    pub fn new(opened: Option<OpenTracker>) -> Watches {
        let mut watches = Watches::default();
        if let Some(OpenTracker { tracker, dense_pages }) = opened {
            (watches.tracker, watches.dense_pages) = (Some(tracker), dense_pages);
        }
        watches
    }

    /// Whether there is a tracker.
    pub fn is_open(&self) -> bool {
        self.tracker.is_some()
    }

    /// Sets the job of the regions.
    pub fn serve(&self, job: &str) {
        if let Some(tracker) = &self.tracker {
            tracker.serve(job);
        }
    }

    /// Arms the unarmed blocks of these addresses (sorted, disjoint), which a freeze leaves to a
    /// child. Then pages that the program does not write meanwhile can be read in place. It costs
    /// the program next to nothing: the fault that copies a page at its first write also takes the
    /// note.
    ///
    /// It ends with [`Watches::end_guard`], and whenever any memory is armed again or released.
    pub fn guard(&mut self, forked: Vec<Range<usize>>) -> Option<InPlace> {
        self.end_guard();
        let tracker = self.tracker.clone().filter(|tracker| tracker.tells_untouched())?;
        let mut areas = Vec::new();
        for (part, is_armed) in self.by_name.values().flat_map(RegionWatch::parts) {
            for area in blocks_of(&forked, part) {
                if !is_armed {
                    self.guarded.push(area);
                    if tracker.arm(area).is_err() {
                        continue;
                    }
                }
                areas.push(area);
            }
        }
        self.forked = forked;
        InPlace::new(tracker, &areas, self.guard.clone())
    }

    /// Ends all reading in place. Memory that was armed only for that is coarse again.
    pub fn end_guard(&mut self) {
        std::mem::take(&mut self.guard).end();
        let guarded = std::mem::take(&mut self.guarded);
        self.forked = Vec::new();
        let Some(tracker) = &self.tracker else { return };
        for area in guarded {
            if tracker.disarm(area).is_ok() {
                continue;
            }
            // Part of it is unmapped, where the kernel stops.
            for start in (area.start..area.end).step_by(BLOCK_BYTES) {
                let _ = tracker.disarm(Pages { start, end: area.end.min(start + BLOCK_BYTES) });
            }
        }
    }

    /// Releases all regions.
    pub fn clear(&mut self) {
        self.end_guard();
        if let Some(tracker) = &self.tracker {
            self.by_name.values().for_each(|watch| tracker.unwatch(watch.inner()));
        }
        self.by_name.clear();
    }

    /// Begins a freeze of regions at these locations, by stream name. Releases regions that went or
    /// moved, and memory in which a device may write unseen.
    pub fn begin(&mut self, places: &HashMap<&str, RegionSpan>) {
        self.refused.clear();
        self.end_guard();
        let Some(tracker) = &self.tracker else { return };
        let pins = self.pins();
        self.by_name.retain(|name, watch| {
            let stays = places.get(&name[..]) == Some(&watch.place)
                && pins.as_ref().is_none_or(|pins| pins.incomplete(watch.inner()).is_none());
            if !stays {
                tracker.unwatch(watch.inner());
            }
            stays
        });
    }

    fn pins(&self) -> Option<Pins> {
        self.tracker.is_some().then(Pins::of_this_process)
    }

    /// Whether anything of a region is armed.
    pub fn has_armed(&self, name: &str) -> bool {
        self.by_name.get(name).is_some_and(|watch| watch.armed().next().is_some())
    }

    /// Returns the pages of a region to compare with `old`, and those that are in `ahead`; `None`:
    /// compare all. Begins to watch the region, if it is not watched yet and can be.
    ///
    /// # Safety
    /// The location must be mapped memory of the program.
    #[allow(unsafe_code)]
    pub unsafe fn look(
        &mut self,
        name: &str,
        place: RegionSpan,
        old: Option<&PageHashes>,
        bytes: &[u8],
        ahead: Option<&mut Ahead>,
        threads: usize,
    ) -> Option<FreezePages> {
        let tracker = self.tracker.clone()?;
        if let Some(watch) = self.by_name.get_mut(name) {
            let Some(old) = old else {
                // Writes that are not collected now stay noted until they are.
                watch.pass(&mut self.patience);
                return None;
            };
            match watch.collect(&*tracker, old, bytes, ahead, &mut self.patience, threads) {
                Ok(pages) => return Some(pages),
                Err(_) => self.drop_watch(name),
            }
        }
        // SAFETY: passed on to the caller.
        let begun = unsafe { self.watch(&*tracker, place) };
        let watch = match begun {
            Ok(watch) => self.by_name.entry(name.to_owned()).insert_entry(watch).into_mut(),
            Err(Refusal(why)) => {
                *self.refused.entry(why).or_default() += place.length as u64;
                return None;
            }
        };
        // All of it is compared now. Blocks that are quiet already need no second comparison.
        let look = watch.collect(&*tracker, old?, bytes, None, &mut self.patience, threads);
        if look.is_err() {
            self.drop_watch(name);
        }
        look.ok()
    }

    /// Begins to watch a region.
    ///
    /// # Errors
    /// Reason why it cannot be watched.
    ///
    /// # Safety
    /// As [`PageTracker::watch`].
    #[allow(unsafe_code)]
    // SAFETY (of callers): see above.
    unsafe fn watch(
        &self,
        tracker: &dyn PageTracker,
        place: RegionSpan,
    ) -> Result<RegionWatch, Refusal> {
        if place.length < WATCHED_FROM_BYTES {
            return Err(Refusal(format!("smaller than {} KiB", WATCHED_FROM_BYTES >> 10)));
        }
        if self.by_name.len() >= WATCHES_MAX {
            return Err(Refusal(format!("more than {WATCHES_MAX} regions")));
        }
        let pinned =
            self.pins().zip(place.inner()).and_then(|(pins, inner)| pins.incomplete(inner));
        if let Some(why) = pinned {
            return Err(Refusal(why));
        }
        // SAFETY: passed on to the caller.
        unsafe { RegionWatch::begin(tracker, place, self.dense_pages) }
    }

    /// Passes a region's changes to its watch.
    pub fn compared(&mut self, name: &str, diff: &Diff) {
        let Some(tracker) = self.tracker.clone() else { return };
        let Some(watch) = self.by_name.get_mut(name) else { return };
        if watch.compared(&*tracker, diff).is_err() {
            self.drop_watch(name);
        }
    }

    /// Commits the findings of the last freeze. Memory that was armed only while the image was
    /// persisted, and is hardly written, stays armed. It is as it was when it was frozen, so the
    /// next freeze need not compare it.
    pub fn settle(&mut self) {
        let guarded = ahead::union(&std::mem::take(&mut self.guarded), &[]);
        let forked = std::mem::take(&mut self.forked);
        self.end_guard();
        if let Some(tracker) = &self.tracker {
            for watch in self.by_name.values_mut() {
                let inner = watch.inner();
                let first = guarded.partition_point(|area| area.end <= inner.start);
                let end = guarded.partition_point(|area| area.start < inner.end);
                let areas = ahead::clip(&guarded[first..end], &[inner]);
                watch.keep_armed(&**tracker, &areas, &forked);
            }
        }
        self.by_name.values_mut().for_each(RegionWatch::settle);
    }

    /// Returns a block to be collapsed, and the tracker that does it ([`RegionWatch::next_split`]).
    pub fn next_split(&mut self) -> Option<(Arc<dyn PageTracker>, Pages)> {
        let tracker = self.tracker.as_ref()?;
        let block = self.by_name.values_mut().find_map(RegionWatch::next_split)?;
        Some((Arc::clone(tracker), block))
    }

    /// Notes that a block was not collapsed: after the next commit it may work.
    pub fn is_still_split(&mut self, block: Pages) {
        self.by_name.values_mut().for_each(|watch| watch.is_still_split(block));
    }

    /// Returns the watch of a region.
    #[cfg(test)]
    pub fn watch_of(&self, name: &str) -> &RegionWatch {
        &self.by_name[name]
    }

    fn drop_watch(&mut self, name: &str) {
        self.end_guard();
        if let (Some(watch), Some(tracker)) = (self.by_name.remove(name), &self.tracker) {
            tracker.unwatch(watch.inner());
        }
    }

    /// Bytes whose writes are noted page by page.
    pub fn armed_bytes(&self) -> usize {
        self.by_name
            .values()
            .flat_map(RegionWatch::armed)
            .map(|pages| pages.end - pages.start)
            .sum()
    }

    /// Returns the tracker, and the memory that it has armed, for copying ahead.
    pub fn armed(&self) -> Option<(Arc<dyn PageTracker>, Vec<Pages>)> {
        Some((self.tracker.clone()?, self.by_name.values().flat_map(RegionWatch::armed).collect()))
    }

    /// Describes for people how changes are found.
    pub fn report(&self) -> String {
        let Some(tracker) = &self.tracker else { return TrackerKind::Hash.to_string() };
        let watched: usize = self.by_name.values().map(|watch| watch.place.length).sum();
        let armed = self.armed_bytes();
        let mut text = format!(
            "{}: {watched} bytes, {armed} of them page by page and the rest by hash",
            tracker.kind()
        );
        for (why, bytes) in &self.refused {
            text += &format!("; hash: {bytes} bytes ({why})");
        }
        text
    }
}

/// Returns the blocks of a part that hold any of these addresses (sorted, disjoint), neighbours
/// joined: to arm part of a huge page would split it.
fn blocks_of(addresses: &[Range<usize>], part: Pages) -> Vec<Pages> {
    let first = addresses.partition_point(|range| range.end <= part.start);
    let mut blocks: Vec<Pages> = Vec::new();
    for range in addresses[first..].iter().take_while(|range| range.start < part.end) {
        let start = (range.start / BLOCK_BYTES * BLOCK_BYTES).max(part.start);
        let end = range.end.next_multiple_of(BLOCK_BYTES).min(part.end);
        match blocks.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => blocks.push(Pages { start, end }),
        }
    }
    blocks
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.clear();
    }
}
