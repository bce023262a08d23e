//! Ranges of fingerprints: a set that exceeds the allowed memory is handled part by part.

use outlive_format::SegmentRef;
use outlive_types::Fingerprint;

/// Bytes of a segment's entry in memory; [`STORED_BYTES`] are the least that it takes in the
/// segment.
const MEMORY_BYTES: u64 = 160;
const STORED_BYTES: u64 = 44;
/// Least memory that is worth the repeated reading.
const BYTES_MIN: u64 = 64 << 10;

/// One of `count` parts. Every fingerprint is in one of them, and parts ascend as fingerprints do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FingerprintRange {
    number: u32,
    count: u32,
}

impl FingerprintRange {
    /// The range of all fingerprints.
    pub const ALL: FingerprintRange = FingerprintRange { number: 0, count: 1 };

    /// Returns the parts: the entries of `segments` in each of them fit into `bytes_max` of memory.
    pub fn of(segments: &[SegmentRef], bytes_max: u64) -> Vec<FingerprintRange> {
        let stored: u64 = segments.iter().map(|segment| u64::from(segment.length)).sum();
        let bytes = stored / STORED_BYTES * MEMORY_BYTES;
        let count = bytes.div_ceil(bytes_max.max(BYTES_MIN)).clamp(1, 1 << 20) as u32;
        (0..count).map(|number| FingerprintRange { number, count }).collect()
    }

    /// Returns whether it is the first part.
    pub fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Returns whether a fingerprint is in this part.
    pub fn holds(&self, fp: &Fingerprint) -> bool {
        let [a, b, c, d, ..] = fp.0;
        let prefix = u64::from(u32::from_be_bytes([a, b, c, d]));
        (prefix * u64::from(self.count)) >> 32 == u64::from(self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_format::SegmentKind;
    use outlive_types::PackId;

    #[test]
    fn each_fingerprint_is_in_one_part_and_parts_ascend() {
        let segment = SegmentRef {
            pack: PackId([0; 20]),
            offset: 0,
            length: 44_000,
            kind: SegmentKind::Segment,
            level: 0,
            fp: Fingerprint::ZERO,
        };
        assert_eq!(FingerprintRange::of(&[segment], 1 << 20), [FingerprintRange::ALL]);
        let parts = FingerprintRange::of(&[segment; 100], 1 << 20);
        assert_eq!(parts.len(), 16);
        let mut before = 0;
        for first in 0..=255u8 {
            let fp = Fingerprint([first; 32]);
            let holding: Vec<usize> = (0..16).filter(|at| parts[*at].holds(&fp)).collect();
            assert!(holding.len() == 1 && holding[0] >= before, "{first}: {holding:?}");
            before = holding[0];
        }
        assert_eq!(before, 15);
    }
}
