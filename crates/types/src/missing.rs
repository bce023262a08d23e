//! What a program waits for while its memory is being filled.

/// A range of one stream that the program has touched before it was there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Number of the stream.
    pub stream: usize,
    /// First byte, counted from the stream's.
    pub offset: u64,
    /// Bytes, at most 64 KiB.
    pub length: usize,
}
