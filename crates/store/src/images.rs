//! The images of a checkpoint, wherever they stand: in its manifest, or in the pages of an image
//! table. A reader of one rank needs one of these pages.

use crate::read_at::read_at;
use outlive_format::{
    Image, ImageTable, Images, Manifest, PageRef, SegmentLists, SegmentRef, TablePage, page_of,
};
use outlive_pool::Pool;
use outlive_types::{Error, ErrorKind, Rank, Result};
use std::collections::HashSet;

/// Returns the image of one rank. It reads one page, and another one if an archive has new segments
/// for the rank.
///
/// # Errors
/// `Invalid` if there is no such rank; `Damaged` if a page is missing or wrong.
pub fn image_of(pool: &Pool, manifest: &Manifest, rank: Rank) -> Result<Image> {
    if rank >= manifest.world_size {
        return Err(Error::invalid(format!(
            "checkpoint {} has ranks 0 to {}, and no rank {rank}",
            manifest.epoch,
            manifest.world_size - 1
        )));
    }
    let table = match &manifest.images {
        Images::One(image) => return Ok(image.clone()),
        Images::Table(table) => table,
    };
    let mut images = read_images(pool, page_with(&table.pages, rank)?)?;
    let at = images.iter().position(|image| image.reference.rank == rank);
    let mut image = images.swap_remove(at.ok_or_else(|| missing(rank))?);
    if !table.lists.is_empty() {
        image.segments = list_of(pool, &table.lists, rank)?;
    }
    Ok(image)
}

/// Does the same for a restore. If the page that lists its segments is damaged, the image has none,
/// and the locator of the restore finds the contents of the segments.
///
/// # Errors
/// As [`image_of`], except for that.
pub fn image_to_restore(pool: &Pool, manifest: &Manifest, rank: Rank) -> Result<Image> {
    let image = image_of(pool, manifest, rank);
    match (&image, &manifest.images) {
        (Err(error), Images::Table(table))
            if error.kind() == ErrorKind::Damaged && !pool.is_checking() =>
        {
            // As if there were no lists.
            let table = ImageTable { lists: Vec::new(), ..table.clone() };
            let manifest = Manifest { images: Images::Table(table), ..manifest.clone() };
            let without = image_of(pool, &manifest, rank).map_err(|_| error.clone())?;
            Ok(Image { segments: Vec::new(), ..without })
        }
        _ => image,
    }
}

/// Passes the images of a checkpoint to `each`, one after the other, by rank.
///
/// # Errors
/// `Damaged` if a page is missing or wrong; errors of `each`.
pub fn each_image(
    pool: &Pool,
    manifest: &Manifest,
    each: &mut dyn FnMut(&Image) -> Result<()>,
) -> Result<()> {
    let table = match &manifest.images {
        Images::One(image) => return each(image),
        Images::Table(table) => table,
    };
    let mut lists = Lists::new(pool, table);
    let mut next = 0;
    for page in &table.pages {
        for mut image in read_images(pool, page)? {
            if image.reference.rank != next {
                return Err(missing(next));
            }
            lists.replace(&mut image)?;
            each(&image)?;
            next += 1;
        }
    }
    if next == manifest.world_size { Ok(()) } else { Err(missing(next)) }
}

/// Returns all images of a checkpoint, by rank.
///
/// # Errors
/// `Damaged` if a page is missing or wrong.
pub fn images_of(pool: &Pool, manifest: &Manifest) -> Result<Vec<Image>> {
    let mut images = Vec::new();
    each_image(pool, manifest, &mut |image| {
        images.push(image.clone());
        Ok(())
    })?;
    Ok(images)
}

/// Returns the image of a checkpoint of one rank.
///
/// # Errors
/// `Invalid` if it has several ranks.
pub fn only_image(manifest: &Manifest) -> Result<&Image> {
    manifest.images.one().ok_or_else(|| {
        Error::invalid(format!(
            "it has {} ranks, and this reads what one has: restore it without `lazy`, or choose a rank with `--rank`",
            manifest.world_size
        ))
    })
}

/// Returns the distinct segments of all images of a checkpoint.
///
/// # Errors
/// `Damaged` if a page is missing or wrong.
pub fn segments_of_all(pool: &Pool, manifest: &Manifest) -> Result<Vec<SegmentRef>> {
    let (mut seen, mut segments) = (HashSet::new(), Vec::new());
    each_image(pool, manifest, &mut |image| {
        segments.extend(image.segments.iter().filter(|segment| seen.insert(**segment)));
        Ok(())
    })?;
    Ok(segments)
}

/// Returns the pages that a checkpoint needs besides the contents of its segments.
pub fn pages_of(manifest: &Manifest) -> impl Iterator<Item = &PageRef> {
    let pages = match &manifest.images {
        Images::One(_) => (&[][..], &[][..]),
        Images::Table(table) => (&table.pages[..], &table.lists[..]),
    };
    pages.0.iter().chain(pages.1)
}

/// Returns the segments that an archive lists for a rank; none if no checkpoint has the rank.
///
/// # Errors
/// `Damaged` if the page is missing or wrong.
pub fn list_of(pool: &Pool, lists: &[PageRef], rank: Rank) -> Result<Vec<SegmentRef>> {
    let Some(page) = page_of(lists, rank) else { return Ok(Vec::new()) };
    let lists = SegmentLists::decode(&read_page(pool, page)?)?;
    let found = lists.ranks.into_iter().find(|(listed, _)| *listed == rank);
    Ok(found.map(|(_, segments)| segments).unwrap_or_default())
}

/// Reads a page's bytes and verifies them.
///
/// # Errors
/// `Damaged` if they are missing or wrong.
pub fn read_page(pool: &Pool, page: &PageRef) -> Result<Vec<u8>> {
    read_at(pool, (page.pack, page.offset, page.length), page.fp, "page of an image table")
}

fn read_images(pool: &Pool, page: &PageRef) -> Result<Vec<Image>> {
    let images = TablePage::decode(&read_page(pool, page)?)?.images;
    match images.first() {
        Some(first) if first.reference.rank == page.first_rank => Ok(images),
        _ => Err(missing(page.first_rank)),
    }
}

fn page_with(pages: &[PageRef], rank: Rank) -> Result<&PageRef> {
    page_of(pages, rank).ok_or_else(|| missing(rank))
}

fn missing(rank: Rank) -> Error {
    Error::damaged(format!("the image of rank {rank} is not in its place in the image table"))
}

/// The lists of segments that replace those of a table, read page by page.
struct Lists<'a> {
    pool: &'a Pool,
    pages: &'a [PageRef],
    /// First rank of the last page that was read, and its lists.
    at_hand: Option<(Rank, SegmentLists)>,
}

impl<'a> Lists<'a> {
    fn new(pool: &'a Pool, table: &'a ImageTable) -> Lists<'a> {
        Lists { pool, pages: &table.lists, at_hand: None }
    }

    fn replace(&mut self, image: &mut Image) -> Result<()> {
        if self.pages.is_empty() {
            return Ok(());
        }
        let rank = image.reference.rank;
        let page = page_with(self.pages, rank)?;
        let lists = match &self.at_hand {
            Some((first, lists)) if *first == page.first_rank => lists,
            _ => {
                let lists = SegmentLists::decode(&read_page(self.pool, page)?)?;
                &self.at_hand.insert((page.first_rank, lists)).1
            }
        };
        let found = lists.ranks.iter().find(|(listed, _)| *listed == rank);
        image.segments =
            found.map(|(_, segments)| segments.clone()).ok_or_else(|| missing(rank))?;
        Ok(())
    }
}
