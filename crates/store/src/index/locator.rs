//! All places that one checkpoint may need, in memory.

use super::{ByFingerprint, read_segment};
use outlive_format::{Directory, DirectoryEntry, InFrame, SegmentRef};
use outlive_pool::{Place, Pool};
use outlive_types::{Error, Fingerprint, PackId, Result};
use std::collections::hash_map::Entry::Vacant;

/// Something to read: its name and where it lies.
#[derive(Clone, Copy, Debug)]
pub struct ReadItem {
    /// Fingerprint its bytes must have.
    pub fp: Fingerprint,
    /// Where it is.
    pub place: Place,
}

/// Resolves fingerprints. About 56 bytes a chunk, and 32 more for one in a frame.
#[derive(Debug, Default)]
pub struct Locator {
    packs: Vec<PackId>,
    places: ByFingerprint<Entry>,
    /// Frames of chunks that lie in one.
    frames: Vec<(u32, InFrame)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Index into `packs`.
    pack: u32,
    /// Logical offset; for a chunk in a frame an index into `frames`.
    offset: u32,
    /// Length; the highest bit is set for a chunk in a frame.
    length: u32,
}

const FRAMED: u32 = 1 << 31;

impl Locator {
    /// Loads the segments of a manifest.
    ///
    /// # Errors
    /// `Damaged` if one is missing or wrong.
    pub fn load(pool: &Pool, segments: &[SegmentRef]) -> Result<Locator> {
        Locator::load_where(pool, segments, |_| true)
    }

    /// Loads those entries of segments that `keep` wants.
    ///
    /// # Errors
    /// `Damaged` if a segment is missing or wrong.
    pub fn load_where(
        pool: &Pool,
        segments: &[SegmentRef],
        keep: impl Fn(&DirectoryEntry) -> bool,
    ) -> Result<Locator> {
        let mut locator = Locator::default();
        for segment in segments {
            locator.extend(&read_segment(pool, segment)?, &keep);
        }
        Ok(locator)
    }

    /// Adds those entries of a directory that `keep` wants. Answers the places of what has another one
    /// already.
    pub(super) fn extend(
        &mut self,
        directory: &Directory,
        keep: &dyn Fn(&DirectoryEntry) -> bool,
    ) -> Vec<(Fingerprint, Place)> {
        let first = self.packs.len() as u32;
        self.packs.extend_from_slice(&directory.packs);
        let wanted = |entry: &&DirectoryEntry| entry.kind.is_resolved() && keep(entry);
        let mut others = Vec::new();
        self.places.reserve(directory.entries.iter().filter(wanted).count());
        for entry in directory.entries.iter().filter(wanted) {
            if !self.add(first, entry) {
                let (offset, length, frame) = (entry.offset, entry.length, entry.frame);
                let place =
                    Place { pack: directory.packs[entry.pack as usize], offset, length, frame };
                if self.find(&entry.fp).is_ok_and(|known| known != place) {
                    others.push((entry.fp, place));
                }
            }
        }
        others
    }

    /// What one directory lists.
    pub fn of(directory: &Directory) -> Locator {
        let mut locator = Locator { packs: directory.packs.clone(), ..Locator::default() };
        locator.places.reserve(directory.entries.len());
        for entry in &directory.entries {
            locator.add(0, entry);
        }
        locator
    }

    /// Adds an entry, unless its chunk has a place already.
    fn add(&mut self, first_pack: u32, listed: &DirectoryEntry) -> bool {
        // Of equal chunks the first named serves as well as any other.
        let Vacant(vacant) = self.places.entry(listed.fp) else { return false };
        let mut entry =
            Entry { pack: first_pack + listed.pack, offset: listed.offset, length: listed.length };
        if let Some(frame) = listed.frame {
            entry.offset = self.frames.len() as u32;
            entry.length |= FRAMED;
            self.frames.push((listed.offset, frame));
        }
        vacant.insert(entry);
        true
    }

    /// Where the chunk or node is.
    ///
    /// # Errors
    /// `Damaged` if no segment names it.
    pub fn find(&self, fp: &Fingerprint) -> Result<Place> {
        let entry = self.places.get(fp).ok_or_else(|| {
            Error::damaged(format!("chunk or node {fp:?} is in none of the checkpoint's segments"))
        })?;
        let (offset, frame) = match entry.length & FRAMED {
            0 => (entry.offset, None),
            _ => {
                let (offset, frame) = self.frames[entry.offset as usize];
                (offset, Some(frame))
            }
        };
        let length = entry.length & !FRAMED;
        Ok(Place { pack: self.packs[entry.pack as usize], offset, length, frame })
    }

    /// The packs that the segments name.
    pub fn packs(&self) -> &[PackId] {
        &self.packs
    }

    /// Number of chunks and nodes known.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True if nothing is known.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}
