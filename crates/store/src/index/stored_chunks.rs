//! A bounded memory of the chunks in the job's segments, so that they are not written again.

use super::Fingerprints;
use outlive_types::Fingerprint;

/// Bytes of a set per fingerprint: 32 bytes and a control byte, in tables that are half to seven
/// eighths full.
const ENTRY_BYTES: u64 = 56;

/// Two generations: when the young one is full it becomes the old one, and the old one is
/// forgotten. A duplicate missed that way costs only space.
#[derive(Debug)]
pub struct StoredChunks {
    young: Fingerprints,
    old: Fingerprints,
    generation_max: usize,
}

impl StoredChunks {
    /// Makes a memory of at most `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> StoredChunks {
        let generation_max = (bytes_max / ENTRY_BYTES / 2).max(16) as usize;
        StoredChunks {
            young: Fingerprints::default(),
            old: Fingerprints::default(),
            generation_max,
        }
    }

    /// Returns whether the chunk is known to be stored.
    pub fn contains(&self, fp: &Fingerprint) -> bool {
        self.young.contains(fp) || self.old.contains(fp)
    }

    /// Remembers chunks.
    pub fn extend(&mut self, fps: impl IntoIterator<Item = Fingerprint>) {
        for fp in fps {
            if self.young.len() >= self.generation_max {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(fp);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.young = Fingerprints::default();
        self.old = Fingerprints::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_the_newest_are_known() {
        let mut known = StoredChunks::new(ENTRY_BYTES * 2 * 100);
        let fp = |n: u32| {
            let mut bytes = [0; 32];
            bytes[..4].copy_from_slice(&n.to_le_bytes());
            Fingerprint(bytes)
        };
        known.extend((0..1000).map(fp));
        assert!(known.contains(&fp(999)) && known.contains(&fp(901)));
        assert!(!known.contains(&fp(1)));
        assert!(known.young.len() + known.old.len() <= 200);
    }
}
