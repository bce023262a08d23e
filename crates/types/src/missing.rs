//! The memory for which a program waits during a lazy fill.

use std::ops::Range;

/// A range of one stream that the program touched before the fill placed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Number of the stream.
    pub stream: usize,
    /// First byte, counted from the start of the stream.
    pub offset: u64,
    /// Length in bytes, at most 64 KiB.
    pub length: usize,
    /// True if the background has written the range, but has not placed it: the rest of its unit is
    /// still missing.
    pub is_written: bool,
    /// First byte of its unit, which the fill places as a whole.
    pub unit_offset: u64,
    /// Length of the unit in bytes, at most 2 MiB.
    pub unit_length: usize,
}

impl Missing {
    /// Returns the bytes of the stream for which the program waits.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.length as u64
    }

    /// Returns the bytes of its unit.
    pub fn unit(&self) -> Range<u64> {
        self.unit_offset..self.unit_offset + self.unit_length as u64
    }
}
