//! Reads ranges of packs.

use crate::Pool;
use crate::packs::shard_of;
use outlive_format::{Directory, Footer, SHARD_HEADER_BYTES, ShardHeader};
use outlive_io::{AlignedBuf, Ticket};
use outlive_target::{ReadRange, read_one};
use outlive_types::{Error, ErrorKind, PAGE_BYTES, PackId, Result};

/// A range of one container to read in one go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span {
    /// The pack.
    pub pack: PackId,
    /// Logical offset of the first byte.
    pub offset: u32,
    /// Length; the span lies within one container.
    pub length: u32,
}

/// The bytes of a span.
#[derive(Debug)]
pub struct SpanBytes {
    buffer: AlignedBuf,
    skip: usize,
    length: usize,
}

impl std::ops::Deref for SpanBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer[self.skip..self.skip + self.length]
    }
}

impl Pool {
    /// Starts reading a span into a buffer of the staging pool.
    pub fn read(&self, span: Span, mut buffer: AlignedBuf) -> Ticket<Result<SpanBytes>> {
        let page = PAGE_BYTES as u64;
        let first = u64::from(span.offset) / page * page;
        let end = (u64::from(span.offset) + u64::from(span.length)).next_multiple_of(page);
        let length = (end - first) as usize;
        if length > buffer.len() {
            return Ticket::done(Err(Error::bug(format!("a span of {length} bytes is too long"))));
        }
        drop(buffer.split_off(length));
        let range = ReadRange { offset: SHARD_HEADER_BYTES as u64 + first, buffer };
        let skip = (u64::from(span.offset) - first) as usize;
        read_one(&**self.target(), shard_of(span.pack), range)
            .map(move |read| Ok(SpanBytes { buffer: read?, skip, length: span.length as usize }))
    }

    /// Reads a pack's directory, and the length of its containers, in bytes. It is found by the header,
    /// or by the footer if the header is damaged.
    ///
    /// # Errors
    /// `Damaged` if it is not there, or not whole.
    pub fn directory_of(&self, pack: PackId) -> Result<(Directory, u64)> {
        let found = match self.directory_by_header(pack) {
            Err(error) if error.kind() == ErrorKind::Damaged => {
                // If the footer cannot be read just now, nothing is said of the pack yet.
                self.directory_by_footer(pack).map_err(|footer| match footer.kind() {
                    ErrorKind::Damaged => error,
                    _ => footer,
                })
            }
            found => found,
        };
        found.map_err(|error| error.context(format!("pack {pack}")))
    }

    fn directory_by_header(&self, pack: PackId) -> Result<(Directory, u64)> {
        let first = self.read_page(pack, 0)?;
        let header = ShardHeader::decode(&first)?;
        if header.pack != pack || header.shard != shard_of(pack).shard {
            return Err(Error::damaged("its header describes another shard"));
        }
        let (offset, length) = (header.directory_offset(), header.directory_bytes);
        Ok((self.directory_at(pack, offset, length)?, header.containers_bytes))
    }

    fn directory_by_footer(&self, pack: PackId) -> Result<(Directory, u64)> {
        let page = PAGE_BYTES as u64;
        let length = self.target().length(shard_of(pack))?;
        if length < 2 * page || !length.is_multiple_of(page) {
            return Err(Error::damaged("it is too short"));
        }
        let footer = Footer::decode(&self.read_page(pack, length - page)?)?;
        if footer.pack != pack || footer.shard_bytes() != length {
            return Err(Error::damaged("its footer describes another shard"));
        }
        let directory =
            self.directory_at(pack, footer.directory_offset(), footer.directory_bytes)?;
        // With one data shard the fragments are the containers.
        Ok((directory, footer.fragment_bytes))
    }

    fn read_page(&self, pack: PackId, offset: u64) -> Result<AlignedBuf> {
        self.read_now(pack, offset, PAGE_BYTES)
    }

    fn directory_at(&self, pack: PackId, offset: u64, length: u32) -> Result<Directory> {
        let fragments_bytes = u32::try_from(offset - SHARD_HEADER_BYTES as u64)
            .map_err(|_| Error::damaged("it is too long"))?;
        let directory = Directory::decode(&self.read_directory(pack, fragments_bytes, length)?)?;
        match directory.packs == [pack] {
            true => Ok(directory),
            false => Err(Error::damaged("its directory belongs to another pack")),
        }
    }

    /// Reads a pack's directory, which lies behind `fragments_bytes` of each shard; not yet verified.
    ///
    /// # Errors
    /// `Damaged` if it is not there.
    pub fn read_directory(
        &self,
        pack: PackId,
        fragments_bytes: u32,
        length: u32,
    ) -> Result<Vec<u8>> {
        let padded = (length as usize).next_multiple_of(PAGE_BYTES);
        let offset = SHARD_HEADER_BYTES as u64 + u64::from(fragments_bytes);
        Ok(self.read_now(pack, offset, padded)?[..length as usize].to_vec())
    }

    fn read_now(&self, pack: PackId, offset: u64, bytes: usize) -> Result<AlignedBuf> {
        let range = ReadRange { offset, buffer: AlignedBuf::zeroed(bytes) };
        Ok(read_one(&**self.target(), shard_of(pack), range).wait()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Container, Environment, FormatConfig, PackWriter, PoolConfig, Tuning};
    use outlive_format::{EntryKind, fingerprint};
    use outlive_target::{FaultWorld, MemoryLog};
    use std::sync::Arc;

    /// Damage is final: a gc may give up what is damaged.
    #[test]
    fn a_footer_that_cannot_be_read_just_now_is_no_damage() {
        let (world, pack) = (FaultWorld::new(), PackId([1; 20]));
        let config = PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default());
        let log = Arc::new(MemoryLog::new());
        let pool = Pool::new(config, world.target(), log, Environment::system());
        let mut writer = PackWriter::new(&pool, pack, 4096).unwrap();
        writer.open(Container::new(AlignedBuf::zeroed(4 << 20))).unwrap();
        writer.append(b"bytes", fingerprint(b"bytes"), EntryKind::Chunk).unwrap();
        writer.finish().unwrap().wait().unwrap();
        let whole = pool.directory_of(pack).unwrap();
        world.corrupt(shard_of(pack), 16, 1);
        assert_eq!(pool.directory_of(pack).unwrap(), whole, "by the footer");
        world.count_reads(true);
        // The header; the length; the footer; the directory.
        for step in 0..4 {
            world.fail_at(world.ops() + step, ErrorKind::Retry);
            let error = pool.directory_of(pack).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Retry, "step {step}: {error}");
        }
        assert_eq!(pool.directory_of(pack).unwrap(), whole);
        let length = pool.stored_bytes(pack).unwrap();
        world.corrupt(shard_of(pack), length - 1, 1);
        let error = pool.directory_of(pack).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.message().contains("header"), "{error}");
    }
}
