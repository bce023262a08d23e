//! Directories and segments: they map fingerprints to pack extents.

use crate::codec::{Check, Reader, Writer, checksum, damaged, demand, encodable};
use crate::slice::SliceForm;
use outlive_types::{Codec, Fingerprint, PackId, Result};
use std::collections::HashSet;

const WHAT: &str = "directory";
const MAGIC: &[u8; 4] = b"OLDR";
const HEAD_BYTES: usize = 20;
const FRAME_BYTES: usize = 40;
/// Room in a frame: authentication tag 16, dictionary identifier u32, and 4.
const FRAME_ROOM_BYTES: usize = 24;
const ENTRY_BYTES: usize = 44;
const CHECKSUM_BYTES: usize = 8;
/// Added to the kind of an object inside a frame.
const FRAMED: u32 = 128;
const SLICE: u32 = 4;

/// Longest chunk, node, segment or raw frame that can be described, in bytes.
pub const LENGTH_MAX: u32 = (1 << 24) - 1;

/// Kind of the object at a pack extent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EntryKind {
    /// Pages, or a piece of a file.
    Chunk,
    /// An inner node, leaf or recipe.
    Node,
    /// A merge of directories.
    Segment,
    /// A page of an image table, or of segment lists.
    Page,
    /// A slice: some pages of a chunk, with the fingerprint of the whole chunk.
    Slice(SliceForm),
}

impl EntryKind {
    /// Returns whether readers find it by its fingerprint. They find the others only by their pack
    /// extents.
    pub fn is_resolved(self) -> bool {
        matches!(self, EntryKind::Chunk | EntryKind::Node | EntryKind::Slice(_))
    }

    /// Returns the pages of the chunk that it has, if not all.
    pub fn slice(self) -> Option<SliceForm> {
        match self {
            EntryKind::Slice(form) => Some(form),
            _ => None,
        }
    }

    /// Returns whether it is a chunk or a part of one.
    pub fn is_content(self) -> bool {
        matches!(self, EntryKind::Chunk | EntryKind::Slice(_))
    }
}

/// Location of a chunk in a compressed frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InFrame {
    /// The chunk's first byte in the raw frame.
    pub first: u32,
    /// Length of the stored frame; shorter than the raw one.
    pub stored_bytes: u32,
    /// Length of the raw frame, at most [`LENGTH_MAX`].
    pub raw_bytes: u32,
    /// Codec of the frame.
    pub codec: Codec,
}

/// One fingerprint and its pack extent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirectoryEntry {
    /// Fingerprint of the bytes.
    pub fp: Fingerprint,
    /// Index into [`Directory::packs`].
    pub pack: u32,
    /// Logical offset in that pack, in bytes: of the bytes themselves, or of their frame.
    pub offset: u32,
    /// Length in bytes, 1 to [`LENGTH_MAX`]; not that of a frame.
    pub length: u32,
    /// Kind of the object.
    pub kind: EntryKind,
    /// The frame that contains it; only chunks and slices lie in frames.
    pub frame: Option<InFrame>,
}

impl DirectoryEntry {
    fn key(&self) -> (&Fingerprint, u32, u32, u32) {
        (&self.fp, self.pack, self.offset, self.frame.map_or(0, |frame| frame.first))
    }

    /// Returns the frame as the encoding lists it.
    fn frame_key(&self) -> Option<FrameKey> {
        self.frame.map(|f| (self.pack, self.offset, f.stored_bytes, f.raw_bytes, f.codec))
    }

    fn check(&self) -> Check {
        let DirectoryEntry { fp, offset, length, .. } = *self;
        let stored = self.frame.map_or(length, |frame| frame.stored_bytes);
        demand!(
            (1..=LENGTH_MAX).contains(&length)
                && (1..=LENGTH_MAX).contains(&stored)
                && offset.checked_add(stored).is_some(),
            "{fp} cannot have length {length} at {offset}"
        );
        demand!(!fp.is_zero(), "it lists the zero fingerprint");
        if let Some(form) = self.kind.slice() {
            let is_so = form.length() == u64::from(length);
            demand!(is_so, "a slice of {fp} cannot have length {length}");
        }
        if let Some(frame) = self.frame {
            demand!(self.kind.is_content(), "{fp} is in a frame and no chunk");
            let end = frame.first.checked_add(length);
            demand!(
                frame.stored_bytes < frame.raw_bytes
                    && frame.raw_bytes <= LENGTH_MAX
                    && end.is_some_and(|end| end <= frame.raw_bytes),
                "{fp} cannot lie at {} of a frame of {} bytes",
                frame.first,
                frame.raw_bytes
            );
        }
        Ok(())
    }
}

/// Pack index, offset, stored and raw length, codec.
type FrameKey = (u32, u32, u32, u32, Codec);

/// Maps fingerprints to pack extents in one pack (a directory) or several (a segment).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Directory {
    /// The packs that entries refer to, each once.
    pub packs: Vec<PackId>,
    /// Sorted by fingerprint, pack, offset, offset in the frame.
    pub entries: Vec<DirectoryEntry>,
}

impl Directory {
    /// Returns a directory of these entries, which it sorts.
    pub fn new(packs: Vec<PackId>, mut entries: Vec<DirectoryEntry>) -> Directory {
        entries.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
        Directory { packs, entries }
    }

    /// Returns all entries of `fp`; empty if it is not listed.
    pub fn find(&self, fp: &Fingerprint) -> &[DirectoryEntry] {
        let from = self.entries.partition_point(|entry| entry.fp < *fp);
        let count = self.entries[from..].iter().take_while(|entry| entry.fp == *fp).count();
        &self.entries[from..from + count]
    }

    /// Returns the length in bytes of an encoded directory with these numbers of packs, frames and
    /// entries.
    pub fn bytes_for(packs: usize, frames: usize, entries: usize) -> usize {
        HEAD_BYTES
            + PackId::BYTES * packs
            + FRAME_BYTES * frames
            + ENTRY_BYTES * entries
            + CHECKSUM_BYTES
    }

    /// Returns the length of `encode`'s result in bytes.
    pub fn encoded_len(&self) -> usize {
        Directory::bytes_for(self.packs.len(), self.frames().len(), self.entries.len())
    }

    /// Returns every frame once, in the encoding's order.
    fn frames(&self) -> Vec<FrameKey> {
        let mut frames: Vec<FrameKey> =
            self.entries.iter().filter_map(DirectoryEntry::frame_key).collect();
        frames.sort_unstable();
        frames.dedup();
        frames
    }

    /// Encodes the directory. Entries need not be sorted.
    ///
    /// # Errors
    /// `Bug` for a pack or pack extent listed twice, an index without a pack, or an impossible
    /// frame. Also for a length that is 0 or above [`LENGTH_MAX`], and a pack extent beyond 4 GiB.
    pub fn encode(&self) -> Result<Vec<u8>> {
        if !self.entries.is_sorted_by(|a, b| a.key() <= b.key()) {
            return Directory::new(self.packs.clone(), self.entries.clone()).encode();
        }
        let frames = self.frames();
        encodable(WHAT, self.check().and_then(|()| check_frames(&frames)))?;
        let length = Directory::bytes_for(self.packs.len(), frames.len(), self.entries.len());
        let mut out = Writer::begin(MAGIC, length);
        out.reserved(2);
        out.u32(self.packs.len() as u32);
        out.u32(frames.len() as u32);
        out.u32(self.entries.len() as u32);
        for pack in &self.packs {
            out.bytes(&pack.0);
        }
        for (pack, offset, stored_bytes, raw_bytes, codec) in &frames {
            out.u32(*pack);
            out.u32(*offset);
            let codec: u32 = match codec {
                Codec::Lz4 => 1,
                Codec::Zstd => 2,
            };
            out.u32(stored_bytes | codec << 24);
            out.u32(*raw_bytes);
            out.reserved(FRAME_ROOM_BYTES);
        }
        for entry in &self.entries {
            out.bytes(&entry.fp.0);
            match (entry.frame, entry.frame_key()) {
                (Some(frame), Some(key)) => {
                    // The list contains each entry's frame.
                    out.u32(frames.partition_point(|other| *other < key) as u32);
                    out.u32(frame.first);
                    out.u32(kind_and_length(entry) | FRAMED << 24);
                }
                _ => {
                    out.u32(entry.pack);
                    out.u32(entry.offset);
                    out.u32(kind_and_length(entry));
                }
            }
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
        let (pack_count, frame_count, entry_count) = (from.u32()?, from.u32()?, from.u32()?);
        let mut packs = Vec::with_capacity(from.count(pack_count.into(), PackId::BYTES)?);
        for _ in 0..pack_count {
            packs.push(from.pack()?);
        }
        let mut frames = Vec::with_capacity(from.count(frame_count.into(), FRAME_BYTES)?);
        for _ in 0..frame_count {
            frames.push(read_frame(&mut from)?);
        }
        let mut entries = Vec::with_capacity(from.count(entry_count.into(), ENTRY_BYTES)?);
        for _ in 0..entry_count {
            entries.push(read_entry(&mut from, &frames)?);
        }
        let directory = Directory { packs, entries };
        from.accept(directory.check().and_then(|()| check_frames(&frames)))?;
        if directory.frames() != frames {
            return Err(from.damaged("it has frames out of order, or without an entry"));
        }
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
            entry.check()?;
        }
        let sorted = self.entries.is_sorted_by(|a, b| a.key() < b.key());
        demand!(sorted, "its entries are out of order, or one is there twice");
        Ok(())
    }
}

/// Returns the last field of an entry: its length, or a slice's form, which determines the length.
fn kind_and_length(entry: &DirectoryEntry) -> u32 {
    match entry.kind {
        EntryKind::Chunk => entry.length,
        EntryKind::Node => entry.length | 1 << 24,
        EntryKind::Segment => entry.length | 2 << 24,
        EntryKind::Page => entry.length | 3 << 24,
        EntryKind::Slice(form) => form.bits() | SLICE << 24,
    }
}

/// Checks that each pack extent has one frame. Other code checks that frames are sorted and all
/// used.
fn check_frames(frames: &[FrameKey]) -> Check {
    let distinct = frames.is_sorted_by(|a, b| (a.0, a.1) < (b.0, b.1));
    demand!(distinct, "it has two frames at one place, or frames out of order");
    Ok(())
}

fn read_frame(from: &mut Reader<'_>) -> Result<FrameKey> {
    let (pack, offset, stored_and_codec, raw_bytes) =
        (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
    from.room(FRAME_ROOM_BYTES)?;
    let codec = match stored_and_codec >> 24 {
        1 => Codec::Lz4,
        2 => Codec::Zstd,
        other => return Err(from.damaged(format!("a frame has codec {other}"))),
    };
    Ok((pack, offset, stored_and_codec & LENGTH_MAX, raw_bytes, codec))
}

fn read_entry(from: &mut Reader<'_>, frames: &[FrameKey]) -> Result<DirectoryEntry> {
    let (fp, first, second) = (from.fingerprint()?, from.u32()?, from.u32()?);
    let length_and_kind = from.u32()?;
    let (bits, kind) = (length_and_kind & LENGTH_MAX, length_and_kind >> 24);
    let (length, kind, is_framed) = match kind {
        0 | FRAMED => (bits, EntryKind::Chunk, kind == FRAMED),
        1 => (bits, EntryKind::Node, false),
        2 => (bits, EntryKind::Segment, false),
        3 => (bits, EntryKind::Page, false),
        other if other & !FRAMED == SLICE => {
            let form = SliceForm::of_bits(bits)
                .filter(|form| form.length() <= u64::from(LENGTH_MAX))
                .ok_or_else(|| from.damaged("an entry has a form that no slice has"))?;
            (form.length() as u32, EntryKind::Slice(form), other != SLICE)
        }
        other => return Err(from.damaged(format!("an entry has kind {other}"))),
    };
    if !is_framed {
        return Ok(DirectoryEntry { fp, pack: first, offset: second, length, kind, frame: None });
    }
    let Some((pack, offset, stored_bytes, raw_bytes, codec)) = frames.get(first as usize).copied()
    else {
        return Err(from.damaged(format!("it has no frame {first}")));
    };
    let frame = Some(InFrame { first: second, stored_bytes, raw_bytes, codec });
    Ok(DirectoryEntry { fp, pack, offset, length, kind, frame })
}
