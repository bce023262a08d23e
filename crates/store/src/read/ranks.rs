//! A checkpoint of several ranks, of which a rank reads the data that it needs: its own image, and
//! parts of other images. A program needs those if its number of ranks, or the division of its
//! arrays, has changed.

use super::image::{MemoryImage, image_words, is_named, read_catalog};
use super::ranges::Leaves;
use super::streams::{RestorePlan, RestoreSink, RestoreStats, SoughtPieces};
use crate::images::{each_image, image_to_restore};
use crate::index::RestoreLocator;
use outlive_format::{Catalog, Image, Manifest};
use outlive_pool::Pool;
use outlive_types::{Epoch, JobName, PACKED_STREAM, Rank, RegionDesc, RegionLocation, Result};
use std::ops::Range;

/// A checkpoint whose images are opened one by one.
#[derive(Clone, Copy)]
pub struct RankImages<'a> {
    pool: &'a Pool,
    job: &'a JobName,
    manifest: &'a Manifest,
    as_of: u64,
}

/// Metadata of another rank's image.
#[derive(Debug)]
pub struct RankRegions {
    /// The image, not opened yet.
    image: Image,
    /// Its regions.
    pub regions: Vec<RegionDesc>,
    /// The attachment of the front door.
    pub attachment: Vec<u8>,
    /// The outputs that the checkpoint covers, encoded.
    pub outputs: Vec<u8>,
}

impl<'a> RankImages<'a> {
    /// Describes the checkpoint of a manifest, as of record `as_of` of the log.
    pub fn new(
        pool: &'a Pool,
        job: &'a JobName,
        manifest: &'a Manifest,
        as_of: u64,
    ) -> RankImages<'a> {
        RankImages { pool, job, manifest, as_of }
    }

    /// Returns its epoch.
    pub fn epoch(&self) -> Epoch {
        self.manifest.epoch
    }

    /// Returns the number of ranks that have saved it.
    pub fn count(&self) -> u32 {
        self.manifest.world_size
    }

    /// Opens a rank's image.
    ///
    /// # Errors
    /// As for [`MemoryImage::open_rank`].
    pub fn open(&self, rank: Rank) -> Result<MemoryImage> {
        let image = image_to_restore(self.pool, self.manifest, rank)?;
        MemoryImage::open_image(self.pool, self.job, self.manifest.clone(), image, self.as_of)
    }

    /// Calls `each` with the regions of every rank; reads only the catalogs.
    ///
    /// # Errors
    /// `Damaged` if any catalog is missing or wrong; errors of `each`.
    pub fn each(&self, each: &mut dyn FnMut(RankRegions) -> Result<()>) -> Result<()> {
        each_image(self.pool, self.manifest, &mut |image| each(self.regions_of(image.clone())?))
    }

    /// Returns the regions of one rank; reads only its catalog.
    ///
    /// # Errors
    /// `Damaged` if that is missing or wrong; `Invalid` if there is no such rank.
    pub fn regions(&self, rank: Rank) -> Result<RankRegions> {
        self.regions_of(image_to_restore(self.pool, self.manifest, rank)?)
    }

    fn regions_of(&self, image: Image) -> Result<RankRegions> {
        let is_named = is_named(self.pool, self.job, self.manifest);
        let catalog = RestoreLocator::new(self.pool, &image.segments, is_named)
            .and_then(|mut found| {
                let root = image.reference.catalog;
                found.repeated(&mut |found| read_catalog(self.pool, found, root))
            })
            .map_err(|e| e.context(image_words(self.job, self.manifest, image.reference.rank)))?;
        let Catalog { regions, attachment, outputs } = catalog;
        let regions = regions.into_iter().map(|region| region.desc).collect();
        Ok(RankRegions { image, regions, attachment, outputs })
    }

    /// Opens one of these images.
    ///
    /// # Errors
    /// `Damaged` if any of its metadata is missing or wrong.
    pub fn open_regions(&self, of: &RankRegions) -> Result<MemoryImage> {
        let (image, manifest) = (of.image.clone(), self.manifest.clone());
        MemoryImage::open_image(self.pool, self.job, manifest, image, self.as_of)
    }
}

impl MemoryImage {
    /// Returns the stream of a region, and the offset of its first byte. `None` if all packed
    /// regions together have no byte.
    pub fn stream_with(&self, region: &RegionDesc) -> Option<(usize, u64)> {
        let (name, from) = match region.location {
            RegionLocation::Packed { offset } => (PACKED_STREAM, offset),
            RegionLocation::Own => (region.name.as_str(), 0),
        };
        self.streams().iter().position(|stream| stream.name == name).map(|at| (at, from))
    }

    /// Reads ranges of streams, ascending in each, into `sink`, which gets only verified bytes.
    ///
    /// # Errors
    /// As for [`MemoryImage::read`].
    pub fn read_ranges(
        &self,
        ranges: &[(usize, Range<u64>)],
        sink: &dyn RestoreSink,
    ) -> Result<RestoreStats> {
        // The sink takes no byte twice, so this cannot look for another copy later.
        self.all_extents().map_err(|error| error.context(self.words()))?;
        let leaves = Leaves::default();
        let mut sought = SoughtPieces::default();
        for (stream, range) in ranges {
            self.add_range(self.pool(), &leaves, &mut sought, *stream, range.clone())?;
        }
        let total_bytes = ranges.iter().map(|(_, range)| range.end - range.start).sum();
        let plan = RestorePlan::of(self.pool(), self.located(sought)?, total_bytes);
        plan.execute(self.pool(), sink).map_err(|error| error.context(self.words()))
    }
}
