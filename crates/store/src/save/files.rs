//! The last stages of a put or a copy: segments and commit, as those of a save.

use super::execute::{Order, Stored};
use super::mend::{Borrowed, Hits, Named, list_lent};
use super::packer::{Listed, PackNumbers, Packed, Packer};
use super::stats::SaveStats;
use super::writer::{Base, Writer};
use crate::commit::{Changes, Committed};
use crate::index::Lent;
use outlive_format::{ImageRef, Manifest, SaveFigures, SegmentRef};
use outlive_pool::Pool;
use outlive_types::Result;

/// An image of files, or one that was copied, that is stored but for its segments.
pub struct FilesImage {
    /// What the manifest says of it.
    pub reference: ImageRef,
    /// The checkpoint that it takes over from.
    pub parent: Option<Base>,
    /// Chunks that it has from elsewhere.
    pub hits: Hits,
    /// Segments that list many of them.
    pub lent: Vec<Lent>,
    /// Figures so far.
    pub stats: SaveStats,
}

impl Writer {
    /// The session's packs; it is opened if there is none, and notice taken of what others have done meanwhile.
    ///
    /// # Errors
    /// `Fenced` if another writer has taken over; what the log reports.
    pub fn begin(&mut self, pool: &Pool) -> Result<PackNumbers> {
        self.begin_seeing(pool).map(|(packs, _)| packs)
    }

    /// The same; answers what others have done as well.
    ///
    /// # Errors
    /// As [`Writer::begin`].
    pub fn begin_seeing(&mut self, pool: &Pool) -> Result<(PackNumbers, Changes)> {
        let (session, opened) = self.head.open(pool)?;
        let packs = match &self.packs {
            Some(packs) if !opened => packs.clone(),
            _ => self.packs.insert(PackNumbers::new(session)).clone(),
        };
        let changes = self.head.take_changes();
        self.absorb(pool, changes.clone())?;
        Ok((packs, changes))
    }

    /// Commits an image of files. What this writer knows of the program's memory stays as it is: the
    /// next save of memory follows the last one of memory.
    ///
    /// # Errors
    /// What target or log report; `Retry` if the checkpoint it takes over from was pruned meanwhile.
    pub fn commit_files(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        packer: Packer<'_>,
        image: FilesImage,
        order: &Order,
    ) -> Result<SaveStats> {
        let now = || pool.env().clock.monotonic().saturating_sub(order.started);
        let epoch = self.head.last_epoch + 1;
        let parent = image.parent.as_ref().map_or(0, |base| base.epoch);
        let (mut stats, ..) = self.commit_image(pool, packs, packer, image, &mut |stats| {
            stats.epoch = epoch;
            stats.total = now();
            Manifest {
                session: packs.session(),
                world_size: 1,
                epoch,
                parent,
                frozen_ns: pool.env().clock.unix_ns(),
                figures: stats.figures(),
                next_pack: 0,
                remarks: order.notes.remarks.clone(),
                metrics: order.notes.metrics.clone(),
                images: Vec::new(),
                segments: Vec::new(),
            }
        })?;
        stats.total = now();
        Ok(stats)
    }

    /// Commits an image that was copied from elsewhere as the checkpoint that it is there. Answers the
    /// segments that it has here, too, and its record.
    ///
    /// # Errors
    /// As [`Writer::commit_files`].
    pub fn commit_copy(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        packer: Packer<'_>,
        image: FilesImage,
        like: &Manifest,
    ) -> Result<(SaveStats, Vec<SegmentRef>, Committed)> {
        self.commit_image(pool, packs, packer, image, &mut |stats| {
            stats.epoch = like.epoch;
            let figures = SaveFigures { new_bytes: stats.new_bytes, ..like.figures };
            let session = packs.session();
            Manifest { session, figures, images: Vec::new(), segments: Vec::new(), ..like.clone() }
        })
    }

    /// Stores the segments of an image and commits what `describe` says of it.
    fn commit_image(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        packer: Packer<'_>,
        image: FilesImage,
        describe: &mut dyn FnMut(&mut SaveStats) -> Manifest,
    ) -> Result<(SaveStats, Vec<SegmentRef>, Committed)> {
        let FilesImage { reference, parent, hits, lent, mut stats } = image;
        let before = parent.as_ref().map(|base| base.segments.as_slice()).unwrap_or_default();
        let mut segments: Vec<Listed> = before.iter().map(|segment| (*segment, None)).collect();
        list_lent(&mut segments, &lent);
        let packed = Borrowed::of(&hits, &lent).store(pool, &packer).and_then(|borrowed| {
            segments.extend(borrowed);
            packer.finish(segments)
        });
        let (Packed { packs: count, stored_bytes, segments, own }, segment_bytes) =
            packed.map_err(|error| self.head.blame(pool, error))?;
        (stats.packs, stats.new_bytes, stats.segment_bytes) = (count, stored_bytes, segment_bytes);
        let described = describe(&mut stats);
        let manifest = Manifest {
            next_pack: packs.next(),
            images: vec![reference],
            segments: segments.clone(),
            ..described
        };
        let named = Named { segments, own, hits };
        let mut stored = Stored {
            base: Base::default(),
            named,
            new: Default::default(),
            wishes: Vec::new(),
            manifest,
            stats,
        };
        let memory = std::mem::replace(&mut self.base, parent);
        let mut seen = Changes::default();
        let committed = self.commit(pool, packs, &mut stored, &mut seen);
        self.base = memory;
        // What was mended here concerns the memory's checkpoint as well.
        self.head.put_back(seen);
        let committed = committed?;
        stored.stats.new_bytes += committed.record_bytes;
        Ok((stored.stats, stored.manifest.segments, committed))
    }
}
