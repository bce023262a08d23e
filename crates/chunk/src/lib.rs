//! Pure functions on bytes: cuts, fingerprints, page hashes, compression. No I/O.

mod cdc;
mod compress;
mod page_hashes;
mod pages;
mod parallel;
mod policy;

pub use cdc::Cutter;
pub use compress::{Compressor, Decompressor, FRAME_BYTES_MAX};
pub use page_hashes::{Compare, Diff, PageHashes, diff_streams, hash_pages};
pub use pages::{PAGES_AT_ONCE, fingerprint_pages};
pub use parallel::{PARALLEL_FROM_BYTES, default_threads, on_threads, parallel};
pub use policy::{Compression, Pace, Policy, Sample};

use outlive_types::Fingerprint;

/// Returns the BLAKE3 hash of `bytes`, which is the name of a chunk or node.
pub fn fingerprint(bytes: &[u8]) -> Fingerprint {
    Fingerprint(*blake3::hash(bytes).as_bytes())
}

/// Returns true if every byte is zero, or if there is no byte. Stops soon after the first other
/// byte.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Long enough that the compiler keeps several vector registers busy, and short enough that the
    // first cache lines of data already end the loop.
    const STEP_BYTES: usize = 256;
    let mut steps = bytes.chunks_exact(STEP_BYTES);
    steps.all(|step| or_all(step) == 0) && or_all(steps.remainder()) == 0
}

fn or_all(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().fold(0, |all, word| all | u64::from_ne_bytes(*word));
    rest.iter().fold(words, |all, byte| all | u64::from(*byte))
}

/// Cuts a run of pages into chunks of at most `chunk_pages_max` pages (0 counts as 1). Returns
/// pairs of first page and page count. `first_page` is counted from the start of the run's block.
///
/// Chunks end at multiples of `chunk_pages_max` from the block's start, not from the run's, so that
/// a later save cuts the same data the same way.
pub fn cut(
    first_page: u32,
    pages: u32,
    chunk_pages_max: u32,
) -> impl Iterator<Item = (u32, u32)> + Clone {
    let max = chunk_pages_max.max(1);
    let end = first_page.saturating_add(pages);
    let mut next = first_page;
    std::iter::from_fn(move || {
        if next >= end {
            return None;
        }
        let stop = (next / max + 1).saturating_mul(max).min(end);
        let chunk = (next, stop - next);
        next = stop;
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fingerprints_are_blake3() {
        // The first vectors of BLAKE3's own test_vectors.json (input lengths 0 and 1).
        assert_eq!(
            fingerprint(b"").to_string(),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
        assert_eq!(
            fingerprint(&[0]).to_string(),
            "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"
        );
    }

    #[test]
    fn a_single_bit_is_not_zero() {
        for length in [0, 1, 7, 8, 9, 255, 256, 257, 4095, 4096, 5000] {
            let mut bytes = vec![0u8; length];
            assert!(is_zero(&bytes), "{length}");
            for at in 0..length {
                bytes[at] = 1 << (at % 8);
                assert!(!is_zero(&bytes), "byte {at} of {length}");
                bytes[at] = 0;
            }
        }
    }

    #[test]
    fn cuts_lie_at_multiples_from_the_block() {
        assert_eq!(cut(10, 20, 16).collect::<Vec<_>>(), [(10, 6), (16, 14)]);
        assert_eq!(cut(0, 32, 16).collect::<Vec<_>>(), [(0, 16), (16, 16)]);
        assert_eq!(cut(3, 2, 1).collect::<Vec<_>>(), [(3, 1), (4, 1)]);
        assert_eq!(cut(511, 1, 512).collect::<Vec<_>>(), [(511, 1)]);
        assert_eq!(cut(5, 0, 16).count(), 0);
        assert_eq!(cut(5, 3, 0).count(), 3);
        assert_eq!(cut(u32::MAX, 9, 16).count(), 0);
    }

    proptest! {
        #[test]
        fn cuts_cover_the_run_and_agree_with_the_whole_block(
            first in 0u32..512, length in 1u32..=512, max in 1u32..=512,
        ) {
            let pages = length.min(512 - first);
            let whole: Vec<_> = cut(0, 512, max).collect();
            let mut next = first;
            for (page, count) in cut(first, pages, max) {
                prop_assert_eq!(page, next);
                prop_assert!(count >= 1 && count <= max);
                prop_assert!(
                    whole.iter().any(|(w, n)| *w <= page && page + count <= w + n),
                    "a chunk never crosses a cut of the whole block"
                );
                next = page + count;
            }
            prop_assert_eq!(next, first + pages);
        }
    }
}
