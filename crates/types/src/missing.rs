//! What a program waits for while its memory is being filled.

use std::ops::Range;

/// A range of one stream that the program has touched before it was there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Number of the stream.
    pub stream: usize,
    /// First byte, counted from the stream's.
    pub offset: u64,
    /// Bytes, at most 64 KiB.
    pub length: usize,
    /// The background has written it, but has not put it into place: the rest of its unit is still to come.
    pub is_written: bool,
    /// First byte of its unit, which the fill puts into place as a whole.
    pub unit_offset: u64,
    /// Length of the unit in bytes, at most 2 MiB.
    pub unit_length: usize,
}

impl Missing {
    /// The bytes of the stream that the program waits for.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.length as u64
    }

    /// The bytes of its unit.
    pub fn unit(&self) -> Range<u64> {
        self.unit_offset..self.unit_offset + self.unit_length as u64
    }
}
