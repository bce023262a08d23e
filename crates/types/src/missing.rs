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
    /// It has been written, but is not in place: that waits for the rest of its unit.
    pub is_written: bool,
    /// First byte of what is put into place in one go when all of it has come.
    pub unit_offset: u64,
    /// Bytes of that, at most 2 MiB.
    pub unit_length: usize,
}

impl Missing {
    /// The bytes of the stream that the program waits for.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.length as u64
    }

    /// What is put into place in one go.
    pub fn unit(&self) -> Range<u64> {
        self.unit_offset..self.unit_offset + self.unit_length as u64
    }
}
