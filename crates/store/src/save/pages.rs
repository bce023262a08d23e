//! Stores the pages of image tables and of segment lists.

use super::packer::Packer;
use outlive_chunk::fingerprint;
use outlive_format::{EntryKind, Image, Manifest, PageRef, SegmentLists, SegmentRef, TablePage};
use outlive_types::{Rank, Result};

/// Length of a reference to a page.
const PAGE_REF_BYTES: usize = 64;
/// Shortest page that is worth a reference of its own.
const PAGE_BYTES_MIN: usize = 4 << 10;

/// Returns the length of a page, for `all` bytes of entries. A reader of one rank reads the
/// references to all pages, and one page: together they are shortest if both are equally long.
fn page_bytes(all: usize) -> usize {
    (all * PAGE_REF_BYTES).isqrt().max(PAGE_BYTES_MIN)
}

/// Stores the images of consecutive ranks, and returns references to the pages.
///
/// # Errors
/// Errors of the target.
pub fn store_table(packer: &Packer<'_>, images: Vec<Image>) -> Result<Vec<PageRef>> {
    let bytes_of = |image: &Image| Image::bytes_for(image.segments.len());
    store_pages(packer, images, &bytes_of, &|images: Vec<Image>| {
        let first_rank = images.first().map_or(0, |image| image.reference.rank);
        Ok((first_rank, TablePage { images }.encode()?))
    })
}

/// Stores the segments of consecutive ranks, and returns references to the pages. An archive that
/// keeps image tables has lists, also if all of the tables are lost.
///
/// # Errors
/// Errors of the target.
pub fn store_lists(
    packer: &Packer<'_>,
    mut lists: Vec<(Rank, Vec<SegmentRef>)>,
    kept: &[&Manifest],
) -> Result<Vec<PageRef>> {
    if lists.is_empty() && kept.iter().any(|manifest| manifest.images.table().is_some()) {
        lists.push((0, Vec::new()));
    }
    let bytes_of = |(_, list): &(Rank, Vec<SegmentRef>)| SegmentLists::bytes_for(list.len());
    store_pages(packer, lists, &bytes_of, &|ranks: Vec<(Rank, Vec<SegmentRef>)>| {
        let first_rank = ranks.first().map_or(0, |(rank, _)| *rank);
        Ok((first_rank, SegmentLists { ranks }.encode()?))
    })
}

/// Stores a copy of a page elsewhere.
///
/// # Errors
/// Errors of the target.
pub fn store_page(packer: &Packer<'_>, first_rank: Rank, bytes: &[u8]) -> Result<PageRef> {
    let fp = fingerprint(bytes);
    let extent = packer.append(bytes, fp, EntryKind::Page)?;
    let (pack, offset, length) = (extent.pack, extent.offset, extent.length);
    Ok(PageRef { first_rank, pack, offset, length, fp })
}

fn store_pages<T>(
    packer: &Packer<'_>,
    ranks: Vec<T>,
    bytes_of: &dyn Fn(&T) -> usize,
    encode: &dyn Fn(Vec<T>) -> Result<(Rank, Vec<u8>)>,
) -> Result<Vec<PageRef>> {
    let page_bytes = page_bytes(ranks.iter().map(bytes_of).sum());
    let (mut pages, mut page, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut store = |page: Vec<T>| -> Result<()> {
        let (first_rank, encoded) = encode(page)?;
        pages.push(store_page(packer, first_rank, &encoded)?);
        Ok(())
    };
    for rank in ranks {
        bytes += bytes_of(&rank);
        page.push(rank);
        if bytes >= page_bytes {
            store(std::mem::take(&mut page))?;
            bytes = 0;
        }
    }
    if !page.is_empty() {
        store(page)?;
    }
    Ok(pages)
}
