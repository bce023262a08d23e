//! What the program has not written since a freeze by fork, read where it is.
//!
//! To read a child costs about twice as much as to copy the same bytes within the process: the kernel
//! looks up each page and copies it twice. But most of what a child holds is in the program's own
//! memory as well, unchanged: so it is armed at the freeze, copied by the kernel (which answers EFAULT
//! where the program has unmapped it), and taken if the page table says *afterwards* that these pages
//! are there, still armed, and that nobody has written them. All else is read from the child.
//! docs/capture.md has the measurements.

use crate::fork::read_own;
use crate::track::{PageTracker, Pages};
use outlive_types::{PAGE_BYTES, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory of the program that is armed since the freeze. It may be read until whoever armed it ends
/// the [`Guard`].
#[derive(Debug)]
pub(crate) struct OwnMemory {
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

impl OwnMemory {
    /// Of these areas; `None` if there are none.
    pub fn new(
        tracker: Arc<dyn PageTracker>,
        mut areas: Vec<Pages>,
        guard: Guard,
    ) -> Option<OwnMemory> {
        areas.sort_unstable();
        let mut joined: Vec<Pages> = Vec::with_capacity(areas.len());
        for area in areas {
            match joined.last_mut() {
                Some(last) if area.start <= last.end => last.end = last.end.max(area.end),
                _ => joined.push(area),
            }
        }
        (!joined.is_empty()).then_some(OwnMemory { tracker, areas: joined, guard })
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
                let own = self.copy(piece.start, &mut into[at - address..piece.end - address]);
                for part in own {
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
        let end = address + into.len();
        let before = self.untouched(address..end);
        let untouched_bytes = before.iter().map(Pages::count).sum::<usize>() * PAGE_BYTES;
        if untouched_bytes < into.len() / 2 || read_own(address, into).is_err() {
            return Vec::new();
        }
        // What was written during the copy was written by now.
        let after = self.untouched(address..end);
        after.iter().map(|pages| pages.start.max(address)..pages.end.min(end)).collect()
    }

    /// The pages of a part of an area that nobody has touched since the freeze.
    fn untouched(&self, addresses: Range<usize>) -> Vec<Pages> {
        let start = addresses.start / PAGE_BYTES * PAGE_BYTES;
        let end = addresses.end.next_multiple_of(PAGE_BYTES);
        let mut found = Vec::new();
        let told = self.tracker.untouched(Pages { start, end }, &mut found);
        // If the guard has ended, this may have been after the answer, or before.
        if told.is_err() || self.guard.has_ended() {
            found.clear();
        }
        found
    }
}
