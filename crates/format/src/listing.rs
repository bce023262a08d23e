//! The listing of an image of files: one item for each file, directory, link.
//!
//! A listing may be longer than memory, so it is written and read item by item. It has a head, the
//! items in the order of [`path_cmp`], and an end that counts them.

use crate::codec::{Reader, Writer};
use crate::item::{ITEM_BYTES_MAX, ITEM_BYTES_MIN, Item, WHAT, path_cmp};
use outlive_types::{Error, Result};
use std::cmp::Ordering;

const MAGIC: &[u8; 4] = b"OLLI";
/// Bytes of a listing before its first item.
pub const LISTING_HEAD_BYTES: usize = 8;
/// Bytes of a listing after its last item.
pub const LISTING_END_BYTES: usize = 12;

/// Returns the first bytes of every listing.
pub fn listing_head() -> [u8; LISTING_HEAD_BYTES] {
    let mut head = Writer::begin(MAGIC, LISTING_HEAD_BYTES);
    head.reserved(2);
    let mut bytes = [0; LISTING_HEAD_BYTES];
    bytes.copy_from_slice(&head.finish());
    bytes
}

/// Returns the last bytes of a listing of `items` items.
pub fn listing_end(items: u64) -> [u8; LISTING_END_BYTES] {
    let mut end = [0; LISTING_END_BYTES];
    end[4..].copy_from_slice(&items.to_le_bytes());
    end
}

/// Decodes a listing while its bytes arrive.
#[derive(Debug, Default)]
pub struct ListingReader {
    /// Bytes that have arrived; the first `taken` of them were decoded.
    waiting: Vec<u8>,
    taken: usize,
    head_seen: bool,
    items: u64,
    last: Vec<u8>,
    ended: bool,
    /// Whether it began within the listing.
    is_part: bool,
}

impl ListingReader {
    /// Returns a reader at the beginning of a listing.
    pub fn new() -> ListingReader {
        ListingReader::default()
    }

    /// Returns a reader of some whole items of a listing, from behind its head. It does not know
    /// how many items the listing has before them.
    fn within() -> ListingReader {
        ListingReader { head_seen: true, is_part: true, ..ListingReader::default() }
    }

    /// Adds the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.waiting.drain(..self.taken);
        self.taken = 0;
        self.waiting.extend_from_slice(bytes);
    }

    /// Returns the next item; `None` if more bytes are needed, or the listing has ended.
    ///
    /// # Errors
    /// `Damaged` for anything that cannot be in a listing, `Invalid` for another version.
    pub fn next_item(&mut self) -> Result<Option<Item>> {
        let mut rest = &self.waiting[self.taken..];
        if !self.head_seen {
            let Some((head, behind)) = rest.split_first_chunk::<LISTING_HEAD_BYTES>() else {
                return Ok(None);
            };
            let mut from = Reader::new(WHAT, head);
            from.begin(MAGIC)?;
            from.reserved(2)?;
            rest = behind;
            self.taken += LISTING_HEAD_BYTES;
            self.head_seen = true;
        }
        let from = Reader::new(WHAT, rest);
        if self.ended {
            return if rest.is_empty() { Ok(None) } else { Err(from.damaged("it goes on")) };
        }
        let Some((length, behind)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 {
            let Some((items, _)) = behind.split_first_chunk::<8>() else { return Ok(None) };
            let items = u64::from_le_bytes(*items);
            if items != self.items && !self.is_part {
                let there = self.items;
                return Err(from.damaged(format!("it has {there} items instead of {items}")));
            }
            self.taken += LISTING_END_BYTES;
            self.ended = true;
            return self.next_item();
        }
        if !(ITEM_BYTES_MIN - 4..=ITEM_BYTES_MAX - 4).contains(&length) {
            return Err(from.damaged(format!("an item has {length} bytes")));
        }
        let Some((item, _)) = behind.split_at_checked(length) else { return Ok(None) };
        let item = Item::decode(item)?;
        if self.items > 0 && path_cmp(&self.last, &item.path) != Ordering::Less {
            return Err(from.damaged("its items are out of order"));
        }
        self.taken += 4 + length;
        self.items += 1;
        self.last.clone_from(&item.path);
        Ok(Some(item))
    }

    /// Ends the listing, after the last bytes; returns the number of its items.
    ///
    /// # Errors
    /// `Damaged` if the listing has not ended.
    pub fn finish(self) -> Result<u64> {
        if self.ended && self.taken == self.waiting.len() {
            return Ok(self.items);
        }
        Err(Reader::new(WHAT, &[]).damaged("it ends too early"))
    }
}

/// Decodes a part of a listing that begins and ends between two items; `is_first` says that it begins
/// with the head. The end of the listing may be part of it.
///
/// # Errors
/// `Damaged` for anything that cannot be such a part, `Invalid` for another version.
pub fn items_within(bytes: &[u8], is_first: bool) -> Result<Vec<Item>> {
    let mut reader = if is_first { ListingReader::new() } else { ListingReader::within() };
    // The number of items in an end also counts those of other parts.
    reader.is_part = true;
    reader.push(bytes);
    let mut items = Vec::new();
    while let Some(item) = reader.next_item()? {
        items.push(item);
    }
    match reader.taken == reader.waiting.len() {
        true => Ok(items),
        false => Err(Reader::new(WHAT, &[]).damaged("a part of it ends within an item")),
    }
}

/// A whole listing in memory, for tests and small trees.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// Items in the order of [`path_cmp`].
    pub items: Vec<Item>,
}

impl Listing {
    /// Encodes the listing.
    ///
    /// # Errors
    /// Those of [`Item::encode`]; `Bug` for items out of order.
    pub fn encode(&self) -> Result<Vec<u8>> {
        if !self.items.is_sorted_by(|a, b| path_cmp(&a.path, &b.path) == Ordering::Less) {
            return Err(Error::bug("refused to write a listing whose items are out of order"));
        }
        let mut bytes = listing_head().to_vec();
        self.items.iter().try_for_each(|item| item.encode(&mut bytes))?;
        bytes.extend(listing_end(self.items.len() as u64));
        Ok(bytes)
    }

    /// Reads a listing from all of `bytes`.
    ///
    /// # Errors
    /// `Damaged` for anything that `encode` does not write, `Invalid` for another version.
    pub fn decode(bytes: &[u8]) -> Result<Listing> {
        let mut reader = ListingReader::new();
        reader.push(bytes);
        let mut items = Vec::new();
        while let Some(item) = reader.next_item()? {
            items.push(item);
        }
        reader.finish()?;
        Ok(Listing { items })
    }
}
