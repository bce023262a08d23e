//! Cuts streams by their content, so that an insertion moves cuts with the bytes around them.
//!
//! W. Xia et al., "The Design of Fast Content-Defined Chunking for Data Deduplication Based Storage
//! Systems", IEEE TPDS 2020; the crate `fastcdc` is the arithmetic.

use fastcdc::v2020::{Normalization, cut, select_masks};

/// Longest chunk, where the pool allows longer ones: shorter chunks deduplicate better.
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// Ratio of the longest chunk to the average, and of the average to the shortest.
const SPREAD: usize = 4;

/// Rule that cuts a stream. Two cutters of equal sizes cut alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cutter {
    average_bytes: usize,
    bytes_max: usize,
    masks: (u64, u64),
}

impl Cutter {
    /// Returns a cutter for a pool whose chunks have at most `chunk_bytes_max` bytes, 4 KiB or
    /// more.
    pub fn new(chunk_bytes_max: usize) -> Cutter {
        let bytes_max = chunk_bytes_max.clamp(4096, CHUNK_BYTES_MAX) & !1;
        let average_bytes = bytes_max / SPREAD;
        let masks = select_masks(average_bytes, Normalization::Level1);
        Cutter { average_bytes, bytes_max, masks }
    }

    /// Returns the length of the longest chunk.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Returns the length of the shortest chunk. Only the last of a stream may be shorter.
    pub fn bytes_min(&self) -> usize {
        self.average_bytes / SPREAD
    }

    /// Returns the length of the chunk with which `bytes` begin. They must be at least
    /// [`Cutter::bytes_max`], or the whole rest of the stream.
    pub fn first(&self, bytes: &[u8]) -> usize {
        let (min, (s, l)) = (self.bytes_min(), self.masks);
        if bytes.len() <= min {
            return bytes.len();
        }
        cut(bytes, min, self.average_bytes, self.bytes_max, s, l, s << 1, l << 1).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    fn cut_all(cutter: &Cutter, mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut chunks = Vec::new();
        while !bytes.is_empty() {
            let (chunk, rest) = bytes.split_at(cutter.first(bytes));
            chunks.push(chunk.to_vec());
            bytes = rest;
        }
        chunks
    }

    #[test]
    fn lengths_are_as_promised() {
        let cutter = Cutter::new(2 << 20);
        assert_eq!((cutter.bytes_min(), cutter.bytes_max()), (4 << 10, 64 << 10));
        let bytes = noise(1, 8 << 20);
        let chunks = cut_all(&cutter, &bytes);
        assert_eq!(chunks.concat(), bytes);
        let (last, others) = chunks.split_last().unwrap();
        assert!(others.iter().all(|chunk| (4 << 10..=64 << 10).contains(&chunk.len())));
        assert!(!last.is_empty() && last.len() <= 64 << 10);
        let average = bytes.len() / chunks.len();
        assert!((10 << 10..28 << 10).contains(&average), "{average}");
        // Without any content to cut by, all chunks have the greatest length.
        assert_eq!(cutter.first(&vec![0; 1 << 20]), 64 << 10);
    }

    #[test]
    fn an_insertion_changes_few_chunks() {
        let cutter = Cutter::new(64 << 10);
        let bytes = noise(2, 4 << 20);
        let before: HashSet<Vec<u8>> = cut_all(&cutter, &bytes).into_iter().collect();
        let mut longer = bytes.clone();
        longer.splice(1_000_000..1_000_000, noise(3, 777));
        let after = cut_all(&cutter, &longer);
        let new = after.iter().filter(|chunk| !before.contains(*chunk)).count();
        assert!(new <= 4, "{new} of {} chunks are new", after.len());
    }

    proptest! {
        #[test]
        fn a_cut_needs_to_see_no_more_than_the_longest_chunk(
            seed in any::<u64>(), length in 0usize..300_000, max in 12u32..=16,
        ) {
            let cutter = Cutter::new(1 << max);
            let bytes = noise(seed, length);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let seen = &rest[..rest.len().min(cutter.bytes_max())];
                let first = cutter.first(rest);
                prop_assert_eq!(first, cutter.first(seen));
                prop_assert!(first >= 1 && first <= cutter.bytes_max());
                rest = &rest[first..];
            }
        }
    }
}
