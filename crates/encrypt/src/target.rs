//! A target of shards, all encrypted.

use crate::encryption::{Encryption, SALT_BYTES};
use crate::secret::fill_random;
use crate::tags::{ShardTags, TagCache, encrypted_bytes, plain_bytes, salt_of, table_bytes};
use crate::writer::EncryptedWriter;
use outlive_backend::writes::{check_range, short};
use outlive_backend::{
    Capacity, Fault, ReadMode, ReadRange, ReadTicket, ShardName, ShardWriter, Target, read_one,
};
use outlive_io::{AlignedBuf, DEPTH_DEFAULT, OwnEngine, PerProcess, Promise, StagingPool, Ticket};
use outlive_types::{Error, PAGE_BYTES, Result};
use std::sync::Arc;

/// Longest range that the thread decrypts that has read it.
const AT_ONCE_BYTES: usize = 64 << 10;
/// Length of the buffers for encrypted bytes, and of all of them.
const BUFFER_BYTES: usize = 4 << 20;
const BUFFERS_BYTES: usize = 64 << 20;
/// Threads for reads that a program waits for.
const URGENT_DEPTH: usize = 4;

/// A target that keeps the shards of another one encrypted. Each page of 4096 bytes has an
/// authentication tag, in a table behind the shard. So any page can be read by itself, and no byte
/// of it can be changed, or be put elsewhere, unnoticed.
#[derive(Debug)]
pub struct EncryptedTarget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    below: Arc<dyn Target>,
    encryption: Arc<Encryption>,
    state: PerProcess<State>,
    helpers: OwnEngine,
    urgent: OwnEngine,
}

#[derive(Debug, Default)]
struct State {
    tags: TagCache,
    buffers: Option<Arc<StagingPool>>,
}

impl EncryptedTarget {
    /// Wraps `below`.
    pub fn new(below: Arc<dyn Target>, encryption: Arc<Encryption>) -> EncryptedTarget {
        EncryptedTarget(Arc::new(Inner {
            below,
            encryption,
            state: PerProcess::new(|_| State::default()),
            helpers: OwnEngine::new(DEPTH_DEFAULT),
            urgent: OwnEngine::new(URGENT_DEPTH),
        }))
    }

    #[cfg(test)]
    pub(crate) fn below(&self) -> Arc<dyn Target> {
        self.0.below.clone()
    }

    #[cfg(test)]
    pub(crate) fn encryption(&self) -> Arc<Encryption> {
        self.0.encryption.clone()
    }

    fn writer(
        &self,
        shard: ShardName,
        bytes_max: u64,
        begin: impl FnOnce(u64) -> Result<Box<dyn ShardWriter>>,
    ) -> Result<Box<dyn ShardWriter>> {
        let mut salt = [0; SALT_BYTES];
        fill_random(&mut salt)?;
        let cipher = Arc::new(self.0.encryption.shard(shard, &salt)?);
        let mut state = self.0.state.lock();
        let make = || StagingPool::new(BUFFERS_BYTES, BUFFER_BYTES);
        let buffers = state.buffers.get_or_insert_with(make).clone();
        drop(state);
        let inner = begin(encrypted_bytes(bytes_max))?;
        let (tags, failed) = Default::default();
        let writer =
            EncryptedWriter { inner, shard, bytes_max, salt, cipher, buffers, tags, failed };
        Ok(Box::new(writer))
    }

    fn forget(&self, shard: ShardName) {
        self.0.state.lock().tags.forget(shard);
    }
}

impl Inner {
    /// Returns what is needed to decrypt a shard; reads it if it is not known.
    fn tags(&self, shard: ShardName, mode: ReadMode) -> Result<Arc<ShardTags>> {
        if let Some(known) = self.state.lock().tags.get(shard) {
            return Ok(known);
        }
        let encrypted = self.below.length(shard)?;
        let plain = plain_bytes(encrypted).ok_or_else(|| {
            Error::damaged(format!(
                "shard {shard} in {} has {encrypted} bytes, and no encrypted shard is as long as that",
                self.below.describe()
            ))
        })?;
        let table = AlignedBuf::zeroed(table_bytes(plain) as usize);
        let range = ReadRange { mode, ..ReadRange::new(plain, table) };
        let table = match table_bytes(plain) {
            0 => AlignedBuf::zeroed(0),
            _ => read_one(&*self.below, shard, range).wait()?,
        };
        let salt = salt_of(&table).unwrap_or_default();
        let cipher = self.encryption.shard(shard, &salt)?;
        let tags = Arc::new(ShardTags::new(cipher, &table, plain));
        self.state.lock().tags.put(shard, tags.clone());
        Ok(tags)
    }

    /// Decrypts a range that was read, and reads it again if a tag does not fit.
    fn open(&self, range: Range, buffer: AlignedBuf) -> Opened {
        match self.try_open(range, buffer)? {
            Ok(buffer) => Ok(buffer),
            Err(buffer) => self.open_again(range, buffer),
        }
    }

    /// Reads a range whose tags did not fit again, and its tags: another process may have replaced
    /// the shard since.
    fn open_again(&self, range: Range, buffer: AlignedBuf) -> Opened {
        let Range { shard, offset, mode } = range;
        self.state.lock().tags.forget(shard);
        // First the tags: to ask for the length makes a backend leave the file of the old shard.
        let tags = match self.tags(shard, mode) {
            Ok(tags) => tags,
            Err(error) => return Err(Fault { error, buffer }),
        };
        let again = ReadRange { mode, ..ReadRange::new(offset, buffer) };
        let buffer = read_one(&*self.below, shard, again).wait()?;
        tags.opened(offset, buffer).map_err(|buffer| {
            let error = Error::damaged(format!(
                "bytes {offset} to {} of shard {shard} in {} were changed, or are of another pool: \
                 their authentication tag does not fit",
                offset + buffer.len() as u64,
                self.below.describe()
            ));
            Fault { error, buffer }
        })
    }

    /// Decrypts a range. Returns the buffer as an error, with undefined bytes, if a tag does not
    /// fit.
    fn try_open(
        &self,
        range: Range,
        buffer: AlignedBuf,
    ) -> std::result::Result<std::result::Result<AlignedBuf, AlignedBuf>, Fault<AlignedBuf>> {
        let Range { shard, offset, mode } = range;
        let tags = match self.tags(shard, mode) {
            Ok(tags) => tags,
            Err(error) => return Err(Fault { error, buffer }),
        };
        if offset.saturating_add(buffer.len() as u64) > tags.length() {
            let range = ReadRange::new(offset, buffer);
            let error = short(&self.below.describe(), shard, &range, tags.length());
            return Err(Fault { error, buffer: range.buffer });
        }
        Ok(tags.opened(offset, buffer))
    }

    /// Ends a read. The thread that has read a short range decrypts it itself, if it need not wait.
    fn end(self: &Arc<Self>, range: Range, buffer: AlignedBuf, promise: Promise<Opened>) {
        let engine = if range.mode.is_urgent { &self.urgent } else { &self.helpers };
        let inner = self.clone();
        let known = match buffer.len() <= AT_ONCE_BYTES {
            true => self.state.lock().tags.get(range.shard),
            false => None,
        };
        let Some(tags) = known else {
            return drop(engine.submit(move || promise.fulfil(inner.open(range, buffer))));
        };
        match tags.opened(range.offset, buffer) {
            Ok(buffer) => promise.fulfil(Ok(buffer)),
            Err(buffer) => {
                drop(engine.submit(move || promise.fulfil(inner.open_again(range, buffer))));
            }
        }
    }
}

/// A range of a shard.
#[derive(Clone, Copy)]
struct Range {
    shard: ShardName,
    offset: u64,
    mode: ReadMode,
}

/// A buffer with plaintext.
type Opened = std::result::Result<AlignedBuf, Fault<AlignedBuf>>;

impl Target for EncryptedTarget {
    fn describe(&self) -> String {
        self.0.below.describe()
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.writer(shard, bytes_max, |bytes| self.0.below.create(shard, bytes))
    }

    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.writer(shard, bytes_max, |bytes| self.0.below.replace(shard, bytes))
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        let asked: Vec<_> = ranges
            .iter()
            .map(|it| (Range { shard, offset: it.offset, mode: it.mode }, check_range(shard, it)))
            .collect();
        let begun = self.0.below.read_ranges(shard, ranges);
        let begun = asked.into_iter().zip(begun).map(|((range, checked), first)| {
            if checked.is_err() {
                return first; // the backend refuses it, too
            }
            let (promise, ticket) = Ticket::pair();
            let inner = self.0.clone();
            first.on_done(move |outcome| match outcome {
                Ok(Ok(buffer)) => inner.end(range, buffer, promise),
                other => promise.settle(other),
            });
            ticket
        });
        begun.collect()
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        // A caller that asks wants to know what is there now.
        self.forget(shard);
        let encrypted = self.0.below.length(shard)?;
        // A shard that was cut short is no shorter shard: its pages say so when they are read.
        Ok(plain_bytes(encrypted).unwrap_or(encrypted / PAGE_BYTES as u64 * PAGE_BYTES as u64))
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        self.0.below.list()
    }

    fn sync(&self, shards: &[ShardName]) -> Result<()> {
        self.0.below.sync(shards)
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        self.0.below.unfinished()
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        self.0.below.delete_unfinished(shard)
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.forget(shard);
        self.0.below.delete(shard)
    }

    fn capacity(&self) -> Result<Capacity> {
        self.0.below.capacity()
    }

    fn make_reserve(&self, bytes: u64) -> Result<()> {
        self.0.below.make_reserve(bytes)
    }

    fn delete_reserve(&self) -> Result<u64> {
        self.0.below.delete_reserve()
    }

    fn close_files(&self, all: bool) {
        if all {
            self.0.state.lock().tags.clear();
        }
        self.0.below.close_files(all);
    }

    fn freshen(&self, shards: &[ShardName]) -> Result<()> {
        self.0.below.freshen(shards)
    }
}
