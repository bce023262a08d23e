//! What the program has not written since a freeze by fork, read where it is.
//!
//! To read a child costs about twice as much as to copy the same bytes within the process: the kernel
//! looks up each page and copies it twice. But most of what a child holds is in the program's own
//! memory as well, unchanged: so it is armed at the freeze, copied by the kernel (which answers EFAULT
//! where the program has unmapped it), and taken of pages that
//!
//! - were shared with a child before the copy: the fork itself copies what a device may write unseen,
//!   and a write gives the program a page of its own, so neither is shared;
//! - are still there, armed and unwritten *after* it, as the page table says.
//!
//! All else is read from the child. docs/design/011-tracking.md has the measurements.

use crate::ahead::union;
use crate::fork::read_own;
use crate::track::{PageTracker, Pages};
use outlive_types::{PAGE_BYTES, Result};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory of the program that is armed since the freeze. It may be read until whoever armed it ends
/// the [`Guard`].
#[derive(Debug)]
pub(crate) struct InPlace {
    tracker: Arc<dyn PageTracker>,
    /// Sorted and apart.
    areas: Vec<Pages>,
    guard: Guard,
}

/// Whether memory is as the freeze has armed it: not for ever, as the next freeze arms it anew, and then
/// what was written between the two looks unwritten.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard(Arc<AtomicBool>);

impl Guard {
    /// To be called before anything of the memory is armed anew, disarmed or let go.
    pub fn end(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn has_ended(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// What is asked of the page table and copied at once at most.
const PIECE_BYTES: usize = 1 << 20;
/// Less than this is read from the child: three calls of the kernel cost more than they save.
const LEAST_BYTES: usize = 8 * PAGE_BYTES;

impl InPlace {
    /// Of these areas; `None` if there are none.
    pub fn new(tracker: Arc<dyn PageTracker>, areas: &[Pages], guard: Guard) -> Option<InPlace> {
        let areas = union(areas, &[]);
        (!areas.is_empty()).then_some(InPlace { tracker, areas, guard })
    }

    /// Fills `into` with what was at `address` at the freeze: parts of it with what the program has not
    /// touched since, the rest by `other`, which takes an address and what to fill.
    ///
    /// # Errors
    /// Those of `other`.
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

    /// Copies what is at `address` if most of it is as it was, and answers which addresses of the copy
    /// hold what was there at the freeze; sorted and apart.
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
        // What was written during the copy was written by now. If the guard has ended by now, what the
        // page table says may be about pages that were armed anew.
        if self.tracker.untouched(pages, &mut untouched).is_err() || self.guard.has_ended() {
            return Vec::new();
        }
        let both = overlaps(&shared, &untouched);
        both.map(|part| part.start.max(address)..part.end.min(end)).collect()
    }
}

/// What is in both; each sorted and apart.
fn overlaps(a: &[Pages], b: &[Pages]) -> impl Iterator<Item = Pages> {
    a.iter().flat_map(move |part| {
        let first = b.partition_point(|other| other.end <= part.start);
        let others = b[first..].iter().take_while(|other| other.start < part.end);
        others
            .map(|other| Pages { start: part.start.max(other.start), end: part.end.min(other.end) })
    })
}
