//! The archive: the checkpoints that a prune or gc has kept in a job's log.

use super::manifest::Images;
use super::segment::{SEGMENT_BYTES, SegmentRef, check_segments, read_segments};
use super::table::{PAGE_REF_BYTES, PageRef, check_pages, read_pages, write_pages};
use super::{Manifest, Session};
use crate::codec::{Check, Reader, Writer, demand};
use outlive_types::{Epoch, PackId, Result, SessionId};

const HEAD_BYTES: usize = 48;

/// Replaces every record before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Archive {
    /// The gc run, an id like a session's.
    pub gc: SessionId,
    /// The newest session of the log; true if it is open.
    pub session: Option<(Session, bool)>,
    /// Newest epoch that the log has had, even if it was dropped; 0 for none.
    pub last_epoch: Epoch,
    /// Packs to which no later commit may refer.
    pub condemned: Vec<PackId>,
    /// Segments of each image whose header is in its manifest.
    pub segments: Vec<SegmentRef>,
    /// Pages with the segments of each rank, for all checkpoints that have an image table.
    pub lists: Vec<PageRef>,
    /// Epochs of the incomplete checkpoints, ascending.
    pub incomplete: Vec<Epoch>,
    /// Kept manifests, epochs ascending. Images in them have no segments of their own; `lists`
    /// replaces the segments of those in an image table.
    pub manifests: Vec<Manifest>,
}

impl Archive {
    pub(super) fn encoded_len(&self) -> usize {
        let manifests: usize = self.manifests.iter().map(|m| 4 + m.encoded_len()).sum();
        HEAD_BYTES
            + self.session.as_ref().map_or(0, |(session, _)| session.encoded_len())
            + PackId::BYTES * self.condemned.len()
            + SEGMENT_BYTES * self.segments.len()
            + PAGE_REF_BYTES * self.lists.len()
            + 8 * self.incomplete.len()
            + manifests
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.bytes(&self.gc.0);
        out.u32(match &self.session {
            None => 0,
            Some((_, true)) => 1,
            Some((_, false)) => 2,
        });
        out.u64(self.last_epoch);
        out.u32(self.condemned.len() as u32);
        out.u32(self.segments.len() as u32);
        out.u32(self.manifests.len() as u32);
        out.u32(self.incomplete.len() as u32);
        out.u32(self.lists.len() as u32);
        out.reserved(4);
        if let Some((session, _)) = &self.session {
            session.write(out);
        }
        self.condemned.iter().for_each(|pack| out.bytes(&pack.0));
        self.segments.iter().for_each(|segment| segment.write(out));
        write_pages(&self.lists, out);
        self.incomplete.iter().for_each(|epoch| out.u64(*epoch));
        for manifest in &self.manifests {
            out.u32(manifest.encoded_len() as u32);
            manifest.write(out);
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Archive> {
        let (gc, state, last_epoch) = (from.session()?, from.u32()?, from.u64()?);
        let (pack_count, segment_count, manifest_count) = (from.u32()?, from.u32()?, from.u32()?);
        let (incomplete_count, list_count) = (from.u32()?, from.u32()?);
        from.reserved(4)?;
        let session = match state {
            0 => None,
            1 | 2 => Some((Session::read(from)?, state == 1)),
            other => return Err(from.damaged(format!("its session has state {other}"))),
        };
        let mut condemned = Vec::with_capacity(from.count(pack_count.into(), PackId::BYTES)?);
        for _ in 0..pack_count {
            condemned.push(from.pack()?);
        }
        let segments = read_segments(segment_count, from)?;
        let lists = read_pages(list_count, from)?;
        let mut incomplete = Vec::with_capacity(from.count(incomplete_count.into(), 8)?);
        for _ in 0..incomplete_count {
            incomplete.push(from.u64()?);
        }
        let mut manifests = Vec::with_capacity(from.count(manifest_count.into(), 4)?);
        for _ in 0..manifest_count {
            let length = from.u32()? as usize;
            let before = from.remaining();
            let manifest = Manifest::read(from)?;
            if before - from.remaining() != length {
                return Err(from.damaged("a manifest in it has another length"));
            }
            manifests.push(manifest);
        }
        Ok(Archive { gc, session, last_epoch, condemned, segments, lists, incomplete, manifests })
    }

    pub(super) fn check(&self) -> Check {
        demand!(u32::try_from(self.condemned.len()).is_ok(), "it has too many packs");
        demand!(u32::try_from(self.manifests.len()).is_ok(), "it has too many manifests");
        if let Some((session, _)) = &self.session {
            session.check()?;
        }
        check_segments(&self.segments)?;
        check_pages(&self.lists)?;
        demand!(
            self.incomplete.windows(2).all(|pair| pair[0] < pair[1]),
            "incomplete epochs do not ascend"
        );
        let mut before = 0;
        for manifest in &self.manifests {
            manifest.check()?;
            match &manifest.images {
                Images::One(image) => {
                    demand!(image.segments.is_empty(), "an image in it has segments of its own");
                }
                Images::Table(_) => {
                    demand!(!self.lists.is_empty(), "it has no lists for an image table");
                }
            }
            demand!(manifest.epoch > before, "its epochs do not ascend");
            demand!(u32::try_from(manifest.encoded_len()).is_ok(), "a manifest is too long");
            before = manifest.epoch;
        }
        demand!(before <= self.last_epoch, "it has an epoch above its last");
        // Both ascend by now: the counts come from outside, and a log may be long.
        let is_kept =
            |epoch: &Epoch| self.manifests.binary_search_by_key(epoch, |m| m.epoch).is_ok();
        demand!(
            self.incomplete.iter().all(is_kept),
            "an incomplete epoch is not among its manifests"
        );
        Ok(())
    }
}
