//! One part of an upload, while its bytes are collected.

use bytes::Bytes;
use object_store::PutPayload;
use outlive_io::{AlignedBuf, SharedBuf};
use std::ops::Range;

/// A part that is being filled, in any order.
pub(crate) struct UploadPart {
    /// Contains bytes of its earlier use.
    buffer: AlignedBuf,
    written: Vec<Range<usize>>,
    written_bytes: usize,
}

impl UploadPart {
    pub(crate) fn new(buffer: AlignedBuf) -> UploadPart {
        UploadPart { buffer, written: Vec::new(), written_bytes: 0 }
    }

    /// Copies bytes to their place. No byte is written twice.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        let place = at..at + bytes.len();
        self.buffer[place.clone()].copy_from_slice(bytes);
        self.written.push(place);
        self.written_bytes += bytes.len();
    }

    /// Returns whether all of its first `length` bytes are written, if none after them is.
    pub(crate) fn is_full(&self, length: usize) -> bool {
        self.written_bytes >= length
    }

    /// Returns its first `length` bytes for sending. Unwritten bytes are zero, as in a file.
    pub(crate) fn into_payload(mut self, length: usize) -> PutPayload {
        self.written.sort_unstable_by_key(|range| range.start);
        let mut at = 0;
        for range in self.written.iter().map(|range| range.start.min(length)..range.end) {
            self.buffer[at..range.start.max(at)].fill(0);
            at = range.end.max(at);
        }
        if at < length {
            self.buffer[at..length].fill(0);
        }
        payload(self.buffer.share().slice(0..length))
    }
}

/// Returns bytes for sending, without a copy; their memory returns to its pool after all attempts.
fn payload(bytes: SharedBuf) -> PutPayload {
    struct Owner(SharedBuf);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    PutPayload::from_bytes(Bytes::from_owner(Owner(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used() -> UploadPart {
        let mut buffer = AlignedBuf::zeroed(5 * 4096);
        buffer.fill(0xEE);
        UploadPart::new(buffer)
    }

    fn first_of_pages(part: UploadPart, length: usize) -> Vec<u8> {
        let payload = part.into_payload(length);
        assert_eq!(payload.content_length(), length);
        let bytes: Vec<u8> = payload.iter().flatten().copied().collect();
        bytes.chunks(4096).map(|page| page[0]).collect()
    }

    #[test]
    fn unwritten_pages_are_zero() {
        let mut part = used();
        part.put(3 * 4096, &[3; 4096]);
        part.put(4096, &[1; 4096]);
        assert!(!part.is_full(5 * 4096) && part.is_full(2 * 4096));
        assert_eq!(first_of_pages(part, 5 * 4096), [0, 1, 0, 3, 0]);
        assert_eq!(first_of_pages(used(), 2 * 4096), [0, 0]);
        assert!(first_of_pages(used(), 0).is_empty());
    }

    #[test]
    fn a_shard_may_end_before_its_last_written_page() {
        let mut part = used();
        part.put(0, &[1; 2 * 4096]);
        part.put(3 * 4096, &[2; 2 * 4096]);
        assert_eq!(first_of_pages(part, 3 * 4096), [1, 1, 0]);
        let mut part = used();
        part.put(0, &[1; 3 * 4096]);
        assert!(part.is_full(3 * 4096));
        assert_eq!(first_of_pages(part, 4096), [1]);
    }
}
