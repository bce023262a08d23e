//! An image between its storing and its commit.

use super::leaves::RewriteCandidate;
use super::segments::ImageSegments;
use super::stats::SaveStats;
use super::writer::Base;
use crate::commit::Changes;
use crate::index::Fingerprints;
use outlive_format::RankImage;

/// An image that is stored and durable, with the data to rebase it before the commit, and to follow
/// it afterwards.
pub struct StoredImage {
    pub(super) base: Base,
    pub(super) named: ImageSegments,
    pub(super) new: Fingerprints,
    pub(super) candidates: Vec<RewriteCandidate>,
    pub(super) image: RankImage,
    /// All changes of which it takes account.
    pub(super) seen: Changes,
    /// Figures of the save so far.
    pub stats: SaveStats,
}

impl StoredImage {
    /// Returns the image for the committer.
    pub fn image(&self) -> &RankImage {
        &self.image
    }

    /// Returns the changes by prunes and gcs since the session record, as far as the image got
    /// them.
    pub fn changes_seen(&self) -> &Changes {
        &self.seen
    }
}
