//! State that the signal handler reads and updates: the watched ranges, and a bit for each page.
//!
//! The handler may run in any thread at any instruction, so it takes no lock and allocates nothing.
//! A thread that changes the table holds [`lock`], publishes with atomics, and frees memory only
//! after [`Table::synchronize`]. All memory that the handler writes lies in mappings of its own. If
//! one of these pages were armed, the handler itself would fault, which ends the process.

use super::super::Refusal;
use outlive_types::{BLOCK_BYTES, BLOCK_PAGES, PAGE_BYTES};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

/// Most ranges that can be watched at a time. The handler searches those in use.
pub(super) const SLOTS: usize = 1024;
/// Number of entries for retried faults; a thread uses the one of its number modulo this.
const RETRIES: usize = 64;

/// A watched range. All zero: free.
#[repr(C, align(64))]
pub(super) struct Slot {
    /// False while the slot is free; published last.
    live: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    /// A bit for each page, set if it counts as written; then as many bits for the control side.
    words: AtomicPtr<AtomicU64>,
    /// Number of forks that lead to the process that watched the range.
    pub generation: AtomicU32,
    /// True once pages became writable that may not have been noted.
    pub lost: AtomicBool,
    /// Most pages that a fault opens: 1, or more if runs grow.
    run_pages_max: AtomicUsize,
    /// End of the last run, and its length: pages.
    run_end: AtomicUsize,
    run_pages: AtomicUsize,
    /// Number of the tracker that watches it.
    pub owner: AtomicUsize,
}

/// The ranges, and counts over all of them. All zero: none.
#[repr(C)]
pub(super) struct Table {
    slots: [Slot; SLOTS],
    /// Slots from this one on were never used.
    used: AtomicUsize,
    /// Handlers count themselves in `readers[phase % 2]`.
    phase: AtomicUsize,
    readers: [AtomicUsize; 2],
    /// Number of protection changes between adjacent pages, over all ranges: each costs a mapping.
    /// It is too low by at most the number of running handlers.
    pub borders: AtomicIsize,
    /// Number of borders from which faults open whole blocks.
    pub borders_max: AtomicIsize,
    retries: [AtomicUsize; RETRIES],
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(null_mut());
/// Forks since the table was made that lead to this process.
pub(super) static GENERATION: AtomicU32 = AtomicU32::new(0);
static LOCKED: AtomicBool = AtomicBool::new(false);

/// Held by a thread that changes the table.
pub(super) struct Guard(());

/// Waits for the table. Not a mutex: a fork must be able to take it before and release it after, in
/// the child as well.
pub(super) fn lock() -> Guard {
    take();
    Guard(())
}

impl Drop for Guard {
    fn drop(&mut self) {
        LOCKED.store(false, Release);
    }
}

fn take() {
    let mut tries = 0u32;
    while LOCKED.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
        tries += 1;
        match tries {
            ..100 => std::hint::spin_loop(),
            100..200 => std::thread::yield_now(),
            _ => std::thread::sleep(std::time::Duration::from_micros(50)),
        }
    }
}

extern "C" fn before_fork() {
    take();
}

extern "C" fn after_fork() {
    LOCKED.store(false, Release);
}

/// Resets the state: the child has one thread, so no handler runs and no thread tracks.
extern "C" fn after_fork_in_child() {
    GENERATION.fetch_add(1, SeqCst);
    if let Some(table) = table() {
        table.readers.iter().for_each(|readers| readers.store(0, SeqCst));
    }
    after_fork();
}

/// Returns the table, if there ever was a watched range.
pub(super) fn table() -> Option<&'static Table> {
    // SAFETY: a published pointer points to a `Table` that is never unmapped.
    unsafe { TABLE.load(Acquire).as_ref() }
}

/// Returns the table, which is made on first use.
pub(super) fn table_or_make(_: &Guard) -> Result<&'static Table, Refusal> {
    if let Some(table) = table() {
        return Ok(table);
    }
    let made = map(size_of::<Table>())?.cast::<Table>();
    // SAFETY: the functions have the required type and stay where they are. They do only what is
    // allowed between fork and its return: atomics, and waiting for a thread that does not wait for
    // this one.
    let error = unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child))
    };
    if error != 0 {
        return Err(Refusal(format!("forks cannot be followed (pthread_atfork: error {error})")));
    }
    TABLE.store(made, Release);
    Ok(table().expect("it was stored just now"))
}

/// Maps fresh zero bytes in pages of their own.
fn map(bytes: usize) -> Result<*mut u8, Refusal> {
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice changes no existing one.
    let start = unsafe { mmap_anonymous(null_mut(), bytes, rights, flags) };
    let refuse = |e| Refusal(format!("{bytes} bytes for the notes of written pages: {e}"));
    Ok(start.map_err(refuse)?.cast())
}

impl Table {
    /// Counts a handler in; pass the result to [`Table::leave`].
    pub fn enter(&self) -> usize {
        loop {
            let phase = self.phase.load(SeqCst);
            self.readers[phase % 2].fetch_add(1, SeqCst);
            if self.phase.load(SeqCst) == phase {
                return phase % 2;
            }
            self.readers[phase % 2].fetch_sub(1, SeqCst);
        }
    }

    /// Counts a handler out.
    pub fn leave(&self, phase: usize) {
        self.readers[phase].fetch_sub(1, SeqCst);
    }

    /// Waits until all handlers that have entered by now have left. Later ones use the other count,
    /// so that this ends even if faults continue.
    pub fn synchronize(&self, _: &Guard) {
        let before = self.phase.fetch_add(1, SeqCst) % 2;
        let mut tries = 0u32;
        while self.readers[before].load(SeqCst) != 0 {
            tries += 1;
            if tries < 100 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    /// Returns the slots that hold a range. For handlers between `enter` and `leave`, or under the
    /// lock.
    pub fn watched(&self) -> impl Iterator<Item = &Slot> {
        let used = &self.slots[..self.used.load(Acquire)];
        used.iter().filter(|slot| slot.live.load(Acquire))
    }

    /// Returns the range that holds `address`; called as above.
    pub fn find(&self, address: usize) -> Option<&Slot> {
        self.watched().find(|slot| slot.start() <= address && address < slot.end())
    }

    /// Publishes a range whose pages all count as written.
    pub fn insert(
        &self,
        _: &Guard,
        (start, end): (usize, usize),
        owner: usize,
        run_pages_max: usize,
    ) -> Result<(), Refusal> {
        let number = self.slots.iter().position(|slot| !slot.live.load(Acquire));
        let number = number.ok_or_else(|| {
            Refusal(format!("mprotect watches {SLOTS} ranges already, and cannot take more"))
        })?;
        let slot = &self.slots[number];
        let words = map(2 * words_of(start, end) * size_of::<AtomicU64>())?;
        slot.words.store(words.cast(), Relaxed);
        slot.start.store(start, Relaxed);
        slot.end.store(end, Relaxed);
        slot.generation.store(GENERATION.load(SeqCst), Relaxed);
        slot.lost.store(false, Relaxed);
        slot.run_pages_max.store(run_pages_max, Relaxed);
        slot.forget_run();
        slot.owner.store(owner, Relaxed);
        slot.note(0, slot.count());
        slot.live.store(true, SeqCst);
        self.used.fetch_max(number + 1, SeqCst);
        Ok(())
    }

    /// Removes a range. Its pages are writable.
    pub fn remove(&self, guard: &Guard, slot: &Slot) {
        slot.live.store(false, SeqCst);
        self.synchronize(guard);
        let bytes = 2 * words_of(slot.start(), slot.end()) * size_of::<AtomicU64>();
        // SAFETY: `insert` mapped exactly this. The slot is not found any more, and handlers that
        // had found it have left.
        let _ = unsafe { munmap(slot.words.load(Relaxed).cast(), bytes) };
    }

    /// Counts the borders.
    pub fn count_borders(&self, _: &Guard) -> isize {
        let borders = self.watched().map(Slot::borders).sum();
        self.borders.store(borders, SeqCst);
        borders
    }

    /// False if this thread's last retried fault was at `address` as well.
    pub fn try_again(&self, thread: u32, address: usize) -> bool {
        self.retries[thread as usize % RETRIES].swap(address, SeqCst) != address
    }
}

/// Number of words with a bit for each page.
fn words_of(start: usize, end: usize) -> usize {
    ((end - start) / PAGE_BYTES).div_ceil(64)
}

/// Returns the word and bits of pages `first..end`, word by word.
fn masks(first: usize, end: usize) -> impl Iterator<Item = (usize, u64)> {
    (first / 64..end.div_ceil(64)).map(move |word| {
        let from = first.saturating_sub(word * 64);
        let to = (end - word * 64).min(64);
        (word, (u64::MAX << from) & (u64::MAX >> (64 - to)))
    })
}

impl Slot {
    pub fn start(&self) -> usize {
        self.start.load(Relaxed)
    }

    pub fn end(&self) -> usize {
        self.end.load(Relaxed)
    }

    /// Number of pages.
    pub fn count(&self) -> usize {
        (self.end() - self.start()) / PAGE_BYTES
    }

    fn all_words(&self) -> &[AtomicU64] {
        let words = self.words.load(Relaxed);
        // SAFETY: `insert` mapped this number of words, zeroed, and only `remove` unmaps them.
        // After that, only a holder of the lock finds the slot, and it knows that the slot is free.
        unsafe { std::slice::from_raw_parts(words, 2 * words_of(self.start(), self.end())) }
    }

    /// A bit for each page, set if it counts as written. A page without its bit is armed.
    pub fn written(&self) -> &[AtomicU64] {
        &self.all_words()[..words_of(self.start(), self.end())]
    }

    /// A bit for each page, set if it had memory of its own when it was armed. The handler does not
    /// change these.
    pub fn own(&self) -> &[AtomicU64] {
        &self.all_words()[words_of(self.start(), self.end())..]
    }

    /// True if page `page` counts as written, as does every page outside.
    fn is_written(&self, page: usize) -> bool {
        page >= self.count() || self.written()[page / 64].load(SeqCst) >> (page % 64) & 1 == 1
    }

    /// Notes pages as written.
    pub fn note(&self, first: usize, end: usize) {
        let words = self.written();
        masks(first, end).for_each(|(word, mask)| _ = words[word].fetch_or(mask, SeqCst));
    }

    /// Clears the notes of pages and returns them: for each word its number, the bits of the pages,
    /// and those that were set.
    pub fn take(&self, first: usize, end: usize) -> Vec<(usize, u64, u64)> {
        let words = self.written();
        masks(first, end)
            .map(|(word, mask)| (word, mask, words[word].fetch_and(!mask, SeqCst) & mask))
            .collect()
    }

    /// Returns the notes of pages: for each word its number, their bits, and those that are set.
    pub fn noted(&self, first: usize, end: usize) -> Vec<(usize, u64, u64)> {
        let words = self.written();
        masks(first, end)
            .map(|(word, mask)| (word, mask, words[word].load(SeqCst) & mask))
            .collect()
    }

    /// True if any page is armed of those that lie in `start..end`, addresses within the range.
    pub fn has_armed(&self, start: usize, end: usize) -> bool {
        let page = |address: usize| (address - self.start()) / PAGE_BYTES;
        let words = self.written();
        masks(page(start), page(end)).any(|(word, mask)| words[word].load(SeqCst) & mask != mask)
    }

    /// Restarts the counting of runs.
    pub fn forget_run(&self) {
        self.run_pages.store(0, Relaxed);
        self.run_end.store(usize::MAX / 2, Relaxed);
    }

    /// Number of protection changes between adjacent pages.
    pub fn borders(&self) -> isize {
        let mut before = 1;
        let mut borders = 0;
        let count = self.count();
        for (number, word) in self.written().iter().enumerate() {
            let mut bits = word.load(Relaxed);
            if count < (number + 1) * 64 {
                bits |= u64::MAX << (count % 64); // pages after the end are writable
            }
            borders += (bits ^ (bits << 1 | before)).count_ones() as isize;
            before = bits >> 63;
        }
        borders + isize::from(before == 0)
    }

    /// Handles a first write to the page at `address`, which is in the range: allows it and notes
    /// it. False if that is impossible.
    pub fn fault(&self, table: &Table, address: usize) -> bool {
        let page = (address - self.start()) / PAGE_BYTES;
        let (first, end) = if self.generation.load(Relaxed) != GENERATION.load(Relaxed) {
            (0, self.count()) // no thread tracks it on this side of the fork
        } else if table.borders.load(Relaxed) >= table.borders_max.load(Relaxed) {
            let block = address & !(BLOCK_BYTES - 1);
            let first = block.saturating_sub(self.start()) / PAGE_BYTES;
            let end = (block.saturating_add(BLOCK_BYTES)).min(self.end()) - self.start();
            (first, end / PAGE_BYTES)
        } else {
            (page, (page + self.next_run(page)).min(self.count()))
        };
        if self.open(table, first, end) {
            return true;
        }
        // Most likely there are too many mappings. A single protection for all of it needs the
        // fewest. It may have changed only in part, so none of it counts as known.
        let all = self.open(table, 0, self.count());
        self.lost.store(true, SeqCst);
        self.note(0, self.count());
        all
    }

    /// Makes pages writable, then notes them. A collection waits for handlers that have begun, so
    /// it finds the note of every write in between.
    fn open(&self, table: &Table, first: usize, end: usize) -> bool {
        let start = (self.start() + first * PAGE_BYTES) as *mut _;
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range is watched, so it is or was the program's memory: private, and readable
        // and writable except for our own `mprotect`. This restores what we took.
        if unsafe { mprotect(start, (end - first) * PAGE_BYTES, flags) }.is_err() {
            return false;
        }
        let borders = if end - first <= BLOCK_PAGES {
            let inner = |page| isize::from(self.is_written(page) != self.is_written(page + 1));
            let before: isize = (first..end - 1).map(inner).sum();
            // At the ends, a border goes where the neighbour is writable, and one comes where it is
            // not.
            let edge = |page: usize, neighbour| match (self.is_written(page), neighbour) {
                (true, _) => 0,
                (false, true) => -1,
                (false, false) => 1,
            };
            let left = first == 0 || self.is_written(first - 1);
            edge(first, left) + edge(end - 1, self.is_written(end)) - before
        } else {
            2 // at most; the next collection counts again
        };
        table.borders.fetch_add(borders, Relaxed);
        self.note(first, end);
        true
    }

    /// Returns the number of pages to open from `page` on. Runs grow: a fault where the last run
    /// ended, or within the same distance behind it, doubles the run. Elsewhere a run begins with
    /// one page (ACCK: Shi et al., "Application-Based Coarse-Grained Incremental Checkpointing").
    fn next_run(&self, page: usize) -> usize {
        let most = self.run_pages_max.load(Relaxed);
        if most <= 1 {
            return 1;
        }
        let (last, run) = (self.run_end.load(Relaxed), self.run_pages.load(Relaxed));
        let near = page >= last && page - last <= run;
        let run = if near { (2 * run).clamp(1, most) } else { 1 };
        self.run_pages.store(run, Relaxed);
        self.run_end.store(page + run, Relaxed);
        run
    }
}
