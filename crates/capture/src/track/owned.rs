//! Memory that is tracked and owned, so that a tracker can be measured without promises.
#![allow(unsafe_code)]

use super::{PageTracker, Pages, Refusal, Then};
use outlive_io::AlignedBuf;
use outlive_types::PAGE_BYTES;
use std::ops::Range;

/// Whole pages of memory under a tracker, all of them armed.
#[derive(Debug)]
pub struct OwnedPages {
    tracker: Box<dyn PageTracker>,
    memory: AlignedBuf,
    found: Vec<Pages>,
}

impl OwnedPages {
    /// Returns `length` bytes, rounded down to pages, after `fill` has changed the initial zeros.
    ///
    /// # Errors
    /// Reason why the tracker refuses them.
    pub fn new(
        length: usize,
        tracker: Box<dyn PageTracker>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<OwnedPages, Refusal> {
        let mut memory = AlignedBuf::zeroed(length / PAGE_BYTES * PAGE_BYTES);
        fill(&mut memory);
        let owned = OwnedPages { tracker, memory, found: Vec::new() };
        let pages = owned.pages();
        // SAFETY: the buffer is page-aligned, whole, this value's own, and released before it is
        // freed.
        unsafe { owned.tracker.watch(pages) }?;
        owned.tracker.arm(pages)?;
        Ok(owned)
    }

    fn pages(&self) -> Pages {
        let start = self.memory.as_ptr() as usize;
        Pages { start, end: start + self.memory.len() }
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory
    }

    /// Returns the bytes for writing.
    pub fn edit(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// Returns the ranges of bytes that were written since the last call, and arms them again.
    ///
    /// # Errors
    /// Reason why the tracker lost the state.
    pub fn collect(&mut self) -> Result<impl Iterator<Item = Range<usize>> + Clone, Refusal> {
        self.found.clear();
        let pages = self.pages();
        self.tracker.collect(pages, Then::Rearm, &mut self.found)?;
        Ok(self.found.iter().map(move |run| run.start - pages.start..run.end - pages.start))
    }
}

impl Drop for OwnedPages {
    fn drop(&mut self) {
        self.tracker.unwatch(self.pages());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::track::WpAsync;

    #[test]
    fn written_ranges_are_told() {
        let tracker = Box::new(WpAsync::open().unwrap());
        let mut pages =
            OwnedPages::new(10 * PAGE_BYTES + 9, tracker, |bytes| bytes.fill(1)).unwrap();
        assert_eq!(pages.bytes().len(), 10 * PAGE_BYTES);
        pages.edit()[2 * PAGE_BYTES] = 2;
        pages.edit()[4 * PAGE_BYTES - 1] = 2;
        let found: Vec<(usize, usize)> =
            pages.collect().unwrap().map(|range| (range.start, range.end)).collect();
        assert_eq!(found, [(2 * PAGE_BYTES, 4 * PAGE_BYTES)]);
        assert_eq!(pages.collect().unwrap().count(), 0);
    }
}
