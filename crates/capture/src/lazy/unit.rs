//! The state of 2 MiB of the program's memory while it is being filled.

use outlive_types::BLOCK_BYTES;
use std::ops::Range;

/// Bytes that one fault brings: the length of the longest chunk by default.
pub(super) const WINDOW_BYTES: usize = 64 * 1024;
pub(super) const WINDOWS: usize = BLOCK_BYTES / WINDOW_BYTES;

/// One unit: 2 MiB by the address, as the hardware maps it, or the part of it that is to be filled.
#[derive(Debug)]
pub(super) struct Unit {
    /// Bytes of each window that the background has still to bring.
    left: [u32; WINDOWS],
    left_bytes: usize,
    /// One bit for each window whose pages are placed.
    placed: u32,
    /// Whether a thread of the program waits until the unit is whole.
    is_expected: bool,
}

impl Unit {
    /// Returns a new unit; `range` is the part to be filled, from the unit's start.
    pub fn new(range: &Range<usize>) -> Unit {
        let mut unit = Unit {
            left: [0; WINDOWS],
            left_bytes: range.len(),
            placed: u32::MAX,
            is_expected: false,
        };
        for (window, part) in windows(range) {
            unit.left[window] = part.len() as u32;
            unit.placed &= !(1 << window);
        }
        unit
    }

    pub fn is_placed(&self, window: usize) -> bool {
        self.placed & (1 << window) != 0
    }

    /// True if all stored bytes of the window have been brought.
    pub fn is_brought(&self, window: usize) -> bool {
        self.left[window] == 0
    }

    /// True if the background has brought all of it.
    pub fn is_whole(&self) -> bool {
        self.left_bytes == 0
    }

    /// Sets whether a thread of the program waits until the unit is whole.
    pub fn set_expected(&mut self, is_expected: bool) {
        self.is_expected = is_expected;
    }

    pub fn is_expected(&self) -> bool {
        self.is_expected
    }

    /// Returns the adjacent windows, this one included, that the background has brought and the
    /// fill has not placed.
    pub fn brought_around(&self, window: usize) -> Range<usize> {
        let is_at_hand = |window: &usize| self.is_brought(*window) && !self.is_placed(*window);
        let before = (0..window).rev().take_while(is_at_hand).count();
        let behind = (window..WINDOWS).take_while(is_at_hand).count();
        window - before..window + behind
    }

    pub fn set_placed(&mut self, window: usize) {
        self.placed |= 1 << window;
    }

    /// Records that the background has brought `bytes` of the window; true if that was the last of
    /// the unit.
    pub fn bring(&mut self, window: usize, bytes: usize) -> bool {
        self.left[window] = self.left[window].saturating_sub(bytes as u32);
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        self.left_bytes == 0
    }

    /// Returns runs of windows that are not yet placed.
    pub fn unplaced(&self) -> impl Iterator<Item = Range<usize>> {
        let placed = self.placed;
        let mut next = 0;
        std::iter::from_fn(move || {
            while next < WINDOWS && placed & (1 << next) != 0 {
                next += 1;
            }
            let first = next;
            while next < WINDOWS && placed & (1 << next) == 0 {
                next += 1;
            }
            (first < next).then_some(first..next)
        })
    }

    /// True if faults have placed some windows by themselves.
    pub fn any_placed(&self, range: &Range<usize>) -> bool {
        windows(range).any(|(window, _)| self.is_placed(window))
    }
}

/// Cuts a range within a unit at the windows' borders.
pub(super) fn windows(range: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let (mut next, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        let window = next / WINDOW_BYTES;
        let part = next..((window + 1) * WINDOW_BYTES).min(end);
        next = part.end;
        (!part.is_empty()).then_some((window, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_counts_the_windows_that_are_left() {
        let range = WINDOW_BYTES - 4096..3 * WINDOW_BYTES;
        let mut unit = Unit::new(&range);
        assert_eq!((unit.unplaced().next(), unit.unplaced().count()), (Some(0..3), 1));
        assert!(!unit.bring(1, WINDOW_BYTES) && unit.is_brought(1) && !unit.is_brought(2));
        assert!(!unit.any_placed(&range));
        unit.set_placed(1);
        assert!(unit.any_placed(&range));
        assert_eq!(unit.unplaced().collect::<Vec<_>>(), [0..1, 2..3]);
        assert_eq!(unit.brought_around(1), 1..1, "it is in place");
        assert!(!unit.bring(2, WINDOW_BYTES) && !unit.is_whole());
        assert_eq!(unit.brought_around(2), 2..3);
        assert!(unit.bring(0, 4096) && unit.is_whole());
    }
}
