//! Reads ranges of packs.

use crate::Pool;
use crate::packs::shard_of;
use outlive_format::{Directory, Footer, SHARD_HEADER_BYTES};
use outlive_io::{AlignedBuf, Ticket};
use outlive_target::ReadRange;
use outlive_types::{Error, PAGE_BYTES, PackId, Result};

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
    pub fn read(&self, span: Span, buffer: AlignedBuf) -> Ticket<Result<SpanBytes>> {
        let page = PAGE_BYTES as u64;
        let first = u64::from(span.offset) / page * page;
        let end = (u64::from(span.offset) + u64::from(span.length)).next_multiple_of(page);
        let length = (end - first) as usize;
        if length > buffer.len() {
            return Ticket::done(Err(Error::bug(format!("a span of {length} bytes is too long"))));
        }
        let skip = (u64::from(span.offset) - first) as usize;
        self.read_shard(span.pack, SHARD_HEADER_BYTES as u64 + first, length, buffer, skip, span)
    }

    fn read_shard(
        &self,
        pack: PackId,
        offset: u64,
        length: usize,
        buffer: AlignedBuf,
        skip: usize,
        span: Span,
    ) -> Ticket<Result<SpanBytes>> {
        let range = ReadRange { offset, length, buffer };
        let shard = shard_of(pack);
        match self.target().read_ranges(shard, vec![range]).pop() {
            Some(ticket) => ticket.map(move |read| {
                read.map(|buffer| SpanBytes { buffer, skip, length: span.length as usize })
            }),
            None => Ticket::done(Err(Error::bug("the target answered no ticket"))),
        }
    }

    /// Reads a pack's directory, found by its footer, and the length of its containers, in bytes.
    ///
    /// # Errors
    /// `Damaged` if it is not there, or not whole.
    pub fn directory_of(&self, pack: PackId) -> Result<(Directory, u64)> {
        let damaged = |e: Error| e.context(format!("pack {pack}"));
        let page = PAGE_BYTES as u64;
        let shard = shard_of(pack);
        let length = self.target().length(shard)?;
        if length < 2 * page || !length.is_multiple_of(page) {
            return Err(damaged(Error::damaged("it is too short")));
        }
        let range = ReadRange {
            offset: length - page,
            length: PAGE_BYTES,
            buffer: AlignedBuf::zeroed(PAGE_BYTES),
        };
        let read = self.target().read_ranges(shard, vec![range]).pop();
        let last = read.ok_or_else(|| Error::bug("the target answered no ticket"))?.wait()?;
        let footer = Footer::decode(&last).map_err(damaged)?;
        if footer.pack != pack || footer.shard_bytes() != length {
            return Err(damaged(Error::damaged("its footer describes another shard")));
        }
        let containers_bytes = footer.fragment_bytes;
        let offset = u32::try_from(containers_bytes)
            .map_err(|_| damaged(Error::damaged("it is too long")))?;
        let bytes = self.read_directory(pack, offset, footer.directory_bytes)?;
        let directory = Directory::decode(&bytes).map_err(damaged)?;
        if directory.packs != [pack] {
            return Err(damaged(Error::damaged("its directory belongs to another pack")));
        }
        Ok((directory, containers_bytes))
    }

    /// Reads a pack's directory, which lies behind its `containers_bytes`; not yet verified.
    ///
    /// # Errors
    /// `Damaged` if it is not there.
    pub fn read_directory(
        &self,
        pack: PackId,
        containers_bytes: u32,
        length: u32,
    ) -> Result<Vec<u8>> {
        let padded = (length as usize).next_multiple_of(PAGE_BYTES);
        let buffer = AlignedBuf::zeroed(padded);
        let offset = SHARD_HEADER_BYTES as u64 + u64::from(containers_bytes);
        let span = Span { pack, offset: containers_bytes, length };
        let bytes = self.read_shard(pack, offset, padded, buffer, 0, span).wait()?;
        Ok(bytes.to_vec())
    }
}
