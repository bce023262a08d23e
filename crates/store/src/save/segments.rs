//! What an image has from elsewhere, and what names all of it.

use crate::index::ByFingerprint;
use outlive_format::{SegmentRef, SliceForm};
use outlive_pool::PackExtent;
use outlive_types::Fingerprint;

/// Chunks and slices that a save found stored already.
#[derive(Debug, Default)]
pub struct ReusedChunks {
    /// Chunks. `None`: where the segments of its base say.
    pub chunks: ByFingerprint<Option<PackExtent>>,
    /// Slices in the segments of its base. Only a copy relies on any: it knows which pages it needs.
    pub slices: Vec<(Fingerprint, SliceForm)>,
}

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
