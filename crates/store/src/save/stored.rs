//! An image between its storing and its commit.

use super::leaves::RewriteCandidate;
use super::segments::ImageSegments;
use super::stats::SaveStats;
use super::writer::Base;
use crate::commit::Changes;
use crate::index::Fingerprints;
use outlive_format::RankImage;

/// An image that is stored and durable, and what it takes to mend it before the commit, and to follow
/// it afterwards.
pub struct StoredImage {
    pub(super) base: Base,
    pub(super) named: ImageSegments,
    pub(super) new: Fingerprints,
    pub(super) candidates: Vec<RewriteCandidate>,
    pub(super) image: RankImage,
    /// All changes of which it takes account.
    pub(super) seen: Changes,
    /// What the save did so far.
    pub stats: SaveStats,
}

impl StoredImage {
    /// What the committer needs.
    pub fn image(&self) -> &RankImage {
        &self.image
    }

    /// What prunes and gcs have done since the session message, as far as it was told.
    pub fn changes_seen(&self) -> &Changes {
        &self.seen
    }
}
