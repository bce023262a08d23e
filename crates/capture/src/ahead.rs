//! Pages copied before the freeze, in the background, once they have gone quiet.
//!
//! A page counts as copied if it was not written since it was armed before its copy was made: arm,
//! copy, and at the freeze a last look at what was written meanwhile. So the program stands only for
//! that look and for pages that are still hot. (The rounds are those of virtual machines' migration:
//! Clark et al., "Live Migration of Virtual Machines", 2005.)
//!
//! The program may write, or unmap, a page while it is copied. Rust code may not read such memory,
//! not even to throw the bytes away: that is a data race, or a fault. So the kernel copies it, by
//! `process_vm_writev` to our own process: what was written in that moment may come torn, but then it
//! was written after it was armed, and the copy does not count; what is not mapped is an error and no
//! signal.

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
/// Pages of one buffer of copies.
const BUFFER_PAGES: usize = BLOCK_BYTES / PAGE_BYTES;

/// What was written since the baseline, and copies of those pages that went quiet.
#[derive(Debug, Default)]
pub struct Ahead {
    /// Watched memory, sorted and apart.
    areas: Vec<Pages>,
    /// All pages written since the baseline.
    written: Vec<Pages>,
    /// Pages written, but not in the last round: armed since before it, and to be copied.
    waiting: Vec<Pages>,
    /// Pages written in the last round.
    hot: Vec<Pages>,
    /// For each copied page, by address, its place among the buffers.
    copies: HashMap<usize, u32>,
    /// Places that are free again.
    free: Vec<u32>,
    /// How many places have ever been used.
    used: u32,
    places_max: u32,
    buffers: Vec<AlignedBuf>,
}

impl Ahead {
    /// Begins with nothing copied. `areas` are watched by the tracker, and were armed when the
    /// baseline was frozen; `written` is what was collected since, if anything was. Copies take at
    /// most `bytes_max`. The buffers of `old` are used again.
    pub fn new(areas: &[Pages], written: &[Pages], bytes_max: u64, old: Ahead) -> Ahead {
        let places_max = u32::try_from(bytes_max / PAGE_BYTES as u64).unwrap_or(u32::MAX);
        let mut buffers = old.buffers;
        buffers.truncate((places_max as usize).div_ceil(BUFFER_PAGES));
        let written = clip(&union(written, &[]), &union(areas, &[]));
        Ahead {
            areas: union(areas, &[]),
            // Armed when it was collected, so it may be copied as soon as a round has passed.
            hot: written.clone(),
            written,
            places_max,
            buffers,
            ..Ahead::default()
        }
    }

    /// Looks what was written since the last round, arms it anew, and copies what was written before
    /// that and not since. Ends early when `is_over` says so.
    ///
    /// # Errors
    /// What the tracker refuses. Then all areas count as written, and nothing as copied.
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

    /// The last look: the program stands from before this call until the image is frozen.
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

    /// The copy of the page at `address`, a multiple of 4096; valid after [`Ahead::finish`].
    pub fn page(&self, address: usize) -> Option<&[u8]> {
        let place = *self.copies.get(&address)? as usize;
        let buffer = self.buffers.get(place / BUFFER_PAGES)?;
        buffer.get(place % BUFFER_PAGES * PAGE_BYTES..)?.get(..PAGE_BYTES)
    }

    /// Makes copies of these pages void: they were written after the last look.
    pub(crate) fn outdate(&mut self, written: &[Pages]) {
        for pages in written {
            for address in (pages.start..pages.end).step_by(PAGE_BYTES) {
                if let Some(place) = self.copies.remove(&address) {
                    self.free.push(place);
                }
            }
        }
    }

    /// The pages of `within` that were written since the baseline, sorted and apart.
    pub(crate) fn written_in(&self, within: Pages) -> Vec<Pages> {
        clip(&self.written, &[within])
    }

    /// Those of them whose copies count; in no order.
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
        // Copies of what was written do not count any more.
        self.outdate(&now);
        let hot = std::mem::take(&mut self.hot);
        self.waiting = subtract(&union(&self.waiting, &hot), &now);
        self.written = union(&self.written, &now);
        self.hot = now;
        Ok(())
    }

    /// Copies some pages, at most a batch. Answers where it ended: there was no place for more.
    fn copy(&mut self, pages: Pages) -> usize {
        let mut batch = [0; BATCH_PAGES * PAGE_BYTES];
        let bytes = &mut batch[..pages.end - pages.start];
        if read_own(pages.start, bytes).is_err() {
            // Not there any more: nothing of it is copied, and the tracker will say so.
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

/// Rounds in the background, between two saves.
#[derive(Debug)]
pub struct AheadThread {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<Ahead>>,
    tracker: Arc<dyn PageTracker>,
    process_id: u32,
    /// Rounds that are done.
    #[cfg(test)]
    rounds: Arc<std::sync::atomic::AtomicU64>,
}

/// Time from one round to the next: the least, and what it grows to while nothing is to be copied.
/// Each round costs the program a fault for each page that it writes anew.
const ROUND_MIN: Duration = Duration::from_millis(50);
const ROUND_MAX: Duration = Duration::from_secs(1);

impl AheadThread {
    /// Starts them. The memory of its areas may change, and go, at any time.
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
                    let waited = changed.wait_timeout_while(held(), pause, |over| !*over);
                    if *waited.0 || ahead.round(&*looked_at, &is_over).is_err() {
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

    /// How many rounds are done; `None` if there will be no more.
    #[cfg(test)]
    pub fn rounds(&self) -> Option<u64> {
        let lives = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        lives.then(|| self.rounds.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// Ends them, while the program stands, and takes the last look.
    ///
    /// # Errors
    /// As [`Ahead::round`]: nothing is known of what was written.
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

/// All pages of both, sorted and apart. Either may be in any order.
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

/// Pages of `from` that are not in `other`; both sorted and apart.
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

/// Pages of `from` that are in `within`; both sorted and apart.
pub(crate) fn clip(from: &[Pages], within: &[Pages]) -> Vec<Pages> {
    subtract(from, &subtract(from, within))
}

#[cfg(test)]
pub(crate) mod tests;
