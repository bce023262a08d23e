//! Finding written pages without reading them: one trait, and the mechanisms of the kernel that it is
//! made of.
//!
//! A tracker speaks of *hardware pages*, by address; regions are cut into pages from their first byte
//! on, wherever that lies. Who translates and filters is [`crate::ChangeTracker`].

#![allow(unsafe_code)] // a caller must own what it has tracked

mod claims;
mod maps;
mod mprotect;
mod owned;
mod pins;
mod probe;
mod sys;
mod wp_async;

pub(crate) use claims::holder;
pub use mprotect::Mprotect;
pub use outlive_types::{TrackerChoice, TrackerKind};
pub use owned::OwnedPages;
pub(crate) use pins::Pins;
pub use probe::{Costs, Probed, probe};
pub(crate) use probe::{OpenTracker, open};
pub use wp_async::WpAsync;

use std::fmt;

/// Hardware pages side by side: addresses, multiples of 4096, `start` below `end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Pages {
    /// Address of the first byte.
    pub start: usize,
    /// Address behind the last byte.
    pub end: usize,
}

impl Pages {
    /// How many.
    pub fn count(&self) -> usize {
        (self.end - self.start) / outlive_types::PAGE_BYTES
    }
}

/// Why memory cannot be tracked, or why what was tracked is not known any more. Whoever is told so
/// must take every page for written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What becomes of collected pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// The written ones are armed anew, in the same pass: no write between the two is missed.
    Rearm,
    /// They stay as they are.
    Leave,
}

/// A mechanism that notes which armed pages were written. May be called from any thread; calls for
/// overlapping pages must not run at once.
///
/// The invariant: a write to a page that completed after `arm` (or a `collect` with [`Then::Rearm`])
/// returned is reported by the next `collect` of that page, whoever wrote it by whatever way, unless
/// that `collect` refuses. Pages that were not written may be reported as well.
pub trait PageTracker: Send + Sync + fmt::Debug {
    /// Which one it is.
    fn kind(&self) -> TrackerKind;

    /// Says for which job it is used: others that want the same memory are told. Before anything is
    /// watched.
    fn serve(&self, _job: &str) {}

    /// Takes memory on; no page of it is armed yet.
    ///
    /// # Errors
    /// Why it cannot be tracked: shared, file-backed, unmapped, somebody else's, too many pieces.
    ///
    /// # Safety
    /// The pages must be the caller's memory, mapped, and not be unmapped while the call runs.
    unsafe fn watch(&self, pages: Pages) -> Result<(), Refusal>;

    /// Lets go of memory, wholly writable again. It may be gone already.
    fn unwatch(&self, pages: Pages);

    /// Arms watched pages. From the return on, writes are noted.
    ///
    /// # Errors
    /// Why they are not armed (all of them, or some).
    fn arm(&self, pages: Pages) -> Result<(), Refusal>;

    /// Appends which of the watched pages were written since they were armed, sorted, with an
    /// unwritten page between any two entries. Pages that are not armed count as written.
    ///
    /// # Errors
    /// The memory was unmapped, moved or mapped anew meanwhile: take all of it for written, and watch
    /// it again.
    fn collect(&self, pages: Pages, then: Then, written: &mut Vec<Pages>) -> Result<(), Refusal>;

    /// Makes watched pages writable without a note: they are not armed any more.
    ///
    /// # Errors
    /// Why they may still be armed.
    fn disarm(&self, pages: Pages) -> Result<(), Refusal>;

    /// Appends the watched pages that hold nothing, never touched or given up (`MADV_DONTNEED`): they
    /// read as zeros. Giving a page up is no write, so `collect` may not tell of it.
    ///
    /// # Errors
    /// As [`PageTracker::collect`].
    fn absent(&self, pages: Pages, absent: &mut Vec<Pages>) -> Result<(), Refusal>;

    /// For the page at each of these addresses, whether it is surely in memory; `None` if this is not
    /// to be had at once. Much quicker than [`PageTracker::absent`] for each.
    fn present(&self, _: &[usize]) -> Option<Vec<bool>> {
        None
    }

    /// Whether [`PageTracker::shared`] and [`PageTracker::untouched`] ever answer.
    fn tells_untouched(&self) -> bool {
        false
    }

    /// Appends those of the watched pages, sorted and joined, that are in memory, armed, and one and
    /// the same page in a forked child. Changes nothing, so it may run beside itself.
    ///
    /// # Errors
    /// This tracker cannot tell.
    fn shared(&self, _: Pages, _: &mut Vec<Pages>) -> Result<(), Refusal> {
        Err(Refusal("this tracker does not tell what is shared".into()))
    }

    /// Appends those of the watched pages, sorted and joined, that hold exactly what they held when they
    /// were armed: nobody has written them since through a page table, nor given them up, and they are
    /// in memory. Changes nothing, so it may run beside itself.
    ///
    /// # Errors
    /// This tracker cannot tell, or the memory was unmapped, moved or mapped anew meanwhile.
    fn untouched(&self, _: Pages, _: &mut Vec<Pages>) -> Result<(), Refusal> {
        Err(Refusal("this tracker does not tell what stayed".into()))
    }

    /// Whether the pages, a block, are one huge page at present. A guess: nothing hangs on it but
    /// speed.
    fn is_huge(&self, _: Pages) -> bool {
        false
    }

    /// Makes a block that is not armed one huge page, if the system likes. False if it may like to
    /// later.
    fn collapse(&self, _: Pages) -> bool {
        true
    }
}
