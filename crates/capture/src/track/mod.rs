//! Finds written pages without reading them: one trait, and the kernel mechanisms behind it.
//!
//! A tracker handles *hardware pages*, by address. Regions are cut into pages from their first byte
//! on, at any address. [`crate::ChangeTracker`] translates and filters.

#![allow(unsafe_code)] // a caller must own the memory that is tracked

mod claims;
mod maps;
mod owned;
mod pins;
mod probe;
mod sys;
mod wp_async;

pub(crate) use claims::holder;
pub use outlive_types::{TrackerChoice, TrackerKind};
pub use owned::OwnedPages;
pub(crate) use pins::Pins;
pub use probe::{Costs, Probed, probe};
pub(crate) use probe::{OpenTracker, open};
pub use wp_async::WpAsync;

use std::fmt;

/// Adjacent hardware pages: addresses, multiples of 4096, `start` below `end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Pages {
    /// Address of the first byte.
    pub start: usize,
    /// Address after the last byte.
    pub end: usize,
}

impl Pages {
    /// Number of pages.
    pub fn count(&self) -> usize {
        (self.end - self.start) / outlive_types::PAGE_BYTES
    }
}

/// Reason why memory cannot be tracked, or why the state of tracked memory is lost. The caller must
/// then treat every page as written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Treatment of collected pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// Arms the written ones again, in the same pass: no write between the two is missed.
    Rearm,
    /// Leaves them unchanged.
    Leave,
}

/// A mechanism that notes which armed pages were written. It may be called from any thread; calls
/// for overlapping pages must not run at once.
///
/// The invariant: if a write to a page completes after `arm` (or a `collect` with [`Then::Rearm`])
/// has returned, the next `collect` of that page reports it or refuses. That holds whatever wrote
/// it, in whatever way. Pages that were not written may be reported as well.
pub trait PageTracker: Send + Sync + fmt::Debug {
    /// Returns the kind of this tracker.
    fn kind(&self) -> TrackerKind;

    /// Sets the job that uses it, for the message to others that want the same memory. Call it
    /// before anything is watched.
    fn serve(&self, _job: &str) {}

    /// Begins to watch memory; no page of it is armed yet.
    ///
    /// # Errors
    /// Reason why it cannot be tracked: shared, file-backed, unmapped, watched by another tracker,
    /// too many pieces.
    ///
    /// # Safety
    /// The pages must be the caller's memory, mapped, and not be unmapped while the call runs.
    unsafe fn watch(&self, pages: Pages) -> Result<(), Refusal>;

    /// Releases memory, which is wholly writable again. It may be unmapped already.
    fn unwatch(&self, pages: Pages);

    /// Arms watched pages. From the return on, writes are noted.
    ///
    /// # Errors
    /// Reason why they are not armed (all of them, or some).
    fn arm(&self, pages: Pages) -> Result<(), Refusal>;

    /// Appends the watched pages that were written since they were armed, sorted, with an unwritten
    /// page between any two entries. Pages that are not armed count as written.
    ///
    /// # Errors
    /// The memory was unmapped, moved or newly mapped meanwhile: treat all of it as written, and
    /// watch it again.
    fn collect(&self, pages: Pages, then: Then, written: &mut Vec<Pages>) -> Result<(), Refusal>;

    /// Makes watched pages writable without a note: they are not armed any more.
    ///
    /// # Errors
    /// Reason why they may still be armed.
    fn disarm(&self, pages: Pages) -> Result<(), Refusal>;

    /// Appends the watched pages without content, never touched or dropped (`MADV_DONTNEED`): they
    /// read as zeros. To drop a page is no write, so `collect` may not report it.
    ///
    /// # Errors
    /// As [`PageTracker::collect`].
    fn absent(&self, pages: Pages, absent: &mut Vec<Pages>) -> Result<(), Refusal>;

    /// Returns for the page at each of these addresses whether it is certainly in memory; `None` if
    /// that cannot be found out at once. Much quicker than [`PageTracker::absent`] for each.
    fn present(&self, _: &[usize]) -> Option<Vec<bool>> {
        None
    }

    /// Whether [`PageTracker::shared`] and [`PageTracker::untouched`] work.
    fn tells_untouched(&self) -> bool {
        false
    }

    /// Appends those of the watched pages, sorted and joined, that are in memory, armed, and the
    /// same page as in a forked child. Changes nothing, so several calls may run at once.
    ///
    /// # Errors
    /// This tracker does not know.
    fn shared(&self, _: Pages, _: &mut Vec<Pages>) -> Result<(), Refusal> {
        Err(Refusal("this tracker does not tell what is shared".into()))
    }

    /// Appends those of the watched pages, sorted and joined, that still have the content they had
    /// when they were armed. They were neither written through a page table nor dropped since, and
    /// are in memory. Changes nothing, so several calls may run at once.
    ///
    /// # Errors
    /// This tracker does not know, or the memory was unmapped, moved or newly mapped meanwhile.
    fn untouched(&self, _: Pages, _: &mut Vec<Pages>) -> Result<(), Refusal> {
        Err(Refusal("this tracker does not tell what stayed".into()))
    }

    /// Whether the pages, a block, are one huge page at present. An estimate: only speed depends on
    /// it.
    fn is_huge(&self, _: Pages) -> bool {
        false
    }

    /// Makes a block that is not armed one huge page, if the system allows it. False if it may do
    /// so later.
    fn collapse(&self, _: Pages) -> bool {
        true
    }
}
