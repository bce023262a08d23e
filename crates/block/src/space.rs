//! The slots of a device, shared with other processes: a view of them as they are now, and changes,
//! one process at a time.

use crate::change::Changes;
use crate::device::Device;
use crate::layout::{Layout, UNIT_BYTES};
use crate::locks::Guard;
use crate::slot::{EXTENTS_MAX, Extent, Name, Slot, State};
use crate::table::Table;
use outlive_io::{AlignedBuf, PerProcess};
use outlive_types::{Error, PAGE_BYTES, Result};
use std::sync::Arc;

/// Stands for a number of changes that no page shows: the slots must be read again.
const UNKNOWN: u64 = u64::MAX;

/// A new shard gets at most this part of the free space at once.
const WRITERS: u64 = 8;

/// Slots read at once.
const READ_SLOTS: u32 = 1024;

/// A device with its slots.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) layout: Layout,
    /// The slots as this process last saw them. A forked child reads its own.
    known: PerProcess<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    table: Table,
    /// Number of changes that the table contains.
    count: u64,
    /// This process has mended all that a power cut may have left.
    is_mended: bool,
}

impl Space {
    /// Uses a device with this layout. Reads no slots yet.
    pub(crate) fn new(device: Arc<dyn Device>, layout: Layout) -> Space {
        Space { device, layout, known: PerProcess::new(|_| None) }
    }

    /// Returns what `look` finds in the slots as they are now.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn view<T>(&self, look: impl FnOnce(&Table) -> T) -> Result<T> {
        self.view_at(look).map(|(found, _)| found)
    }

    /// Does the same. Also returns a number for [`Space::is_unchanged`].
    pub(crate) fn view_at<T>(&self, look: impl FnOnce(&Table) -> T) -> Result<(T, u64)> {
        let mut known = self.known.lock();
        let changes = self.changes()?;
        if let Some(Known { table, count, .. }) = &*known
            && !changes.is_changing
            && changes.count == *count
        {
            return Ok((look(table), *count));
        }
        if changes.is_changing && self.device.is_writable() {
            // A process is at it, which ends soon, or it died.
            let change = self.begin_change(&mut known)?;
            return Ok((look(change.table()), change.changes.count));
        }
        let _lock = self.device.lock(false)?;
        let changes = self.changes()?;
        let known = self.catch_up(&mut known, &changes)?;
        let found = (look(&known.table), known.count);
        if changes.is_changing {
            // A process died, and this one must not mend that: the next view reads all again.
            known.count = UNKNOWN;
        }
        Ok(found)
    }

    /// Returns whether a view would still find the same as one that returned this number.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn is_unchanged(&self, since: u64) -> Result<bool> {
        let changes = self.changes()?;
        Ok(!changes.is_changing && changes.count == since)
    }

    /// Changes slots, while no other process does.
    ///
    /// # Errors
    /// Errors of `work` and of the device.
    pub(crate) fn change<T>(&self, work: impl FnOnce(&mut Change<'_>) -> Result<T>) -> Result<T> {
        if !self.device.is_writable() {
            return Err(Error::invalid(format!(
                "{} cannot be written by this user, or is read-only",
                self.device.describe()
            )));
        }
        let mut known = self.known.lock();
        let mut change = self.begin_change(&mut known)?;
        work(&mut change)
    }

    /// Takes the lock, and mends what a process left that died.
    fn begin_change<'a>(&'a self, known: &'a mut Option<Known>) -> Result<Change<'a>> {
        let lock = self.device.lock(true)?;
        let changes = self.changes()?;
        let is_sound = |known: &Known| known.is_mended && known.count != UNKNOWN;
        if known.as_ref().is_some_and(is_sound) && !changes.is_changing {
            let known = self.catch_up(known, &changes)?;
            return Ok(Change::new(self, known, changes, lock));
        }
        let (slots, differing) = self.read_all()?;
        let table = Table::new(slots, self.layout.slots, self.layout.units);
        let known = known.insert(Known { table, count: changes.count, is_mended: false });
        let mut change = Change::new(self, known, changes, lock);
        change.mend(&differing)?;
        change.known.is_mended = true;
        Ok(change)
    }

    fn changes(&self) -> Result<Changes> {
        let mut page = [0; PAGE_BYTES];
        self.device.read_changes(&mut page)?;
        Ok(Changes::from_page(&page, &self.layout.id))
    }

    /// Reads the slots that have changed, or all. The caller has the lock.
    fn catch_up<'a>(
        &self,
        known: &'a mut Option<Known>,
        changes: &Changes,
    ) -> Result<&'a mut Known> {
        if let Some(there) = known
            && !changes.is_changing
            && let Some(slots) = changes.since(there.count)
        {
            for number in slots {
                let slot = self.read_slot(*number)?;
                there.table.set(*number, slot);
            }
            there.count = changes.count;
        } else {
            *known = None;
            let (slots, _) = self.read_all()?;
            let table = Table::new(slots, self.layout.slots, self.layout.units);
            *known = Some(Known { table, count: changes.count, is_mended: false });
        }
        known.as_mut().ok_or_else(|| Error::bug("the slots were not read"))
    }

    fn read_slot(&self, number: u32) -> Result<Slot> {
        let mut pages = AlignedBuf::zeroed(2 * PAGE_BYTES);
        for (page, at) in pages.chunks_mut(PAGE_BYTES).zip(self.layout.slot_at(number)) {
            self.device.read(at, page)?;
        }
        let (first, second) = pages.split_at(PAGE_BYTES);
        Ok(self.newest(number, first, second).0)
    }

    /// Returns what a slot says by its two copies, and whether they differ.
    fn newest(&self, number: u32, first: &[u8], second: &[u8]) -> (Slot, bool) {
        let Layout { id, units, .. } = &self.layout;
        let [one, other] = [first, second].map(|page| Slot::from_page(page, id, number, *units));
        let differ = one != other;
        let newest = [one, other].into_iter().flatten().max_by_key(|slot| slot.sequence);
        (newest.unwrap_or(Slot::free(0)), differ)
    }

    /// Reads all slots; returns those whose copies differ, too. A shard gets the first unused slot,
    /// so behind many that were never written there are no others.
    fn read_all(&self) -> Result<(Vec<Slot>, Vec<u32>)> {
        let (mut slots, mut differing) = (Vec::new(), Vec::new());
        let mut pages = [(); 2].map(|()| AlignedBuf::zeroed(READ_SLOTS as usize * PAGE_BYTES));
        for from in (0..self.layout.slots).step_by(READ_SLOTS as usize) {
            let count = READ_SLOTS.min(self.layout.slots - from);
            let bytes = count as usize * PAGE_BYTES;
            for (pages, at) in pages.iter_mut().zip(self.layout.slot_at(from)) {
                self.device.read(at, &mut pages[..bytes])?;
            }
            let [first, second] = &pages;
            let before = slots.len();
            let both = first[..bytes].chunks(PAGE_BYTES).zip(second[..bytes].chunks(PAGE_BYTES));
            for (number, (first, second)) in (from..).zip(both) {
                let (slot, differ) = self.newest(number, first, second);
                if differ {
                    differing.push(number);
                }
                slots.push(slot);
            }
            if slots[before..].iter().all(|slot| slot.sequence == 0) {
                break;
            }
        }
        let written = slots.iter().rposition(|slot| slot.sequence > 0).map_or(0, |last| last + 1);
        slots.truncate(written);
        Ok((slots, differing))
    }

    /// Returns the pieces of the device that hold bytes `at` to `at + length` of these extents.
    pub(crate) fn pieces(&self, extents: &[Extent], at: u64, length: u64) -> Vec<(u64, u64)> {
        let (mut pieces, mut before, end) = (Vec::new(), 0, at + length);
        for extent in extents {
            let bytes = u64::from(extent.units) * UNIT_BYTES;
            let (from, to) = (at.max(before), end.min(before + bytes));
            if from < to {
                pieces.push((self.layout.unit_at(extent.start) + from - before, to - from));
            }
            before += bytes;
        }
        pieces
    }

    /// Tells the device that nothing needs these extents.
    pub(crate) fn discard(&self, extents: &[Extent]) {
        for extent in extents {
            let bytes = u64::from(extent.units) * UNIT_BYTES;
            self.device.discard(self.layout.unit_at(extent.start), bytes);
        }
    }
}

/// Slots that this process may change, with the lock that lets no other process do so.
pub(crate) struct Change<'a> {
    space: &'a Space,
    known: &'a mut Known,
    changes: Changes,
    /// The page says that slots are changing.
    has_begun: bool,
    /// A write failed, so the slots on the device may differ from the table.
    is_torn: bool,
    _lock: Guard,
}

impl<'a> Change<'a> {
    fn new(space: &'a Space, known: &'a mut Known, changes: Changes, lock: Guard) -> Change<'a> {
        Change { space, known, changes, has_begun: false, is_torn: false, _lock: lock }
    }

    /// Returns the slots.
    pub(crate) fn table(&self) -> &Table {
        &self.known.table
    }

    /// Mends what a process has left that died, or a power cut: copies that differ, and slots whose
    /// successor is there.
    fn mend(&mut self, differing: &[u32]) -> Result<()> {
        if self.changes.is_changing {
            // Another process may know slots as the dead one was about to write them.
            self.begin()?;
            self.changes.add_unknown();
        }
        self.repair(differing)?;
        self.free(&self.table().replaced())
    }

    /// Writes the copies of slots that differ from the newest ones. Leaves those that are whole
    /// alone: a power cut might tear them.
    fn repair(&mut self, differing: &[u32]) -> Result<()> {
        let (device, layout) = (self.space.device.clone(), &self.space.layout);
        let mut stale = Vec::new();
        for number in differing {
            let page = self.table().slot(*number).to_page(&layout.id, *number);
            let mut there = AlignedBuf::zeroed(PAGE_BYTES);
            let mut at = Vec::new();
            for copy in layout.slot_at(*number) {
                device.read(copy, &mut there)?;
                at.extend((there[..] != page[..]).then_some(copy));
            }
            stale.push((page, at));
        }
        if stale.iter().all(|(_, at)| at.is_empty()) {
            return Ok(());
        }
        self.begin()?;
        self.is_torn = true;
        for (page, at) in stale {
            at.into_iter().try_for_each(|at| device.write(at, &page))?;
        }
        device.flush()?;
        self.is_torn = false;
        self.changes.add(differing);
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        if !self.has_begun {
            self.changes.is_changing = true;
            self.space.device.write_changes(&self.changes.to_page(&self.space.layout.id))?;
            self.has_begun = true;
        }
        Ok(())
    }

    /// Writes slots, and makes them durable. After a power cut before that, each of them is as
    /// before, as now, or free: so of a slot and its successor, first write the successor.
    pub(crate) fn write(&mut self, slots: Vec<(u32, Slot)>) -> Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        self.begin()?;
        self.is_torn = true;
        let (device, layout) = (&self.space.device, &self.space.layout);
        for (number, slot) in &slots {
            let page = slot.to_page(&layout.id, *number);
            for at in layout.slot_at(*number) {
                device.write(at, &page)?;
            }
        }
        device.flush()?;
        self.is_torn = false;
        let numbers: Vec<u32> = slots.iter().map(|(number, _)| *number).collect();
        for (number, slot) in slots {
            self.known.table.set(number, slot);
        }
        self.changes.add(&numbers);
        Ok(())
    }

    /// Frees slots and their space.
    pub(crate) fn free(&mut self, numbers: &[u32]) -> Result<()> {
        let table = &mut self.known.table;
        let extents: Vec<Extent> =
            numbers.iter().flat_map(|number| table.slot(*number).extents.clone()).collect();
        let free = numbers.iter().map(|number| (*number, Slot::free(table.next_sequence())));
        let free = free.collect();
        self.write(free)?;
        // Before another shard gets the space. Of damaged slots, another one may claim a part of it.
        self.space.discard(&self.table().free_part(&extents));
        Ok(())
    }

    /// Frees the slots of unfinished shards, or only condemns those whose writer still lives: it
    /// may write there at any time.
    pub(crate) fn give_up(&mut self, numbers: &[u32]) -> Result<()> {
        let (mut condemned, mut free) = (Vec::new(), Vec::new());
        for number in numbers {
            if self.space.device.is_owned(*number)? {
                let slot = self.known.table.slot(*number).clone();
                let sequence = self.known.table.next_sequence();
                condemned.push((*number, Slot { sequence, state: State::Condemned, ..slot }));
            } else {
                free.push(*number);
            }
        }
        self.write(condemned)?;
        self.free(&free)
    }

    /// Frees condemned slots whose writer has ended since.
    pub(crate) fn sweep(&mut self) -> Result<()> {
        let mut ended = Vec::new();
        for (number, _) in self.table().condemned() {
            if !self.space.device.is_owned(number)? {
                ended.push(number);
            }
        }
        self.free(&ended)
    }

    /// Returns an unused slot, free space for `bytes` bytes or what there is of it, and the lock of
    /// the slot's writer. Writes nothing.
    ///
    /// # Errors
    /// `Full` if no slot is left, or no space at all; errors of the device.
    pub(crate) fn room(&mut self, bytes: u64) -> Result<(u32, Vec<Extent>, Guard)> {
        let extents = self.table().room(units_of(bytes));
        if extents.is_empty() && bytes > 0 {
            return Err(self.full());
        }
        for number in self.table().unused() {
            // The last writer of the slot may not have ended yet.
            if let Some(guard) = self.space.device.own(number)? {
                return Ok((number, extents, guard));
            }
        }
        let slots = self.space.layout.slots;
        Err(Error::full(format!(
            "{} has {slots} shards, and room for no more: prune the pool, so that small ones are \
             merged, or add a target",
            self.space.device.describe()
        )))
    }

    /// Begins an unfinished shard of at most `bytes_max` bytes. Returns its slot, and the lock of
    /// its writer. On a device that is nearly full, several writers share the rest: each begins with
    /// a part of it, and gets more when it needs more.
    ///
    /// # Errors
    /// As [`Change::room`].
    pub(crate) fn begin_shard(&mut self, name: Name, bytes_max: u64) -> Result<(u32, Slot, Guard)> {
        self.sweep()?;
        let (number, extents, guard) = self.room(self.part_of(bytes_max).max(bytes_max.min(1)))?;
        let (sequence, state) = (self.next_sequence(), State::Unfinished);
        let slot = Slot { sequence, state, name, bytes: bytes_max, checksum: 0, extents };
        self.write(vec![(number, slot.clone())])?;
        Ok((number, slot, guard))
    }

    /// Gives an unfinished shard space for its first `bytes` bytes, and some more.
    ///
    /// # Errors
    /// `Full` if there is less; errors of the device.
    pub(crate) fn extend(&mut self, number: u32, slot: &Slot, bytes: u64) -> Result<Slot> {
        self.sweep()?;
        let there = slot.room_bytes();
        let wanted = bytes.max(slot.bytes.min(there + self.part_of(slot.bytes)));
        let mut extents = slot.extents.clone();
        for more in self.table().room(units_of(wanted - there)) {
            match extents.last_mut() {
                Some(last) if last.start + last.units == more.start => last.units += more.units,
                _ => extents.push(more),
            }
        }
        let slot = Slot { sequence: self.next_sequence(), extents, ..slot.clone() };
        if slot.room_bytes() < bytes || slot.extents.len() > EXTENTS_MAX {
            return Err(self.full());
        }
        self.write(vec![(number, slot.clone())])?;
        Ok(slot)
    }

    /// Returns as many bytes, or a part of the free ones that leaves room for other writers.
    fn part_of(&self, bytes: u64) -> u64 {
        bytes.min(self.table().free_units() / WRITERS * UNIT_BYTES)
    }

    fn full(&self) -> Error {
        Error::full(format!("{} is full", self.space.device.describe()))
    }

    /// Returns the sequence number for the next slot.
    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.known.table.next_sequence()
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if !self.has_begun {
            return;
        }
        self.changes.is_changing = false;
        let page = self.changes.to_page(&self.space.layout.id);
        let ends = !self.is_torn && self.space.device.write_changes(&page).is_ok();
        // Otherwise the page still says that slots are changing, and each process reads all again.
        self.known.count = if ends { self.changes.count } else { UNKNOWN };
    }
}

/// Returns the number of units that hold `bytes`.
fn units_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

/// Returns the first `bytes` bytes of extents, in whole units, and the rest.
pub(crate) fn cut(extents: &[Extent], bytes: u64) -> (Vec<Extent>, Vec<Extent>) {
    let mut left = units_of(bytes);
    let (mut kept, mut rest) = (Vec::new(), Vec::new());
    for Extent { start, units } in extents.iter().copied() {
        let first = units.min(left);
        left -= first;
        if first > 0 {
            kept.push(Extent { start, units: first });
        }
        if first < units {
            rest.push(Extent { start: start + first, units: units - first });
        }
    }
    (kept, rest)
}
