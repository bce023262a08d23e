//! Reads ranges of packs.

use crate::Pool;
use outlive_format::SHARD_HEADER_BYTES;
use outlive_io::{AlignedBuf, Ticket};
use outlive_target::{ReadRange, ShardName};
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
        let shard = ShardName { pack, shard: 0 };
        match self.target().read_ranges(shard, vec![range]).pop() {
            Some(ticket) => ticket.map(move |read| {
                read.map(|buffer| SpanBytes { buffer, skip, length: span.length as usize })
            }),
            None => Ticket::done(Err(Error::bug("the target answered no ticket"))),
        }
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
