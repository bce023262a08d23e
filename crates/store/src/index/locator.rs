//! All places that one checkpoint may need, in memory.

use super::{ByFingerprint, read_segment};
use outlive_format::{EntryKind, InFrame, SegmentRef};
use outlive_pool::{Place, Pool};
use outlive_types::{Error, Fingerprint, PackId, Result};

/// Resolves fingerprints. About 56 bytes a chunk.
#[derive(Debug, Default)]
pub struct Locator {
    packs: Vec<PackId>,
    places: ByFingerprint<(u32, u32, u32, Option<InFrame>)>,
}

impl Locator {
    /// Loads the segments of a manifest.
    ///
    /// # Errors
    /// `Damaged` if one is missing or wrong.
    pub fn load(pool: &Pool, segments: &[SegmentRef]) -> Result<Locator> {
        let mut locator = Locator::default();
        for segment in segments {
            let directory = read_segment(pool, segment)?;
            let first = locator.packs.len() as u32;
            locator.packs.extend_from_slice(&directory.packs);
            locator.places.reserve(directory.entries.len());
            for entry in &directory.entries {
                if entry.kind != EntryKind::Segment {
                    let place = (first + entry.pack, entry.offset, entry.length, entry.frame);
                    // Of equal chunks the first named serves as well as any other.
                    locator.places.entry(entry.fp).or_insert(place);
                }
            }
        }
        Ok(locator)
    }

    /// Where the chunk or node is.
    ///
    /// # Errors
    /// `Damaged` if no segment names it.
    pub fn find(&self, fp: &Fingerprint) -> Result<Place> {
        let (pack, offset, length, frame) = *self.places.get(fp).ok_or_else(|| {
            Error::damaged(format!("chunk or node {fp:?} is in none of the checkpoint's segments"))
        })?;
        Ok(Place { pack: self.packs[pack as usize], offset, length, frame })
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
