//! Reads parts of files: bytes a to b, verified, without the rest.

use super::FilesImage;
use super::image::file_words;
use super::recipe::pieces_within;
use outlive_format::{Content, Item, Piece};
use outlive_types::{Error, Result};
use std::ops::Range;

/// Bytes of chunks that are read and kept at a time; a longer chunk is read alone.
const AT_ONCE_BYTES: u64 = 8 << 20;

impl FilesImage {
    /// Finds an item by its path; `None` if there is none. Searches the listing in its order.
    ///
    /// # Errors
    /// `Damaged` if the listing is damaged.
    pub fn find(&self, path: &[u8]) -> Result<Option<Item>> {
        let mut items = self.items();
        while let Some(item) = items.next_item()? {
            if item.path == path {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    /// Fills `into` with the bytes of a file from `offset` on, also after a gc has moved them.
    /// Verifies first every chunk that has some of them.
    ///
    /// # Errors
    /// `Invalid` for bytes beyond its end; `Damaged` if data is missing or wrong, and then `into`
    /// has part of it.
    pub fn read_range(&self, item: &Item, offset: u64, into: &mut [u8]) -> Result<()> {
        let read = self.read_within(item, offset, into);
        read.map_err(|error| self.context(error.context(file_words(item))))
    }

    fn read_within(&self, item: &Item, offset: u64, into: &mut [u8]) -> Result<()> {
        let length = into.len() as u64;
        let Some(end) = offset.checked_add(length).filter(|end| *end <= item.bytes) else {
            return Err(Error::invalid(format!(
                "it has {} bytes: {length} bytes from {offset} on cannot be read",
                item.bytes
            )));
        };
        into.fill(0);
        if let Content::Inline(bytes) = &item.content {
            into.copy_from_slice(&bytes[offset as usize..end as usize]);
            return Ok(());
        }
        let mut left: &[(u64, Piece)] = &self.within(item, &(offset..end))?;
        while !left.is_empty() {
            let mut bytes = 0;
            let is_enough = |(_, piece): &(u64, Piece)| {
                bytes += piece.bytes;
                bytes > AT_ONCE_BYTES
            };
            let count = left.iter().position(is_enough).unwrap_or(left.len()).max(1);
            let (now, later) = left.split_at(count);
            let pieces: Vec<Piece> = now.iter().map(|(_, piece)| *piece).collect();
            for ((at, piece), chunk) in now.iter().zip(self.read(&pieces)?) {
                let (from, to) = ((*at).max(offset), (at + piece.bytes).min(end));
                into[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&chunk[(from - at) as usize..(to - at) as usize]);
            }
            left = later;
        }
        Ok(())
    }

    /// Returns the pieces of a range that are not zeros, each with its offset in the file.
    fn within(&self, item: &Item, range: &Range<u64>) -> Result<Vec<(u64, Piece)>> {
        let mut found = match &item.content {
            Content::Empty | Content::Inline(_) => Vec::new(),
            Content::Pieces(pieces) => {
                let mut at = 0;
                let placed = pieces.iter().map(|piece| {
                    at += piece.bytes;
                    (at - piece.bytes, *piece)
                });
                placed.collect()
            }
            Content::Recipe(root) => {
                let read = |pieces: &[Piece]| self.read(pieces);
                pieces_within(&read, Piece { fp: *root, bytes: item.bytes }, range)?
            }
        };
        found.retain(|(at, piece)| {
            !piece.is_zeros() && *at < range.end && at + piece.bytes > range.start
        });
        Ok(found)
    }
}
