//! From fingerprints to pack extents: the segments that a manifest lists, and the bounded memory of
//! stored chunks.

mod fingerprint_range;
mod locator;
mod pool_index;
mod restore_locator;
mod rolling;
mod segments;
mod shared;
mod stored_chunks;
mod survey;

pub use fingerprint_range::FingerprintRange;
pub use locator::{Locator, Pages, ReadItem};
pub use pool_index::{PoolIndex, SharedSegment};
pub use restore_locator::{Extents, IsNamed, RestoreLocator};
pub use rolling::{Rolling, Stepped};
pub use segments::{MERGE_AT, choose_merge, each_segment, merge, newest_first, read_segment};
pub use shared::SharedChunks;
pub use stored_chunks::StoredChunks;

use outlive_types::Fingerprint;
use std::hash::{BuildHasherDefault, Hasher};

/// Fingerprints are uniform already: their first eight bytes are the hash.
#[derive(Default, Debug)]
pub struct PrefixHasher(u64);

impl Hasher for PrefixHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Called with the length first, then with the fingerprint's bytes.
        if let Some(prefix) = bytes.first_chunk::<8>() {
            self.0 = u64::from_le_bytes(*prefix);
        }
    }

    fn write_usize(&mut self, _length: usize) {}
}

/// A map by fingerprint.
pub type ByFingerprint<V> =
    std::collections::HashMap<Fingerprint, V, BuildHasherDefault<PrefixHasher>>;

/// A set of fingerprints.
pub type Fingerprints = std::collections::HashSet<Fingerprint, BuildHasherDefault<PrefixHasher>>;
