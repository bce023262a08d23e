//! Pages copied in the background before the freeze, once they are no longer being written.
//!
//! A page is armed, then copied; at the freeze a last collection finds the pages written meanwhile.
//! A copy counts if its page was not written after it was armed. So the program stands only for
//! that collection and for pages that are still hot. (The rounds are those of virtual machines'
//! migration: Clark et al., "Live Migration of Virtual Machines", 2005.)
//!
//! The program may write or unmap a page while it is copied. Rust code may not read such memory,
//! not even to discard the bytes: that is a data race, or a fault. So the kernel copies it, by
//! `process_vm_writev` to our own process. A page written in that moment may be torn. But then it
//! was written after it was armed, and the copy does not count. An unmapped page gives an error and
//! no signal.

use crate::fork::read_own;
use crate::track::{PageTracker, Pages, Refusal, Then};
use outlive_io::AlignedBuf;
use outlive_types::sync::plain::{Condvar, Mutex};
use outlive_types::{BLOCK_BYTES, PAGE_BYTES};
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Pages copied in one call.
const BATCH_PAGES: usize = 16;
/// Pages in one buffer of copies.
const BUFFER_PAGES: usize = BLOCK_BYTES / PAGE_BYTES;

/// Pages written since the baseline, and copies of those that are no longer written.
#[derive(Debug, Default)]
pub struct Ahead {
    /// Watched memory, sorted and disjoint.
    areas: Vec<Pages>,
    /// All pages written since the baseline.
    written: Vec<Pages>,
    /// Pages written, but not in the last round: armed since before it, and to be copied.
    waiting: Vec<Pages>,
    /// Pages written in the last round.
    hot: Vec<Pages>,
    /// Slot of each copied page in the buffers, by address.
    copies: HashMap<usize, u32>,
    /// Slots that are free again.
    free: Vec<u32>,
    /// Number of slots that were ever used.
    used: u32,
    places_max: u32,
    buffers: Vec<AlignedBuf>,
}

impl Ahead {
    /// Begins without copies. The tracker watches `areas`, which were armed when the baseline was
    /// frozen; `written` lists pages collected since. Copies take at most `bytes_max`. The buffers
    /// of `old` are reused.
    pub fn new(areas: &[Pages], written: &[Pages], bytes_max: u64, old: Ahead) -> Ahead {
        let places_max = u32::try_from(bytes_max / PAGE_BYTES as u64).unwrap_or(u32::MAX);
        let mut buffers = old.buffers;
        buffers.truncate((places_max as usize).div_ceil(BUFFER_PAGES));
        let written = clip(&union(written, &[]), &union(areas, &[]));
        Ahead {
            areas: union(areas, &[]),
            // They were armed when they were collected, so they may be copied after one more round.
            hot: written.clone(),
            written,
            places_max,
            buffers,
            ..Ahead::default()
        }
    }

    /// Collects the pages written since the last round, arms them again, and copies those that were
    /// written before and not since. Ends early when `is_over` returns true.
    ///
    /// # Errors
    /// The tracker's refusal. Then all areas count as written, and nothing as copied.
    pub fn round(
        &mut self,
        tracker: &dyn PageTracker,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), Refusal> {
        self.look(tracker)?;
        let waiting = std::mem::take(&mut self.waiting);
        let mut left = Vec::new();
        for pages in waiting {
            let mut at = pages.start;
            while at < pages.end {
                let end = pages.end.min(at + BATCH_PAGES * PAGE_BYTES);
                let done = if is_over() { at } else { self.copy(Pages { start: at, end }) };
                if done < end {
                    left.push(Pages { start: done, end: pages.end });
                    break;
                }
                at = end;
            }
        }
        self.waiting = left;
        Ok(())
    }

    /// Collects for the last time: the program stands from before this call until the image is
    /// frozen.
    ///
    /// # Errors
    /// As [`Ahead::round`].
    pub fn finish(&mut self, tracker: &dyn PageTracker) -> Result<(), Refusal> {
        self.look(tracker)
    }

    /// Pages written since the baseline, sorted, with an unwritten one between any two entries.
    pub fn written(&self) -> &[Pages] {
        &self.written
    }

    /// Returns the copy of the page at `address`, a multiple of 4096; valid after
    /// [`Ahead::finish`].
    pub fn page(&self, address: usize) -> Option<&[u8]> {
        let place = *self.copies.get(&address)? as usize;
        let buffer = self.buffers.get(place / BUFFER_PAGES)?;
        buffer.get(place % BUFFER_PAGES * PAGE_BYTES..)?.get(..PAGE_BYTES)
    }

    /// Discards the copies of these pages, which were written after the last collection.
    pub(crate) fn outdate(&mut self, written: &[Pages]) {
        for pages in written {
            for address in (pages.start..pages.end).step_by(PAGE_BYTES) {
                if let Some(place) = self.copies.remove(&address) {
                    self.free.push(place);
                }
            }
        }
    }

    /// Returns the pages of `within` that were written since the baseline, sorted and disjoint.
    pub(crate) fn written_in(&self, within: Pages) -> Vec<Pages> {
        clip(&self.written, &[within])
    }

    /// Returns the pages of `within` whose copies count; in no order.
    pub(crate) fn copied(&self, within: Pages) -> impl Iterator<Item = Pages> {
        let addresses = self.copies.keys().copied();
        let inside = addresses.filter(move |at| (within.start..within.end).contains(at));
        inside.map(|start| Pages { start, end: start + PAGE_BYTES })
    }

    /// Bytes of copies that count.
    pub fn copied_bytes(&self) -> u64 {
        (self.copies.len() * PAGE_BYTES) as u64
    }

    /// True if a round now could copy something.
    fn has_work(&self) -> bool {
        !self.hot.is_empty() || (!self.waiting.is_empty() && self.has_place())
    }

    fn look(&mut self, tracker: &dyn PageTracker) -> Result<(), Refusal> {
        let mut now = Vec::new();
        for area in &self.areas {
            if let Err(refusal) = tracker.collect(*area, Then::Rearm, &mut now) {
                self.written = self.areas.clone();
                (self.waiting, self.hot) = (Vec::new(), Vec::new());
                (self.copies, self.free, self.used) = (HashMap::new(), Vec::new(), 0);
                return Err(refusal);
            }
        }
        let now = union(&now, &[]);
        // Copies of written pages do not count any more.
        self.outdate(&now);
        let hot = std::mem::take(&mut self.hot);
        self.waiting = subtract(&union(&self.waiting, &hot), &now);
        self.written = union(&self.written, &now);
        self.hot = now;
        Ok(())
    }

    /// Copies some pages, at most a batch. Returns the address where it ended for lack of slots.
    fn copy(&mut self, pages: Pages) -> usize {
        let mut batch = [0; BATCH_PAGES * PAGE_BYTES];
        let bytes = &mut batch[..pages.end - pages.start];
        if read_own(pages.start, bytes).is_err() {
            // The memory is no longer mapped: nothing is copied, and the tracker will report it.
            return pages.end;
        }
        for (page, address) in
            bytes.chunks(PAGE_BYTES).zip((pages.start..pages.end).step_by(PAGE_BYTES))
        {
            let Some(place) = self.place() else { return address };
            let buffer = &mut self.buffers[place as usize / BUFFER_PAGES];
            buffer[place as usize % BUFFER_PAGES * PAGE_BYTES..][..PAGE_BYTES]
                .copy_from_slice(page);
            self.copies.insert(address, place);
        }
        pages.end
    }

    fn has_place(&self) -> bool {
        !self.free.is_empty() || self.used < self.places_max
    }

    fn place(&mut self) -> Option<u32> {
        if let Some(place) = self.free.pop() {
            return Some(place);
        }
        if self.used == self.places_max {
            return None;
        }
        let place = self.used;
        self.used += 1;
        if self.buffers.len() <= place as usize / BUFFER_PAGES {
            self.buffers.push(AlignedBuf::not_inherited(BLOCK_BYTES));
        }
        Some(place)
    }
}

/// A thread that runs rounds between two saves.
#[derive(Debug)]
pub struct AheadThread {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<Ahead>>,
    tracker: Arc<dyn PageTracker>,
    process_id: u32,
    /// Number of completed rounds.
    #[cfg(test)]
    rounds: Arc<std::sync::atomic::AtomicU64>,
}

/// Pause between two rounds: the shortest, and the longest, which it reaches while there is nothing
/// to copy. Each round costs the program a fault for each page that it writes again.
const ROUND_MIN: Duration = Duration::from_millis(50);
const ROUND_MAX: Duration = Duration::from_secs(1);

impl AheadThread {
    /// Starts the rounds. The memory of the areas may change or be unmapped at any time.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(tracker: Arc<dyn PageTracker>, mut ahead: Ahead) -> Result<AheadThread, Refusal> {
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let (seen, looked_at) = (Arc::clone(&over), Arc::clone(&tracker));
        #[cfg(test)]
        let rounds: Arc<std::sync::atomic::AtomicU64> = Arc::default();
        #[cfg(test)]
        let done = Arc::clone(&rounds);
        let thread = std::thread::Builder::new()
            .name("outlive-ahead".to_owned())
            .spawn(move || {
                let (lock, changed) = &*seen;
                let held = || lock.lock();
                let is_over = || *held();
                let mut pause = ROUND_MIN;
                loop {
                    // The lock is free again before the round, which looks at the flag, too.
                    let is_ending = *changed.wait_timeout_while(held(), pause, |over| !*over).0;
                    if is_ending || ahead.round(&*looked_at, &is_over).is_err() {
                        return ahead;
                    }
                    #[cfg(test)]
                    done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    pause = if ahead.has_work() { ROUND_MIN } else { (pause * 2).min(ROUND_MAX) };
                }
            })
            .map_err(|error| Refusal(format!("no thread could be started: {error}")))?;
        let process_id = std::process::id();
        Ok(AheadThread {
            over,
            thread: Some(thread),
            tracker,
            process_id,
            #[cfg(test)]
            rounds,
        })
    }

    /// Returns the number of completed rounds; `None` if there will be no more.
    #[cfg(test)]
    pub fn rounds(&self) -> Option<u64> {
        let lives = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        lives.then(|| self.rounds.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// Ends the rounds while the program stands, and collects for the last time.
    ///
    /// # Errors
    /// As [`Ahead::round`]: it is unknown which pages were written.
    pub fn stop(mut self) -> Result<Ahead, Refusal> {
        let joined = self.join();
        let lost = || Refusal("the thread that copies ahead has ended".to_owned());
        let mut ahead = joined.ok_or_else(lost)?;
        ahead.finish(&*self.tracker)?;
        Ok(ahead)
    }

    fn join(&mut self) -> Option<Ahead> {
        let thread = self.thread.take()?;
        if self.process_id != std::process::id() {
            // A process that the program forked has no such thread.
            return None;
        }
        *self.over.0.lock() = true;
        self.over.1.notify_all();
        thread.join().ok()
    }
}

impl Drop for AheadThread {
    fn drop(&mut self) {
        self.join();
    }
}

/// Returns all pages of both, sorted and disjoint. The arguments may be in any order.
pub(crate) fn union(one: &[Pages], other: &[Pages]) -> Vec<Pages> {
    let mut all: Vec<Pages> = one.iter().chain(other).copied().collect();
    all.sort_unstable();
    let mut joined: Vec<Pages> = Vec::with_capacity(all.len());
    for pages in all {
        match joined.last_mut() {
            Some(last) if pages.start <= last.end => last.end = last.end.max(pages.end),
            _ => joined.push(pages),
        }
    }
    joined
}

/// Returns the pages of `from` that are not in `other`; both sorted and disjoint.
fn subtract(from: &[Pages], other: &[Pages]) -> Vec<Pages> {
    let mut left = Vec::new();
    let mut others = other.iter().peekable();
    for pages in from {
        let mut start = pages.start;
        while let Some(next) = others.peek() {
            if next.start >= pages.end {
                break;
            }
            if next.start > start {
                left.push(Pages { start, end: next.start });
            }
            start = start.max(next.end);
            if next.end > pages.end {
                break;
            }
            others.next();
        }
        if start < pages.end {
            left.push(Pages { start, end: pages.end });
        }
    }
    left
}

/// Returns the pages of `from` that are in `within`; both sorted and disjoint.
pub(crate) fn clip(from: &[Pages], within: &[Pages]) -> Vec<Pages> {
    subtract(from, &subtract(from, within))
}

#[cfg(test)]
pub(crate) mod tests;
