//! The buffer for copies of frozen pages, and the copying.

use crate::memory::Memory;
use outlive_chunk::{PARALLEL_FROM_BYTES, parallel};
use outlive_io::{AlignedBuf, gather_past_cache};
use outlive_types::{BLOCK_BYTES, PAGE_BYTES};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes that a thread copies before it takes the next piece.
const PIECE_BYTES: usize = 1 << 20;

/// Most bytes of memory that come ahead of the next copies: about 64 ms of page faults.
const AHEAD_BYTES_MAX: usize = 64 << 20;

/// A buffer that is kept from freeze to freeze. Its addresses are reserved for all that it may ever
/// hold, so that it grows without a copy, and what is in use stays where it is.
#[derive(Debug)]
pub(crate) struct Arena {
    buffer: AlignedBuf,
    /// Descriptor by which other processes can read the buffer.
    file: Option<Arc<OwnedFd>>,
    /// Bytes from the start on that have memory behind them.
    ready_bytes: usize,
    /// Length of the newest copies.
    filled_bytes: usize,
}

impl Default for Arena {
    fn default() -> Arena {
        Arena { buffer: AlignedBuf::zeroed(0), file: None, ready_bytes: 0, filled_bytes: 0 }
    }
}

/// Limits of an arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaLimits {
    /// Budget for copies.
    pub bytes_max: u64,
    /// Bytes of all memory that could be copied.
    pub state_bytes: u64,
    /// Whether other processes are to read the copies.
    pub is_shared: bool,
}

impl ArenaLimits {
    /// Returns the most bytes that copies can come to within the budget, also if the state grows by a
    /// quarter.
    fn most_bytes(self) -> usize {
        let grown = self.state_bytes.saturating_add(self.state_bytes / 4);
        let grown = grown.checked_next_multiple_of(BLOCK_BYTES as u64).unwrap_or(u64::MAX);
        usize::try_from(self.bytes_max.min(grown)).unwrap_or(usize::MAX)
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

    /// Returns the number of bytes that have memory behind them.
    pub fn ready_bytes(&self) -> usize {
        self.ready_bytes
    }

    /// Makes room for copies of `sources`. If they fit into the budget, the buffer then holds at most
    /// that many bytes, or a block more. False if there is no memory for it.
    #[must_use]
    pub fn make_room_for(&mut self, sources: &[Source<'_>], limits: ArenaLimits) -> bool {
        let length = sources.iter().map(|source| source.length).sum();
        let has_room = self.make_room(length, limits);
        self.filled_bytes = if has_room { length } else { 0 };
        has_room
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

    fn make_room(&mut self, length: usize, limits: ArenaLimits) -> bool {
        let has_bytes = self.buffer.len();
        let is_right = limits.is_shared == self.file.is_some() || length == 0;
        // Shared memory comes in whole blocks.
        let slack_bytes = if limits.is_shared { BLOCK_BYTES } else { 0 };
        let most_bytes = limits.most_bytes().max(length);
        if is_right && length <= has_bytes && has_bytes <= most_bytes.saturating_add(slack_bytes) {
            return self.get_ready(length);
        }
        // The old buffer is freed first, so that there are never two.
        *self = Arena::default();
        // A system that gives addresses only as far as it has memory may refuse the whole.
        self.reserve(most_bytes, length, limits.is_shared)
            || self.reserve(length, length, limits.is_shared)
    }

    /// Takes addresses for `bytes`, and memory for the first `length` of them.
    fn reserve(&mut self, bytes: usize, length: usize, is_shared: bool) -> bool {
        let (buffer, file) = if is_shared {
            let Some((buffer, file)) = AlignedBuf::shared(bytes, length) else { return false };
            (buffer, Some(Arc::new(file)))
        } else {
            let Some(buffer) = AlignedBuf::try_not_inherited(bytes) else { return false };
            (buffer, None)
        };
        *self = Arena { buffer, file, ready_bytes: length, filled_bytes: 0 };
        true
    }

    /// Counts on the first `length` bytes. Private memory comes as they are written.
    fn get_ready(&mut self, length: usize) -> bool {
        let range = self.ready_bytes..length.max(self.ready_bytes);
        let is_ready = self.file.as_ref().is_none_or(|file| AlignedBuf::back(file, range));
        if is_ready {
            self.ready_bytes = self.ready_bytes.max(length);
        }
        is_ready
    }

    /// Brings memory for the copies of the next freeze, so that the program does not wait for it then:
    /// as much again as the newest copies took, at most [`AHEAD_BYTES_MAX`]. Fresh memory takes ten times
    /// as long as a copy into memory that was used before.
    pub fn warm(&mut self) {
        let wanted = self.filled_bytes + self.filled_bytes.min(AHEAD_BYTES_MAX);
        let wanted = wanted.min(self.buffer.len());
        let from = self.ready_bytes.min(wanted);
        if self.get_ready(wanted) {
            self.buffer[from..wanted].iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn limits(is_shared: bool) -> ArenaLimits {
        ArenaLimits { bytes_max: 64 << 20, state_bytes: 32 << 20, is_shared }
    }

    /// Bytes of memory behind a shared arena.
    fn backed_bytes(arena: &Arena) -> u64 {
        rustix::fs::fstat(arena.file().unwrap()).unwrap().st_blocks as u64 * 512
    }

    fn filled(arena: &mut Arena, length: usize, is_shared: bool) -> *const u8 {
        let memory = Memory::Shared(vec![7u8; length].into());
        let sources = [Source { memory: &memory, offset: 0, length }];
        assert!(arena.make_room_for(&sources, limits(is_shared)));
        arena.fill(&sources, 1);
        assert!(arena.bytes()[..length].iter().all(|byte| *byte == 7));
        arena.bytes().as_ptr()
    }

    #[test]
    fn a_buffer_grows_where_it_is() {
        for is_shared in [false, true] {
            let mut arena = Arena::default();
            let first = filled(&mut arena, MIB, is_shared);
            assert_eq!(arena.ready_bytes(), MIB);
            assert_eq!(filled(&mut arena, 30 * MIB, is_shared), first, "shared: {is_shared}");
            assert_eq!(arena.ready_bytes(), 30 * MIB);
        }
    }

    #[test]
    fn shared_bytes_have_memory_before_they_are_written() {
        let mut arena = Arena::default();
        filled(&mut arena, 4 * MIB, true);
        assert!(
            (4 * MIB as u64..20 * MIB as u64).contains(&backed_bytes(&arena)),
            "only what it needs"
        );
        assert!(arena.make_room(20 * MIB, limits(true)));
        assert!(backed_bytes(&arena) >= 20 * MIB as u64, "before any write");
    }

    #[test]
    fn memory_for_the_next_copies_comes_ahead() {
        for is_shared in [false, true] {
            let mut arena = Arena::default();
            arena.warm();
            assert_eq!(arena.ready_bytes(), 0, "nothing was copied yet");
            filled(&mut arena, 8 * MIB, is_shared);
            arena.warm();
            assert_eq!(arena.ready_bytes(), 16 * MIB);
            assert!(arena.bytes()[8 * MIB..16 * MIB].iter().all(|byte| *byte == 0));
            assert!(
                arena.bytes()[..8 * MIB].iter().all(|byte| *byte == 7),
                "copies stay as they are"
            );
            filled(&mut arena, MIB, is_shared);
            arena.warm();
            assert_eq!(arena.ready_bytes(), 16 * MIB, "what was used once stays");
            filled(&mut arena, 32 * MIB, is_shared);
            arena.warm();
            assert_eq!(arena.ready_bytes(), 40 * MIB, "as a state that grows by a quarter takes");
        }
    }
}
