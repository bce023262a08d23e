//! A container being filled.

use outlive_format::{Checksum, DirectoryEntry, EntryKind, Fragment};
use outlive_io::AlignedBuf;
use outlive_types::Fingerprint;

/// A staging buffer on its way to become a container. It belongs to no pack yet, so each thread can
/// fill one of its own.
pub struct Container {
    buffer: AlignedBuf,
    used: usize,
    /// Of the used bytes; taken while they are in the processor's caches.
    checksum: Checksum,
    /// What lies in it; offsets count from its own start.
    entries: Vec<DirectoryEntry>,
}

impl Container {
    /// An empty one.
    pub fn new(buffer: AlignedBuf) -> Container {
        Container { buffer, used: 0, checksum: Checksum::new(), entries: Vec::new() }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// What lies in it; offsets count from its own start.
    pub fn entries(&self) -> &[DirectoryEntry] {
        &self.entries
    }

    /// True if `length` more bytes fit.
    pub fn fits(&self, length: usize) -> bool {
        length <= self.buffer.len() - self.used
    }

    /// Adds bytes, which must fit, and answers their offset.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn push(&mut self, bytes: &[u8], fp: Fingerprint, kind: EntryKind) -> u32 {
        let offset = self.used as u32;
        self.buffer[self.used..][..bytes.len()].copy_from_slice(bytes);
        self.checksum.update(bytes);
        self.used += bytes.len();
        let length = bytes.len() as u32;
        self.entries.push(DirectoryEntry { fp, pack: 0, offset, length, kind, frame: None });
        offset
    }

    /// Moves as many entries as fit from the front of `other` to the end of this one.
    pub fn take_from(&mut self, other: &mut Container) {
        let mut moved = 0;
        for entry in &other.entries {
            if !self.fits(entry.length as usize) {
                break;
            }
            let bytes = &other.buffer[entry.offset as usize..][..entry.length as usize];
            self.push(bytes, entry.fp, entry.kind);
            moved += 1;
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

    /// Ends it at `length` bytes, zeros after those in use.
    pub(crate) fn seal(mut self, length: usize) -> (AlignedBuf, Fragment, Vec<DirectoryEntry>) {
        self.buffer[self.used..length].fill(0);
        self.checksum.update(&self.buffer[self.used..length]);
        let fragment = Fragment { length: length as u32, checksum: self.checksum.value() };
        (self.buffer, fragment, self.entries)
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
    fn the_rest_of_one_moves_into_another() {
        let mut open = filled(&[5000]);
        let mut rest = filled(&[1000, 2000, 3000]);
        open.take_from(&mut rest);
        assert_eq!((open.used(), rest.used(), rest.entries().len()), (8000, 3000, 1));
        assert_eq!(rest.entries()[0].offset, 0);
        let (buffer, fragment, entries) = rest.seal(4096);
        assert_eq!(fragment.checksum, checksum(&buffer[..4096]));
        assert_eq!(entries[0].fp, Fingerprint([3; 32]));
        assert!(
            buffer[..3000].iter().all(|b| *b == 3) && buffer[3000..4096].iter().all(|b| *b == 0)
        );
        let (buffer, fragment, _) = open.seal(8192);
        assert_eq!(fragment.checksum, checksum(&buffer[..8192]));
        assert_eq!(buffer[5000], 1);
        assert_eq!(buffer[6000], 2);
    }
}
