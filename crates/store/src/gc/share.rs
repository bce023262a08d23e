//! Who needs which entries of packs: what somebody needs alone, and what they share with others.
//! Four bytes an entry, besides what marking takes.

use outlive_types::PackId;
use std::collections::HashMap;

/// Nobody needs the entry.
const NOBODY: u32 = 0;
/// Several do.
const MANY: u32 = u32::MAX;

/// What one unit (a checkpoint, or all of a job) needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Bytes of all entries that it needs.
    pub needed_bytes: u64,
    /// Bytes of those that no other unit needs.
    pub only_bytes: u64,
}

#[derive(Debug, Default)]
struct Pack {
    /// By entry: the number of the unit that needs it.
    needed_by: Vec<u32>,
    used_bytes: u64,
}

/// Counts the needs of units, one after the other.
#[derive(Debug, Default)]
pub struct Shares {
    packs: HashMap<PackId, Pack>,
    /// By unit, the first of which has number 1.
    units: Vec<Share>,
}

impl Shares {
    /// Begins with the next unit.
    pub fn next_unit(&mut self) {
        self.units.push(Share::default());
    }

    /// The unit at work needs entry `at` of `entries`. To be called once for each.
    pub fn add(&mut self, pack: PackId, entries: usize, at: usize, bytes: u64) {
        let number = self.units.len() as u32;
        let Some((unit, before)) = self.units.split_last_mut() else { return };
        let pack = self.packs.entry(pack).or_default();
        pack.needed_by.resize(entries, NOBODY);
        unit.needed_bytes += bytes;
        let needed_by = &mut pack.needed_by[at];
        match *needed_by {
            NOBODY => {
                pack.used_bytes += bytes;
                unit.only_bytes += bytes;
                *needed_by = number;
            }
            MANY => {}
            other => {
                if let Some(other) = before.get_mut(other as usize - 1) {
                    other.only_bytes -= bytes;
                }
                *needed_by = MANY;
            }
        }
    }

    /// The units' needs, in the order in which they came.
    pub fn units(&self) -> &[Share] {
        &self.units
    }

    /// Bytes of all entries that anybody needs.
    pub fn all_bytes(&self) -> u64 {
        self.packs.values().map(|pack| pack.used_bytes).sum()
    }

    /// Bytes of a pack's entries that anybody needs.
    pub fn used_bytes(&self, pack: &PackId) -> u64 {
        self.packs.get(pack).map_or(0, |pack| pack.used_bytes)
    }

    /// Whether anybody needs an entry.
    pub fn is_used(&self, pack: &PackId, at: usize) -> bool {
        let found = self.packs.get(pack).and_then(|pack| pack.needed_by.get(at));
        found.is_some_and(|needed_by| *needed_by != NOBODY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_belongs_to_nobody_alone() {
        let pack = PackId([7; 16]);
        let mut shares = Shares::default();
        for needs in [&[0, 1, 2][..], &[1, 2, 3], &[2, 4]] {
            shares.next_unit();
            needs.iter().for_each(|at| shares.add(pack, 5, *at, 10 + *at as u64));
        }
        let figures: Vec<(u64, u64)> =
            shares.units().iter().map(|s| (s.needed_bytes, s.only_bytes)).collect();
        assert_eq!(figures, [(33, 10), (36, 13), (26, 14)]);
        assert_eq!(shares.all_bytes(), 60);
        assert!(shares.is_used(&pack, 4) && !shares.is_used(&PackId([8; 16]), 0));
    }
}
