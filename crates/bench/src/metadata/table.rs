//! The paper's hash table: an entry with its page number for each page that exists. Collisions go to
//! the next slot (linear probing, as Knuth describes it in volume 3, 6.4).

use super::marks::Marks;
use super::structure::{ENTRY_BYTES, Entry, Found, Structure, Update, entry, timed};
use outlive_types::{Error, Result};

/// Page number plus one, so that fresh memory is empty; then the entry.
type Slot = [u64; 3];
pub const SLOT_BYTES: u64 = 8 + ENTRY_BYTES;
/// Share of the slots in use: four of five.
const FULL: (u64, u64) = (4, 5);

/// Entries by the hash of their page number, with a bit for each slot that has changed.
pub struct HashTable {
    slots: Slots,
    changed: Marks,
    /// The version before, if there is memory for it.
    before: Option<Slots>,
}

#[derive(Clone)]
struct Slots(Vec<Slot>);

/// Returns the number of slots for `pages` pages. The table is given its final size at once, since
/// one that grows by copying needs more memory meanwhile.
fn slots_for(pages: u64) -> u64 {
    (pages * FULL.1).div_ceil(FULL.0) + 1
}

/// Returns the bytes in memory for `pages` existing pages.
pub fn ram_bytes(pages: u64) -> u64 {
    slots_for(pages) * SLOT_BYTES + Marks::bytes(slots_for(pages))
}

impl Slots {
    /// Returns the slot of a page, or the empty one where it belongs.
    fn find(&self, page: u64) -> usize {
        // Fibonacci hashing, spread over any number of slots by a multiplication (Lemire 2019).
        let mixed = (page ^ (page >> 15)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut at = ((u128::from(mixed) * self.0.len() as u128) >> 64) as usize;
        while self.0[at][0] != 0 && self.0[at][0] != page + 1 {
            at += 1;
            if at == self.0.len() {
                at = 0;
            }
        }
        at
    }

    fn put(&mut self, page: u64, [a, b]: Entry) -> usize {
        let at = self.find(page);
        self.0[at] = [page + 1, a, b];
        at
    }
}

impl HashTable {
    /// Builds the first version. It keeps the version before if `keeps_before`.
    pub fn build(
        count: u64,
        pages: impl Iterator<Item = u64>,
        keeps_before: bool,
    ) -> Result<HashTable> {
        let mut slots = Slots(vec![[0; 3]; slots_for(count) as usize]);
        for page in pages {
            slots.put(page, entry(page, 0));
        }
        let used = slots.0.iter().filter(|slot| slot[0] != 0).count() as u64;
        if used != count {
            return Err(Error::bug(format!("the table has {used} pages of {count}")));
        }
        let changed = Marks::new(slots.0.len() as u64);
        let before = keeps_before.then(|| slots.clone());
        Ok(HashTable { slots, changed, before })
    }
}

impl Structure for HashTable {
    fn update(&mut self, pages: &[u64], version: u64) -> Result<Update> {
        let ((), took_s) = timed(|| {
            for page in pages {
                let at = self.slots.put(*page, entry(*page, version));
                self.changed.set(at);
            }
        });
        Ok(Update { took_s, durable_s: 0.0, written_bytes: pages.len() as u64 * SLOT_BYTES })
    }

    fn delta(&mut self) -> Option<Found> {
        let (delta, took_s) = timed(|| {
            let mut delta: Vec<Slot> = Vec::new();
            self.changed.take(|at| delta.push(self.slots.0[at]));
            delta
        });
        Some(Found { took_s, open_s: 0.0, pages: delta.len() as u64 })
    }

    /// Looks each page up in the version before, whose slots may be elsewhere.
    fn compare(&mut self) -> Result<Option<Found>> {
        let Some(before) = &mut self.before else { return Ok(None) };
        let (delta, took_s) = timed(|| {
            let used = self.slots.0.iter().filter(|slot| slot[0] != 0);
            let is_other = |slot: &&Slot| before.0[before.find(slot[0] - 1)] != **slot;
            used.filter(is_other).map(|slot| slot[0] - 1).collect::<Vec<u64>>()
        });
        before.0.copy_from_slice(&self.slots.0);
        Ok(Some(Found { took_s, open_s: 0.0, pages: delta.len() as u64 }))
    }

    fn ram_bytes(&self) -> u64 {
        self.slots.0.capacity() as u64 * SLOT_BYTES + self.changed.ram_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_again() {
        let pages: Vec<u64> = (0..1000).map(|n| n * n).collect();
        let mut table = HashTable::build(1000, pages.iter().copied(), true).unwrap();
        table.update(&[4, 9, 16], 1).unwrap();
        assert_eq!(table.compare().unwrap().unwrap().pages, 3);
        assert_eq!(table.delta().unwrap().pages, 3);
        assert_eq!(table.delta().unwrap().pages, 0);
        for page in &pages {
            assert_eq!(table.slots.0[table.slots.find(*page)][0], page + 1);
        }
    }
}
