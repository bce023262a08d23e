//! Chunks that an image shares, and the segments that list all its chunks.

use crate::index::ByFingerprint;
use outlive_format::{SegmentRef, SliceForm};
use outlive_pool::PackExtent;
use outlive_types::Fingerprint;

/// Chunks and slices that a save found stored already.
#[derive(Debug, Default)]
pub struct ReusedChunks {
    /// Chunks, with their extents; `None`: the segments of the base list the extent.
    pub chunks: ByFingerprint<Option<PackExtent>>,
    /// Slices in the segments of the base. Only a copy uses them: it knows the pages that it needs.
    pub slices: Vec<(Fingerprint, SliceForm)>,
}

/// A manifest's segments, as a save made them.
#[derive(Debug, Default)]
pub struct ImageSegments {
    /// The segments that the manifest lists.
    pub segments: Vec<SegmentRef>,
    /// The directories of the save's own packs.
    pub own: Vec<SegmentRef>,
    /// Chunks of other checkpoints that the image uses.
    pub hits: ReusedChunks,
}
