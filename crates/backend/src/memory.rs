//! A target in memory: for tests, and for data that need not survive the process.

use crate::operation::OperationResult;
use crate::writes::{Writes, check_finish, check_range, check_write, exists, missing, short};
use crate::{Capacity, Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target, WriteTicket};
use outlive_io::{AlignedBuf, SharedBuf, Ticket};
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

const PLACE: &str = "memory";

/// Shards in memory.
#[derive(Debug, Default)]
pub struct MemoryTarget(Arc<Space>);

#[derive(Debug)]
struct Space {
    total_bytes: u64,
    shards: Mutex<BTreeMap<ShardName, Arc<Vec<u8>>>>,
}

impl Default for Space {
    fn default() -> Self {
        Space { total_bytes: u64::MAX, shards: Mutex::default() }
    }
}

impl MemoryTarget {
    /// Returns a target without a limit.
    pub fn new() -> MemoryTarget {
        MemoryTarget::default()
    }

    /// Returns a target that is `Full` beyond `total_bytes` of finished shards.
    pub fn with_capacity(total_bytes: u64) -> MemoryTarget {
        MemoryTarget(Arc::new(Space { total_bytes, shards: Mutex::default() }))
    }

    fn begin(
        &self,
        shard: ShardName,
        bytes_max: u64,
        replaces: bool,
    ) -> Result<Box<dyn ShardWriter>> {
        self.0.check_room(bytes_max)?;
        let (space, writes) = (self.0.clone(), Arc::default());
        Ok(Box::new(MemoryWriter { space, shard, bytes_max, bytes: Vec::new(), replaces, writes }))
    }
}

impl Space {
    fn shards(&self) -> MutexGuard<'_, BTreeMap<ShardName, Arc<Vec<u8>>>> {
        self.shards.lock()
    }

    fn free_bytes(&self) -> u64 {
        let used: u64 = self.shards().values().map(|bytes| bytes.len() as u64).sum();
        self.total_bytes.saturating_sub(used)
    }

    fn check_room(&self, bytes: u64) -> Result<()> {
        let free = self.free_bytes();
        if bytes <= free {
            return Ok(());
        }
        Err(Error::full(format!("{bytes} bytes do not fit into {PLACE}: {free} are free")))
    }
}

impl Target for MemoryTarget {
    fn describe(&self) -> String {
        PLACE.to_owned()
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        if self.0.shards().contains_key(&shard) {
            return Err(exists(PLACE, shard));
        }
        self.begin(shard, bytes_max, false)
    }

    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.begin(shard, bytes_max, true)
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        let bytes = self.0.shards().get(&shard).cloned();
        ranges
            .into_iter()
            .map(|range| Ticket::done(read(PLACE, shard, bytes.as_deref(), range)))
            .collect()
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        let shards = self.0.shards();
        shards.get(&shard).map(|bytes| bytes.len() as u64).ok_or_else(|| missing(PLACE, shard))
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        Ok(self.0.shards().keys().copied().collect())
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.0.shards().remove(&shard);
        Ok(())
    }

    fn capacity(&self) -> Result<Capacity> {
        Ok(Capacity { total_bytes: self.0.total_bytes, free_bytes: self.0.free_bytes() })
    }
}

/// Copies a range of a shard held in memory into its buffer.
pub(crate) fn read(
    place: &str,
    shard: ShardName,
    bytes: Option<&Vec<u8>>,
    mut range: ReadRange,
) -> OperationResult<AlignedBuf, AlignedBuf> {
    let wanted = check_range(shard, &range).and_then(|()| {
        let bytes = bytes.ok_or_else(|| missing(place, shard))?;
        let start = usize::try_from(range.offset).unwrap_or(usize::MAX);
        let wanted = bytes.get(start..).and_then(|rest| rest.get(..range.buffer.len()));
        wanted.ok_or_else(|| short(place, shard, &range, bytes.len() as u64))
    });
    match wanted {
        Ok(wanted) => {
            range.buffer.copy_from_slice(wanted);
            Ok(range.buffer)
        }
        Err(error) => Err(Fault { error, buffer: range.buffer }),
    }
}

/// Puts bytes into a growing shard, and zeros into a gap before them.
pub(crate) fn put(shard: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let start = usize::try_from(offset).expect("the shard's size was checked, and is in memory");
    let end = start + bytes.len();
    if shard.len() < end {
        shard.resize(end, 0);
    }
    shard[start..end].copy_from_slice(bytes);
}

struct MemoryWriter {
    space: Arc<Space>,
    shard: ShardName,
    bytes_max: u64,
    bytes: Vec<u8>,
    /// Whether the shard replaces a finished one.
    replaces: bool,
    writes: Arc<Writes>,
}

impl ShardWriter for MemoryWriter {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket {
        let writing = self.writes.begin(offset);
        let checked = check_write(self.shard, offset, &bytes, self.bytes_max);
        if checked.is_ok() {
            put(&mut self.bytes, offset, &bytes);
        }
        Ticket::done(writing.end(checked, bytes))
    }

    fn finish(mut self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        let checked = self
            .writes
            .check(self.shard)
            .and_then(|()| check_finish(self.shard, length, self.bytes_max))
            .and_then(|()| self.space.check_room(length));
        Ticket::done(checked.and_then(|()| {
            self.bytes.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
            let mut shards = self.space.shards();
            if !self.replaces && shards.contains_key(&self.shard) {
                return Err(exists(PLACE, self.shard));
            }
            shards.insert(self.shard, Arc::new(std::mem::take(&mut self.bytes)));
            Ok(())
        }))
    }
}
