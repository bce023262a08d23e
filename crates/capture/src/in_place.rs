//! Memory that the program has not written since a freeze by fork, read in place.
//!
//! To read a child costs about twice as much as to copy the same bytes within the process: the
//! kernel looks up each page and copies it twice. But most pages of a child are in the program's
//! own memory as well, unchanged. So that memory is armed at the freeze, and the kernel copies it.
//! (The kernel returns EFAULT where the program has unmapped it.) The copy of a page counts if two
//! conditions hold:
//!
//! - The page was shared with a child before the copy. The fork itself copies pages that a device
//!   may write unseen, and a write gives the program a page of its own; neither is shared.
//! - The page is still there, armed and unwritten *after* the copy, as the page table says.
//!
//! All other pages are read from the child. docs/design/011-tracking.md has the measurements.

use crate::ahead::union;
use crate::fork::read_own;
use crate::track::{PageTracker, Pages};
use outlive_types::{PAGE_BYTES, Result};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory of the program that is armed since the freeze. It may be read until the code that armed
/// it ends the [`Guard`].
#[derive(Debug)]
pub(crate) struct InPlace {
    tracker: Arc<dyn PageTracker>,
    /// Sorted and disjoint.
    areas: Vec<Pages>,
    guard: Guard,
}

/// Whether memory is still armed from this freeze. The next freeze arms it again, and then pages
/// written between the two look unwritten.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard(Arc<AtomicBool>);

impl Guard {
    /// Ends the guard. Call it before any of the memory is armed again, disarmed or unmapped.
    pub fn end(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn has_ended(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Most bytes per query of the page table and copy.
const PIECE_BYTES: usize = 1 << 20;
/// Shortest read in place. Shorter ones use the child: three system calls cost more than they save.
const LEAST_BYTES: usize = 8 * PAGE_BYTES;

impl InPlace {
    /// Returns a reader of these areas; `None` if there are none.
    pub fn new(tracker: Arc<dyn PageTracker>, areas: &[Pages], guard: Guard) -> Option<InPlace> {
        let areas = union(areas, &[]);
        (!areas.is_empty()).then_some(InPlace { tracker, areas, guard })
    }

    /// Fills `into` with the bytes at `address` as of the freeze. Untouched bytes come from the
    /// program's memory, and the rest from `other`, which gets an address and the slice to fill.
    ///
    /// # Errors
    /// Errors of `other`.
    pub fn read(
        &self,
        address: usize,
        into: &mut [u8],
        mut other: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let end = address + into.len();
        let mut at = address;
        let mut other = |part: Range<usize>, into: &mut [u8]| match part.is_empty() {
            true => Ok(()),
            false => other(part.start, &mut into[part.start - address..part.end - address]),
        };
        let first = self.areas.partition_point(|area| area.end <= address);
        for area in &self.areas[first..] {
            let stop = area.end.min(end);
            if area.start >= end {
                break;
            }
            other(at..area.start.max(at), into)?;
            at = at.max(area.start);
            while at < stop {
                let piece = at..stop.min(at + PIECE_BYTES);
                let copied = self.copy(piece.start, &mut into[at - address..piece.end - address]);
                for part in copied {
                    other(at..part.start.max(at), into)?;
                    at = at.max(part.end);
                }
                other(at..piece.end, into)?;
                at = piece.end;
            }
        }
        other(at..end, into)
    }

    /// Copies the memory at `address` if most of it is unchanged. Returns the addresses at which
    /// the copy holds the bytes of the freeze; sorted and disjoint.
    fn copy(&self, address: usize, into: &mut [u8]) -> Vec<Range<usize>> {
        if into.len() < LEAST_BYTES || self.guard.has_ended() {
            return Vec::new();
        }
        let end = address + into.len();
        let whole = |pages: &[Pages]| pages.iter().map(Pages::count).sum::<usize>() * PAGE_BYTES;
        let pages = Pages {
            start: address / PAGE_BYTES * PAGE_BYTES,
            end: end.next_multiple_of(PAGE_BYTES),
        };
        let (mut shared, mut untouched) = (Vec::new(), Vec::new());
        if self.tracker.shared(pages, &mut shared).is_err() || whole(&shared) < into.len() / 2 {
            return Vec::new();
        }
        match read_own(address, into) {
            Ok(()) => {}
            Err(Errno::FAULT) => return Vec::new(),
            Err(_) => {
                // The system forbids it, and will the next time.
                self.guard.end();
                return Vec::new();
            }
        }
        // Pages written during the copy count as written by now. If the guard has ended by now, the
        // page table may describe pages that were armed again.
        if self.tracker.untouched(pages, &mut untouched).is_err() || self.guard.has_ended() {
            return Vec::new();
        }
        let both = overlaps(&shared, &untouched);
        both.map(|part| part.start.max(address)..part.end.min(end)).collect()
    }
}

/// Returns the pages that are in both; each sorted and disjoint.
fn overlaps(a: &[Pages], b: &[Pages]) -> impl Iterator<Item = Pages> {
    a.iter().flat_map(move |part| {
        let first = b.partition_point(|other| other.end <= part.start);
        let others = b[first..].iter().take_while(|other| other.start < part.end);
        others
            .map(|other| Pages { start: part.start.max(other.start), end: part.end.min(other.end) })
    })
}
