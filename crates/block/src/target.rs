//! A block device as a target.

use crate::device::{BlockDevice, Device};
use crate::layout::{Layout, UNIT_BYTES};
use crate::slot::{Name, Slot, State};
use crate::space::Space;
use crate::table::Table;
use crate::writer::{BlockWriter, Part};
use outlive_backend::writes::{check_range, exists, missing, short};
use outlive_backend::{Capacity, Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target};
use outlive_io::{OwnEngine, Ticket};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Most urgent reads at once.
const URGENT_MAX: usize = 4;

/// Shards on a device.
#[derive(Debug)]
pub(crate) struct BlockTarget {
    path: PathBuf,
    /// The device, from the first call that finds it.
    space: OnceLock<Arc<Space>>,
    engine: Arc<OwnEngine>,
    urgent: Arc<OwnEngine>,
}

impl BlockTarget {
    /// Uses a device of this machine, with `threads` threads that write and read. The first call
    /// that needs the device opens it.
    pub(crate) fn at(path: &Path, threads: usize) -> BlockTarget {
        BlockTarget {
            path: path.to_owned(),
            space: OnceLock::new(),
            engine: Arc::new(OwnEngine::new(threads)),
            urgent: Arc::new(OwnEngine::new(URGENT_MAX)),
        }
    }

    #[cfg(test)]
    pub(crate) fn over(device: Arc<dyn Device>) -> Result<BlockTarget> {
        let target = BlockTarget::at(Path::new("a device in memory"), 4);
        let _ = target.space.set(Arc::new(open_space(device)?));
        Ok(target)
    }

    fn space(&self) -> Result<&Arc<Space>> {
        match self.opened()? {
            Some(space) => Ok(space),
            None => Err(no_layout(&self.describe())),
        }
    }

    /// Returns the device; `None` if it has no layout yet.
    fn opened(&self) -> Result<Option<&Arc<Space>>> {
        if self.space.get().is_none() {
            let device = BlockDevice::open(&self.path)?;
            if let Some(layout) = Layout::read(&device)? {
                let _ = self.space.set(Arc::new(Space::new(Arc::new(device), layout)));
            }
        }
        Ok(self.space.get())
    }

    fn begin(&self, shard: ShardName, bytes_max: u64, replaces: bool) -> Result<BlockWriter> {
        let (space, name) = (self.space()?.clone(), Name::Shard(shard));
        let (number, slot, guard) = space.change(|change| {
            if !replaces && change.table().find(&name, State::Shard).is_some() {
                return Err(exists(&self.describe(), shard));
            }
            let leftover = change.table().find(&name, State::Unfinished);
            let leftover = leftover.map(|(number, _)| number);
            change.give_up(&Vec::from_iter(leftover))?;
            change.begin_shard(name, bytes_max)
        })?;
        Ok(BlockWriter::new(Part {
            space,
            engine: self.engine.clone(),
            shard,
            bytes_max,
            replaces,
            number,
            slot: Mutex::new(slot),
            _guard: guard,
        }))
    }
}

fn no_layout(place: &str) -> Error {
    Error::invalid(format!(
        "{place} has no layout of outlive: it is another device than that of the pool, or its first \
         pages are lost"
    ))
}

/// Opens a device that has a layout.
pub(crate) fn open_space(device: Arc<dyn Device>) -> Result<Space> {
    match Layout::read(&*device)? {
        Some(layout) => Ok(Space::new(device, layout)),
        None => Err(no_layout(&device.describe())),
    }
}

/// Returns the finished shard's slot, and a number for [`Space::is_unchanged`].
fn find(space: &Space, shard: ShardName) -> Result<(Slot, u64)> {
    let (found, seen) = space.view_at(|table| {
        table.find(&Name::Shard(shard), State::Shard).map(|(_, slot)| slot.clone())
    })?;
    let slot = found.ok_or_else(|| missing(&space.device.describe(), shard))?;
    Ok((slot, seen))
}

/// Reads a range. If the shard was deleted or replaced meanwhile, its space may hold other bytes
/// by now, so the range is read again.
fn read(space: &Space, shard: ShardName, range: &mut ReadRange) -> Result<()> {
    check_range(shard, range)?;
    loop {
        let (slot, seen) = find(space, shard)?;
        let length = range.buffer.len() as u64;
        if range.offset.checked_add(length).is_none_or(|end| end > slot.bytes) {
            return Err(short(&space.device.describe(), shard, range, slot.bytes));
        }
        let mut from = 0;
        let mut outcome = Ok(());
        for (at, length) in space.pieces(&slot.extents, range.offset, length) {
            let to = from + length as usize;
            outcome = outcome.and_then(|()| space.device.read(at, &mut range.buffer[from..to]));
            from = to;
        }
        if space.is_unchanged(seen)? || find(space, shard)?.0.sequence == slot.sequence {
            return outcome;
        }
    }
}

impl Target for BlockTarget {
    fn describe(&self) -> String {
        format!("block device {}", self.path.display())
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        Ok(Box::new(self.begin(shard, bytes_max, false)?))
    }

    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        Ok(Box::new(self.begin(shard, bytes_max, true)?))
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        let read = |mut range: ReadRange| {
            let space = match self.space() {
                Ok(space) => space.clone(),
                Err(error) => return Ticket::done(Err(Fault { error, buffer: range.buffer })),
            };
            let engine = if range.mode.is_urgent { &self.urgent } else { &self.engine };
            engine.submit(move || match read(&space, shard, &mut range) {
                Ok(()) => Ok(range.buffer),
                Err(error) => Err(Fault { error, buffer: range.buffer }),
            })
        };
        ranges.into_iter().map(read).collect()
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        Ok(find(self.space()?, shard)?.0.bytes)
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        let Some(space) = self.opened()? else { return Ok(Vec::new()) };
        space.view(|table| table.shards(State::Shard))
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        let Some(space) = self.opened()? else { return Ok(Vec::new()) };
        let (mut shards, condemned) =
            space.view(|table| (table.shards(State::Unfinished), table.condemned()))?;
        // The writer has ended without giving its space back.
        for (number, shard) in condemned {
            if !space.device.is_owned(number)? {
                shards.push(shard);
            }
        }
        shards.sort_unstable();
        shards.dedup();
        Ok(shards)
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        let (space, name) = (self.space()?, &Name::Shard(shard));
        let is_there = |state| move |table: &Table| table.find(name, state).is_some();
        if !space.view(is_there(State::Unfinished))? && !space.view(is_there(State::Condemned))? {
            return Ok(());
        }
        space.change(|change| {
            let there = change.table().find(name, State::Unfinished).map(|(number, _)| number);
            change.give_up(&Vec::from_iter(there))?;
            change.sweep()
        })
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        // In this order: then no writer makes a finished shard of an unfinished one again.
        self.delete_unfinished(shard)?;
        let (space, name) = (self.space()?, Name::Shard(shard));
        if space.view(|table| table.find(&name, State::Shard).is_none())? {
            return Ok(());
        }
        space.change(|change| {
            let there = change.table().find(&name, State::Shard).map(|(number, _)| number);
            change.free(&Vec::from_iter(there))
        })
    }

    fn capacity(&self) -> Result<Capacity> {
        let space = self.space()?;
        let free_bytes = space.view(|table| table.free_units())? * UNIT_BYTES;
        Ok(Capacity { total_bytes: u64::from(space.layout.units) * UNIT_BYTES, free_bytes })
    }
}
