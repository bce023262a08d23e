//! Compares images of memory, region by region.

use super::pages::{self, PageDiff};
use crate::images::image_of;
use crate::index::Locator;
use crate::read::{read_catalog, read_stream};
use outlive_format::{Catalog, CatalogRegion, Image, ImageRef, Manifest};
use outlive_pool::Pool;
use outlive_types::{Error, PAGE_BYTES, Rank, RegionDesc, RegionLocation, Result, pages_of};
use std::collections::HashMap;

/// An image whose catalog has been read, and nothing else.
pub struct ComparedMemory {
    locator: Locator,
    catalog: Catalog,
    image: ImageRef,
}

/// A region that both images have, but not the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionDiff {
    /// Description by the first checkpoint.
    pub before: RegionDesc,
    /// Description by the second.
    pub after: RegionDesc,
    /// Pages that differ; `None` if the region was below 64 KiB in just one image, so that its
    /// bytes were not compared.
    pub content: Option<PageDiff>,
}

impl RegionDiff {
    /// Whether type, shape or length differ.
    pub fn is_reshaped(&self) -> bool {
        let shape = |desc: &RegionDesc| (desc.dtype.clone(), desc.shape.clone(), desc.bytes);
        shape(&self.before) != shape(&self.after)
    }
}

/// Differences between two images of memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryDiff {
    /// Regions that only the second has.
    pub added: Vec<RegionDesc>,
    /// Regions that only the first has.
    pub removed: Vec<RegionDesc>,
    /// Regions that are not the same.
    pub changed: Vec<RegionDiff>,
    /// Number of regions that are the same.
    pub same: u64,
    /// Whether the attachment differs, which the front door stores with the image.
    pub attachment: bool,
}

impl MemoryDiff {
    /// Returns true if nothing differs.
    pub fn is_same(&self) -> bool {
        let regions = self.added.len() + self.removed.len() + self.changed.len();
        regions == 0 && !self.attachment
    }
}

impl ComparedMemory {
    /// Reads the catalog of a rank in the checkpoint that `manifest` describes.
    ///
    /// # Errors
    /// `Invalid` for a rank that the checkpoint lacks; `Damaged` if the image is missing or wrong.
    pub fn open(pool: &Pool, manifest: &Manifest, rank: Rank) -> Result<ComparedMemory> {
        let Image { reference: image, segments, .. } = image_of(pool, manifest, rank)?;
        let locator = Locator::load(pool, &segments)?;
        let catalog = read_catalog(pool, &mut &locator, image.catalog)?;
        Ok(ComparedMemory { locator, catalog, image })
    }
}

/// Compares two images.
///
/// # Errors
/// `Damaged` if an object that must be read is missing or wrong.
pub fn compare(
    pool: &Pool,
    a: &ComparedMemory,
    b: &ComparedMemory,
    ranges: bool,
) -> Result<MemoryDiff> {
    let mut diff = MemoryDiff {
        attachment: a.catalog.attachment != b.catalog.attachment,
        ..MemoryDiff::default()
    };
    let mut before: HashMap<&str, &CatalogRegion> =
        a.catalog.regions.iter().map(|region| (region.desc.name.as_str(), region)).collect();
    let mut packed = Packed { pool, images: [a, b], bytes: None };
    for region in &b.catalog.regions {
        let Some(old) = before.remove(region.desc.name.as_str()) else {
            diff.added.push(region.desc.clone());
            continue;
        };
        let content = match (old.tree(), region.tree()) {
            (Some(old), Some(new)) => {
                Some(pages::compare(pool, [&a.locator, &b.locator], [old, new], ranges)?)
            }
            (None, None) => Some(packed.compare(&old.desc, &region.desc, ranges)?),
            _ => None,
        };
        let (before, after) = (old.desc.clone(), region.desc.clone());
        let region = RegionDiff { before, after, content };
        let is_same = region.content.as_ref().is_some_and(|content| content.changed_pages == 0);
        match is_same && !region.is_reshaped() {
            true => diff.same += 1,
            false => diff.changed.push(region),
        }
    }
    let is_left = |region: &&CatalogRegion| before.contains_key(region.desc.name.as_str());
    diff.removed = a.catalog.regions.iter().filter(is_left).map(|r| r.desc.clone()).collect();
    Ok(diff)
}

/// Compares small regions byte by byte, since they share pages. Their stream is read when one may
/// differ.
struct Packed<'a> {
    pool: &'a Pool,
    images: [&'a ComparedMemory; 2],
    bytes: Option<[Vec<u8>; 2]>,
}

impl Packed<'_> {
    fn compare(&mut self, a: &RegionDesc, b: &RegionDesc, ranges: bool) -> Result<PageDiff> {
        let bytes = a.bytes.min(b.bytes);
        let mut diff = PageDiff { pages: pages_of(bytes), ..PageDiff::default() };
        if self.images[0].image.packed == self.images[1].image.packed && a.location == b.location {
            return Ok(diff);
        }
        if self.bytes.is_none() {
            let read = |image: &ComparedMemory| {
                read_stream(self.pool, &mut &image.locator, image.image.packed)
            };
            self.bytes = Some([read(self.images[0])?, read(self.images[1])?]);
        }
        let Some(streams) = &self.bytes else { return Ok(diff) };
        let (a, b) = (part(&streams[0], a)?, part(&streams[1], b)?);
        let pages = a.chunks(PAGE_BYTES).zip(b.chunks(PAGE_BYTES)).enumerate();
        for (page, (a, b)) in pages {
            let length = a.len().min(b.len());
            if a[..length] != b[..length] {
                diff.add(page as u64, bytes, ranges);
            }
        }
        Ok(diff)
    }
}

fn part<'s>(stream: &'s [u8], region: &RegionDesc) -> Result<&'s [u8]> {
    let RegionLocation::Packed { offset } = region.location else {
        return Err(Error::bug("a region of its own is not in the packed stream"));
    };
    let end = offset.checked_add(region.bytes);
    end.and_then(|end| stream.get(offset as usize..end as usize)).ok_or_else(|| {
        Error::damaged(format!("region {:?} lies beyond the packed stream", region.name))
    })
}
