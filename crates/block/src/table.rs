//! All slots of a device in memory, and the space that none of them holds.

use crate::slot::{EXTENTS_MAX, Extent, Name, Slot, State};
use outlive_backend::ShardName;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The slots, by number and by name.
#[derive(Debug)]
pub(crate) struct Table {
    /// The slots up to the last one that was ever written.
    slots: Vec<Slot>,
    /// Every other slot.
    never_written: Slot,
    slots_max: u32,
    units: u32,
    /// Slots by name. Each name may have one finished slot and others, so few that they are
    /// searched.
    named: HashMap<Name, Vec<u32>>,
    unused: BTreeSet<u32>,
    free: Free,
    /// Two slots claim one unit, as only damage to the device explains.
    claims_overlap: bool,
    next_sequence: u64,
}

impl Table {
    /// Takes the first slots as read, of a device of `slots_max` slots and `units` units.
    pub(crate) fn new(slots: Vec<Slot>, slots_max: u32, units: u32) -> Table {
        let mut table = Table {
            slots: Vec::new(),
            never_written: Slot::free(0),
            slots_max,
            units,
            named: HashMap::new(),
            unused: BTreeSet::new(),
            free: Free::all(units),
            claims_overlap: false,
            next_sequence: 1,
        };
        for (number, slot) in slots.into_iter().enumerate() {
            table.set(number as u32, slot);
        }
        table
    }

    /// Replaces a slot.
    pub(crate) fn set(&mut self, number: u32, slot: Slot) {
        self.next_sequence = self.next_sequence.max(slot.sequence + 1);
        while self.slots.len() <= number as usize {
            self.unused.insert(self.slots.len() as u32);
            self.slots.push(Slot::free(0));
        }
        let old = std::mem::replace(&mut self.slots[number as usize], slot.clone());
        old.extents.iter().for_each(|extent| self.free.give(*extent));
        for extent in &slot.extents {
            self.claims_overlap |= !self.free.take(*extent);
        }
        if self.claims_overlap && !old.extents.is_empty() {
            // The other slot still needs its units.
            self.free = Free::all(self.units);
            let extents = self.slots.iter().flat_map(|slot| &slot.extents);
            extents.for_each(|extent| _ = self.free.take(*extent));
        }
        if let Some(of_name) = self.named.get_mut(&old.name) {
            of_name.retain(|other| *other != number);
            if of_name.is_empty() {
                self.named.remove(&old.name);
            }
        }
        if slot.name != Name::None {
            self.named.entry(slot.name).or_default().push(number);
        }
        match slot.state {
            State::Free => self.unused.insert(number),
            _ => self.unused.remove(&number),
        };
    }

    /// Returns a slot.
    pub(crate) fn slot(&self, number: u32) -> &Slot {
        self.slots.get(number as usize).unwrap_or(&self.never_written)
    }

    /// Returns the written slots with their numbers.
    fn slots(&self) -> impl Iterator<Item = (u32, &Slot)> {
        self.slots.iter().enumerate().map(|(number, slot)| (number as u32, slot))
    }

    /// Returns the newest slot of this name in this state. There are two only if a process died
    /// between the write of the new one and the end of the old one.
    pub(crate) fn find(&self, name: &Name, state: State) -> Option<(u32, &Slot)> {
        let of_name = self.named.get(name)?.iter().map(|number| (*number, self.slot(*number)));
        of_name.filter(|(_, slot)| slot.state == state).max_by_key(|(_, slot)| slot.sequence)
    }

    /// Returns the slots that a newer one of the same name and state has replaced.
    pub(crate) fn replaced(&self) -> Vec<u32> {
        let is_old = |number: &u32| {
            let slot = self.slot(*number);
            let newest = self.find(&slot.name, slot.state);
            matches!(slot.state, State::Shard | State::File)
                && newest.is_some_and(|(newest, _)| newest != *number)
        };
        self.named.values().flatten().copied().filter(is_old).collect()
    }

    /// Returns the shards in this state, sorted.
    pub(crate) fn shards(&self, state: State) -> Vec<ShardName> {
        let shards = self.named.iter().filter_map(|(name, of_name)| match name {
            Name::Shard(shard) => {
                of_name.iter().any(|it| self.slot(*it).state == state).then_some(*shard)
            }
            _ => None,
        });
        let mut shards: Vec<ShardName> = shards.collect();
        shards.sort_unstable();
        shards
    }

    /// Returns the condemned slots, and their shards.
    pub(crate) fn condemned(&self) -> Vec<(u32, ShardName)> {
        let condemned = self.slots().filter(|(_, slot)| slot.state == State::Condemned);
        let named = condemned.filter_map(|(number, slot)| match slot.name {
            Name::Shard(shard) => Some((number, shard)),
            _ => None,
        });
        named.collect()
    }

    /// Returns the unused slots in order.
    pub(crate) fn unused(&self) -> impl Iterator<Item = u32> {
        self.unused.iter().copied().chain(self.slots.len() as u32..self.slots_max)
    }

    /// Returns the sequence number for the next change.
    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence - 1
    }

    /// Returns free space of this many units, in few pieces: less if there is less. Takes none.
    pub(crate) fn room(&self, units: u32) -> Vec<Extent> {
        self.free.find(units)
    }

    /// Returns the units of these extents that no slot holds.
    pub(crate) fn free_part(&self, extents: &[Extent]) -> Vec<Extent> {
        if !self.claims_overlap {
            return extents.to_vec();
        }
        let units = extents.iter().flat_map(|extent| extent.start..extent.start + extent.units);
        let free = units.filter(|unit| self.free.holds(*unit));
        free.map(|start| Extent { start, units: 1 }).collect()
    }

    /// Returns the number of free units.
    pub(crate) fn free_units(&self) -> u64 {
        self.free.units
    }
}

/// The free space, by its first unit.
#[derive(Debug, Default)]
struct Free {
    runs: BTreeMap<u32, u32>,
    /// The same by length.
    by_length: BTreeSet<(u32, u32)>,
    units: u64,
}

impl Free {
    fn all(units: u32) -> Free {
        let mut free = Free::default();
        free.give(Extent { start: 0, units });
        free
    }

    fn holds(&self, unit: u32) -> bool {
        let before = self.runs.range(..=unit).next_back();
        before.is_some_and(|(start, units)| unit < start + units)
    }

    fn insert(&mut self, start: u32, units: u32) {
        if units > 0 {
            self.runs.insert(start, units);
            self.by_length.insert((units, start));
            self.units += u64::from(units);
        }
    }

    fn remove(&mut self, start: u32) -> u32 {
        let units = self.runs.remove(&start).unwrap_or(0);
        self.by_length.remove(&(units, start));
        self.units -= u64::from(units);
        units
    }

    /// Gives space back, and joins it with its neighbours.
    fn give(&mut self, Extent { mut start, mut units }: Extent) {
        if let Some((&before, &length)) = self.runs.range(..start).next_back()
            && before + length == start
        {
            self.remove(before);
            (start, units) = (before, units + length);
        }
        units += self.remove(start + units);
        self.insert(start, units);
    }

    /// Takes space that is free. Returns false if some of it is not: that stays as it is.
    fn take(&mut self, Extent { start, units }: Extent) -> bool {
        let (end, before) = (start + units, self.units);
        while let Some((&run, &length)) = self.runs.range(..end).next_back() {
            let run_end = run + length;
            if run_end <= start {
                break;
            }
            self.remove(run);
            self.insert(end.min(run_end), run_end.saturating_sub(end));
            self.insert(run, start.saturating_sub(run));
        }
        before - self.units == u64::from(units)
    }

    /// The smallest run that is large enough, or else the largest ones.
    fn find(&self, units: u32) -> Vec<Extent> {
        if units == 0 {
            return Vec::new();
        }
        if let Some((_, start)) = self.by_length.range((units, 0)..).next() {
            return vec![Extent { start: *start, units }];
        }
        let (mut found, mut left) = (Vec::new(), units);
        for (length, start) in self.by_length.iter().rev().take(EXTENTS_MAX) {
            let units = left.min(*length);
            found.push(Extent { start: *start, units });
            left -= units;
            if left == 0 {
                break;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u32, units: u32) -> Extent {
        Extent { start, units }
    }

    /// Compares the free space with a list of bits.
    #[test]
    fn free_space_is_that_which_nothing_holds() {
        let (mut free, mut bits) = (Free::all(200), vec![true; 200]);
        let mut number = 1u32;
        for _ in 0..5000 {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (start, units) = (number >> 8 & 0x7F, 1 + (number >> 20 & 0x1F));
            let range = start as usize..(start + units) as usize;
            match bits[range.clone()].iter().all(|is_free| *is_free) {
                true => assert!(free.take(extent(start, units))),
                false if bits[range.clone()].iter().any(|is_free| *is_free) => continue,
                false => free.give(extent(start, units)),
            }
            bits[range].iter_mut().for_each(|bit| *bit = !*bit);
            let is_free = bits.iter().filter(|bit| **bit).count();
            assert_eq!(free.units, is_free as u64);
            assert_eq!(free.by_length.len(), free.runs.len());
            let runs = bits.chunk_by(|one, next| one == next).filter(|run| run[0]).count();
            assert_eq!(free.runs.len(), runs, "neighbours are joined");
            for wanted in [1, 7, 60] {
                let found = free.find(wanted);
                let mut all: Vec<u32> =
                    found.iter().flat_map(|it| it.start..it.start + it.units).collect();
                assert!(all.iter().all(|unit| bits[*unit as usize]));
                assert_eq!(all.len(), is_free.min(wanted as usize));
                all.sort_unstable();
                all.dedup();
                assert_eq!(all.len(), is_free.min(wanted as usize), "no unit twice");
            }
        }
    }

    /// The space of one slot stays taken while the other one claims it.
    #[test]
    fn space_that_two_slots_claim_is_not_free_until_both_are() {
        let slot = |sequence: u64, start, units| {
            let name = Name::File(sequence.to_string());
            let extents = vec![extent(start, units)];
            Slot { state: State::File, name, extents, ..Slot::free(sequence) }
        };
        let mut table = Table::new(vec![slot(1, 2, 4), slot(2, 4, 4)], 10, 10);
        assert_eq!((table.free_units(), table.room(10)), (4, vec![extent(8, 2), extent(0, 2)]));
        table.set(0, Slot::free(3));
        assert_eq!((table.free_units(), table.room(10)), (6, vec![extent(0, 4), extent(8, 2)]));
        // Only that part is discarded.
        assert_eq!(table.free_part(&[extent(2, 4)]), [extent(2, 1), extent(3, 1)]);
        table.set(1, Slot::free(4));
        assert_eq!((table.free_units(), table.room(10)), (10, vec![extent(0, 10)]));
    }

    #[test]
    fn slots_that_were_never_written_take_no_memory() {
        let mut table = Table::new(Vec::new(), 1 << 20, 10);
        assert_eq!(table.unused().count(), 1 << 20);
        table.set(2, Slot { state: State::File, name: Name::File("x".into()), ..Slot::free(1) });
        assert_eq!(table.unused().take(3).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!((table.slots.len(), table.slot(900_000).state), (3, State::Free));
    }
}
