//! A container that is being filled.

use outlive_format::{Checksum, Codec, DirectoryEntry, EntryKind, InFrame};
use outlive_io::{AlignedBuf, SharedBuf, copy_past_cache};
use outlive_types::Fingerprint;

/// Returns how many entries a container of this length takes: one for every 512 bytes, so that its
/// pack's directory has room for them.
pub(crate) fn entries_max(container_bytes: usize) -> usize {
    container_bytes / 512
}

/// A staging buffer that becomes a container. It belongs to no pack yet, so each thread can fill
/// its own.
pub struct Container {
    buffer: AlignedBuf,
    used: usize,
    /// Checksum of the used bytes, taken while they are in the processor's caches.
    checksum: Checksum,
    /// Its entries; offsets count from its own start.
    entries: Vec<DirectoryEntry>,
}

impl Container {
    /// Returns an empty container.
    pub fn new(buffer: AlignedBuf) -> Container {
        Container { buffer, used: 0, checksum: Checksum::new(), entries: Vec::new() }
    }

    /// Returns the number of bytes in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Returns its entries; offsets count from its own start.
    pub fn entries(&self) -> &[DirectoryEntry] {
        &self.entries
    }

    /// Returns whether `length` more bytes fit, as `chunks` entries.
    pub fn fits(&self, length: usize, chunks: usize) -> bool {
        length <= self.buffer.len() - self.used
            && self.entries.len() + chunks <= entries_max(self.buffer.len())
    }

    /// Adds bytes, which must fit, and returns their offset.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn push(&mut self, bytes: &[u8], fp: Fingerprint, kind: EntryKind) -> u32 {
        let offset = self.copy(bytes);
        let length = bytes.len() as u32;
        self.entries.push(DirectoryEntry { fp, pack: 0, offset, length, kind, frame: None });
        offset
    }

    /// Adds a compressed frame, which must fit, and its chunks or slices, one behind another:
    /// fingerprint, length and kind of each.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn push_frame(
        &mut self,
        stored: &[u8],
        codec: Codec,
        raw_bytes: u32,
        chunks: &[(Fingerprint, u32, EntryKind)],
    ) {
        let offset = self.copy(stored);
        let stored_bytes = stored.len() as u32;
        let mut first = 0;
        for (fp, length, kind) in chunks.iter().copied() {
            let frame = Some(InFrame { first, stored_bytes, raw_bytes, codec });
            self.entries.push(DirectoryEntry { fp, pack: 0, offset, length, kind, frame });
            first += length;
        }
    }

    fn copy(&mut self, bytes: &[u8]) -> u32 {
        let offset = self.used as u32;
        // The device reads it next. Only the leftovers of two lanes are copied to another
        // container.
        copy_past_cache(bytes, &mut self.buffer[self.used..][..bytes.len()]);
        self.checksum.update(bytes);
        self.used += bytes.len();
        offset
    }

    /// Moves as many entries as fit from the front of `other` to the end of this one.
    pub fn take_from(&mut self, other: &mut Container) {
        let mut moved = 0;
        // The chunks of a frame have its offset: they move together.
        for entries in other.entries.chunk_by(|a, b| a.offset == b.offset) {
            let [entry, ..] = entries else { break };
            let stored = entry.frame.map_or(entry.length, |frame| frame.stored_bytes);
            if !self.fits(stored as usize, entries.len()) {
                break;
            }
            let offset = self.copy(&other.buffer[entry.offset as usize..][..stored as usize]);
            self.entries.extend(entries.iter().map(|entry| DirectoryEntry { offset, ..*entry }));
            moved += entries.len();
        }
        let start = other.entries.get(moved).map_or(other.used, |entry| entry.offset as usize);
        other.buffer.copy_within(start..other.used, 0);
        other.used -= start;
        other.entries.drain(..moved);
        for entry in &mut other.entries {
            entry.offset -= start as u32;
        }
        other.checksum = Checksum::new();
        other.checksum.update(&other.buffer[..other.used]);
    }

    /// Ends it at `length` bytes, with zeros after the used bytes, up to `filled` as far as its
    /// buffer goes. Returns the buffer, and the checksum of the `length` bytes.
    pub(crate) fn seal(
        mut self,
        length: usize,
        filled: usize,
    ) -> (SharedBuf, u64, Vec<DirectoryEntry>) {
        let filled = filled.max(length).min(self.buffer.len());
        self.buffer[self.used..filled].fill(0);
        self.checksum.update(&self.buffer[self.used..length]);
        (self.buffer.share(), self.checksum.value(), self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_format::checksum;

    fn filled(lengths: &[usize]) -> Container {
        let mut container = Container::new(AlignedBuf::zeroed(8192));
        for (number, length) in lengths.iter().enumerate() {
            let byte = number as u8 + 1;
            container.push(&vec![byte; *length], Fingerprint([byte; 32]), EntryKind::Chunk);
        }
        container
    }

    #[test]
    fn frames_move_whole() {
        let mut open = filled(&[5000]);
        let mut rest = Container::new(AlignedBuf::zeroed(8192));
        let chunk = |byte, length| (Fingerprint([byte; 32]), length, EntryKind::Chunk);
        let chunks = [chunk(7, 3000), chunk(8, 1000)];
        rest.push_frame(&[9; 2000], Codec::Lz4, 4000, &chunks);
        rest.push_frame(&[10; 2000], Codec::Zstd, 4000, &chunks);
        open.take_from(&mut rest);
        assert_eq!((open.used(), rest.used()), (7000, 2000));
        let in_frame = |entry: &DirectoryEntry| (entry.offset, entry.frame.unwrap().first);
        let places: Vec<(u32, u32)> = open.entries()[1..].iter().map(in_frame).collect();
        assert_eq!(places, [(5000, 0), (5000, 3000)]);
        let places: Vec<(u32, u32)> = rest.entries().iter().map(in_frame).collect();
        assert_eq!(places, [(0, 0), (0, 3000)]);
        assert!(!rest.fits(100, 20) && rest.fits(100, 14));
        assert_eq!(open.seal(8192, 0).0[5000..7000], [9; 2000]);
    }

    #[test]
    fn the_rest_of_one_moves_into_another() {
        let mut open = filled(&[5000]);
        let mut rest = filled(&[1000, 2000, 3000]);
        open.take_from(&mut rest);
        assert_eq!((open.used(), rest.used(), rest.entries().len()), (8000, 3000, 1));
        assert_eq!(rest.entries()[0].offset, 0);
        let (buffer, sum, entries) = rest.seal(4096, 4096);
        assert_eq!(sum, checksum(&buffer[..4096]));
        assert_eq!(entries[0].fp, Fingerprint([3; 32]));
        assert!(
            buffer[..3000].iter().all(|b| *b == 3) && buffer[3000..4096].iter().all(|b| *b == 0)
        );
        let (buffer, sum, _) = open.seal(8192, 0);
        assert_eq!(sum, checksum(&buffer));
        assert_eq!(buffer[5000], 1);
        assert_eq!(buffer[6000], 2);
    }
}
