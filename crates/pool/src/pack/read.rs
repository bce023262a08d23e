//! Reads ranges of packs.

use crate::Pool;
use crate::descriptor::redundancy::Tier;
use crate::layout::Layout;
use crate::stripe::{Breadth, Scan, read_pieces};
use crate::targets::rather;
use outlive_backend::{ReadMode, ReadRange, ShardName};
use outlive_format::{Directory, Footer, SHARD_HEADER_BYTES, ShardHeader};
use outlive_io::{AlignedBuf, Ticket};
use outlive_types::{Error, ErrorKind, PAGE_BYTES, PackId, Result};
use std::sync::atomic::Ordering;

/// A range of one container to read at once.
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
        let skip = (u64::from(span.offset) - first) as usize;
        let progress = self.progress.clone();
        let there = move |buffer| {
            progress.fetch_add(1, Ordering::Relaxed);
            SpanBytes { buffer, skip, length: span.length as usize }
        };
        let geometry = self.config().geometry();
        if (geometry.k, geometry.m) == (1, 0) {
            let offset = SHARD_HEADER_BYTES as u64 + first;
            let range = ReadRange { offset, buffer, mode: self.read_mode() };
            let shard = ShardName { pack: span.pack, shard: 0 };
            return self.targets().read(shard, range).map(move |read| Ok(there(read?)));
        }
        let layout = match self.layout_of(span.pack) {
            Ok(layout) => layout,
            Err(error) => return Ticket::done(Err(error.context(format!("pack {}", span.pack)))),
        };
        let pieces = layout.pieces(first, length);
        if pieces.iter().map(|piece| piece.length).sum::<usize>() != length {
            let end = first + length as u64;
            let what = format!("pack {} ends before its byte {end}", span.pack);
            return Ticket::done(Err(Error::damaged(what)));
        }
        read_pieces(self.targets(), self.read_mode(), span.pack, &layout, pieces, buffer)
            .map(move |read| Ok(there(read?)))
    }

    /// Returns whether data that is lost in one place can be read elsewhere.
    pub fn has_redundancy(&self) -> bool {
        let targets = self.targets();
        targets.survives() > 0 || targets.has_slow()
    }

    /// Reads a span again that was damaged, or could not be read. It checks each fragment of the
    /// container against its checksum. It reads damaged ones from any other copy, or computes them
    /// from the others. It costs much more than [`Pool::read`].
    ///
    /// # Errors
    /// `Damaged` if that does not help; errors of the targets.
    pub fn read_checked(&self, span: Span) -> Result<SpanBytes> {
        let container_bytes = self.config().format.container_bytes;
        let number = u64::from(span.offset) / container_bytes;
        let data: Vec<u8> = (0..self.config().geometry().k).collect();
        let mut scan = Scan::open(self, span.pack, Breadth::Shards(&data))?;
        let fragments = scan.only(number, &data)?;
        for fault in scan.faults().iter().filter(|fault| fault.target.is_some()) {
            let what = format!("shard {} of pack {} is read elsewhere", fault.shard, span.pack);
            let why = fault.error.message();
            self.warn(format!("{what}: {why}; run: {}", self.command("scrub", &[])));
        }
        let container = scan.container(&fragments)?;
        let skip = (u64::from(span.offset) % container_bytes) as usize;
        let length = span.length as usize;
        let there = container.get(skip..skip + length);
        let there = there.ok_or_else(|| Error::damaged("the pack ends before that"))?;
        let mut buffer = AlignedBuf::zeroed(length.next_multiple_of(PAGE_BYTES));
        buffer[..length].copy_from_slice(there);
        Ok(SpanBytes { buffer, skip: 0, length })
    }

    /// Reads a span by itself, and checks it with `is_whole`. If the first copy fails, it tries
    /// every other one, and other shards, before it reports damage.
    ///
    /// # Errors
    /// `Damaged` if it is whole nowhere; errors of the targets.
    #[expect(clippy::disallowed_methods, reason = "what it gives is verified here")]
    pub fn read_verified(&self, span: Span, is_whole: &dyn Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
        // A buffer of its own: the caller may hold some of the staging memory, and others like it
        // all the rest.
        let buffer = AlignedBuf::zeroed(span.length as usize + 2 * PAGE_BYTES);
        let first = match self.read(span, buffer).wait() {
            Ok(bytes) if is_whole(&bytes) => return Ok(bytes.to_vec()),
            Ok(_) => None,
            Err(error) => Some(error),
        };
        match self.read_checked(span) {
            Ok(bytes) if is_whole(&bytes) => Ok(bytes.to_vec()),
            Ok(_) => Err(Error::damaged("it does not match its fingerprint")),
            // Data that cannot be read now may be whole.
            Err(again) => Err(first.map_or(again.clone(), |first| first.or_rather(again))),
        }
    }

    /// Returns from how many packs to read at a time, so that all fast targets are busy.
    pub fn reads_side_by_side(&self) -> usize {
        let (targets, data) = (self.targets(), usize::from(self.config().geometry().k));
        (targets.of_tier(Tier::Fast).count() / data).max(1)
    }

    /// Returns the layout of a pack over its shards. Those of a mirror are all alike. Others depend
    /// on the length of the pack, which a header has.
    fn layout_of(&self, pack: PackId) -> Result<Layout> {
        if let Some(layout) = self.known_layout(pack) {
            return Ok(layout);
        }
        let geometry = self.config().geometry();
        let fragments_bytes = match geometry.k {
            1 => 0,
            _ => {
                let by_header = self.any_shard(pack, |shard| {
                    let header = self.header_of(shard)?;
                    Ok(geometry.fragments_bytes(header.containers_bytes))
                });
                by_header
                    .or_else(|error| {
                        let by_footer =
                            self.any_shard(pack, |shard| Ok(self.footer_of(shard)?.fragment_bytes));
                        by_footer.map_err(|footer| error.or_rather(footer))
                    })
                    .or_else(|error| {
                        self.ask_any_copy(pack, error, |scan| {
                            Ok(geometry.fragments_bytes(scan.header()?.containers_bytes))
                        })
                    })?
            }
        };
        let layout = Layout::new(geometry, fragments_bytes)?;
        self.knows_layout(pack, layout.clone());
        Ok(layout)
    }

    /// Returns the answer of the first shard that has one.
    ///
    /// # Errors
    /// Error of a shard that cannot be read now, or else the damage of the first one.
    fn any_shard<T>(&self, pack: PackId, ask: impl Fn(ShardName) -> Result<T>) -> Result<T> {
        let mut why: Option<Error> = None;
        for shard in self.shards_of(pack) {
            match ask(shard) {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    self.targets().forget(shard);
                    why = Some(rather(why, error));
                }
            }
        }
        Err(why.unwrap_or_else(|| Error::bug("a pack without shards")))
    }

    fn header_of(&self, shard: ShardName) -> Result<ShardHeader> {
        let header = ShardHeader::decode(&self.read_now(shard, 0, PAGE_BYTES)?)?;
        match header.pack == shard.pack && header.shard == shard.shard {
            true => Ok(header),
            false => Err(Error::damaged("its header describes another shard")),
        }
    }

    /// Reads a pack's directory, and returns the bytes of its containers, too. The header says
    /// where it is, or the footer if the header is damaged.
    ///
    /// # Errors
    /// `Damaged` if it is missing, or not whole.
    pub fn directory_of(&self, pack: PackId) -> Result<(Directory, u64)> {
        let found = self.any_shard(pack, |shard| match self.directory_by_header(shard) {
            Err(error) if error.kind() == ErrorKind::Damaged => {
                // If the footer cannot be read now, nothing is known about the pack yet.
                self.directory_by_footer(shard).map_err(|footer| match footer.kind() {
                    ErrorKind::Damaged => error,
                    _ => footer,
                })
            }
            found => found,
        });
        let found = found.or_else(|error| {
            self.ask_any_copy(pack, error, |scan| {
                let (directory, header) = (scan.directory()?.clone(), scan.header()?);
                Ok((directory, header.containers_bytes))
            })
        });
        found.map_err(|error| error.context(format!("pack {pack}")))
    }

    /// Asks all copies of all shards, after one shard gave no answer.
    fn ask_any_copy<T>(
        &self,
        pack: PackId,
        error: Error,
        ask: impl FnOnce(&Scan) -> Result<T>,
    ) -> Result<T> {
        let scan = Scan::open(self, pack, Breadth::Shards(&[])).and_then(|scan| ask(&scan));
        scan.map_err(|again| error.or_rather(again))
    }

    fn directory_by_header(&self, shard: ShardName) -> Result<(Directory, u64)> {
        let header = self.header_of(shard)?;
        let (offset, length) = (header.directory_offset(), header.directory_bytes);
        Ok((self.directory_at(shard, offset, length)?, header.containers_bytes))
    }

    fn footer_of(&self, shard: ShardName) -> Result<Footer> {
        let page = PAGE_BYTES as u64;
        let length = self.targets().length(shard)?;
        if length < 2 * page || !length.is_multiple_of(page) {
            return Err(Error::damaged("it is too short"));
        }
        let footer = Footer::decode(&self.read_now(shard, length - page, PAGE_BYTES)?)?;
        if footer.pack != shard.pack || footer.shard_bytes() != length {
            return Err(Error::damaged("its footer describes another shard"));
        }
        Ok(footer)
    }

    fn directory_by_footer(&self, shard: ShardName) -> Result<(Directory, u64)> {
        let footer = self.footer_of(shard)?;
        let directory =
            self.directory_at(shard, footer.directory_offset(), footer.directory_bytes)?;
        // At most the bytes of all fragments: with one data shard these are the containers.
        Ok((directory, footer.fragment_bytes * u64::from(self.config().geometry().k)))
    }

    fn directory_at(&self, shard: ShardName, offset: u64, length: u32) -> Result<Directory> {
        let padded = (length as usize).next_multiple_of(PAGE_BYTES);
        let bytes = self.read_now(shard, offset, padded)?;
        let directory = Directory::decode(&bytes[..length as usize])?;
        match directory.packs == [shard.pack] {
            true => Ok(directory),
            false => Err(Error::damaged("its directory belongs to another pack")),
        }
    }

    /// Reads a pack's directory, which lies behind `fragments_bytes` of each shard, and checks it
    /// with `is_whole`. It tries every copy.
    ///
    /// # Errors
    /// `Damaged` if it is whole nowhere.
    pub fn read_directory(
        &self,
        pack: PackId,
        fragments_bytes: u32,
        length: u32,
        is_whole: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<u8>> {
        let padded = (length as usize).next_multiple_of(PAGE_BYTES);
        let offset = SHARD_HEADER_BYTES as u64 + u64::from(fragments_bytes);
        let directory = self.any_shard(pack, |shard| {
            let directory = self.read_now(shard, offset, padded)?[..length as usize].to_vec();
            match is_whole(&directory) {
                true => Ok(directory),
                false => Err(Error::damaged(format!(
                    "the directory at {fragments_bytes} of pack {pack} does not match its fingerprint"
                ))),
            }
        });
        let directory = directory.or_else(|error| {
            let again = self
                .ask_any_copy(pack, error.clone(), |scan| Ok(scan.directory_bytes()?.to_vec()))?;
            if is_whole(&again) { Ok(again) } else { Err(error) }
        })?;
        if self.shards_of(pack).len() > 1 {
            let layout = Layout::new(self.config().geometry(), fragments_bytes.into())?;
            self.knows_layout(pack, layout);
        }
        Ok(directory)
    }

    fn read_now(&self, shard: ShardName, offset: u64, bytes: usize) -> Result<AlignedBuf> {
        // Headers and footers come from the medium, not from the page cache, since repairs judge a
        // shard by them.
        let mode = ReadMode { may_be_cached: false, ..self.read_mode() };
        let range = ReadRange { offset, buffer: AlignedBuf::zeroed(bytes), mode };
        Ok(self.targets().read(shard, range).wait()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Container, Environment, FormatConfig, PackWriter, PoolConfig, Tuning};
    use outlive_backend::FaultWorld;
    use outlive_format::{EntryKind, fingerprint};
    use outlive_log::MemoryLog;
    use std::sync::Arc;

    /// Damage is final: a gc may give up damaged data.
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
        world.corrupt(ShardName { pack, shard: 0 }, 16, 1);
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
        world.corrupt(ShardName { pack, shard: 0 }, length - 1, 1);
        let error = pool.directory_of(pack).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.message().contains("header"), "{error}");
    }
}
