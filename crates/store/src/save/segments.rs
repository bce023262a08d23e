//! What an image has from elsewhere, and what names all of it.

use crate::index::ByFingerprint;
use outlive_format::SegmentRef;
use outlive_pool::Place;

/// Chunks that a save found stored already. `None`: where the segments of its base say.
pub type ReusedChunks = ByFingerprint<Option<Place>>;

/// A manifest's segments, as a save made them.
#[derive(Debug, Default)]
pub struct ImageSegments {
    /// What the manifest lists.
    pub segments: Vec<SegmentRef>,
    /// The directories of the save's own packs.
    pub own: Vec<SegmentRef>,
    /// Chunks that the image has from elsewhere.
    pub hits: ReusedChunks,
}
