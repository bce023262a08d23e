//! The last stages of a put or a copy: segments and commit, as those of a save.

use super::committer::{CheckpointHeader, Committer};
use super::execute::SaveRequest;
use super::packer::{LoadedSegment, PackNumbers, Packed, Packer};
use super::rebase::{ForeignChunks, list_shared};
use super::segments::{ImageSegments, ReusedChunks};
use super::stats::SaveStats;
use super::stored::StoredImage;
use super::writer::{Base, RankWriter, Writer};
use crate::commit::{Changes, Commit, Committed};
use crate::index::SharedSegment;
use outlive_format::{Image, ImageRef, Manifest, RankImage, SaveFigures, SegmentRef};
use outlive_pool::{Pool, Spread};
use outlive_types::{Epoch, Result};

/// An image of files, or a copied image, that is stored except for its segments.
pub struct NewImage {
    /// Its description in the manifest.
    pub reference: ImageRef,
    /// The checkpoint from which it reuses data.
    pub parent: Option<Base>,
    /// Chunks of other checkpoints that it uses.
    pub hits: ReusedChunks,
    /// Segments that list many of these chunks.
    pub shared_segments: Vec<SharedSegment>,
    /// Figures so far.
    pub stats: SaveStats,
}

impl Writer {
    /// Commits an image of files. The writer's state for memory stays as it is: the next save of
    /// memory follows the last save of memory.
    ///
    /// # Errors
    /// Errors of target or log; `Retry` if a prune dropped the checkpoint from which the image
    /// reuses data.
    pub fn commit_content(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        packer: Packer<'_>,
        image: NewImage,
        request: &SaveRequest,
    ) -> Result<SaveStats> {
        let now = || pool.env().clock.monotonic().saturating_sub(request.started);
        let header = CheckpointHeader {
            epoch: self.committer.head.last_epoch + 1,
            predecessor: None,
            frozen_ns: pool.env().clock.unix_ns(),
            failed_before: request.failed_before,
            remarks: request.notes.remarks.clone(),
            metrics: request.notes.metrics.clone(),
        };
        let figures = &mut |stats: &mut SaveStats| {
            stats.total = now();
            stats.figures()
        };
        let header = (&header, image.parent.as_ref().map_or(0, |base| base.epoch));
        let (mut stats, ..) = self.commit_image(pool, packs, packer, image, header, figures)?;
        stats.total = now();
        Ok(stats)
    }

    /// Stores the segments of an image and commits it.
    fn commit_image(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        packer: Packer<'_>,
        image: NewImage,
        (header, parent_epoch): (&CheckpointHeader, Epoch),
        figures: &mut dyn FnMut(&mut SaveStats) -> SaveFigures,
    ) -> Result<(SaveStats, Vec<SegmentRef>, Committed)> {
        let stored = image.store(pool, packs, packer, (header.epoch, parent_epoch), figures);
        let (mut stored, parent) = stored.map_err(|error| self.committer.blame(pool, error))?;
        let memory = std::mem::replace(&mut self.rank.base, parent);
        let committed = self.commit(pool, packs, header, &mut stored);
        self.rank.base = memory;
        // A rebase here concerns the memory's checkpoint as well.
        self.committer.head.put_back(stored.seen);
        let committed = committed?;
        stored.stats.new_bytes += committed.record_bytes;
        Ok((stored.stats, stored.image.image.segments, committed))
    }
}

impl NewImage {
    /// Stores its segments, as part of the checkpoint `epoch` that follows `parent_epoch`. Returns
    /// the stored image, and the checkpoint from which it reuses data.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn store(
        self,
        pool: &Pool,
        packs: &PackNumbers,
        packer: Packer<'_>,
        (epoch, parent_epoch): (Epoch, Epoch),
        figures: &mut dyn FnMut(&mut SaveStats) -> SaveFigures,
    ) -> Result<(StoredImage, Option<Base>)> {
        let NewImage { reference, parent, hits, shared_segments, mut stats } = self;
        let before = parent.as_ref().map(|base| base.segments.as_slice()).unwrap_or_default();
        let mut segments: Vec<LoadedSegment> =
            before.iter().map(|segment| (*segment, None)).collect();
        list_shared(&mut segments, &shared_segments);
        let packed =
            ForeignChunks::of(&hits, &shared_segments).store(pool, &packer).and_then(|foreign| {
                segments.extend(foreign);
                packer.finish(segments)
            });
        let (Packed { packs: count, stored_bytes, segments, own }, segment_bytes) = packed?;
        (stats.packs, stats.new_bytes, stats.segment_bytes) = (count, stored_bytes, segment_bytes);
        stats.epoch = epoch;
        let figures = figures(&mut stats);
        let image = Image { reference, next_pack: packs.next(), segments: segments.clone() };
        let stored = StoredImage {
            base: Base::default(),
            named: ImageSegments { segments, own, hits },
            new: Default::default(),
            candidates: Vec::new(),
            image: RankImage { image, parent: parent_epoch, figures, spread: Spread::new() },
            seen: Changes::default(),
            stats,
        };
        Ok((stored, parent))
    }
}

/// A rank's image that was copied from elsewhere, stored and durable.
pub struct CopiedImage<'a> {
    /// Its writer, which follows the checkpoint from which the image reuses data.
    pub writer: &'a mut RankWriter,
    /// The writer's packs.
    pub packs: PackNumbers,
    /// The image.
    pub stored: StoredImage,
}

impl Committer {
    /// Commits the images of all ranks as a checkpoint with the header of the original.
    ///
    /// # Errors
    /// Errors of target or log; `Retry` if a prune dropped the checkpoint from which they reuse
    /// data.
    pub fn commit_copies(
        &mut self,
        pool: &Pool,
        copies: &mut [CopiedImage<'_>],
        like: &Manifest,
    ) -> Result<Committed> {
        let committed = self.commit_rebasing(pool, copies, like);
        // The next save must take account of the changes that caused a rebase, too.
        if let Some(first) = copies.first() {
            self.head.put_back(first.stored.seen.clone());
        }
        committed
    }

    fn commit_rebasing(
        &mut self,
        pool: &Pool,
        copies: &mut [CopiedImage<'_>],
        like: &Manifest,
    ) -> Result<Committed> {
        let Manifest { epoch, predecessor, frozen_ns, failed_before, remarks, metrics, .. } =
            like.clone();
        let predecessor = Some(predecessor);
        let header =
            CheckpointHeader { epoch, predecessor, frozen_ns, failed_before, remarks, metrics };
        loop {
            let images: Vec<RankImage> =
                copies.iter().map(|copy| copy.stored.image.clone()).collect();
            let changes = match self.commit(pool, &header, &images)? {
                Commit::Done(committed) => return Ok(committed),
                Commit::Changed(changes) => changes,
            };
            for CopiedImage { writer, packs, stored } in &mut *copies {
                let rebased = writer.rebase(pool, packs, stored, changes.clone());
                rebased.map_err(|error| self.blame(pool, error))?;
            }
        }
    }
}
