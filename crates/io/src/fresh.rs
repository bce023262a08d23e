//! Fresh memory in huge or in 4 KiB pages: whichever kind measures faster on this machine.
//!
//! On bare metal the first touch of memory costs far less in huge pages. In a virtual machine that
//! reports its free pages to the host, each huge page must first come back from there, and may cost
//! several times as much. The cost depends on the other users of the host, and on the memory that
//! is left. No program can know it beforehand. So the first blocks are measured, and from time to
//! time a block of the other kind.
#![allow(unsafe_code)]

use crate::PerProcess;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{BLOCK_BYTES, PAGE_BYTES, shown_bytes};
use rustix::mm::{Advice, madvise};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kind of pages that back memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageKind {
    /// Pages of 4 KiB.
    Small,
    /// Pages of 2 MiB.
    Huge,
}

/// Factor by which the first touch of huge pages may cost more: programs run faster on them.
const HUGE_WORTH: f64 = 2.0;
/// Nanoseconds that a fork takes longer for a block in small pages: it copies 512 entries of a page
/// table instead of one. (100 ms more for 4 GiB.)
const FORK_NS: f64 = 50_000.0;
/// Number of forking saves that are charged to the memory of a program.
const FORKS: f64 = 20.0;
/// Blocks of each kind that are measured before small pages are preferred.
const REPEATED: usize = 3;
/// Blocks of the preferred kind between trials of the other kind: at first, and at most.
const TRY_AFTER: u32 = 16;
const TRY_AFTER_MAX: u32 = 512;
/// Samples kept of each kind. Their median counts, since a thread may be interrupted.
const SAMPLES: usize = 5;
/// Smallest memory that is measured; less memory uses the kind that is preferred already.
const MEASURED_FROM_BYTES: usize = 64 << 20;
/// Bytes of memory that are offered before the next measurement.
const MEASURED_FOR_BYTES: u64 = 256 << 20;

/// Costs of first touches so far in this process.
#[derive(Clone, Debug)]
struct TouchCosts {
    /// Nanoseconds for a block; small and huge pages.
    samples: [Vec<f64>; 2],
    /// Blocks taken since the last trial of the other kind.
    since: u32,
    try_after: u32,
    /// Bytes given out since the last measurement by [`offer`].
    offered_bytes: u64,
    /// Preference that was last reported.
    told: Option<PageKind>,
}

/// Costs known in this process. A forked child inherits them: it has the same mappings, and first
/// touches cost it the same.
static KNOWN: PerProcess<TouchCosts> = PerProcess::new(TouchCosts::inherit);
/// Memory that is [`Offered`]: length by address.
static OFFERED: PerProcess<BTreeMap<usize, usize>> =
    PerProcess::new(|old| old.cloned().unwrap_or_default());

impl TouchCosts {
    const fn new() -> TouchCosts {
        let samples = [Vec::new(), Vec::new()];
        TouchCosts { samples, since: 0, try_after: TRY_AFTER, offered_bytes: 0, told: None }
    }

    fn inherit(old: Option<&TouchCosts>) -> TouchCosts {
        old.cloned().unwrap_or_else(TouchCosts::new)
    }

    fn cost_ns(&self, kind: PageKind) -> Option<f64> {
        let mut sorted = self.samples[kind as usize].clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    /// Returns small pages only if each of several blocks in huge pages was expensive: a single one
    /// may have been interrupted.
    fn preferred(&self) -> PageKind {
        let [_, huge] = &self.samples;
        let least_ns = huge.iter().copied().fold(f64::INFINITY, f64::min);
        let is_repeated = self.samples.iter().all(|samples| samples.len() >= REPEATED);
        match self.cost_ns(PageKind::Small) {
            Some(small) if is_repeated && least_ns > HUGE_WORTH * small + FORKS * FORK_NS => {
                PageKind::Small
            }
            _ => PageKind::Huge,
        }
    }

    /// Chooses the kind of the next block: mostly the preferred one. True asks the caller to
    /// measure the block, even if it must touch all of it for that: the first blocks, and later one
    /// of each kind in turn.
    fn choose(&mut self) -> (PageKind, bool) {
        for kind in [PageKind::Huge, PageKind::Small] {
            if self.samples[kind as usize].len() < REPEATED {
                return (kind, true);
            }
        }
        let preferred = self.preferred();
        self.since += 1;
        if self.since <= self.try_after {
            return (preferred, self.since == 1);
        }
        self.since = 0;
        match preferred {
            PageKind::Small => (PageKind::Huge, true),
            PageKind::Huge => (PageKind::Small, true),
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
            // The trial did not change the preference.
            self.try_after = (self.try_after * 2).min(TRY_AFTER_MAX);
        }
    }

    /// Returns, after a measurement, the preference and its reason, unless that was reported
    /// before.
    fn news(&mut self) -> Option<String> {
        let preferred = self.preferred();
        let is_new = self.told.replace(preferred) != Some(preferred);
        is_new.then(|| self.text()).flatten()
    }

    /// Preference and its reason, for people; `None` before anything was measured.
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

/// Returns the preferred kind of pages and the reason: "huge pages, as measured (…)". `None` before
/// anything was measured.
pub fn told() -> Option<String> {
    KNOWN.lock().text()
}

/// Makes this process prefer a kind of pages, as if it had measured so; for tests.
#[doc(hidden)]
pub fn prefer(kind: PageKind) {
    let mut known = KNOWN.lock();
    for other in [PageKind::Small, PageKind::Huge] {
        known.samples[other as usize] = vec![if other == kind { 1.0 } else { 1e12 }; SAMPLES];
    }
}

/// Registration of a private anonymous mapping: restores into it choose its pages as long as this
/// value exists.
#[derive(Debug)]
pub struct Offered {
    memory: Range<usize>,
}

impl Drop for Offered {
    fn drop(&mut self) {
        OFFERED.lock().remove(&self.memory.start);
    }
}

/// Prepares memory that a program will use: asks for the pages that cost least, and measures some
/// blocks if the last measurement was long ago. Restores into the memory continue to measure. Also
/// returns the preference as text, if it has changed.
///
/// # Safety
/// The memory must be a private anonymous mapping that was never used. It must stay one, at the
/// same address, until the returned value is dropped. It may be offered only once.
pub unsafe fn offer(memory: Range<usize>) -> (Offered, Option<String>) {
    // SAFETY: passed on to the caller.
    let news = unsafe { settle(&memory) };
    OFFERED.lock().insert(memory.start, memory.len());
    (Offered { memory }, news)
}

/// # Safety
/// As [`offer`].
unsafe fn settle(memory: &Range<usize>) -> Option<String> {
    let inner = blocks_in(memory)?;
    let mut first = inner.start;
    let measure = {
        let mut known = KNOWN.lock();
        let never = known.samples.iter().any(|samples| samples.len() < REPEATED);
        let measure = inner.len() >= MEASURED_FROM_BYTES
            && (never || known.offered_bytes >= MEASURED_FOR_BYTES);
        known.offered_bytes = if measure { 0 } else { known.offered_bytes + inner.len() as u64 };
        measure
    };
    if measure {
        for kind in [PageKind::Huge, PageKind::Small].repeat(REPEATED) {
            let block = first..first + BLOCK_BYTES;
            // SAFETY: passed on to the caller.
            let took_ns = unsafe {
                advise(&block, kind);
                touch(&block)
            };
            if let Some(took_ns) = took_ns {
                KNOWN.lock().learn(kind, took_ns);
            }
            first = block.end;
        }
    }
    let mut known = KNOWN.lock();
    let preferred = known.preferred();
    // SAFETY: passed on to the caller.
    unsafe { advise(&(first..memory.end), preferred) };
    if measure { known.news() } else { None }
}

/// True if all of this range is [`Offered`].
pub fn is_offered(part: &Range<usize>) -> bool {
    let offered = OFFERED.lock();
    let before = offered.range(..=part.start).next_back();
    before.is_some_and(|(start, length)| part.end <= start + length)
}

/// Memory that is being filled, block by block.
#[derive(Debug)]
pub struct FreshMemory {
    inner: Range<usize>,
    known: &'static PerProcess<TouchCosts>,
    /// Kind of pages last requested from the kernel for all of it; `None` after `end`.
    asked: Mutex<Option<PageKind>>,
    /// A bit for each block that was used.
    used: Vec<AtomicU64>,
    /// Bytes that were touched, in small and in huge pages.
    touched: [AtomicU64; 2],
}

impl FreshMemory {
    /// Prepares the memory of a private anonymous mapping. `None` if it holds no whole block.
    ///
    /// # Safety
    /// It must stay mapped until [`FreshMemory::end`] has returned and no [`FreshMemory::take`] is
    /// running. If `end` is never called, it must stay mapped until the last call of `take` has
    /// returned.
    pub unsafe fn new(memory: &Range<usize>) -> Option<FreshMemory> {
        // SAFETY: passed on to the caller.
        unsafe { FreshMemory::by(&KNOWN, memory) }
    }

    /// # Safety
    /// As [`FreshMemory::new`].
    unsafe fn by(
        known: &'static PerProcess<TouchCosts>,
        memory: &Range<usize>,
    ) -> Option<FreshMemory> {
        let inner = blocks_in(memory)?;
        let asked = known.lock().preferred();
        // SAFETY: passed on to the caller.
        unsafe { advise(&inner, asked) };
        let blocks = inner.len() / BLOCK_BYTES;
        let used = (0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let (asked, touched) = (Mutex::new(Some(asked)), Default::default());
        Some(FreshMemory { inner, known, asked, used, touched })
    }

    /// Touches the blocks of a part that were not used yet, in the pages that cost least. Call it
    /// before the part is written. `whole`: touch all of each block. After `end` it does nothing.
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

    /// Learns the cost only from blocks of which no page was present: the others have no room for a
    /// huge page, and cost less.
    fn use_block(&self, block: Range<usize>, pages: Range<usize>, whole: bool) {
        let present = present_pages(&block);
        if present == BLOCK_PAGES || is_present(pages.start) {
            return;
        }
        let (kind, measure) = match present {
            0 => self.known.lock().choose(),
            _ => (PageKind::Small, false),
        };
        let is_all = whole || measure || kind == PageKind::Huge;
        let part = if is_all { block.clone() } else { pages };
        let preferred = self.known.lock().preferred();
        let other = present == 0 && kind != preferred;
        {
            let mut asked = self.asked();
            let Some(last) = *asked else { return };
            *asked = Some(preferred);
            // SAFETY: the creator of this value promised that the memory is mapped. `end` has not
            // happened, and cannot happen while `asked` is held. Advice changes none of the bytes.
            unsafe {
                if last != preferred {
                    advise(&self.inner, preferred);
                }
                if other {
                    advise(&block, kind);
                }
            }
        }
        // SAFETY: the memory is mapped, since a `take` is running. A first touch changes none of
        // the bytes.
        let took_ns = unsafe { touch(&part) };
        if other {
            // Advice of its own would split the block off as a separate mapping.
            let asked = self.asked();
            // SAFETY: as for the touch.
            unsafe { advise(&block, asked.unwrap_or(PageKind::Huge)) };
        }
        let bytes = part.len() as u64 - if is_all { (present * PAGE_BYTES) as u64 } else { 0 };
        self.touched[kind as usize].fetch_add(bytes, Ordering::Relaxed);
        if let Some(took_ns) = took_ns.filter(|_| is_all && present == 0) {
            self.known.lock().learn(kind, took_ns);
        }
    }

    /// Withdraws the refusal of huge pages, which was for the first touch only; to keep it would
    /// forbid them forever. For memory that stays; call it when all of it is filled. After the
    /// return this value never touches the memory, and a second call does nothing.
    pub fn end(&self) {
        let mut asked = self.asked();
        if asked.take() == Some(PageKind::Small) {
            // SAFETY: the creator of this value promised that the memory is mapped until the first
            // call of `end` has returned. This is the first, and a concurrent call waits for
            // `asked`.
            unsafe { advise(&self.inner, PageKind::Huge) };
        }
    }

    fn asked(&self) -> MutexGuard<'_, Option<PageKind>> {
        self.asked.lock()
    }

    /// Bytes of fresh memory that were touched, in small and in huge pages.
    pub fn touched(&self) -> [u64; 2] {
        self.touched.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))
    }
}

/// Describes the pages of fresh memory, for people. `touched` is a sum of [`FreshMemory::touched`].
/// `None` if there was no fresh memory.
pub fn report(touched: [u64; 2]) -> Option<String> {
    let [small, huge] = touched;
    if small + huge == 0 {
        return None;
    }
    let (small, huge) = (shown_bytes(small), shown_bytes(huge));
    let preferred = told().unwrap_or_else(|| "huge pages; nothing was measured".to_owned());
    Some(format!("fresh memory: {huge} in huge pages, {small} in 4 KiB pages; now {preferred}"))
}

/// Returns the whole blocks of some memory.
fn blocks_in(memory: &Range<usize>) -> Option<Range<usize>> {
    let start = memory.start.checked_next_multiple_of(BLOCK_BYTES)?;
    let end = memory.end / BLOCK_BYTES * BLOCK_BYTES;
    (start < end).then_some(start..end)
}

/// Asks for a kind of pages. The memory works even if the kernel refuses.
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

/// Touches fresh memory and returns the nanoseconds it took. Where the kernel cannot (before Linux
/// 5.14), touches nothing.
///
/// # Safety
/// The memory must be the caller's mapping.
unsafe fn touch(memory: &Range<usize>) -> Option<f64> {
    let start = ptr::with_exposed_provenance_mut(memory.start);
    // CPU time, not wall time, which on a busy machine also measures other programs. The host's
    // time to provide memory counts as this thread's CPU time.
    let started = clock_gettime(ClockId::ThreadCPUTime);
    // SAFETY: passed on to the caller; a first touch changes none of the bytes.
    unsafe { madvise(start, memory.len(), Advice::LinuxPopulateWrite) }.ok()?;
    let ended = clock_gettime(ClockId::ThreadCPUTime);
    Some((ended.tv_sec - started.tv_sec) as f64 * 1e9 + (ended.tv_nsec - started.tv_nsec) as f64)
}

const BLOCK_PAGES: usize = BLOCK_BYTES / PAGE_BYTES;

/// Number of pages of a block that are in memory; all if the kernel does not report them.
fn present_pages(block: &Range<usize>) -> usize {
    let mut found = [0u8; BLOCK_PAGES];
    let start = ptr::with_exposed_provenance_mut(block.start);
    // SAFETY: the kernel looks the addresses up, and writes a byte for each page.
    let asked = unsafe { libc::mincore(start, BLOCK_BYTES, found.as_mut_ptr()) };
    if asked != 0 { BLOCK_PAGES } else { found.iter().filter(|page| **page & 1 != 0).count() }
}

/// True if a page is in memory, or if the kernel does not report it.
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
    use crate::mapped::flags_at;

    #[test]
    fn the_cheaper_kind_is_taken_and_the_other_one_tried_at_times() {
        let mut known = TouchCosts::new();
        // Takes blocks on a machine where each kind has a given cost; the cost changes later.
        let run = |known: &mut TouchCosts, small: f64, huge: f64, blocks: usize| {
            let mut taken = [0; 2];
            for _ in 0..blocks {
                let (kind, _) = known.choose();
                taken[kind as usize] += 1;
                known.learn(kind, [small, huge][kind as usize]);
            }
            taken
        };
        assert_eq!((known.text(), known.news()), (None, None));
        let [small, huge] = run(&mut known, 1e6, 4e6, 2000);
        assert!(small > 1980 && huge >= 5, "{small} {huge}");
        let text = known.text().unwrap();
        assert_eq!(
            text.as_str(),
            "4 KiB pages, as measured (s/GiB of first touches: huge 2.05, 4 KiB 0.51)"
        );
        assert_eq!((known.news(), known.news()), (Some(text), None), "it is told once");
        let [small, huge] = run(&mut known, 1e6, 5e5, 4000);
        assert!(huge > 2000, "it is noticed: {small} {huge}");
        assert_eq!(known.preferred(), PageKind::Huge);
        // Huge pages have value of their own: to the program, and in its forks.
        run(&mut known, 1e6, 2.9e6, 4000);
        assert_eq!(known.preferred(), PageKind::Huge);
    }

    #[test]
    fn one_slow_block_decides_nothing() {
        let mut known = TouchCosts::new();
        for blocks in 0..4 {
            assert_eq!(known.preferred(), PageKind::Huge);
            known.learn(PageKind::Small, 1000.0);
            known.learn(PageKind::Huge, if blocks == 1 { 500.0 } else { 1e9 });
        }
        assert_eq!(known.preferred(), PageKind::Huge, "one was cheap");
        for blocks in 0..SAMPLES {
            assert_eq!(known.preferred() == PageKind::Small, blocks >= 3, "{blocks}");
            known.learn(PageKind::Huge, 1e9);
        }
    }

    #[test]
    fn taken_memory_is_there_and_zero() {
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

    /// A buffer's memory, with separate knowledge of costs.
    fn fresh(buffer: &AlignedBuf) -> (Range<usize>, FreshMemory) {
        let start = buffer.as_ptr().expose_provenance();
        let memory = start..start + buffer.len();
        let known = Box::leak(Box::new(PerProcess::new(TouchCosts::inherit)));
        // SAFETY: the buffer is a mapping of its own, and stays until the test ends.
        let fresh = unsafe { FreshMemory::by(known, &memory) }.unwrap();
        (memory, fresh)
    }

    /// Sets the costs as if blocks in huge pages had been expensive.
    fn dear_huge_pages(fresh: &FreshMemory) {
        let mut known = fresh.known.lock();
        *known = TouchCosts::new();
        known.samples = [vec![1.0; REPEATED], vec![1e12; REPEATED]];
    }

    #[test]
    fn only_blocks_that_were_wholly_fresh_teach_the_cost_of_a_block() {
        let mut buffer = AlignedBuf::zeroed(8 * BLOCK_BYTES);
        buffer[9 * PAGE_BYTES] = 1;
        let (memory, fresh) = fresh(&buffer);
        let block = |number: usize| memory.start + number * BLOCK_BYTES;
        let known = || fresh.known.lock().samples.each_ref().map(Vec::len);
        let present = |number: usize| present_pages(&(block(number)..block(number + 1)));
        assert!(present(0) > 0 && known() == [0, 0]);
        fresh.take(&(block(0)..block(0) + 5), true);
        assert_eq!(known(), [0, 0], "a part of it was there");
        // The first blocks of each kind are touched whole, whatever the caller asks for.
        fresh.take(&(block(1)..block(1) + 5), false);
        assert_eq!((known(), present(1)), ([0, 1], BLOCK_PAGES));
        fresh.known.lock().samples[PageKind::Huge as usize] = vec![1e12; REPEATED];
        fresh.take(&(block(2)..block(2) + 5), false);
        assert_eq!((known(), present(2)), ([1, REPEATED], BLOCK_PAGES));
        dear_huge_pages(&fresh);
        // One block of the preferred kind is whole, and the next ones only in part.
        fresh.take(&(block(3)..block(3) + 5), false);
        assert_eq!((known(), present(3)), ([REPEATED + 1, REPEATED], BLOCK_PAGES));
        fresh.take(&(block(4)..block(4) + 5), false);
        assert_eq!((known(), present(4)), ([REPEATED + 1, REPEATED], 1), "a part of it is touched");
    }

    #[test]
    fn huge_pages_are_allowed_again_at_the_end() {
        let buffer = AlignedBuf::zeroed(4 * BLOCK_BYTES);
        let (memory, fresh) = fresh(&buffer);
        dear_huge_pages(&fresh);
        fresh.take(&(memory.start..memory.start + BLOCK_BYTES), true);
        let flags = |block: usize| flags_at(memory.start + block * BLOCK_BYTES);
        assert!((0..4).all(|block| flags(block).contains(" nh")), "{}", flags(0));
        fresh.end();
        assert!((0..4).all(|block| flags(block).contains(" hg")), "{}", flags(0));
        // The memory may be unmapped now: it is touched no more.
        // SAFETY: the buffer is ours, and advice does not change its content.
        unsafe { advise(&memory, PageKind::Small) };
        fresh.end();
        let touched = fresh.touched();
        fresh.take(&(memory.start + BLOCK_BYTES..memory.end), true);
        assert!((0..4).all(|block| flags(block).contains(" nh")), "{}", flags(0));
        assert_eq!(fresh.touched(), touched);
    }

    #[test]
    fn offered_memory_is_known_until_it_is_taken_back() {
        let buffer = AlignedBuf::zeroed(MEASURED_FROM_BYTES + BLOCK_BYTES);
        let start = buffer.as_ptr().expose_provenance();
        let memory = start..start + buffer.len();
        // SAFETY: the buffer is a mapping of its own that was never used.
        let (offered, _) = unsafe { offer(memory.clone()) };
        assert!(told().is_some_and(|told| told.contains("s/GiB")), "it was measured");
        assert!(is_offered(&memory) && is_offered(&(start + 100..start + 200)));
        assert!(!is_offered(&(start..memory.end + 1)));
        drop(offered);
        assert!(!is_offered(&memory) && !is_offered(&(start + 100..start + 200)));
        assert!(buffer.iter().all(|byte| *byte == 0));
    }
}
