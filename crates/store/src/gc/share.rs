//! Finds which entries of packs each unit needs alone, and which it shares with others. It takes
//! eight bytes an entry, besides the marks.

use outlive_types::PackId;
use std::collections::HashMap;

/// No unit needs the entry.
const NOBODY: u32 = 0;
/// Several units need it.
const MANY: u32 = u32::MAX;

/// Needs of one unit: a checkpoint, or a whole job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Bytes of all entries that it needs.
    pub needed_bytes: u64,
    /// Bytes of the entries that no other unit needs.
    pub only_bytes: u64,
}

#[derive(Debug, Default)]
struct Pack {
    /// By entry: the number of the unit that needs it.
    needed_by: Vec<u32>,
    /// By entry: how often it is held.
    held: Vec<u32>,
    used_bytes: u64,
}

/// An entry that is held.
#[derive(Clone, Copy, Debug)]
pub struct HeldEntry {
    pack: u32,
    at: u32,
    bytes: u32,
}

/// Counts the needs of units, one after the other.
#[derive(Debug, Default)]
pub struct Shares {
    numbers: HashMap<PackId, u32>,
    packs: Vec<Pack>,
    /// By unit; the first has number 1.
    units: Vec<Share>,
    /// Number of the current unit.
    at_work: u32,
    held_bytes: u64,
}

impl Shares {
    /// Begins the next unit.
    pub fn next_unit(&mut self) {
        self.units.push(Share::default());
        self.at_work = self.units.len() as u32;
    }

    /// Returns the number of the current unit.
    pub fn at_work(&self) -> u32 {
        self.at_work
    }

    /// Continues with a unit that was begun before.
    pub fn go_to(&mut self, unit: u32) {
        self.at_work = unit;
    }

    /// Notes that the current unit needs entry `at` of `entries`. To be called once for each entry.
    pub fn add(&mut self, pack: PackId, entries: usize, at: usize, bytes: u64) {
        let pack = self.number(pack, entries);
        self.need(pack, at, bytes);
        self.unit(self.at_work).needed_bytes += bytes;
    }

    /// Notes that the current unit and those after it need entry `at` of `entries`, until it is
    /// released as often as it was held.
    pub fn hold(&mut self, pack: PackId, entries: usize, at: usize, bytes: u64) -> HeldEntry {
        let pack = self.number(pack, entries);
        let found = &mut self.packs[pack];
        found.held.resize(entries, 0);
        found.held[at] += 1;
        if found.held[at] == 1 {
            self.held_bytes += bytes;
            self.need(pack, at, bytes);
        }
        HeldEntry { pack: pack as u32, at: at as u32, bytes: bytes as u32 }
    }

    /// Releases an entry for one of its holders; `last` is the last unit that needs it.
    pub fn release(&mut self, held: HeldEntry, last: u32) {
        let (pack, at, bytes) = (held.pack as usize, held.at as usize, u64::from(held.bytes));
        self.packs[pack].held[at] -= 1;
        if self.packs[pack].held[at] > 0 {
            return;
        }
        self.held_bytes -= bytes;
        let first = self.packs[pack].needed_by[at];
        // All units from the first to the last have needed it.
        if first != MANY && first != last {
            self.unit(first).only_bytes -= bytes;
            self.packs[pack].needed_by[at] = MANY;
        }
    }

    /// Counts all held entries as needs of the current unit.
    pub fn needs_what_is_held(&mut self) {
        self.unit(self.at_work).needed_bytes += self.held_bytes;
    }

    fn need(&mut self, pack: usize, at: usize, bytes: u64) {
        let number = self.at_work;
        let needed_by = self.packs[pack].needed_by[at];
        self.packs[pack].needed_by[at] = match needed_by {
            NOBODY => {
                self.packs[pack].used_bytes += bytes;
                self.unit(number).only_bytes += bytes;
                number
            }
            MANY => MANY,
            own if own == number => own,
            other => {
                self.unit(other).only_bytes -= bytes;
                MANY
            }
        };
    }

    fn unit(&mut self, number: u32) -> &mut Share {
        &mut self.units[number as usize - 1]
    }

    fn number(&mut self, pack: PackId, entries: usize) -> usize {
        let next = self.packs.len() as u32;
        let number = *self.numbers.entry(pack).or_insert(next);
        if number == next {
            let needed_by = vec![NOBODY; entries];
            self.packs.push(Pack { needed_by, ..Pack::default() });
        }
        number as usize
    }

    /// Returns the needs of the units, in the order of their numbers.
    pub fn units(&self) -> &[Share] {
        &self.units
    }

    /// Returns the bytes of all entries that any unit needs.
    pub fn all_bytes(&self) -> u64 {
        self.packs.iter().map(|pack| pack.used_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries that units hold from one to the next count as if each unit had added them.
    #[test]
    fn holding_is_adding_to_each_unit() {
        let pack = PackId([7; 20]);
        let needs: [&[usize]; 6] = [&[0, 1, 2], &[1, 2, 2], &[2, 3], &[0, 3], &[], &[3, 4]];
        let (mut added, mut held) = (Shares::default(), Shares::default());
        let mut before: Vec<HeldEntry> = Vec::new();
        for needs in needs {
            added.next_unit();
            let mut once = needs.to_vec();
            once.dedup();
            once.iter().for_each(|at| added.add(pack, 5, *at, 10 + *at as u64));
            held.next_unit();
            let holds = needs.iter().map(|at| held.hold(pack, 5, *at, 10 + *at as u64)).collect();
            let last = held.at_work() - 1;
            std::mem::replace(&mut before, holds).into_iter().for_each(|h| held.release(h, last));
            held.needs_what_is_held();
        }
        before.into_iter().for_each(|h| held.release(h, 6));
        assert_eq!(held.units(), added.units());
        assert_eq!(held.all_bytes(), added.all_bytes());
    }

    #[test]
    fn shared_entries_belong_to_no_unit_alone() {
        let pack = PackId([7; 20]);
        let mut shares = Shares::default();
        for needs in [&[0, 1, 2][..], &[1, 2, 3], &[2, 4]] {
            shares.next_unit();
            needs.iter().for_each(|at| shares.add(pack, 5, *at, 10 + *at as u64));
        }
        let figures: Vec<(u64, u64)> =
            shares.units().iter().map(|s| (s.needed_bytes, s.only_bytes)).collect();
        assert_eq!(figures, [(33, 10), (36, 13), (26, 14)]);
        assert_eq!(shares.all_bytes(), 60);
    }
}
