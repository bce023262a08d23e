//! Layout of the bytes of a pack in its shards: docs/format.md, section 3.

use outlive_erasure::Code;
use outlive_format::{Geometry, SHARD_HEADER_BYTES};
use outlive_types::Result;
use std::sync::Arc;

/// Layout of a pack over its shards.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub geometry: Geometry,
    /// Length of all fragments of one shard together: F.
    pub fragments_bytes: u64,
    pub code: Arc<Code>,
}

/// A range of one data fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Number of the fragment in its container, and so of the shard.
    pub shard: u8,
    /// Start of the range in the shard. The other fragments have the same bytes at this offset.
    pub offset: u64,
    /// Length in bytes.
    pub length: usize,
}

impl Layout {
    /// Returns the layout of a pack whose shards have `fragments_bytes` of fragments each.
    ///
    /// # Errors
    /// `Invalid` for a geometry that no code has.
    pub fn new(geometry: Geometry, fragments_bytes: u64) -> Result<Layout> {
        let code = Arc::new(Code::new(geometry.k.into(), geometry.m.into())?);
        Ok(Layout { geometry, fragments_bytes, code })
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        usize::from(self.geometry.k) + usize::from(self.geometry.m)
    }

    /// Returns where the fragments of a container begin in each shard, and their length.
    pub fn fragment_of(&self, container: u64) -> (u64, u64) {
        let full = self.geometry.fragment_bytes(self.geometry.container_bytes);
        let before = container * full;
        let length = full.min(self.fragments_bytes.saturating_sub(before));
        (SHARD_HEADER_BYTES as u64 + before, length)
    }

    /// Returns the pieces of a range of one container; offset and length are multiples of 4096. A
    /// range that the pack does not have ends early, or has no pieces.
    pub fn pieces(&self, offset: u64, length: usize) -> Vec<Piece> {
        let Geometry { k, container_bytes, .. } = self.geometry;
        if k == 1 {
            let offset = SHARD_HEADER_BYTES as u64 + offset;
            return vec![Piece { shard: 0, offset, length }];
        }
        let (start, fragment_bytes) = self.fragment_of(offset / container_bytes);
        let (mut at, end) = (offset % container_bytes, offset % container_bytes + length as u64);
        let mut pieces = Vec::new();
        while at < end && fragment_bytes > 0 && at / fragment_bytes < u64::from(k) {
            let within = at % fragment_bytes;
            let length = (fragment_bytes - within).min(end - at);
            let shard = (at / fragment_bytes) as u8;
            pieces.push(Piece { shard, offset: start + within, length: length as usize });
            at += length;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every page of every container is where the format says, whatever the lengths.
    #[test]
    fn pages_are_where_the_format_says() {
        const PAGE: u64 = 4096;
        for (k, m, containers_bytes) in [
            (1, 0, 3 << 16),
            (1, 2, PAGE),
            (2, 1, 5 * PAGE),
            (4, 2, (2 << 16) + 5 * PAGE),
            (3, 1, 1 << 17),
        ] {
            let geometry = Geometry { k, m, container_bytes: 64 << 10 };
            let fragments_bytes = geometry.fragments_bytes(containers_bytes);
            let layout = Layout::new(geometry, fragments_bytes).unwrap();
            for page in 0..containers_bytes / PAGE {
                let (container, within) = (page * PAGE / (64 << 10), page * PAGE % (64 << 10));
                let bytes = (64 << 10).min(containers_bytes - container * (64 << 10));
                let fragment = geometry.fragment_bytes(bytes);
                let before = container * geometry.fragment_bytes(64 << 10);
                let expected = Piece {
                    shard: (within / fragment) as u8,
                    offset: PAGE + before + within % fragment,
                    length: PAGE as usize,
                };
                assert_eq!(layout.pieces(page * PAGE, PAGE as usize), [expected], "{geometry:?}");
            }
        }
    }

    #[test]
    fn a_range_is_cut_at_the_fragments_and_at_the_end() {
        let geometry = Geometry { k: 4, m: 2, container_bytes: 64 << 10 };
        let layout = Layout::new(geometry, (16 << 10) + 8192).unwrap();
        let shards = |offset, length| {
            layout.pieces(offset, length).iter().map(|p| (p.shard, p.length)).collect::<Vec<_>>()
        };
        assert_eq!(
            shards(0, 64 << 10),
            [(0, 16 << 10), (1, 16 << 10), (2, 16 << 10), (3, 16 << 10)]
        );
        assert_eq!(shards(12 << 10, 8 << 10), [(0, 4096), (1, 4096)]);
        assert_eq!(shards(64 << 10, 20 << 10), [(0, 8192), (1, 8192), (2, 4096)]);
        assert_eq!(shards(64 << 10, 64 << 10).len(), 4);
        assert_eq!(shards(128 << 10, 4096), []);
    }
}
