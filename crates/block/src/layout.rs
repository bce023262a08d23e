//! Where everything is on a device, and the superblock that says so.

use crate::device::Device;
use outlive_format::checksum;
use outlive_io::AlignedBuf;
use outlive_types::{Error, PAGE_BYTES, Result};

pub(crate) const PAGE: u64 = PAGE_BYTES as u64;

/// Space is given out in units of this size.
pub(crate) const UNIT_BYTES: u64 = 64 << 10;

/// Offset of the first copy of the slots.
const SLOTS_AT: u64 = 1 << 20;

/// A smaller device would be mostly slots.
const BYTES_MIN: u64 = 8 << 20;

/// Space for which there is one slot. A shard has up to 64 MiB, but many are shorter.
const BYTES_PER_SLOT: u64 = 4 << 20;
const SLOTS_MIN: u64 = 256;
const SLOTS_MAX: u64 = 1 << 20;

const MAGIC: [u8; 8] = *b"OUTLVBLK";
const VERSION: u32 = 0;

/// A number that each new layout draws. Pages of an earlier one are thus told apart.
pub(crate) type DeviceId = [u8; 16];

/// The places of everything on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub id: DeviceId,
    /// Bytes of the device when the layout was made.
    pub bytes: u64,
    pub slots: u32,
    /// Units of data.
    pub units: u32,
}

impl Layout {
    /// Returns the layout of a device of this size.
    ///
    /// # Errors
    /// `Invalid` if the device is too small.
    pub(crate) fn new(id: DeviceId, device_bytes: u64) -> Result<Layout> {
        let bytes = device_bytes / UNIT_BYTES * UNIT_BYTES;
        if bytes < BYTES_MIN {
            return Err(Error::invalid(format!(
                "a device of {device_bytes} bytes is too small: it must have {BYTES_MIN} bytes"
            )));
        }
        let slots = (bytes / BYTES_PER_SLOT).clamp(SLOTS_MIN, SLOTS_MAX);
        let mut layout = Layout { id, bytes, slots: slots as u32, units: 0 };
        let units = (layout.second_slots_at() - layout.data_at()) / UNIT_BYTES;
        layout.units = u32::try_from(units).unwrap_or(u32::MAX);
        Ok(layout)
    }

    /// Offset of the second superblock: of the last page.
    pub(crate) fn second_at(&self) -> u64 {
        self.bytes - PAGE
    }

    /// Offsets of both copies of a slot.
    pub(crate) fn slot_at(&self, number: u32) -> [u64; 2] {
        [SLOTS_AT, self.second_slots_at()].map(|at| at + u64::from(number) * PAGE)
    }

    fn second_slots_at(&self) -> u64 {
        let bytes = self.bytes - UNIT_BYTES - u64::from(self.slots) * PAGE;
        bytes / UNIT_BYTES * UNIT_BYTES
    }

    fn data_at(&self) -> u64 {
        (SLOTS_AT + u64::from(self.slots) * PAGE).next_multiple_of(UNIT_BYTES)
    }

    /// Offset of a unit of data.
    pub(crate) fn unit_at(&self, unit: u32) -> u64 {
        self.data_at() + u64::from(unit) * UNIT_BYTES
    }

    fn to_page(self) -> AlignedBuf {
        let mut page = AlignedBuf::zeroed(PAGE_BYTES);
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&VERSION.to_le_bytes());
        page[12..28].copy_from_slice(&self.id);
        page[28..36].copy_from_slice(&self.bytes.to_le_bytes());
        page[36..40].copy_from_slice(&self.slots.to_le_bytes());
        page[40..44].copy_from_slice(&self.units.to_le_bytes());
        seal(&mut page);
        page
    }

    /// Reads a superblock; `None` if the page is none.
    fn from_page(page: &[u8], device_bytes: u64) -> Result<Option<Layout>> {
        if page[..8] != MAGIC || !is_sealed(page) {
            return Ok(None);
        }
        let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("4 bytes"));
        if word(8) != VERSION {
            return Err(Error::newer(format!(
                "the layout of the device has version {}; this build reads version {VERSION}",
                word(8)
            )));
        }
        let id = page[12..28].try_into().expect("16 bytes");
        let bytes = u64::from_le_bytes(page[28..36].try_into().expect("8 bytes"));
        if bytes > device_bytes {
            return Err(Error::invalid(format!(
                "the device has {device_bytes} bytes, and had {bytes} when it was laid out: give it \
                 its size again"
            )));
        }
        let layout = Layout::new(id, bytes)?;
        let is_ours = layout.slots == word(36) && layout.units == word(40) && layout.bytes == bytes;
        Ok(is_ours.then_some(layout))
    }

    /// Reads the layout of a device from either superblock; `None` if it has none.
    ///
    /// # Errors
    /// `Invalid` for a layout of another version, and for a device that has become smaller; errors
    /// of the device.
    pub(crate) fn read(device: &dyn Device) -> Result<Option<Layout>> {
        let mut page = AlignedBuf::zeroed(PAGE_BYTES);
        let bytes = device.bytes();
        let second = (bytes / UNIT_BYTES * UNIT_BYTES).saturating_sub(PAGE);
        for at in [0, second] {
            if at + PAGE > bytes {
                continue;
            }
            device.read(at, &mut page)?;
            if let Some(layout) = Layout::from_page(&page, bytes)? {
                return Ok(Some(layout));
            }
        }
        Ok(None)
    }

    /// Writes both superblocks, the second one first: the first one is read first.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn write(&self, device: &dyn Device) -> Result<()> {
        let page = self.to_page();
        // The page of an earlier layout shows changes of slots that are no more.
        device.write_changes(&AlignedBuf::zeroed(PAGE_BYTES))?;
        for at in [self.second_at(), 0] {
            device.write(at, &page)?;
            device.flush()?;
        }
        Ok(())
    }
}

/// Puts a checksum at the end of a page.
pub(crate) fn seal(page: &mut [u8]) {
    let (body, end) = page.split_at_mut(PAGE_BYTES - 8);
    end.copy_from_slice(&checksum(body).to_le_bytes());
}

/// Returns whether the checksum at the end of a page is right.
pub(crate) fn is_sealed(page: &[u8]) -> bool {
    let (body, end) = page.split_at(PAGE_BYTES - 8);
    checksum(body).to_le_bytes() == *end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::CHANGES_AT;

    #[test]
    fn nothing_overlaps_on_devices_of_any_size() {
        for bytes in
            [8 << 20, (8 << 20) + 4096, 100 << 20, 1 << 30, 12_345_678_901, 1 << 44, 1 << 50]
        {
            let layout = Layout::new([7; 16], bytes).unwrap();
            let [first, second] = layout.slot_at(0);
            let ends = layout.slot_at(layout.slots).map(|end| end);
            assert!(CHANGES_AT + PAGE <= first, "{layout:?}");
            assert!(ends[0] <= layout.unit_at(0), "{layout:?}");
            assert!(layout.unit_at(layout.units) <= second, "{layout:?}");
            assert!(ends[1] <= layout.second_at() && layout.second_at() < bytes, "{layout:?}");
            assert!(layout.units > 0 && layout.unit_at(0).is_multiple_of(UNIT_BYTES));
        }
        assert!(Layout::new([7; 16], (8 << 20) - 1).is_err());
    }
}
