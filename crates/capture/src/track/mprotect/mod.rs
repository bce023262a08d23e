//! mprotect and SIGSEGV: armed pages are read-only; a handler notes the first write to each and
//! then allows it (libckpt: Plank, Beck, Kingsley, Li, 1995).
//!
//! It works on any kernel and costs a signal for each first write. It is chosen only on request,
//! since it can harm a program that does nothing wrong; `docs/capture.md` says how.

mod handler;
mod maps;
mod pagemap;
mod table;

use super::{PageTracker, Pages, Refusal, Then, TrackerKind, claims};
use maps::Mapping;
use outlive_types::PAGE_BYTES;
use pagemap::{Backing, Pagemap};
use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use table::{GENERATION, Guard, Slot, Table, lock, table_or_make};

/// The tracker. Its ranges are released when it is dropped.
#[derive(Debug)]
pub struct Mprotect {
    /// Number that distinguishes it from other trackers of this kind.
    owner: usize,
    claims: claims::Owner,
    /// Number of forks that lead to the process that made it.
    generation: u32,
    run_pages_max: usize,
    /// `None`: the backing of pages is not checked.
    pagemap: Option<Pagemap>,
    mappings_max: usize,
}

/// The part of a request that lies in one watched range: pages of the slot.
struct SlotRange<'a> {
    slot: &'a Slot,
    first: usize,
    end: usize,
}

impl SlotRange<'_> {
    fn pages(&self) -> Pages {
        let address = |page| self.slot.start() + page * PAGE_BYTES;
        Pages { start: address(self.first), end: address(self.end) }
    }
}

/// Words of a bitmap: the number, the requested bits, and those of them that are set.
type Words = Vec<(usize, u64, u64)>;

impl Mprotect {
    /// Returns a tracker that watches nothing yet.
    ///
    /// # Errors
    /// The machine's pages are not of 4 KiB, or `/proc/self/pagemap` is not available.
    pub fn new() -> Result<Mprotect, Refusal> {
        Mprotect::with(1, Some(Pagemap::open()?))
    }

    /// Returns a tracker as published, for comparisons: it does not check whether memory was
    /// unmapped, newly mapped or dropped. A fault next to the last one opens twice as many pages as
    /// that did, up to `run_pages_max`, which then count as written (1: one page for each fault).
    ///
    /// # Errors
    /// The machine's pages are not of 4 KiB.
    pub fn bare(run_pages_max: usize) -> Result<Mprotect, Refusal> {
        Mprotect::with(run_pages_max, None)
    }

    fn with(run_pages_max: usize, pagemap: Option<Pagemap>) -> Result<Mprotect, Refusal> {
        static OWNERS: AtomicUsize = AtomicUsize::new(1);
        if rustix::param::page_size() != PAGE_BYTES {
            let bytes = rustix::param::page_size();
            return Err(Refusal(format!("this machine's pages have {bytes} bytes, not 4096")));
        }
        Ok(Mprotect {
            owner: OWNERS.fetch_add(1, Relaxed),
            claims: claims::Owner::new(TrackerKind::Mprotect),
            generation: GENERATION.load(SeqCst),
            run_pages_max,
            pagemap,
            mappings_max: maps::most(),
        })
    }

    /// Takes the lock, if this process may use the tracker at all.
    fn begin(&self) -> Result<(Guard, &'static Table), Refusal> {
        let guard = lock();
        if self.generation != GENERATION.load(SeqCst) {
            return Err(Refusal(
                "the tracker belongs to the process that this one forked from".into(),
            ));
        }
        let table = table_or_make(&guard)?;
        Ok((guard, table))
    }

    /// Returns the watched ranges that make up `pages`.
    fn parts(
        &self,
        table: &'static Table,
        pages: Pages,
    ) -> Result<Vec<SlotRange<'static>>, Refusal> {
        check_pages(pages)?;
        let mut slots: Vec<&Slot> = table
            .watched()
            .filter(|slot| slot.start() < pages.end && slot.end() > pages.start)
            .filter(|slot| slot.owner.load(Relaxed) == self.owner)
            .filter(|slot| slot.generation.load(Relaxed) == self.generation)
            .collect();
        slots.sort_unstable_by_key(|slot| slot.start());
        let mut next = pages.start;
        let mut parts = Vec::with_capacity(slots.len());
        for slot in slots {
            if slot.start() > next {
                break;
            }
            let (from, end) = (slot.start(), slot.end().min(pages.end));
            let page = |address: usize| (address - from) / PAGE_BYTES;
            parts.push(SlotRange { slot, first: page(next), end: page(end) });
            next = end;
        }
        if next < pages.end {
            return Err(Refusal(format!("memory at {next:#x} is not watched by this tracker")));
        }
        Ok(parts)
    }

    /// Makes pages read-only whose notes were just cleared (`taken`), and learns how they are
    /// backed. If it fails they all count as written.
    fn protect(&self, part: &SlotRange<'_>, taken: &Words) -> Result<(), Refusal> {
        let pages = part.pages();
        let done = protect(pages, MprotectFlags::READ);
        let done = done.and_then(|()| self.learn_backing(part, taken));
        if done.is_err() {
            part.slot.note(part.first, part.end);
        }
        done
    }

    /// Records which of the pages that were just armed (set in `taken`) have memory of their own.
    /// Of pages that were armed before, notes those that have lost theirs. `MADV_DONTNEED` and the
    /// like make them zero without a visible write.
    fn learn_backing(&self, part: &SlotRange<'_>, taken: &Words) -> Result<(), Refusal> {
        let Some(pagemap) = &self.pagemap else { return Ok(()) };
        let (slot, first) = (part.slot, part.first);
        let first_word = first / 64;
        pagemap.each(part.pages(), |number, backing| {
            let page = first + number;
            let (word, bit) = (page / 64, 1 << (page % 64));
            let was_own = slot.own()[word].load(Relaxed) & bit != 0;
            let armed_now = taken[word - first_word].2 & bit != 0;
            let own = backing == Backing::Own;
            if armed_now || was_own && !own {
                if own {
                    slot.own()[word].fetch_or(bit, Relaxed);
                } else {
                    slot.own()[word].fetch_and(!bit, Relaxed);
                }
            }
            // A page that is common and not zero is shared with a forked process. If it is later
            // dropped and reads as zeros, that is invisible, so it always counts as written.
            let shared = armed_now && backing == Backing::Common && !is_zero(slot, page);
            if shared || !armed_now && was_own && !own {
                slot.note(page, page + 1);
            }
        })
    }

    /// Refuses if the memory of `parts` is not as watched: private, without a file, and read-only
    /// where it is armed. Also updates how many more mappings the program may have.
    fn check_mappings(
        &self,
        guard: &Guard,
        table: &Table,
        pages: Pages,
        parts: &[SlotRange<'_>],
    ) -> Result<(), Refusal> {
        if self.pagemap.is_none() {
            return Ok(());
        }
        let mappings = self.mappings(guard, table, pages)?;
        check_covered(pages, &mappings)?;
        let suspect = |mapping: &&Mapping| mapping.write;
        let armed = |mapping: &Mapping| {
            let holds = |part: &&SlotRange<'_>| {
                let at = part.pages();
                at.start < mapping.end && at.end > mapping.start
            };
            let mut parts = parts.iter().filter(holds);
            parts.find_map(|part| {
                let at = part.pages();
                let (start, end) = (at.start.max(mapping.start), at.end.min(mapping.end));
                part.slot.has_armed(start, end).then_some(start)
            })
        };
        let mut writable: Vec<&Mapping> = mappings.iter().filter(suspect).collect();
        writable.retain(|mapping| armed(mapping).is_some());
        if !writable.is_empty() {
            // A handler makes pages writable before it notes them: wait for that.
            table.synchronize(guard);
        }
        match writable.iter().find_map(|mapping| armed(mapping)) {
            None => Ok(()),
            Some(start) => Err(Refusal(format!(
                "memory at {start:#x} was made writable or mapped again while it was tracked"
            ))),
        }
    }

    /// Returns the mappings of `pages`.
    fn mappings(
        &self,
        guard: &Guard,
        table: &Table,
        pages: Pages,
    ) -> Result<Vec<Mapping>, Refusal> {
        let refuse = |e| Refusal(format!("/proc/self/maps cannot be read ({e})"));
        let (count, mappings) = maps::within(pages.start, pages.end).map_err(refuse)?;
        let others = (count as isize - table.count_borders(guard)).max(0);
        // Half of the rest is for the program.
        table.borders_max.store((self.mappings_max as isize - others) / 2, SeqCst);
        Ok(mappings)
    }

    /// Appends the pages that are backed by nothing.
    fn push_absent(&self, pages: Pages, absent: &mut Vec<Pages>) -> Result<(), Refusal> {
        let Some(pagemap) = &self.pagemap else { return Ok(()) };
        pagemap.each(pages, |number, backing| {
            let start = pages.start + number * PAGE_BYTES;
            match absent.last_mut() {
                _ if backing != Backing::Nothing => {}
                Some(last) if last.end == start => last.end += PAGE_BYTES,
                _ => absent.push(Pages { start, end: start + PAGE_BYTES }),
            }
        })
    }

    /// Releases a range.
    fn release(&self, guard: &Guard, table: &Table, slot: &Slot) {
        let pages = Pages { start: slot.start(), end: slot.end() };
        // Only pages that are still ours: another mapping may be in the place of an unmapped one.
        let mappings = maps::within(pages.start, pages.end).map_or(Vec::new(), |(_, found)| found);
        for mapping in mappings.iter().filter(|m| m.is_data() && !m.write) {
            let pages = Pages { start: mapping.start, end: mapping.end };
            let _ = protect(pages, MprotectFlags::READ | MprotectFlags::WRITE);
        }
        table.remove(guard, slot);
        self.claims.release(pages);
    }
}

impl PageTracker for Mprotect {
    fn kind(&self) -> TrackerKind {
        TrackerKind::Mprotect
    }

    fn serve(&self, job: &str) {
        self.claims.serve(job);
    }

    // SAFETY (of callers): as [`PageTracker::watch`] demands.
    unsafe fn watch(&self, pages: Pages) -> Result<(), Refusal> {
        check_pages(pages)?;
        let (guard, table) = self.begin()?;
        handler::install(&guard)?;
        let here = (&raw const guard).addr();
        if pages.start <= here && here < pages.end {
            return Err(Refusal("this thread's stack cannot be tracked by mprotect".into()));
        }
        let overlaps = |slot: &&Slot| slot.start() < pages.end && slot.end() > pages.start;
        let overlapping: Vec<&Slot> = table.watched().filter(overlaps).collect();
        for slot in overlapping {
            // In a forked child the parent's ranges are free; ranges watched here are refused
            // below.
            if slot.generation.load(Relaxed) != self.generation {
                self.release(&guard, table, slot);
            }
        }
        let mappings = self.mappings(&guard, table, pages)?;
        check_covered(pages, &mappings)?;
        if let Some(mapping) = mappings.iter().find(|mapping| !mapping.write) {
            let start = mapping.start;
            return Err(Refusal(format!("memory at {start:#x} is read-only")));
        }
        self.claims.claim(pages)?;
        mappings.iter().for_each(|mapping| touch(mapping.start));
        let inserted =
            table.insert(&guard, (pages.start, pages.end), self.owner, self.run_pages_max);
        inserted.inspect_err(|_| self.claims.release(pages))
    }

    fn unwatch(&self, pages: Pages) {
        let Ok((guard, table)) = self.begin() else { return };
        let ours = |slot: &&Slot| {
            slot.start() < pages.end
                && slot.end() > pages.start
                && slot.owner.load(Relaxed) == self.owner
        };
        let slots: Vec<&Slot> = table.watched().filter(ours).collect();
        slots.into_iter().for_each(|slot| self.release(&guard, table, slot));
    }

    fn arm(&self, pages: Pages) -> Result<(), Refusal> {
        let (guard, table) = self.begin()?;
        handler::check()?;
        let parts = self.parts(table, pages)?;
        self.check_mappings(&guard, table, pages, &parts)?;
        for part in &parts {
            part.slot.forget_run();
            let mut taken = part.slot.take(part.first, part.end);
            // All of their backing is learnt again, whatever was noted of them.
            taken.iter_mut().for_each(|(_, mask, set)| *set = *mask);
            self.protect(part, &taken)?;
        }
        table.count_borders(&guard);
        Ok(())
    }

    fn collect(&self, pages: Pages, then: Then, written: &mut Vec<Pages>) -> Result<(), Refusal> {
        let (guard, table) = self.begin()?;
        handler::check()?;
        let parts = self.parts(table, pages)?;
        if let Some(part) = parts.iter().find(|part| part.slot.lost.load(SeqCst)) {
            let start = part.slot.start();
            return Err(Refusal(format!(
                "memory at {start:#x} could not be kept in order: the process has too many mappings"
            )));
        }
        // Writes that were allowed before this call are noted by the handlers that allowed them.
        table.synchronize(&guard);
        self.check_mappings(&guard, table, pages, &parts)?;
        for part in &parts {
            let range = part.pages();
            let taken = match then {
                Then::Rearm => {
                    part.slot.forget_run();
                    let taken = part.slot.take(part.first, part.end);
                    self.protect(part, &taken)?;
                    // Pages that have lost their memory were noted meanwhile, and stay noted.
                    merged(taken, part.slot.noted(part.first, part.end))
                }
                Then::Leave => {
                    let none: Words = part.slot.noted(part.first, part.end);
                    let none = none.into_iter().map(|(word, mask, _)| (word, mask, 0)).collect();
                    self.learn_backing(part, &none)?;
                    part.slot.noted(part.first, part.end)
                }
            };
            push_runs(range.start, part.first, &taken, written);
        }
        table.count_borders(&guard);
        Ok(())
    }

    fn disarm(&self, pages: Pages) -> Result<(), Refusal> {
        let (guard, table) = self.begin()?;
        for part in self.parts(table, pages)? {
            part.slot.note(part.first, part.end);
            protect(part.pages(), MprotectFlags::READ | MprotectFlags::WRITE)?;
        }
        table.count_borders(&guard);
        Ok(())
    }

    fn absent(&self, pages: Pages, absent: &mut Vec<Pages>) -> Result<(), Refusal> {
        let (_guard, table) = self.begin()?;
        self.parts(table, pages)?;
        self.push_absent(pages, absent)
    }
}

impl Drop for Mprotect {
    fn drop(&mut self) {
        self.unwatch(Pages { start: 0, end: usize::MAX });
    }
}

/// Refuses a range that is not whole pages.
fn check_pages(pages: Pages) -> Result<(), Refusal> {
    let Pages { start, end } = pages;
    let whole = start.is_multiple_of(PAGE_BYTES) && end.is_multiple_of(PAGE_BYTES);
    if whole && 0 < start && start < end && isize::try_from(end - start).is_ok() {
        return Ok(());
    }
    Err(Refusal(format!("{start:#x} to {end:#x} are not whole pages")))
}

/// Refuses mappings that are not data, or that do not cover `pages`.
fn check_covered(pages: Pages, mappings: &[Mapping]) -> Result<(), Refusal> {
    let mut next = pages.start;
    for mapping in mappings {
        if mapping.start > next {
            break;
        }
        if !mapping.is_data() {
            let why = if mapping.plain {
                "is not readable data"
            } else {
                "is shared, belongs to a file, or is the kernel's"
            };
            return Err(Refusal(format!("memory at {:#x} {why}", mapping.start)));
        }
        next = mapping.end;
    }
    if next < pages.end {
        return Err(Refusal(format!("memory at {next:#x} is not mapped")));
    }
    Ok(())
}

/// Changes the rights of watched pages.
fn protect(pages: Pages, flags: MprotectFlags) -> Result<(), Refusal> {
    let Pages { start, end } = pages;
    // SAFETY: the pages are watched, and the caller of `watch` promised that it owns them. It asked
    // for the loss of the right to write: the handler restores that.
    let done = unsafe { mprotect(start as *mut _, end - start, flags) };
    done.map_err(|e| match e {
        Errno::NOMEM => Refusal(format!(
            "memory from {start:#x} to {end:#x} is not wholly mapped, or the process has too many \
             mappings (vm.max_map_count)"
        )),
        e => Refusal(format!("memory from {start:#x} to {end:#x} cannot be protected ({e})")),
    })
}

/// Gives a mapping its first page of memory. If it is split before it has a page, the kernel never
/// joins the parts again, since each gets its own record of the owners of its pages.
fn touch(start: usize) {
    // SAFETY: the first word of a page that is mapped and writable, and whose owner promised that
    // it stays so. It is atomically exchanged for itself, even if another thread writes there at
    // the same time. (The compiler would make a mere read of an addition of nothing.)
    let word = unsafe { &*(start as *const AtomicU64) };
    let mut value = word.load(SeqCst);
    while let Err(other) = word.compare_exchange(value, value, SeqCst, SeqCst) {
        value = other;
    }
}

/// True if a watched page holds only zeros.
fn is_zero(slot: &Slot, page: usize) -> bool {
    let words = (slot.start() + page * PAGE_BYTES) as *const u64;
    // SAFETY: the page is mapped and readable (checked before it was protected), and aligned. The
    // program may write it at the same time. Volatile reads of whole words accept any value, and
    // the handler notes a written page whatever is found here.
    (0..PAGE_BYTES / 8).all(|word| unsafe { words.add(word).read_volatile() } == 0)
}

/// Returns the bits that are set in either; of the same words.
fn merged(a: Words, b: Words) -> Words {
    a.into_iter().zip(b).map(|((word, mask, a), (_, _, b))| (word, mask, a | b)).collect()
}

/// Appends the runs of set bits. Page `first` is at `start`.
fn push_runs(start: usize, first: usize, words: &Words, runs: &mut Vec<Pages>) {
    let address = |page: usize| start + (page - first) * PAGE_BYTES;
    for (word, _, set) in words {
        let (mut bits, mut page) = (*set, word * 64);
        while bits != 0 {
            let skip = bits.trailing_zeros() as usize;
            let length = (!(bits >> skip)).trailing_zeros() as usize;
            let (from, to) = (address(page + skip), address(page + skip + length));
            match runs.last_mut() {
                Some(last) if last.end == from => last.end = to,
                _ => runs.push(Pages { start: from, end: to }),
            }
            page += skip + length;
            bits = if skip + length == 64 { 0 } else { bits >> (skip + length) };
        }
    }
}
