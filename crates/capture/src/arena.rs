//! The buffer for copies of frozen pages, and the copying.

use crate::memory::Memory;
use outlive_chunk::{PARALLEL_FROM_BYTES, parallel};
use outlive_io::{AlignedBuf, gather_past_cache};
use outlive_types::BLOCK_BYTES;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes that a thread copies before it takes the next piece.
const PIECE_BYTES: usize = 1 << 20;

/// A buffer that is kept from freeze to freeze and grows with the need.
#[derive(Debug)]
pub(crate) struct Arena {
    buffer: AlignedBuf,
    /// Descriptor by which other processes can read the buffer.
    file: Option<Arc<OwnedFd>>,
}

impl Default for Arena {
    fn default() -> Arena {
        Arena { buffer: AlignedBuf::zeroed(0), file: None }
    }
}

/// Bytes to copy: `length` bytes of `memory` from `offset` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub memory: &'a Memory,
    pub offset: usize,
    pub length: usize,
}

impl<'a> Source<'a> {
    fn bytes(&self) -> &'a [u8] {
        &self.memory.bytes()[self.offset..][..self.length]
    }
}

impl Arena {
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Returns the descriptor by which other processes can read the buffer, if there is one.
    pub fn file(&self) -> Option<&Arc<OwnedFd>> {
        self.file.as_ref()
    }

    /// Makes room for copies of `sources`, in memory that other processes can read if `is_shared`.
    /// If they fit into `bytes_max`, the buffer then holds at most that many bytes, or a block more.
    /// False if there is no memory for it.
    #[must_use]
    pub fn make_room_for(
        &mut self,
        sources: &[Source<'_>],
        bytes_max: u64,
        is_shared: bool,
    ) -> bool {
        let length = sources.iter().map(|source| source.length).sum();
        self.make_room(length, usize::try_from(bytes_max).unwrap_or(usize::MAX), is_shared)
    }

    /// Copies `sources`, for which there is room, one after another to the start of the buffer.
    pub fn fill(&mut self, sources: &[Source<'_>], threads: usize) {
        let length = sources.iter().map(|source| source.length).sum();
        let mut room = &mut self.buffer[..length];
        let mut pieces = Vec::new();
        let mut rest = sources;
        while !rest.is_empty() {
            let (mut count, mut bytes) = (0, 0);
            while count < rest.len() && bytes < PIECE_BYTES {
                bytes += rest[count].length;
                count += 1;
            }
            let (piece, later) = rest.split_at(count);
            let (to, room_left) = std::mem::take(&mut room).split_at_mut(bytes);
            pieces.push((to, piece));
            (rest, room) = (later, room_left);
        }
        let threads = if length < PARALLEL_FROM_BYTES { 1 } else { threads };
        parallel(pieces, threads, |(to, piece)| {
            gather_past_cache(piece.iter().map(Source::bytes), to);
        });
    }

    fn make_room(&mut self, length: usize, bytes_max: usize, is_shared: bool) -> bool {
        let has_bytes = self.buffer.len();
        let is_right = is_shared == self.file.is_some() || length == 0;
        // Shared memory comes in whole blocks.
        let slack_bytes = if is_shared { BLOCK_BYTES } else { 0 };
        let most_bytes = bytes_max.max(length).saturating_add(slack_bytes);
        if is_right && length <= has_bytes && has_bytes <= most_bytes {
            return true;
        }
        // The old buffer is freed first, so that there are never two. The bytes beyond the need
        // take no memory until they are written.
        *self = Arena::default();
        let grown = length.saturating_add(length / 4).next_multiple_of(BLOCK_BYTES);
        let bytes = grown.min(bytes_max).max(length);
        if is_shared {
            return AlignedBuf::shared(bytes)
                .map(|(made, file)| *self = Arena { buffer: made, file: Some(Arc::new(file)) })
                .is_some();
        }
        AlignedBuf::try_not_inherited(bytes).map(|made| self.buffer = made).is_some()
    }
}
