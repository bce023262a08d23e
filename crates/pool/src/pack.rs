//! Fills containers and writes a pack.

use crate::container::entries_max;
use crate::packs::shard_of;
use crate::{Container, Pool};
use outlive_format::{
    Directory, DirectoryEntry, EntryKind, Fragment, InFrame, SHARD_HEADER_BYTES, ShardHeader, Tail,
    fingerprint,
};
use outlive_io::{AlignedBuf, Completions, SharedBuf, Ticket};
use outlive_target::{Fault, ShardWriter};
use outlive_types::{Error, Fingerprint, PAGE_BYTES, PackId, Result};

/// Where a chunk, node or segment lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Place {
    /// The pack.
    pub pack: PackId,
    /// Logical offset in it: of the bytes themselves, or of the frame that they are compressed in.
    pub offset: u32,
    /// Length in bytes, at least 1; not that of a frame.
    pub length: u32,
    /// The frame.
    pub frame: Option<InFrame>,
}

impl Place {
    /// Bytes to read, from `offset` on: the chunk itself or its whole frame.
    pub fn stored_bytes(&self) -> u32 {
        self.frame.map_or(self.length, |frame| frame.stored_bytes)
    }
}

/// A pack under construction: one container being filled, others on their way to the target.
pub struct PackWriter {
    pool: Pool,
    id: PackId,
    shard: Option<Box<dyn ShardWriter>>,
    container: Option<Container>,
    /// Logical offset at which `container` begins.
    base: u64,
    /// Bytes of containers that this pack may hold.
    capacity_bytes: u64,
    /// Bytes that its directory may have.
    directory_bytes_max: usize,
    entries: Vec<DirectoryEntry>,
    /// What has been sent off.
    fragments: Vec<Fragment>,
    in_flight: WritesInFlight,
}

/// A pack whose last bytes are on their way.
pub struct FinishedPack {
    /// Its id.
    pub id: PackId,
    /// Bytes of the fragments of each of its shards (F in docs/format.md): the directory lies behind
    /// them.
    pub fragments_bytes: u32,
    /// The directory as stored.
    pub directory: Directory,
    /// Length of the directory's encoding.
    pub directory_bytes: u32,
    /// Fingerprint of the directory's encoding.
    pub directory_fp: Fingerprint,
    /// Length of the shard: what the pack costs on its target.
    pub stored_bytes: u64,
    writes: WritesInFlight,
    finish: Ticket<Result<()>>,
}

/// Writes by their offset.
type WritesInFlight = Completions<u64, std::result::Result<(), Fault<SharedBuf>>>;

/// Takes notice of the writes that are over.
fn check_writes(in_flight: &mut WritesInFlight) -> Result<usize> {
    while let Some((_, written)) = in_flight.try_next() {
        written?;
    }
    Ok(in_flight.len())
}

impl FinishedPack {
    /// Takes notice of writes that are over (a failed one keeps its buffer until then) and answers
    /// how many are not.
    ///
    /// # Errors
    /// Why a write failed.
    pub fn check_writes(&mut self) -> Result<usize> {
        check_writes(&mut self.writes)
    }

    /// Waits until the pack is durable.
    ///
    /// # Errors
    /// What the target reported first.
    pub fn wait(mut self) -> Result<()> {
        let mut outcome = Ok(());
        while let Some((_, written)) = self.writes.wait_next() {
            outcome = outcome.and(written.map_err(Error::from));
        }
        outcome.and(self.finish.wait())
    }
}

impl PackWriter {
    /// Begins pack `id` for about `expected_bytes`: it takes whole containers, as many as these
    /// bytes need, at least one and at most what the format allows.
    ///
    /// # Errors
    /// What the target reports.
    pub fn new(pool: &Pool, id: PackId, expected_bytes: u64) -> Result<PackWriter> {
        let format = &pool.config().format;
        let capacity_bytes = expected_bytes
            .next_multiple_of(format.container_bytes)
            .clamp(format.container_bytes, format.pack_bytes);
        // Room for as many entries as the containers may have, each in a frame of its own, and for
        // the leaves above them.
        let per_container = Directory::bytes_for(0, 1, 1) - Directory::bytes_for(0, 0, 0);
        let directory_bytes_max = per_container * entries_max(capacity_bytes as usize) + (64 << 10);
        let fragments = (capacity_bytes / format.container_bytes) as usize;
        let tail_bytes = Tail::bytes_for(directory_bytes_max, fragments) as u64;
        let bytes_max = SHARD_HEADER_BYTES as u64 + capacity_bytes + tail_bytes;
        let shard = pool.target().create(shard_of(id), bytes_max)?;
        Ok(PackWriter {
            pool: pool.clone(),
            id,
            shard: Some(shard),
            container: None,
            base: 0,
            capacity_bytes,
            directory_bytes_max,
            entries: Vec::new(),
            fragments: Vec::new(),
            in_flight: Completions::new(),
        })
    }

    /// The pack's id.
    pub fn id(&self) -> PackId {
        self.id
    }

    /// True if `length` more bytes, and their entry, fit.
    pub fn fits(&self, length: usize) -> bool {
        let container_bytes = self.pool.config().format.container_bytes;
        let in_this = self.container.as_ref().is_some_and(|open| open.fits(length, 1));
        length as u64 <= container_bytes
            && (in_this || self.next_base() < self.capacity_bytes)
            && self.has_room_for_entries(1)
    }

    /// True if one more container of so many entries fits.
    pub fn fits_container(&self, entries: usize) -> bool {
        self.next_base() < self.capacity_bytes && self.has_room_for_entries(entries)
    }

    /// Where a container behind the open one would begin.
    fn next_base(&self) -> u64 {
        let container_bytes = self.pool.config().format.container_bytes;
        self.base + if self.container.is_some() { container_bytes } else { 0 }
    }

    fn has_room_for_entries(&self, count: usize) -> bool {
        let open = self.container.as_ref().map_or(0, |open| open.entries().len());
        let entries = self.entries.len() + open + count;
        Directory::bytes_for(1, entries, entries) <= self.directory_bytes_max
    }

    /// True if [`PackWriter::append`] of `length` bytes needs a buffer first.
    pub fn needs_buffer(&self, length: usize) -> bool {
        self.container.as_ref().is_none_or(|open| !open.fits(length, 1))
    }

    /// Sends the open container off and opens another one.
    ///
    /// # Errors
    /// `Bug` after the end.
    pub fn open(&mut self, container: Container) -> Result<()> {
        self.flush()?;
        self.container = Some(container);
        Ok(())
    }

    /// The open container.
    pub fn open_container(&mut self) -> Option<&mut Container> {
        self.container.as_mut()
    }

    /// Adds bytes to the open container, which must have room.
    ///
    /// # Errors
    /// `Bug` without room.
    pub fn append(&mut self, bytes: &[u8], fp: Fingerprint, kind: EntryKind) -> Result<Place> {
        match &mut self.container {
            Some(open) if !bytes.is_empty() && open.fits(bytes.len(), 1) => {
                let offset = self.base as u32 + open.push(bytes, fp, kind);
                Ok(Place { pack: self.id, offset, length: bytes.len() as u32, frame: None })
            }
            _ => Err(Error::bug(format!("{} bytes do not fit pack {}", bytes.len(), self.id))),
        }
    }

    /// Takes notice of writes that are over (a failed one keeps its buffer until then) and answers
    /// how many are not.
    ///
    /// # Errors
    /// Why a write failed.
    pub fn check_writes(&mut self) -> Result<usize> {
        check_writes(&mut self.in_flight)
    }

    /// Sends the open container off whole: others follow it.
    fn flush(&mut self) -> Result<()> {
        let container_bytes = self.pool.config().format.container_bytes as usize;
        match self.container.take() {
            Some(open) => self.send(open, container_bytes),
            None => Ok(()),
        }
    }

    fn send(&mut self, container: Container, length: usize) -> Result<()> {
        let (buffer, fragment, entries) = container.seal(length);
        let base = self.base as u32;
        let placed = entries.into_iter().map(|e| DirectoryEntry { offset: base + e.offset, ..e });
        self.entries.extend(placed);
        self.fragments.push(fragment);
        self.write(SHARD_HEADER_BYTES as u64 + self.base, buffer)?;
        self.base += length as u64;
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: SharedBuf) -> Result<()> {
        let shard = self.shard.as_mut().ok_or_else(|| Error::bug("write after finish"))?;
        self.in_flight.push(offset, shard.write(offset, bytes));
        Ok(())
    }

    /// Ends the pack without a trace. Returns once nothing is on its way any more, so that the room is
    /// free.
    pub fn give_up(mut self) {
        drop(self.shard.take());
        while self.in_flight.wait_next().is_some() {}
    }

    /// Writes what is left, the header and the directory; the pack becomes durable in the
    /// background.
    ///
    /// # Errors
    /// What an earlier write to the target reported.
    pub fn finish(mut self) -> Result<FinishedPack> {
        if let Some(open) = self.container.take() {
            let length = open.used().next_multiple_of(PAGE_BYTES);
            self.send(open, length)?;
        }
        let directory = Directory::new(vec![self.id], std::mem::take(&mut self.entries));
        let encoded = directory.encode()?;
        let directory_fp = fingerprint(&encoded);
        let directory_bytes = encoded.len() as u32;
        let fragments = std::mem::take(&mut self.fragments);
        let tail = Tail { pack: self.id, directory: encoded, fragments }.encode()?;

        let format = &self.pool.config().format;
        let header = ShardHeader {
            shard: 0,
            geometry: format.geometry(),
            pack: self.id,
            pool_id: format.pool_id_bytes(),
            containers_bytes: self.base,
            directory_bytes,
        };
        let tail_offset = header.directory_offset();
        let stored_bytes = tail_offset + tail.len() as u64;
        self.write(0, aligned(&header.encode()?))?;
        self.write(tail_offset, aligned(&tail))?;

        let shard = self.shard.take().ok_or_else(|| Error::bug("finish twice"))?;
        Ok(FinishedPack {
            id: self.id,
            fragments_bytes: (tail_offset - SHARD_HEADER_BYTES as u64) as u32,
            directory_bytes,
            directory_fp,
            directory,
            stored_bytes,
            writes: std::mem::take(&mut self.in_flight),
            finish: shard.finish(stored_bytes),
        })
    }
}

/// Headers and tails are written once a pack, so they are copied into memory of their own.
fn aligned(bytes: &[u8]) -> SharedBuf {
    let mut buffer = AlignedBuf::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.share()
}

#[cfg(test)]
mod tests;
