//! An image: the share of one rank in a checkpoint.

use super::segment::{SEGMENT_BYTES, SegmentRef, check_segments, read_segments};
use crate::codec::{Check, Reader, Writer, demand};
use crate::tree::TreeRef;
use outlive_types::{COMMITTER, Rank, Result};

const HEAD_BYTES: usize = 32 + 2 * TreeRef::ENCODED_BYTES;

/// Contents of an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ImageKind {
    /// A catalog and page trees.
    Memory,
    /// A listing and recipes.
    Files,
}

impl ImageKind {
    pub(super) fn write(self, out: &mut Writer) {
        out.u32(match self {
            ImageKind::Memory => 0,
            ImageKind::Files => 1,
        });
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<ImageKind> {
        match from.u32()? {
            0 => Ok(ImageKind::Memory),
            1 => Ok(ImageKind::Files),
            other => Err(from.damaged(format!("an image has kind {other}"))),
        }
    }
}

/// Description of an image's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageRef {
    /// The rank.
    pub rank: Rank,
    /// Kind of its contents.
    pub kind: ImageKind,
    /// Number of its regions, or of its listing's items.
    pub regions: u64,
    /// Bytes of its regions or files.
    pub state_bytes: u64,
    /// Its catalog stream, or its listing.
    pub catalog: TreeRef,
    /// Its packed stream; [`TreeRef::EMPTY`] if it has none.
    pub packed: TreeRef,
}

/// One rank's image and its segments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// Description of the contents.
    pub reference: ImageRef,
    /// Packs of this rank and session with a lower number are complete: this image names them, or
    /// they are garbage.
    pub next_pack: u32,
    /// Segments that give the pack extent of every chunk and node of the image.
    pub segments: Vec<SegmentRef>,
}

impl Image {
    /// Returns an image without contents.
    pub fn empty(rank: Rank, kind: ImageKind) -> Image {
        let (catalog, packed) = (TreeRef::EMPTY, TreeRef::EMPTY);
        let reference = ImageRef { rank, kind, regions: 0, state_bytes: 0, catalog, packed };
        Image { reference, next_pack: 0, segments: Vec::new() }
    }

    /// Returns the length in bytes of an image's header with this number of segments.
    pub fn bytes_for(segments: usize) -> usize {
        HEAD_BYTES + SEGMENT_BYTES * segments
    }

    pub(super) fn encoded_len(&self) -> usize {
        Image::bytes_for(self.segments.len())
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        let ImageRef { rank, kind, regions, state_bytes, catalog, packed } = self.reference;
        out.u32(rank);
        kind.write(out);
        out.u64(regions);
        out.u64(state_bytes);
        out.u32(self.next_pack);
        out.u32(self.segments.len() as u32);
        catalog.write(out);
        packed.write(out);
        self.segments.iter().for_each(|segment| segment.write(out));
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Image> {
        let (rank, kind) = (from.u32()?, ImageKind::read(from)?);
        let (regions, state_bytes) = (from.u64()?, from.u64()?);
        let (next_pack, segment_count) = (from.u32()?, from.u32()?);
        let (catalog, packed) = (TreeRef::read(from)?, TreeRef::read(from)?);
        let reference = ImageRef { rank, kind, regions, state_bytes, catalog, packed };
        let segments = read_segments(segment_count, from)?;
        Ok(Image { reference, next_pack, segments })
    }

    pub(crate) fn check(&self) -> Check {
        let ImageRef { rank, kind, catalog, packed, .. } = self.reference;
        demand!(rank != COMMITTER, "an image cannot have rank {rank}");
        catalog.check()?;
        packed.check()?;
        demand!(
            kind == ImageKind::Memory || packed == TreeRef::EMPTY,
            "an image of files has a packed stream"
        );
        check_segments(&self.segments)
    }
}
