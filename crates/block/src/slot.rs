//! A slot: one page that says what a part of the device holds.

use crate::layout::{DeviceId, UNIT_BYTES, is_sealed, seal};
use outlive_backend::ShardName;
use outlive_io::AlignedBuf;
use outlive_types::{PAGE_BYTES, PackId};

const MAGIC: [u8; 4] = *b"OSLT";

/// Most pieces of one shard. The page has room for them beside a name of 255 bytes.
pub(crate) const EXTENTS_MAX: usize = 400;

/// Longest name of a small file.
pub(crate) const NAME_BYTES_MAX: usize = 255;

const HEAD_BYTES: usize = 64;
const EXTENTS_AT: usize = HEAD_BYTES + NAME_BYTES_MAX + 1;
const _: () = assert!(EXTENTS_AT + EXTENTS_MAX * 8 <= PAGE_BYTES - 8);

/// Units of data that follow one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub start: u32,
    pub units: u32,
}

/// State of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// It holds nothing.
    Free,
    /// A writer writes the shard.
    Unfinished,
    /// The shard was deleted while its writer may still write. Its space is free once that ends.
    Condemned,
    /// A finished shard.
    Shard,
    /// A small file.
    File,
}

const STATES: [State; 5] =
    [State::Free, State::Unfinished, State::Condemned, State::Shard, State::File];

/// Content of a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    /// Grows with each change of any slot.
    pub sequence: u64,
    pub state: State,
    pub name: Name,
    /// Bytes of data.
    pub bytes: u64,
    /// Checksum of a small file's bytes.
    pub checksum: u64,
    pub extents: Vec<Extent>,
}

/// Name of a shard or of a small file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Name {
    None,
    Shard(ShardName),
    File(String),
}

impl Slot {
    /// Returns a free slot.
    pub(crate) fn free(sequence: u64) -> Slot {
        let (state, name, extents) = (State::Free, Name::None, Vec::new());
        Slot { sequence, state, name, bytes: 0, checksum: 0, extents }
    }

    /// Returns the bytes that its extents hold.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.units) * UNIT_BYTES).sum()
    }

    /// Returns the page of slot `number`.
    ///
    /// # Panics
    /// If it has too many extents, or too long a name: the caller has checked both.
    pub(crate) fn to_page(&self, id: &DeviceId, number: u32) -> AlignedBuf {
        let mut page = AlignedBuf::zeroed(PAGE_BYTES);
        page[..4].copy_from_slice(&MAGIC);
        page[4..20].copy_from_slice(id);
        page[20..24].copy_from_slice(&number.to_le_bytes());
        page[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        page[32] = STATES.iter().position(|state| *state == self.state).expect("listed") as u8;
        let (kind, name): (u8, Vec<u8>) = match &self.name {
            Name::None => (0, Vec::new()),
            Name::Shard(shard) => (1, [&shard.pack.0[..], &[shard.shard]].concat()),
            Name::File(name) => (2, name.as_bytes().to_vec()),
        };
        assert!(name.len() <= NAME_BYTES_MAX && self.extents.len() <= EXTENTS_MAX);
        page[33] = kind;
        page[34] = name.len() as u8;
        page[36..38].copy_from_slice(&(self.extents.len() as u16).to_le_bytes());
        page[40..48].copy_from_slice(&self.bytes.to_le_bytes());
        page[48..56].copy_from_slice(&self.checksum.to_le_bytes());
        page[HEAD_BYTES..HEAD_BYTES + name.len()].copy_from_slice(&name);
        for (extent, at) in self.extents.iter().zip((EXTENTS_AT..).step_by(8)) {
            page[at..at + 4].copy_from_slice(&extent.start.to_le_bytes());
            page[at + 4..at + 8].copy_from_slice(&extent.units.to_le_bytes());
        }
        seal(&mut page);
        page
    }

    /// Reads a page; `None` if it is not this slot's: never written, torn, or of another layout.
    pub(crate) fn from_page(page: &[u8], id: &DeviceId, number: u32, units: u32) -> Option<Slot> {
        let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
        let is_this = page[..4] == MAGIC && page[4..20] == *id && word(20) == number;
        if !is_this || !is_sealed(page) {
            return None;
        }
        let bytes = &page[HEAD_BYTES..HEAD_BYTES + usize::from(page[34])];
        let name = match page[33] {
            0 => Name::None,
            1 => {
                let (shard, pack) = bytes.split_last()?;
                Name::Shard(ShardName { pack: PackId(pack.try_into().ok()?), shard: *shard })
            }
            2 => Name::File(String::from_utf8(bytes.to_vec()).ok()?),
            _ => return None,
        };
        let count = usize::from(u16::from_le_bytes([page[36], page[37]]));
        if count > EXTENTS_MAX {
            return None;
        }
        let ats = (EXTENTS_AT..).step_by(8).take(count);
        let extents: Vec<Extent> =
            ats.map(|at| Extent { start: word(at), units: word(at + 4) }).collect();
        let fits = |it: &Extent| it.start.checked_add(it.units).is_some_and(|end| end <= units);
        let state = *STATES.get(usize::from(page[32]))?;
        let is_named = match state {
            State::Free => name == Name::None && extents.is_empty(),
            State::File => matches!(name, Name::File(_)),
            State::Unfinished | State::Condemned | State::Shard => matches!(name, Name::Shard(_)),
        };
        let is_on_device = extents.iter().all(fits);
        let (sequence, bytes, checksum) = (long(24), long(40), long(48));
        let slot = Slot { sequence, state, name, bytes, checksum, extents };
        let is_whole = !matches!(state, State::Shard | State::File) || bytes <= slot.room_bytes();
        (is_named && is_on_device && is_whole).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::SessionId;

    const ID: DeviceId = [9; 16];

    fn slots() -> Vec<Slot> {
        let shard = ShardName { pack: PackId::new(SessionId([3; 12]), 4, 5), shard: 6 };
        let extents: Vec<Extent> =
            (0..EXTENTS_MAX as u32).map(|n| Extent { start: 3 * n, units: 2 }).collect();
        let name = Name::Shard(shard);
        let full = Slot { sequence: 7, state: State::Shard, name, bytes: 8, checksum: 0, extents };
        let file = Slot {
            state: State::File,
            name: Name::File("p".repeat(NAME_BYTES_MAX)),
            bytes: 0,
            checksum: 11,
            extents: vec![],
            ..full.clone()
        };
        let unfinished = Slot { state: State::Unfinished, ..full.clone() };
        vec![
            Slot::free(1),
            Slot { state: State::Condemned, ..full.clone() },
            unfinished,
            full,
            file,
        ]
    }

    #[test]
    fn slots_come_back_as_they_were() {
        for slot in slots() {
            let page = slot.to_page(&ID, 12);
            assert_eq!(Slot::from_page(&page, &ID, 12, 1200), Some(slot));
        }
    }

    #[test]
    fn pages_of_others_and_torn_pages_are_none() {
        for slot in slots() {
            let page = slot.to_page(&ID, 12);
            assert_eq!(Slot::from_page(&page, &[8; 16], 12, 1200), None);
            assert_eq!(Slot::from_page(&page, &ID, 13, 1200), None);
            for at in (0..PAGE_BYTES).step_by(37) {
                let mut torn = page.to_vec();
                torn[at] ^= 1;
                assert_eq!(Slot::from_page(&torn, &ID, 12, 1200), None, "{at}");
            }
        }
        let full = slots().swap_remove(3);
        let page = full.to_page(&ID, 0);
        assert_eq!(Slot::from_page(&page, &ID, 0, 1198), None, "an extent beyond the device");
        let long = Slot { bytes: 801 * UNIT_BYTES, ..full.clone() }.to_page(&ID, 0);
        assert_eq!(Slot::from_page(&long, &ID, 0, 1200), None, "more bytes than its extents hold");
        assert_eq!(Slot::from_page(&[0; PAGE_BYTES], &ID, 0, 1200), None);
    }
}
