//! References to directories and segments.

use crate::codec::{Check, Reader, Writer, demand};
use outlive_types::{Fingerprint, PackId, Result};

/// Length of a reference in bytes.
pub(super) const SEGMENT_BYTES: usize = 44 + PackId::BYTES;

/// Kind of the object that a [`SegmentRef`] names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SegmentKind {
    /// A pack's own directory, after its containers.
    Directory,
    /// A merge of directories, in a container.
    Segment,
}

/// Location of a directory or segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SegmentRef {
    /// The pack that holds it.
    pub pack: PackId,
    /// Logical offset in the pack, in bytes. For a directory it is F, the length of a shard's
    /// fragments, which the directory follows in each shard of the pack.
    pub offset: u32,
    /// Length in bytes.
    pub length: u32,
    /// Directory or segment.
    pub kind: SegmentKind,
    /// Number of merges that produced it; 0 for a directory.
    pub level: u8,
    /// Fingerprint of all its bytes.
    pub fp: Fingerprint,
}

impl SegmentRef {
    pub(crate) fn write(&self, out: &mut Writer) {
        out.bytes(&self.pack.0);
        out.u32(self.offset);
        out.u32(self.length);
        out.u8(u8::from(self.kind == SegmentKind::Segment));
        out.u8(self.level);
        out.reserved(2);
        out.bytes(&self.fp.0);
    }

    fn read(from: &mut Reader<'_>) -> Result<SegmentRef> {
        let (pack, offset, length) = (from.pack()?, from.u32()?, from.u32()?);
        let kind = match from.u8()? {
            0 => SegmentKind::Directory,
            1 => SegmentKind::Segment,
            other => return Err(from.damaged(format!("a segment reference has kind {other}"))),
        };
        let level = from.u8()?;
        from.reserved(2)?;
        Ok(SegmentRef { pack, offset, length, kind, level, fp: from.fingerprint()? })
    }
}

pub(crate) fn read_segments(count: u32, from: &mut Reader<'_>) -> Result<Vec<SegmentRef>> {
    let mut segments = Vec::with_capacity(from.count(count.into(), SEGMENT_BYTES)?);
    for _ in 0..count {
        segments.push(SegmentRef::read(from)?);
    }
    Ok(segments)
}

pub(crate) fn check_segments(segments: &[SegmentRef]) -> Check {
    demand!(u32::try_from(segments.len()).is_ok(), "it has too many segments");
    for segment in segments {
        demand!(segment.length > 0 && !segment.fp.is_zero(), "{segment:?} is empty");
        demand!(
            segment.kind == SegmentKind::Segment || segment.level == 0,
            "{segment:?} is a directory with merges behind it"
        );
    }
    Ok(())
}
