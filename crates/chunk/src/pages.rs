//! Fingerprints of several pages at once.

use blake3::IncrementCounter;
use blake3::platform::Platform;
use outlive_types::{Fingerprint, PAGE_BYTES};

/// Number of pages that [`fingerprint_pages`] hashes side by side. The registers of AVX2 have room
/// for eight; sixteen, for AVX-512, were no faster.
pub const PAGES_AT_ONCE: usize = 8;
/// Smaller groups are hashed page by page. Larger ones repeat a page until they have eight: that is
/// faster than empty parts of registers.
const PAGES_FROM: usize = 3;

/// Length of the parts of a message that BLAKE3 hashes separately: the leaves of its tree.
const LEAF_BYTES: usize = 1024;
const LEAVES: usize = PAGE_BYTES / LEAF_BYTES;
const HASH_BYTES: usize = 32;

/// From "BLAKE3: one function, fast everywhere" (O'Connor, Aumasson, Neves, Wilcox-O'Hearn 2020),
/// section 2.
const IV: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];
const CHUNK_START: u8 = 1;
const CHUNK_END: u8 = 2;
const PARENT: u8 = 4;
const ROOT: u8 = 8;

type Hash = [u8; HASH_BYTES];

/// Returns the fingerprint of each page, as [`fingerprint`](crate::fingerprint) does.
///
/// A page has four leaves, which fill half of a register of AVX2. So this hashes the leaves of
/// eight pages side by side (`cargo run --release -p outlive-chunk --example hash_speed`).
pub fn fingerprint_pages(pages: &[&[u8; PAGE_BYTES]]) -> Vec<Fingerprint> {
    let mut found = Vec::with_capacity(pages.len());
    let platform = Platform::detect();
    let is_wide = platform.simd_degree() >= PAGES_AT_ONCE;
    for group in pages.chunks(PAGES_AT_ONCE) {
        if group.len() < PAGES_FROM || !is_wide {
            found.extend(group.iter().map(|page| crate::fingerprint(*page)));
        } else {
            let filled = std::array::from_fn(|at| group[at.min(group.len() - 1)]);
            found.extend(
                group.iter().zip(hash_group(platform, &filled)).map(|(_, hash)| Fingerprint(hash)),
            );
        }
    }
    found
}

fn hash_group(
    platform: Platform,
    pages: &[&[u8; PAGE_BYTES]; PAGES_AT_ONCE],
) -> [Hash; PAGES_AT_ONCE] {
    let leaf = |number| pages.map(|page| &page.as_chunks::<LEAF_BYTES>().0[number]);
    let flags = (0, CHUNK_START, CHUNK_END);
    let [a, b, c, d]: [_; LEAVES] =
        std::array::from_fn(|number| side_by_side(platform, &leaf(number), number as u64, flags));
    let parents = (PARENT, 0, 0);
    let [left, right] = [pairs(&a, &b), pairs(&c, &d)]
        .map(|pairs| side_by_side(platform, &pairs.each_ref(), 0, parents));
    side_by_side(platform, &pairs(&left, &right).each_ref(), 0, (PARENT | ROOT, 0, 0))
}

/// Hashes messages of one length. `flags` are those of all blocks, of the first, and of the last.
fn side_by_side<const N: usize>(
    platform: Platform,
    messages: &[&[u8; N]; PAGES_AT_ONCE],
    counter: u64,
    (flags, first, last): (u8, u8, u8),
) -> [Hash; PAGES_AT_ONCE] {
    let mut hashes = [[0; HASH_BYTES]; PAGES_AT_ONCE];
    let (no, out) = (IncrementCounter::No, hashes.as_flattened_mut());
    platform.hash_many(messages, &IV, counter, no, flags, first, last, out);
    hashes
}

/// Builds the messages of parents: two hashes each.
fn pairs(
    left: &[Hash; PAGES_AT_ONCE],
    right: &[Hash; PAGES_AT_ONCE],
) -> [[u8; 2 * HASH_BYTES]; PAGES_AT_ONCE] {
    std::array::from_fn(|at| {
        let mut pair = [0; 2 * HASH_BYTES];
        pair[..HASH_BYTES].copy_from_slice(&left[at]);
        pair[HASH_BYTES..].copy_from_slice(&right[at]);
        pair
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::SeededRng;

    #[test]
    fn each_page_has_its_own_fingerprint() {
        let rng = SeededRng::new(1);
        let mut bytes: Vec<u8> = (0..20 * PAGE_BYTES).map(|_| rng.next_u64() as u8).collect();
        bytes[19 * PAGE_BYTES..].fill(0);
        let pages: Vec<&[u8; PAGE_BYTES]> = bytes.as_chunks().0.iter().collect();
        for from in 0..pages.len() {
            for to in from..=pages.len() {
                let want: Vec<Fingerprint> =
                    pages[from..to].iter().map(|page| crate::fingerprint(*page)).collect();
                assert_eq!(fingerprint_pages(&pages[from..to]), want, "{from} to {to}");
            }
        }
    }
}
