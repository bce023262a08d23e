//! Fills containers and writes a pack.

use crate::pack::container::entries_max;
use crate::stripe::{Shards, ShardsEnd};
use crate::{Container, Pool};
use outlive_format::{Directory, DirectoryEntry, EntryKind, InFrame, SliceForm, Tail, fingerprint};
use outlive_types::{Error, Fingerprint, PAGE_BYTES, PackId, Result};

/// Location of a chunk, node or segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct PackExtent {
    /// The pack.
    pub pack: PackId,
    /// Logical offset in it: of the bytes themselves, or of their compressed frame.
    pub offset: u32,
    /// Length in bytes, at least 1; not that of the frame.
    pub length: u32,
    /// The frame, if the bytes are compressed.
    pub frame: Option<InFrame>,
    /// Its form, if it is a slice.
    pub slice: Option<SliceForm>,
}

impl PackExtent {
    /// Returns the extent of an entry in a directory; `pack` is the pack that the entry names.
    pub fn of(pack: PackId, entry: &DirectoryEntry) -> PackExtent {
        let DirectoryEntry { offset, length, kind, frame, .. } = *entry;
        PackExtent { pack, offset, length, frame, slice: kind.slice() }
    }

    /// Returns the entry of a directory for this extent; `pack` is the number of its pack there.
    pub fn entry(&self, fp: Fingerprint, pack: u32, kind: EntryKind) -> DirectoryEntry {
        let PackExtent { offset, length, frame, slice, .. } = *self;
        let kind = slice.map_or(kind, EntryKind::Slice);
        DirectoryEntry { fp, pack, offset, length, kind, frame }
    }

    /// Returns how many bytes to read from `offset` on: the chunk itself or its whole frame.
    pub fn stored_bytes(&self) -> u32 {
        self.frame.map_or(self.length, |frame| frame.stored_bytes)
    }
}

/// A pack under construction: one container is being filled, others are on their way to the
/// targets.
pub struct PackWriter {
    pool: Pool,
    id: PackId,
    shards: Option<Shards>,
    container: Option<Container>,
    /// Logical offset at which `container` begins.
    base: u64,
    /// Bytes of containers that this pack may hold.
    capacity_bytes: u64,
    /// Bytes that its directory may have.
    directory_bytes_max: usize,
    entries: Vec<DirectoryEntry>,
}

/// A pack whose last writes are in progress.
pub struct FinishedPack {
    /// Its id.
    pub id: PackId,
    /// Bytes of the fragments of each of its shards (F in docs/format.md): the directory lies
    /// behind them.
    pub fragments_bytes: u32,
    /// The directory as stored.
    pub directory: Directory,
    /// Length of the directory's encoding.
    pub directory_bytes: u32,
    /// Fingerprint of the directory's encoding.
    pub directory_fp: Fingerprint,
    /// Length of all shards: the space of the pack on its targets.
    pub stored_bytes: u64,
    shards: ShardsEnd,
}

impl FinishedPack {
    /// Notes which writes have ended, and returns how many have not. A failed write keeps its
    /// buffer until then.
    ///
    /// # Errors
    /// Error of a write, if the pack cannot do without that shard.
    pub fn check_writes(&mut self) -> Result<usize> {
        self.shards.check_writes()
    }

    /// Waits until the pack is durable.
    ///
    /// # Errors
    /// First error of the targets, if the pack cannot do without that shard.
    pub fn wait(self) -> Result<()> {
        self.shards.wait()
    }
}

impl PackWriter {
    /// Begins pack `id` for about `expected_bytes`. It takes as many whole containers as these
    /// bytes need, at least one and at most what the format allows.
    ///
    /// # Errors
    /// Errors of the targets.
    pub fn new(pool: &Pool, id: PackId, expected_bytes: u64) -> Result<PackWriter> {
        let format = &pool.config().format;
        let capacity_bytes = expected_bytes
            .next_multiple_of(format.container_bytes)
            .clamp(format.container_bytes, format.pack_bytes);
        // Room for as many entries as the containers may have, each in its own frame, and for the
        // leaves above them.
        let per_container = Directory::bytes_for(0, 1, 1) - Directory::bytes_for(0, 0, 0);
        let directory_bytes_max = per_container * entries_max(capacity_bytes as usize) + (64 << 10);
        let fragments = (capacity_bytes / format.container_bytes) as usize;
        let tail_bytes = Tail::bytes_for(directory_bytes_max, fragments) as u64;
        let shards = Shards::begin(pool, id, capacity_bytes, tail_bytes)?;
        Ok(PackWriter {
            pool: pool.clone(),
            id,
            shards: Some(shards),
            container: None,
            base: 0,
            capacity_bytes,
            directory_bytes_max,
            entries: Vec::new(),
        })
    }

    /// Returns the pack's id.
    pub fn id(&self) -> PackId {
        self.id
    }

    /// Returns whether `length` more bytes, and their entry, fit.
    pub fn fits(&self, length: usize) -> bool {
        let container_bytes = self.pool.config().format.container_bytes;
        let in_this = self.container.as_ref().is_some_and(|open| open.fits(length, 1));
        length as u64 <= container_bytes
            && (in_this || self.next_base() < self.capacity_bytes)
            && self.has_room_for_entries(1)
    }

    /// Returns whether one more container with this number of entries fits.
    pub fn fits_container(&self, entries: usize) -> bool {
        self.next_base() < self.capacity_bytes && self.has_room_for_entries(entries)
    }

    /// Returns where a container after the open one would begin.
    fn next_base(&self) -> u64 {
        let container_bytes = self.pool.config().format.container_bytes;
        self.base + if self.container.is_some() { container_bytes } else { 0 }
    }

    fn has_room_for_entries(&self, count: usize) -> bool {
        let open = self.container.as_ref().map_or(0, |open| open.entries().len());
        let entries = self.entries.len() + open + count;
        Directory::bytes_for(1, entries, entries) <= self.directory_bytes_max
    }

    /// Returns whether [`PackWriter::append`] of `length` bytes needs a buffer first.
    pub fn needs_buffer(&self, length: usize) -> bool {
        self.container.as_ref().is_none_or(|open| !open.fits(length, 1))
    }

    /// Sends off the open container and opens another one.
    ///
    /// # Errors
    /// `Bug` after the end.
    pub fn open(&mut self, container: Container) -> Result<()> {
        self.flush()?;
        self.container = Some(container);
        Ok(())
    }

    /// Returns the open container.
    pub fn open_container(&mut self) -> Option<&mut Container> {
        self.container.as_mut()
    }

    /// Adds bytes to the open container, which must have room.
    ///
    /// # Errors
    /// `Bug` without room.
    pub fn append(&mut self, bytes: &[u8], fp: Fingerprint, kind: EntryKind) -> Result<PackExtent> {
        match &mut self.container {
            Some(open) if !bytes.is_empty() && open.fits(bytes.len(), 1) => {
                let offset = self.base as u32 + open.push(bytes, fp, kind);
                let (pack, length, slice) = (self.id, bytes.len() as u32, kind.slice());
                Ok(PackExtent { pack, offset, length, frame: None, slice })
            }
            _ => Err(Error::bug(format!("{} bytes do not fit pack {}", bytes.len(), self.id))),
        }
    }

    /// Notes which writes have ended, and returns how many have not. A failed write keeps its
    /// buffer until then.
    ///
    /// # Errors
    /// Error of a write, if the pack cannot do without that shard.
    pub fn check_writes(&mut self) -> Result<usize> {
        self.shards()?.check_writes()
    }

    fn shards(&mut self) -> Result<&mut Shards> {
        self.shards.as_mut().ok_or_else(|| Error::bug("work on a pack after its end"))
    }

    /// Sends off the open container whole, since others follow it.
    fn flush(&mut self) -> Result<()> {
        let container_bytes = self.pool.config().format.container_bytes as usize;
        match self.container.take() {
            Some(open) => self.send(open, container_bytes),
            None => Ok(()),
        }
    }

    fn send(&mut self, container: Container, length: usize) -> Result<()> {
        let filled_bytes = self.shards()?.filled_bytes(length);
        let (buffer, checksum, entries) = container.seal(length, filled_bytes);
        let base = self.base as u32;
        let placed = entries.into_iter().map(|e| DirectoryEntry { offset: base + e.offset, ..e });
        self.entries.extend(placed);
        self.base += length as u64;
        self.shards()?.send(buffer, length, checksum)
    }

    /// Ends the pack and removes every trace of it. Returns once no write is in progress, so that
    /// the space is free.
    pub fn give_up(mut self) {
        if let Some(shards) = self.shards.take() {
            shards.give_up();
        }
    }

    /// Writes the rest, the header and the directory; the pack becomes durable in the background.
    ///
    /// # Errors
    /// Error of an earlier write.
    pub fn finish(mut self) -> Result<FinishedPack> {
        if let Some(open) = self.container.take() {
            let length = open.used().next_multiple_of(PAGE_BYTES);
            self.send(open, length)?;
        }
        let directory = Directory::new(vec![self.id], std::mem::take(&mut self.entries));
        let encoded = directory.encode()?;
        let directory_fp = fingerprint(&encoded);
        let directory_bytes = encoded.len() as u32;
        let shards = self.shards.take().ok_or_else(|| Error::bug("finish twice"))?;
        let shards = shards.finish(&encoded)?;
        Ok(FinishedPack {
            id: self.id,
            fragments_bytes: shards.fragments_bytes as u32,
            directory_bytes,
            directory_fp,
            directory,
            stored_bytes: shards.stored_bytes,
            shards,
        })
    }
}

#[cfg(test)]
mod tests;
