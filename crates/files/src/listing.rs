//! Writes a listing item by item, with only a few chunks of it in memory.

use super::recipe::{Emit, RecipeBuilder};
use outlive_format::{Item, Piece, TreeRef, checksum, listing_end, listing_head};
use outlive_pool::FormatConfig;
use outlive_types::{Fingerprint, Result};

/// Shortest chunk of a listing, and the average length, after which cuts are more frequent.
const CHUNK_BYTES_MIN: usize = 4 << 10;
const CHUNK_BYTES_AVERAGE: usize = 16 << 10;
/// One item in this many ends its chunk, before and after the average length.
const ENDS_BEFORE: u64 = 64;
const ENDS_BEHIND: u64 = 8;

/// Stores a chunk and returns its fingerprint.
pub type Store<'s> = dyn FnMut(&[u8]) -> Result<Fingerprint> + 's;

/// Takes items in their order. A chunk holds whole items, and the names of items decide where it
/// ends. So a changed item changes only its own chunk.
pub struct ListingWriter {
    buffer: Vec<u8>,
    chunk_bytes_max: usize,
    recipe: RecipeBuilder,
    bytes: u64,
    /// Items so far.
    pub items: u64,
}

impl ListingWriter {
    /// Returns a listing without items.
    pub fn new(format: &FormatConfig) -> ListingWriter {
        let chunk_bytes_max = format.chunk_bytes_max as usize;
        let buffer = listing_head().to_vec();
        let recipe = RecipeBuilder::new(format.container_bytes);
        ListingWriter { buffer, chunk_bytes_max, recipe, bytes: 0, items: 0 }
    }

    /// Returns a listing whose first chunk is one of another listing.
    pub fn within(format: &FormatConfig) -> ListingWriter {
        ListingWriter { buffer: Vec::new(), ..ListingWriter::new(format) }
    }

    /// Returns whether a chunk of another listing can follow now.
    pub fn is_at_a_cut(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Adds a stored chunk of another listing, which begins and ends between two items, or a part
    /// of such a chunk.
    ///
    /// # Errors
    /// Errors of `emit`.
    pub fn reuse(&mut self, chunk: Piece, emit: &mut Emit<'_>) -> Result<()> {
        self.bytes += chunk.bytes;
        self.recipe.push(chunk, emit)
    }

    /// Adds an item.
    ///
    /// # Errors
    /// `Invalid` for an item that cannot be listed, and was not; errors of `store` and `emit`.
    pub fn push(&mut self, item: &Item, store: &mut Store<'_>, emit: &mut Emit<'_>) -> Result<()> {
        let before = self.buffer.len();
        item.encode(&mut self.buffer)?;
        self.items += 1;
        if self.buffer.len() > self.chunk_bytes_max && before > 0 {
            self.cut(before, store, emit)?;
        }
        while self.buffer.len() > self.chunk_bytes_max {
            self.cut(self.chunk_bytes_max, store, emit)?;
        }
        let length = self.buffer.len();
        let ends = if length < CHUNK_BYTES_AVERAGE { ENDS_BEFORE } else { ENDS_BEHIND };
        let min = CHUNK_BYTES_MIN.min(self.chunk_bytes_max / 4);
        if length >= min && checksum(&item.path).is_multiple_of(ends) {
            self.cut(length, store, emit)?;
        }
        Ok(())
    }

    fn cut(&mut self, at: usize, store: &mut Store<'_>, emit: &mut Emit<'_>) -> Result<()> {
        let fp = store(&self.buffer[..at])?;
        self.buffer.drain(..at);
        self.bytes += at as u64;
        self.recipe.push(Piece { fp, bytes: at as u64 }, emit)
    }

    /// Ends the listing, which has this number of items.
    ///
    /// # Errors
    /// Errors of `store` and `emit`.
    pub fn finish(
        mut self,
        items: u64,
        store: &mut Store<'_>,
        emit: &mut Emit<'_>,
    ) -> Result<TreeRef> {
        let end = listing_end(items);
        if self.buffer.len() + end.len() > self.chunk_bytes_max {
            self.cut(self.buffer.len(), store, emit)?;
        }
        self.buffer.extend(end);
        self.cut(self.buffer.len(), store, emit)?;
        Ok(TreeRef { bytes: self.bytes, root: self.recipe.finish(emit)? })
    }
}
