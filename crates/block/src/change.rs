//! The page through which processes tell each other which slots they have changed. It need not
//! survive a power cut: each process reads all slots first.

use crate::layout::{DeviceId, is_sealed, seal};
use outlive_io::AlignedBuf;
use outlive_types::PAGE_BYTES;

const MAGIC: [u8; 4] = *b"OCHG";
const SLOTS_AT: usize = 64;

/// Number of the last changes that the page lists.
pub(crate) const LISTED_MAX: usize = 500;

const _: () = assert!(SLOTS_AT + 4 * LISTED_MAX <= PAGE_BYTES - 8);

/// Content of the page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Changes {
    /// Number of changes since the layout was made, or more.
    pub count: u64,
    /// A process is changing slots, or died while it did.
    pub is_changing: bool,
    /// Slots of the last changes, the newest last.
    pub slots: Vec<u32>,
}

impl Changes {
    /// Reads the page. One that was never written, or is just being written, says that a process is
    /// changing slots.
    pub(crate) fn from_page(page: &[u8], id: &DeviceId) -> Changes {
        let unknown = Changes { count: 0, is_changing: true, slots: Vec::new() };
        if page[..4] != MAGIC || page[4..20] != *id || !is_sealed(page) {
            return unknown;
        }
        let listed = usize::from(u16::from_le_bytes([page[22], page[23]]));
        if listed > LISTED_MAX {
            return unknown;
        }
        let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("4 bytes"));
        Changes {
            count: u64::from_le_bytes(page[24..32].try_into().expect("8 bytes")),
            is_changing: page[20] != 0,
            slots: (SLOTS_AT..).step_by(4).take(listed).map(word).collect(),
        }
    }

    pub(crate) fn to_page(&self, id: &DeviceId) -> AlignedBuf {
        let mut page = AlignedBuf::zeroed(PAGE_BYTES);
        page[..4].copy_from_slice(&MAGIC);
        page[4..20].copy_from_slice(id);
        page[20] = u8::from(self.is_changing);
        page[22..24].copy_from_slice(&(self.slots.len() as u16).to_le_bytes());
        page[24..32].copy_from_slice(&self.count.to_le_bytes());
        for (slot, at) in self.slots.iter().zip((SLOTS_AT..).step_by(4)) {
            page[at..at + 4].copy_from_slice(&slot.to_le_bytes());
        }
        seal(&mut page);
        page
    }

    /// Adds changes of these slots.
    pub(crate) fn add(&mut self, slots: &[u32]) {
        self.count += slots.len() as u64;
        self.slots.extend(slots);
        let excess = self.slots.len().saturating_sub(LISTED_MAX);
        self.slots.drain(..excess);
    }

    /// Makes every process read all slots again.
    pub(crate) fn add_unknown(&mut self) {
        self.count += 1;
        self.slots.clear();
    }

    /// Returns the slots changed since a process saw `count` changes; `None` if the page does not
    /// list them all.
    pub(crate) fn since(&self, count: u64) -> Option<&[u32]> {
        let missed = usize::try_from(self.count.checked_sub(count)?).ok()?;
        self.slots.len().checked_sub(missed).map(|from| &self.slots[from..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: DeviceId = [5; 16];

    #[test]
    fn the_page_lists_the_last_changes() {
        let mut changes = Changes { count: 0, is_changing: false, slots: Vec::new() };
        for slot in 0..LISTED_MAX as u32 {
            changes.add(&[slot]);
        }
        assert_eq!(changes.since(0).map(<[u32]>::len), Some(LISTED_MAX));
        changes.add(&[7, 8]);
        let page = changes.to_page(&ID);
        assert_eq!(Changes::from_page(&page, &ID), changes);
        assert!(Changes::from_page(&page, &[6; 16]).is_changing);
        assert!(Changes::from_page(&[0; PAGE_BYTES], &ID).is_changing);
        let count = changes.count;
        assert_eq!(changes.since(count), Some(&[][..]));
        assert_eq!(changes.since(count - 2), Some(&[7, 8][..]));
        assert_eq!(changes.since(0), None, "two are no longer listed");
        assert_eq!(changes.since(count + 1), None, "of another layout");
        changes.add_unknown();
        assert_eq!(changes.since(count), None);
    }
}
