//! Small files on a device: markers of the pool.

use crate::slot::{NAME_BYTES_MAX, Name, Slot, State};
use crate::space::{Change, Space};
use outlive_backend::SmallFiles;
use outlive_format::checksum;
use outlive_io::AlignedBuf;
use outlive_types::{Error, PAGE_BYTES, Result};
use std::sync::Arc;

/// The small files of a device. Each has a slot and space of its own.
#[derive(Debug)]
pub(crate) struct BlockFiles(pub(crate) Arc<Space>);

impl BlockFiles {
    /// Writes a file into new space, then frees the old one.
    fn put(&self, change: &mut Change<'_>, name: &str, bytes: &[u8]) -> Result<()> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a file on a device has a name of at most {NAME_BYTES_MAX} bytes, not {name:?}"
            )));
        }
        let name = Name::File(name.to_owned());
        let old = change.table().find(&name, State::File).map(|(number, _)| number);
        let mut pages = AlignedBuf::zeroed(bytes.len().next_multiple_of(PAGE_BYTES));
        pages[..bytes.len()].copy_from_slice(bytes);
        let device = &self.0.device;
        change.sweep()?;
        let (number, extents, _guard) = change.room(bytes.len() as u64)?;
        let mut from = 0;
        for (at, length) in self.0.pieces(&extents, 0, pages.len() as u64) {
            let to = from + length as usize;
            device.write(at, &pages[from..to])?;
            from = to;
        }
        if from < pages.len() {
            return Err(Error::full(format!("{} is full", device.describe())));
        }
        device.flush()?;
        let (sequence, length) = (change.next_sequence(), bytes.len() as u64);
        let checksum = checksum(bytes);
        let state = State::File;
        let slot = Slot { sequence, state, name, bytes: length, checksum, extents };
        change.write(vec![(number, slot)])?;
        change.free(&Vec::from_iter(old))
    }

    fn content(&self, slot: &Slot) -> Result<Vec<u8>> {
        let length = usize::try_from(slot.bytes).unwrap_or(usize::MAX);
        let pieces =
            self.0.pieces(&slot.extents, 0, slot.bytes.next_multiple_of(PAGE_BYTES as u64));
        let there: u64 = pieces.iter().map(|(_, length)| length).sum();
        let damaged = || {
            let place = self.0.device.describe();
            Error::damaged(format!("a small file on {place} is not as it was written"))
        };
        if there < slot.bytes {
            return Err(damaged());
        }
        let mut pages = AlignedBuf::zeroed(there as usize);
        let mut from = 0;
        for (at, length) in pieces {
            let to = from + length as usize;
            self.0.device.read(at, &mut pages[from..to])?;
            from = to;
        }
        match checksum(&pages[..length]) == slot.checksum {
            true => Ok(pages[..length].to_vec()),
            false => Err(damaged()),
        }
    }
}

impl SmallFiles for BlockFiles {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let name = Name::File(name.to_owned());
        loop {
            let find = || {
                self.0.view_at(|table| table.find(&name, State::File).map(|(_, slot)| slot.clone()))
            };
            let (Some(slot), seen) = find()? else { return Ok(None) };
            let content = self.content(&slot);
            // If the file was replaced meanwhile, its space may hold other bytes by now.
            if self.0.is_unchanged(seen)? || find()?.0.as_ref() == Some(&slot) {
                return content.map(Some);
            }
        }
    }

    fn has(&self, name: &str) -> Result<bool> {
        let name = Name::File(name.to_owned());
        self.0.view(|table| table.find(&name, State::File).is_some())
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.0.change(|change| {
            if change.table().find(&Name::File(name.to_owned()), State::File).is_some() {
                return Ok(false);
            }
            self.put(change, name, bytes).map(|()| true)
        })
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.0.change(|change| self.put(change, name, bytes))
    }
}
