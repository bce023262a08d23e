//! Directories and segments: fingerprint to place.

use crate::codec::{Check, Reader, Writer, checksum, damaged, demand, encodable};
use outlive_types::{Fingerprint, PackId, Result};
use std::collections::HashSet;

const WHAT: &str = "directory";
const MAGIC: &[u8; 4] = b"OLDR";
const HEAD_BYTES: usize = 16;
const ENTRY_BYTES: usize = 44;
const CHECKSUM_BYTES: usize = 8;

/// Longest chunk, node or segment that an entry can describe, in bytes.
pub const LENGTH_MAX: u32 = (1 << 24) - 1;

/// What lies at a place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EntryKind {
    /// Pages.
    Chunk,
    /// An inner node or leaf.
    Node,
    /// A merge of directories.
    Segment,
}

/// One fingerprint and its place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirectoryEntry {
    /// Fingerprint of the bytes.
    pub fp: Fingerprint,
    /// Index into [`Directory::packs`].
    pub pack: u32,
    /// Logical offset in that pack, in bytes.
    pub offset: u32,
    /// Length in bytes, 1 to [`LENGTH_MAX`].
    pub length: u32,
    /// What it is.
    pub kind: EntryKind,
}

impl DirectoryEntry {
    fn key(&self) -> (&Fingerprint, u32, u32) {
        (&self.fp, self.pack, self.offset)
    }
}

/// Resolves fingerprints to places: those of one pack (a directory) or of several (a segment).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Directory {
    /// The packs that entries refer to, each once.
    pub packs: Vec<PackId>,
    /// Sorted by fingerprint, pack, offset.
    pub entries: Vec<DirectoryEntry>,
}

impl Directory {
    /// A directory of these entries, which it sorts.
    pub fn new(packs: Vec<PackId>, mut entries: Vec<DirectoryEntry>) -> Directory {
        entries.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
        Directory { packs, entries }
    }

    /// All entries of `fp`; empty if it is not listed.
    pub fn find(&self, fp: &Fingerprint) -> &[DirectoryEntry] {
        let from = self.entries.partition_point(|entry| entry.fp < *fp);
        let count = self.entries[from..].iter().take_while(|entry| entry.fp == *fp).count();
        &self.entries[from..from + count]
    }

    /// Length of the encoding of a directory of so many packs and entries, in bytes.
    pub fn bytes_for(packs: usize, entries: usize) -> usize {
        encoded_len(packs, entries)
    }

    /// Length of `encode`'s result in bytes.
    pub fn encoded_len(&self) -> usize {
        encoded_len(self.packs.len(), self.entries.len())
    }

    /// The directory's bytes. Entries need not be sorted.
    ///
    /// # Errors
    /// `Bug` for a pack listed twice, an index without pack, a place listed twice, a length that is
    /// 0 or above [`LENGTH_MAX`], a place beyond 4 GiB.
    pub fn encode(&self) -> Result<Vec<u8>> {
        if !self.entries.is_sorted_by(|a, b| a.key() <= b.key()) {
            return Directory::new(self.packs.clone(), self.entries.clone()).encode();
        }
        encodable(WHAT, self.check())?;
        let mut out = Writer::begin(MAGIC, self.encoded_len());
        out.reserved(2);
        out.u32(self.packs.len() as u32);
        out.u32(self.entries.len() as u32);
        for pack in &self.packs {
            out.bytes(&pack.0);
        }
        for entry in &self.entries {
            out.bytes(&entry.fp.0);
            out.u32(entry.pack);
            out.u32(entry.offset);
            let kind: u32 = match entry.kind {
                EntryKind::Chunk => 0,
                EntryKind::Node => 1,
                EntryKind::Segment => 2,
            };
            out.u32(entry.length | kind << 24);
        }
        out.u64(checksum(out.written()));
        Ok(out.finish())
    }

    /// Reads a directory or segment from all of `bytes`.
    ///
    /// # Errors
    /// `Damaged` for anything that `encode` does not write, `Invalid` for another version.
    pub fn decode(bytes: &[u8]) -> Result<Directory> {
        let Some((body, stored)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err(damaged(WHAT, "it ends too early"));
        };
        if checksum(body) != u64::from_le_bytes(*stored) {
            return Err(damaged(WHAT, "its checksum does not match"));
        }
        let mut from = Reader::new(WHAT, body);
        from.begin(MAGIC)?;
        from.reserved(2)?;
        let (pack_count, entry_count) = (from.u32()?, from.u32()?);
        let mut packs = Vec::with_capacity(from.count(pack_count.into(), 16)?);
        for _ in 0..pack_count {
            packs.push(from.pack()?);
        }
        let mut entries = Vec::with_capacity(from.count(entry_count.into(), ENTRY_BYTES)?);
        for _ in 0..entry_count {
            let (fp, pack, offset) = (from.fingerprint()?, from.u32()?, from.u32()?);
            let length_and_kind = from.u32()?;
            let kind = match length_and_kind >> 24 {
                0 => EntryKind::Chunk,
                1 => EntryKind::Node,
                2 => EntryKind::Segment,
                other => return Err(from.damaged(format!("an entry has kind {other}"))),
            };
            let length = length_and_kind & LENGTH_MAX;
            entries.push(DirectoryEntry { fp, pack, offset, length, kind });
        }
        let directory = Directory { packs, entries };
        from.accept(directory.check())?;
        from.end()?;
        Ok(directory)
    }

    fn check(&self) -> Check {
        demand!(self.packs.len() <= u32::MAX as usize, "it has too many packs");
        demand!(self.entries.len() <= u32::MAX as usize, "it has too many entries");
        let distinct: HashSet<&PackId> = self.packs.iter().collect();
        demand!(distinct.len() == self.packs.len(), "it lists a pack twice");
        for entry in &self.entries {
            demand!((entry.pack as usize) < self.packs.len(), "it has no pack {}", entry.pack);
            demand!(
                (1..=LENGTH_MAX).contains(&entry.length)
                    && entry.offset.checked_add(entry.length).is_some(),
                "{} cannot have length {} at {}",
                entry.fp,
                entry.length,
                entry.offset
            );
            demand!(!entry.fp.is_zero(), "it lists the zero fingerprint");
        }
        let sorted = self.entries.is_sorted_by(|a, b| a.key() < b.key());
        demand!(sorted, "its entries are out of order, or one is there twice");
        Ok(())
    }
}

fn encoded_len(packs: usize, entries: usize) -> usize {
    HEAD_BYTES + 16 * packs + ENTRY_BYTES * entries + CHECKSUM_BYTES
}
