//! Fresh memory in huge or in 4 KiB pages: whichever this machine gives sooner, as measured.
//!
//! On bare metal the first touch of memory costs far less in huge pages. In a virtual machine that
//! reports its free pages to the host, each huge page must first come back from there, and may cost
//! several times as much. It depends on what others do with the host, and on which memory is left. So
//! nobody can know it before: the first blocks are measured, and again and again one of the other kind.
#![allow(unsafe_code)]

use outlive_types::{BLOCK_BYTES, PAGE_BYTES, shown_bytes};
use rustix::mm::{Advice, madvise};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Which pages memory is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageKind {
    /// Of 4 KiB.
    Small,
    /// Of 2 MiB.
    Huge,
}

/// Huge pages are worth so much of their first touch: programs run faster on them, and forks cost less.
const HUGE_WORTH: f64 = 2.0;
/// Blocks of the preferred kind until one of the other kind is tried: at first, and at most.
const TRY_AFTER: u32 = 16;
const TRY_AFTER_MAX: u32 = 512;
/// Samples kept of each kind. Their median counts: a thread may be interrupted.
const SAMPLES: usize = 5;
/// Less memory than this follows what is known.
const MEASURED_FROM_BYTES: usize = 64 << 20;
/// Memory may be given out so much before it is measured anew.
const MEASURED_FOR_BYTES: u64 = 256 << 20;

/// What first touches have cost so far, in this process.
#[derive(Debug)]
struct Known {
    /// Nanoseconds for a block; small and huge pages.
    samples: [Vec<f64>; 2],
    /// Blocks taken since the other kind was tried.
    since: u32,
    try_after: u32,
    /// Bytes given out since the last measurement by [`offer`].
    offered_bytes: u64,
    /// What was told last.
    told: Option<PageKind>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known::new());
/// Memory that [`offer`] has been told of: length by address.
static OFFERED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

impl Known {
    const fn new() -> Known {
        let samples = [Vec::new(), Vec::new()];
        Known { samples, since: 0, try_after: TRY_AFTER, offered_bytes: 0, told: None }
    }

    fn cost_ns(&self, kind: PageKind) -> Option<f64> {
        let mut sorted = self.samples[kind as usize].clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    fn preferred(&self) -> PageKind {
        match [PageKind::Small, PageKind::Huge].map(|kind| self.cost_ns(kind)) {
            [Some(small), Some(huge)] if huge > HUGE_WORTH * small => PageKind::Small,
            _ => PageKind::Huge,
        }
    }

    /// The kind of the next block: mostly the preferred one.
    fn choose(&mut self) -> PageKind {
        for kind in [PageKind::Huge, PageKind::Small] {
            if self.samples[kind as usize].is_empty() {
                return kind;
            }
        }
        let preferred = self.preferred();
        self.since += 1;
        if self.since <= self.try_after {
            return preferred;
        }
        self.since = 0;
        match preferred {
            PageKind::Small => PageKind::Huge,
            PageKind::Huge => PageKind::Small,
        }
    }

    fn learn(&mut self, kind: PageKind, block_ns: f64) {
        let before = self.preferred();
        let samples = &mut self.samples[kind as usize];
        if samples.len() == SAMPLES {
            samples.remove(0);
        }
        samples.push(block_ns);
        if self.preferred() != before {
            self.try_after = TRY_AFTER;
        } else if kind != before {
            // It was tried in vain.
            self.try_after = (self.try_after * 2).min(TRY_AFTER_MAX);
        }
    }

    /// What is preferred, and why, for people; `None` as long as nothing is known.
    fn text(&self) -> Option<String> {
        let [small, huge] = [PageKind::Small, PageKind::Huge].map(|kind| self.cost_ns(kind));
        let s_per_gib = |block_ns: f64| block_ns / 1e9 * ((1 << 30) / BLOCK_BYTES) as f64;
        let (small, huge) = (s_per_gib(small?), s_per_gib(huge?));
        let name = match self.preferred() {
            PageKind::Small => "4 KiB",
            PageKind::Huge => "huge",
        };
        Some(format!(
            "{name} pages, as measured (s/GiB of first touches: huge {huge:.2}, 4 KiB {small:.2})"
        ))
    }
}

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn offered() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    OFFERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kind of pages that is preferred now, and what it is chosen by: "huge pages, as measured (…)";
/// `None` before anything was measured.
pub fn told() -> Option<String> {
    known().text()
}

/// Takes on memory that a program will use: asks for the pages that cost least, and measures some of
/// its blocks if that was not done for a while. Restores into it measure on. Answers what was chosen
/// if it is not what was chosen before.
///
/// # Safety
/// It must be a private anonymous mapping that nobody has used yet, and stay so during the call.
pub unsafe fn offer(memory: Range<usize>) -> Option<String> {
    let inner = blocks_in(&memory)?;
    {
        // What lay there before is gone.
        let mut offered = offered();
        let old = |(start, length): (&usize, &usize)| {
            (*start < memory.end && memory.start < start + length).then_some(*start)
        };
        let gone: Vec<usize> = offered.range(..memory.end).rev().map_while(old).collect();
        offered.retain(|start, _| !gone.contains(start));
        offered.insert(memory.start, memory.len());
    }
    let mut first = inner.start;
    let measure = {
        let mut known = known();
        let never = known.cost_ns(PageKind::Small).is_none();
        let measure = inner.len() >= MEASURED_FROM_BYTES
            && (never || known.offered_bytes >= MEASURED_FOR_BYTES);
        known.offered_bytes = if measure { 0 } else { known.offered_bytes + inner.len() as u64 };
        measure
    };
    if measure {
        for kind in [PageKind::Huge, PageKind::Small, PageKind::Huge, PageKind::Small] {
            let block = first..first + BLOCK_BYTES;
            // SAFETY: passed on to the caller.
            unsafe {
                advise(&block, kind);
                touch(&block, kind);
            }
            first = block.end;
        }
    }
    let mut known = known();
    let preferred = known.preferred();
    // SAFETY: passed on to the caller.
    unsafe { advise(&(first..memory.end), preferred) };
    let news = measure && known.told.replace(preferred) != Some(preferred);
    news.then(|| known.text()).flatten()
}

/// True if [`offer`] was told of memory that holds all of this.
pub fn is_offered(part: &Range<usize>) -> bool {
    let offered = offered();
    let before = offered.range(..=part.start).next_back();
    before.is_some_and(|(start, length)| part.end <= start + length)
}

/// Memory that somebody fills, block by block.
#[derive(Debug)]
pub struct FreshMemory {
    inner: Range<usize>,
    /// What the kernel was last asked for, for all of it.
    asked: Mutex<PageKind>,
    /// A bit for each block that was used.
    used: Vec<AtomicU64>,
    /// Bytes that were touched, in small and in huge pages.
    touched: [AtomicU64; 2],
}

impl FreshMemory {
    /// Memory of a mapping that is private and anonymous. `None` if it holds no whole block.
    ///
    /// # Safety
    /// It must stay mapped as long as this value is used.
    pub unsafe fn new(memory: &Range<usize>) -> Option<FreshMemory> {
        let inner = blocks_in(memory)?;
        let asked = known().preferred();
        // SAFETY: passed on to the caller.
        unsafe { advise(&inner, asked) };
        let blocks = inner.len() / BLOCK_BYTES;
        let used = (0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Some(FreshMemory { inner, asked: Mutex::new(asked), used, touched: Default::default() })
    }

    /// To be called before a part is written. What of it lies in a block that nobody has used yet is
    /// touched, in the pages that cost least; `whole`: all of the block.
    pub fn take(&self, part: &Range<usize>, whole: bool) {
        let mut at = part.start.max(self.inner.start);
        let end = part.end.min(self.inner.end);
        while at < end {
            let number = (at - self.inner.start) / BLOCK_BYTES;
            let start = self.inner.start + number * BLOCK_BYTES;
            let stop = (start + BLOCK_BYTES).min(end);
            let bit = 1 << (number % 64);
            if self.used[number / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0 {
                let pages = at / PAGE_BYTES * PAGE_BYTES..stop.next_multiple_of(PAGE_BYTES);
                self.use_block(start..start + BLOCK_BYTES, pages, whole);
            }
            at = stop;
        }
    }

    fn use_block(&self, block: Range<usize>, pages: Range<usize>, whole: bool) {
        if is_present(block.start) || is_present(pages.start) {
            return;
        }
        let (kind, preferred) = {
            let mut known = known();
            (known.choose(), known.preferred())
        };
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: whoever made this value promised that the memory is mapped. Advice and first touches
        // change none of its bytes.
        unsafe {
            if *asked != preferred {
                advise(&self.inner, preferred);
                *asked = preferred;
            }
            if kind != preferred {
                advise(&block, kind);
            }
        }
        drop(asked);
        let part = if whole || kind == PageKind::Huge { block } else { pages };
        self.touched[kind as usize].fetch_add(part.len() as u64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { touch(&part, kind) };
    }

    /// Bytes of it that were fresh and were touched, in small and in huge pages.
    pub fn touched(&self) -> [u64; 2] {
        self.touched.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))
    }
}

/// What fresh memory was made of ([`FreshMemory::touched`], added up), for people; `None` if there was
/// none.
pub fn report(touched: [u64; 2]) -> Option<String> {
    let [small, huge] = touched;
    if small + huge == 0 {
        return None;
    }
    let (small, huge) = (shown_bytes(small), shown_bytes(huge));
    let preferred = told().unwrap_or_else(|| "huge pages; nothing was measured".to_owned());
    Some(format!("fresh memory: {huge} in huge pages, {small} in 4 KiB pages; now {preferred}"))
}

/// The whole blocks of some memory.
fn blocks_in(memory: &Range<usize>) -> Option<Range<usize>> {
    let start = memory.start.checked_next_multiple_of(BLOCK_BYTES)?;
    let end = memory.end / BLOCK_BYTES * BLOCK_BYTES;
    (start < end).then_some(start..end)
}

/// Asks for a kind of pages; without that memory works as well.
///
/// # Safety
/// The memory must be the caller's mapping.
unsafe fn advise(memory: &Range<usize>, kind: PageKind) {
    let advice = match kind {
        PageKind::Small => Advice::LinuxNoHugepage,
        PageKind::Huge => Advice::LinuxHugepage,
    };
    let start = ptr::with_exposed_provenance_mut(memory.start);
    // SAFETY: passed on to the caller; advice changes none of the bytes.
    let _ = unsafe { madvise(start, memory.len(), advice) };
}

/// Touches fresh memory, and learns what that costs. Where the kernel cannot (before Linux 5.14) nothing
/// is touched, and nothing learnt.
///
/// # Safety
/// The memory must be the caller's mapping.
unsafe fn touch(memory: &Range<usize>, kind: PageKind) {
    let start = ptr::with_exposed_provenance_mut(memory.start);
    // Not the time of the clock: on a busy machine that says who else is busy. What the host takes to
    // give memory counts as this thread's.
    let started = clock_gettime(ClockId::ThreadCPUTime);
    // SAFETY: passed on to the caller; a first touch changes none of the bytes.
    if unsafe { madvise(start, memory.len(), Advice::LinuxPopulateWrite) }.is_ok() {
        let share = BLOCK_BYTES as f64 / memory.len() as f64;
        let ended = clock_gettime(ClockId::ThreadCPUTime);
        let ns =
            (ended.tv_sec - started.tv_sec) as f64 * 1e9 + (ended.tv_nsec - started.tv_nsec) as f64;
        known().learn(kind, ns * share);
    }
}

/// True if a page is in memory, or if the kernel does not say.
fn is_present(page: usize) -> bool {
    let mut found = [0u8];
    let start = ptr::with_exposed_provenance_mut(page);
    // SAFETY: the kernel looks the address up, and writes one byte.
    let asked = unsafe { libc::mincore(start, PAGE_BYTES, found.as_mut_ptr()) };
    asked != 0 || found[0] & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;

    #[test]
    fn the_cheaper_kind_is_taken_and_the_other_one_tried_at_times() {
        let mut known = Known::new();
        // What a machine makes of each kind; after a while of something else.
        let run = |known: &mut Known, small: f64, huge: f64, blocks: usize| {
            let mut taken = [0; 2];
            for _ in 0..blocks {
                let kind = known.choose();
                taken[kind as usize] += 1;
                known.learn(kind, [small, huge][kind as usize]);
            }
            taken
        };
        assert_eq!(known.text(), None);
        let [small, huge] = run(&mut known, 1000.0, 4000.0, 2000);
        assert!(small > 1980 && huge >= 5, "{small} {huge}");
        let text = known.text().unwrap();
        assert_eq!(
            text,
            "4 KiB pages, as measured (s/GiB of first touches: huge 0.00, 4 KiB 0.00)"
        );
        let [small, huge] = run(&mut known, 1000.0, 500.0, 4000);
        assert!(huge > 2000, "it is noticed: {small} {huge}");
        assert_eq!(known.preferred(), PageKind::Huge);
        // They are worth something.
        run(&mut known, 1000.0, 1900.0, 4000);
        assert_eq!(known.preferred(), PageKind::Huge);
    }

    #[test]
    fn one_slow_block_decides_nothing() {
        let mut known = Known::new();
        for _ in 0..4 {
            known.learn(PageKind::Small, 1000.0);
            known.learn(PageKind::Huge, 500.0);
        }
        known.learn(PageKind::Huge, 1e9);
        assert_eq!(known.preferred(), PageKind::Huge);
    }

    #[test]
    fn what_is_taken_is_there_and_zero() {
        let mut buffer = AlignedBuf::zeroed(20 * BLOCK_BYTES + 5 * PAGE_BYTES);
        let start = buffer.as_mut_ptr().expose_provenance();
        let memory = start..start + buffer.len();
        // SAFETY: the buffer is a mapping of its own, and stays until the test ends.
        let fresh = unsafe { FreshMemory::new(&memory) }.unwrap();
        assert_eq!((fresh.touched(), report(fresh.touched())), ([0, 0], None));
        buffer[3 * BLOCK_BYTES] = 7;
        let page = |block: usize| start + block * BLOCK_BYTES + 9 * PAGE_BYTES;
        assert!(!is_present(page(1)));
        fresh.take(&(page(1) + 5..page(1) + 6), true);
        fresh.take(&(page(3)..page(3) + 10), true);
        fresh.take(&(page(8)..page(19)), false);
        assert!((8..19).all(|block| is_present(page(block))) && is_present(page(1)));
        assert!(!is_present(page(7)) && !is_present(page(0)));
        let report = report(fresh.touched()).unwrap();
        assert!(report.starts_with("fresh memory: ") && report.contains("huge pages"), "{report}");
        assert!(told().is_some_and(|told| told.contains("as measured")));
        buffer[3 * BLOCK_BYTES] = 0;
        assert!(buffer.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_is_offered_is_known_until_something_else_lies_there() {
        let buffer = AlignedBuf::zeroed(MEASURED_FROM_BYTES + BLOCK_BYTES);
        let start = buffer.as_ptr().expose_provenance();
        let memory = start..start + buffer.len();
        // SAFETY: the buffer is a mapping of its own that nobody has used.
        let said = unsafe { offer(memory.clone()) };
        assert!(said.is_some_and(|said| said.contains("s/GiB")), "the first time it is told");
        assert!(is_offered(&memory) && is_offered(&(start + 100..start + 200)));
        assert!(!is_offered(&(start..memory.end + 1)));
        let half = start + 10 * BLOCK_BYTES;
        // SAFETY: as above; only what was measured is used.
        unsafe { offer(half..memory.end) };
        assert!(is_offered(&(half..memory.end)) && !is_offered(&(start..start + 100)));
        assert!(buffer.iter().all(|byte| *byte == 0));
    }
}
