//! The image table: the images of a checkpoint of several ranks, outside its manifest, in pages.
//! Each rank reads one page.

use super::image::{Image, ImageKind};
use super::segment::{SEGMENT_BYTES, SegmentRef, check_segments, read_segments};
use crate::codec::{Check, Reader, Writer, demand, encodable};
use outlive_types::{Fingerprint, PackId, Rank, Result};

const PAGE: &str = "page of an image table";
const PAGE_MAGIC: &[u8; 4] = b"OLIT";
const LISTS: &str = "page of segment lists";
const LISTS_MAGIC: &[u8; 4] = b"OLSL";
const HEAD_BYTES: usize = 16;
/// Length of a [`PageRef`] in bytes.
pub(super) const PAGE_REF_BYTES: usize = 44 + PackId::BYTES;
const TABLE_HEAD_BYTES: usize = 24;

/// Location of a page, and its first rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageRef {
    /// First rank on the page; the page before it ends with the preceding rank.
    pub first_rank: Rank,
    /// The pack that holds it.
    pub pack: PackId,
    /// Logical offset in the pack, in bytes.
    pub offset: u32,
    /// Length in bytes.
    pub length: u32,
    /// Fingerprint of all its bytes.
    pub fp: Fingerprint,
}

impl PageRef {
    fn write(&self, out: &mut Writer) {
        out.u32(self.first_rank);
        out.bytes(&self.pack.0);
        out.u32(self.offset);
        out.u32(self.length);
        out.bytes(&self.fp.0);
    }

    fn read(from: &mut Reader<'_>) -> Result<PageRef> {
        let (first_rank, pack) = (from.u32()?, from.pack()?);
        Ok(PageRef {
            first_rank,
            pack,
            offset: from.u32()?,
            length: from.u32()?,
            fp: from.fingerprint()?,
        })
    }
}

/// Returns the page that contains `rank`: the last one whose first rank is not higher.
pub fn page_of(pages: &[PageRef], rank: Rank) -> Option<&PageRef> {
    pages[..pages.partition_point(|page| page.first_rank <= rank)].last()
}

pub(crate) fn write_pages(pages: &[PageRef], out: &mut Writer) {
    pages.iter().for_each(|page| page.write(out));
}

pub(crate) fn read_pages(count: u32, from: &mut Reader<'_>) -> Result<Vec<PageRef>> {
    let mut pages = Vec::with_capacity(from.count(count.into(), PAGE_REF_BYTES)?);
    for _ in 0..count {
        pages.push(PageRef::read(from)?);
    }
    Ok(pages)
}

pub(crate) fn check_pages(pages: &[PageRef]) -> Check {
    demand!(u32::try_from(pages.len()).is_ok(), "there are too many pages");
    demand!(pages.first().is_none_or(|first| first.first_rank == 0), "rank 0 is on no page");
    let ascend = pages.windows(2).all(|pair| pair[0].first_rank < pair[1].first_rank);
    demand!(ascend, "the ranks of its pages do not ascend");
    for page in pages {
        demand!(page.length > 0 && !page.fp.is_zero(), "{page:?} is empty");
    }
    Ok(())
}

/// Description of an image table in a manifest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageTable {
    /// Kind of the images' contents.
    pub kind: ImageKind,
    /// Regions, or items, of all images.
    pub regions: u64,
    /// Bytes of all images' regions or files.
    pub state_bytes: u64,
    /// Packs of the committer in this session with a lower number are complete.
    pub next_pack: u32,
    /// Pages of the table.
    pub pages: Vec<PageRef>,
    /// Pages with the lists of segments in an archive; they replace those of the images. Taken from
    /// the archive, and not stored here.
    pub lists: Vec<PageRef>,
}

impl ImageTable {
    pub(super) fn encoded_len(&self) -> usize {
        TABLE_HEAD_BYTES + PAGE_REF_BYTES * self.pages.len()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        self.kind.write(out);
        out.u32(self.next_pack);
        out.u64(self.regions);
        out.u64(self.state_bytes);
        write_pages(&self.pages, out);
    }

    pub(super) fn read(pages: u32, from: &mut Reader<'_>) -> Result<ImageTable> {
        let (kind, next_pack) = (ImageKind::read(from)?, from.u32()?);
        let (regions, state_bytes) = (from.u64()?, from.u64()?);
        let pages = read_pages(pages, from)?;
        Ok(ImageTable { kind, regions, state_bytes, next_pack, pages, lists: Vec::new() })
    }

    pub(super) fn check(&self, world_size: u32) -> Check {
        check_pages(&self.pages)?;
        let last = self.pages.last().map(|page| page.first_rank);
        demand!(last.is_some_and(|last| last < world_size), "a page begins behind the last rank");
        demand!(self.lists.is_empty(), "lists of segments belong to an archive");
        Ok(())
    }
}

/// A page of an image table: the images of consecutive ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TablePage {
    /// At least one image; ranks ascend one by one.
    pub images: Vec<Image>,
}

impl TablePage {
    /// Returns the length of the encoding in bytes.
    pub fn encoded_len(&self) -> usize {
        HEAD_BYTES + self.images.iter().map(Image::encoded_len).sum::<usize>()
    }

    /// Encodes the page.
    ///
    /// # Errors
    /// `Bug` for no image, ranks that are not consecutive, or an invalid image.
    pub fn encode(&self) -> Result<Vec<u8>> {
        encodable(PAGE, self.check())?;
        let mut out = Writer::begin(PAGE_MAGIC, self.encoded_len());
        out.reserved(2);
        out.u32(self.images.len() as u32);
        out.reserved(4);
        self.images.iter().for_each(|image| image.write(&mut out));
        Ok(out.finish())
    }

    /// Reads a page from all of `bytes`.
    ///
    /// # Errors
    /// `Damaged` for anything that `encode` does not write, `Invalid` for another version.
    pub fn decode(bytes: &[u8]) -> Result<TablePage> {
        let mut from = Reader::new(PAGE, bytes);
        let count = begin(&mut from, PAGE_MAGIC)?;
        let mut images = Vec::with_capacity(from.count(count.into(), Image::bytes_for(0))?);
        for _ in 0..count {
            images.push(Image::read(&mut from)?);
        }
        let page = TablePage { images };
        from.accept(page.check())?;
        from.end()?;
        Ok(page)
    }

    fn check(&self) -> Check {
        self.images.iter().try_for_each(Image::check)?;
        check_ranks(self.images.iter().map(|image| image.reference.rank))
    }
}

/// Segments of consecutive ranks, for all checkpoints of an archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentLists {
    /// Segments by rank, of at least one rank; ranks ascend one by one.
    pub ranks: Vec<(Rank, Vec<SegmentRef>)>,
}

impl SegmentLists {
    /// Returns the length of a list with this number of segments, in bytes.
    pub fn bytes_for(segments: usize) -> usize {
        8 + SEGMENT_BYTES * segments
    }

    /// Encodes the page.
    ///
    /// # Errors
    /// `Bug` for no rank, ranks that are not consecutive, or an invalid segment.
    pub fn encode(&self) -> Result<Vec<u8>> {
        encodable(LISTS, self.check())?;
        let lists = self.ranks.iter().map(|(_, list)| SegmentLists::bytes_for(list.len()));
        let mut out = Writer::begin(LISTS_MAGIC, HEAD_BYTES + lists.sum::<usize>());
        out.reserved(2);
        out.u32(self.ranks.len() as u32);
        out.reserved(4);
        for (rank, segments) in &self.ranks {
            out.u32(*rank);
            out.u32(segments.len() as u32);
            segments.iter().for_each(|segment| segment.write(&mut out));
        }
        Ok(out.finish())
    }

    /// Reads a page from all of `bytes`.
    ///
    /// # Errors
    /// `Damaged` for anything that `encode` does not write, `Invalid` for another version.
    pub fn decode(bytes: &[u8]) -> Result<SegmentLists> {
        let mut from = Reader::new(LISTS, bytes);
        let count = begin(&mut from, LISTS_MAGIC)?;
        let mut ranks = Vec::with_capacity(from.count(count.into(), SegmentLists::bytes_for(0))?);
        for _ in 0..count {
            let (rank, segments) = (from.u32()?, from.u32()?);
            ranks.push((rank, read_segments(segments, &mut from)?));
        }
        let lists = SegmentLists { ranks };
        from.accept(lists.check())?;
        from.end()?;
        Ok(lists)
    }

    fn check(&self) -> Check {
        self.ranks.iter().try_for_each(|(_, segments)| check_segments(segments))?;
        check_ranks(self.ranks.iter().map(|(rank, _)| *rank))
    }
}

fn begin(from: &mut Reader<'_>, magic: &[u8; 4]) -> Result<u32> {
    from.begin(magic)?;
    from.reserved(2)?;
    let count = from.u32()?;
    from.reserved(4)?;
    Ok(count)
}

fn check_ranks(ranks: impl Iterator<Item = Rank>) -> Check {
    let ranks: Vec<Rank> = ranks.collect();
    let (Some(first), Some(_)) = (ranks.first(), u32::try_from(ranks.len()).ok()) else {
        return Err(format!("a page cannot hold {} ranks", ranks.len()));
    };
    let follow =
        ranks.iter().zip(u64::from(*first)..).all(|(rank, expected)| u64::from(*rank) == expected);
    demand!(follow && ranks.last() < Some(&Rank::MAX), "its ranks do not follow each other");
    Ok(())
}
