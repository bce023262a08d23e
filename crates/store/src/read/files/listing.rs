//! Reads a listing item by item, and keeps only a few of its chunks in memory.

use super::recipe::{Pieces, read_pieces};
use super::whereabouts::Whereabouts;
use crate::index::Locator;
use outlive_format::{Item, ListingReader, Piece, TreeRef};
use outlive_pool::Pool;
use outlive_types::{Error, Fingerprint, Result};
use std::sync::Arc;

/// Chunks that are read together.
const CHUNKS_AT_ONCE: usize = 64;

/// The chunks of a listing.
#[derive(Debug)]
pub struct ListingChunks {
    /// The chunks in their order: about 40 bytes for each hundred items.
    pub chunks: Vec<Piece>,
    /// The recipes above them.
    pub recipes: Vec<Fingerprint>,
}

impl ListingChunks {
    /// Reads the recipes of the listing that a manifest names.
    ///
    /// # Errors
    /// `Damaged` if a recipe is missing or wrong.
    pub fn read(pool: &Pool, locator: &Locator, listing: TreeRef) -> Result<ListingChunks> {
        let mut recipes = Vec::new();
        let mut chunks = Vec::new();
        let mut seen = |fp| recipes.push(fp);
        let read = |pieces: &[Piece]| read_pieces(pool, locator, pieces);
        let mut pieces = Pieces::of(&read, listing.root, listing.bytes, &mut seen)?;
        while let Some(piece) = pieces.next_piece()? {
            if piece.is_zeros() {
                return Err(Error::damaged("part of the listing is zero"));
            }
            chunks.push(piece);
        }
        Ok(ListingChunks { chunks, recipes })
    }
}

/// The items of a listing, one after the other.
pub struct Items {
    whereabouts: Arc<Whereabouts>,
    chunks: Arc<ListingChunks>,
    next: usize,
    /// `None` after the end of the listing.
    reader: Option<ListingReader>,
    /// Number of items that there must be.
    expected: u64,
}

impl Items {
    /// Makes a reader of a listing, which must have `expected` items.
    pub fn new(
        whereabouts: &Arc<Whereabouts>,
        chunks: &Arc<ListingChunks>,
        expected: u64,
    ) -> Items {
        let (whereabouts, chunks) = (whereabouts.clone(), chunks.clone());
        Items { whereabouts, chunks, next: 0, reader: Some(ListingReader::new()), expected }
    }

    /// Returns the next item; `None` after the last one.
    ///
    /// # Errors
    /// `Damaged` if a chunk is missing or wrong, or the bytes are no listing.
    pub fn next_item(&mut self) -> Result<Option<Item>> {
        loop {
            let Some(reader) = &mut self.reader else { return Ok(None) };
            if let Some(item) = reader.next_item()? {
                return Ok(Some(item));
            }
            let chunks = &self.chunks.chunks;
            if self.next == chunks.len() {
                let items = self.reader.take().map_or(Ok(0), ListingReader::finish)?;
                if items != self.expected {
                    return Err(Error::damaged(format!(
                        "the listing has {items} items instead of {}",
                        self.expected
                    )));
                }
                return Ok(None);
            }
            let end = (self.next + CHUNKS_AT_ONCE).min(chunks.len());
            for bytes in self.whereabouts.read(&chunks[self.next..end])? {
                reader.push(&bytes);
            }
            self.next = end;
        }
    }
}
