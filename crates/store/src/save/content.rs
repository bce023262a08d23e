//! The last stages of a put or a copy: segments and commit, as those of a save.

use super::committer::Draft;
use super::execute::Order;
use super::mend::{BorrowedChunks, list_lent};
use super::packer::{LoadedSegment, PackNumbers, Packed, Packer};
use super::segments::{ImageSegments, ReusedChunks};
use super::stats::SaveStats;
use super::stored::StoredImage;
use super::writer::{Base, Writer};
use crate::commit::{Changes, Committed};
use crate::index::LentSegment;
use outlive_format::{Image, ImageRef, Manifest, RankImage, SaveFigures, SegmentRef};
use outlive_pool::Pool;
use outlive_types::{Epoch, Result};

/// An image of files, or one that was copied, that is stored but for its segments.
pub struct NewImage {
    /// What the manifest says of it.
    pub reference: ImageRef,
    /// The checkpoint that it takes over from.
    pub parent: Option<Base>,
    /// Chunks that it has from elsewhere.
    pub hits: ReusedChunks,
    /// Segments that list many of them.
    pub lent: Vec<LentSegment>,
    /// Figures so far.
    pub stats: SaveStats,
}

impl Writer {
    /// Commits an image of files. What this writer knows of the program's memory stays as it is: the
    /// next save of memory follows the last one of memory.
    ///
    /// # Errors
    /// What target or log report; `Retry` if the checkpoint it takes over from was pruned meanwhile.
    pub fn commit_content(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        packer: Packer<'_>,
        image: NewImage,
        order: &Order,
    ) -> Result<SaveStats> {
        let now = || pool.env().clock.monotonic().saturating_sub(order.started);
        let draft = Draft {
            epoch: self.committer.head.last_epoch + 1,
            frozen_ns: pool.env().clock.unix_ns(),
            remarks: order.notes.remarks.clone(),
            metrics: order.notes.metrics.clone(),
        };
        let figures = &mut |stats: &mut SaveStats| {
            stats.total = now();
            stats.figures()
        };
        let draft = (&draft, image.parent.as_ref().map_or(0, |base| base.epoch));
        let (mut stats, ..) = self.commit_image(pool, packs, packer, image, draft, figures)?;
        stats.total = now();
        Ok(stats)
    }

    /// Commits an image that was copied from elsewhere as the checkpoint that it is there. Answers the
    /// segments that it has here, too, and its record.
    ///
    /// # Errors
    /// As [`Writer::commit_content`].
    pub fn commit_copy(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        packer: Packer<'_>,
        image: NewImage,
        like: &Manifest,
    ) -> Result<(SaveStats, Vec<SegmentRef>, Committed)> {
        let Manifest { epoch, parent, frozen_ns, remarks, metrics, .. } = like.clone();
        let draft = Draft { epoch, frozen_ns, remarks, metrics };
        self.commit_image(pool, packs, packer, image, (&draft, parent), &mut |stats| SaveFigures {
            new_bytes: stats.new_bytes,
            ..like.figures
        })
    }

    /// Stores the segments of an image and commits it.
    fn commit_image(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        packer: Packer<'_>,
        image: NewImage,
        (draft, parent_epoch): (&Draft, Epoch),
        figures: &mut dyn FnMut(&mut SaveStats) -> SaveFigures,
    ) -> Result<(SaveStats, Vec<SegmentRef>, Committed)> {
        let NewImage { reference, parent, hits, lent, mut stats } = image;
        let before = parent.as_ref().map(|base| base.segments.as_slice()).unwrap_or_default();
        let mut segments: Vec<LoadedSegment> =
            before.iter().map(|segment| (*segment, None)).collect();
        list_lent(&mut segments, &lent);
        let packed = BorrowedChunks::of(&hits, &lent).store(pool, &packer).and_then(|borrowed| {
            segments.extend(borrowed);
            packer.finish(segments)
        });
        let (Packed { packs: count, stored_bytes, segments, own }, segment_bytes) =
            packed.map_err(|error| self.committer.blame(pool, error))?;
        (stats.packs, stats.new_bytes, stats.segment_bytes) = (count, stored_bytes, segment_bytes);
        stats.epoch = draft.epoch;
        let figures = figures(&mut stats);
        let image = Image { reference, next_pack: packs.next(), segments: segments.clone() };
        let mut stored = StoredImage {
            base: Base::default(),
            named: ImageSegments { segments, own, hits },
            new: Default::default(),
            wishes: Vec::new(),
            image: RankImage { image, parent: parent_epoch, figures },
            seen: Changes::default(),
            stats,
        };
        let memory = std::mem::replace(&mut self.rank.base, parent);
        let committed = self.commit(pool, packs, draft, &mut stored);
        self.rank.base = memory;
        // What was mended here concerns the memory's checkpoint as well.
        self.committer.head.put_back(stored.seen);
        let committed = committed?;
        stored.stats.new_bytes += committed.record_bytes;
        Ok((stored.stats, stored.image.image.segments, committed))
    }
}
