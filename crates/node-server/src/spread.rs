//! Several locations of a node as one target: each shard is whole in one of them.

use outlive_backend::writes::missing;
use outlive_backend::{Capacity, Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target};
use outlive_io::Ticket;
use outlive_types::sync::plain::Mutex;
use outlive_types::{ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Several targets, as one.
#[derive(Debug)]
pub(crate) struct SpreadTarget {
    targets: Vec<Arc<dyn Target>>,
    /// The target that has a finished shard, as far as this node has looked.
    found: Mutex<BTreeMap<ShardName, usize>>,
    /// The target where a shard was begun.
    begun: Mutex<BTreeMap<ShardName, usize>>,
    next: Mutex<usize>,
}

/// Most shards that are known to be begun. Beyond it, abandoned ones are forgotten.
const BEGUN_MAX: usize = 8192;
/// Free space that a target should have beyond a new shard.
const ROOM_BYTES: u64 = 64 << 20;

impl SpreadTarget {
    /// Looks which target has which shards.
    ///
    /// # Errors
    /// Errors of the targets.
    pub(crate) fn open(targets: Vec<Arc<dyn Target>>) -> Result<SpreadTarget> {
        let mut found = BTreeMap::new();
        for (number, target) in targets.iter().enumerate() {
            found.extend(target.list()?.into_iter().map(|shard| (shard, number)));
        }
        Ok(SpreadTarget {
            targets,
            found: Mutex::new(found),
            begun: Mutex::default(),
            next: Mutex::default(),
        })
    }

    fn holder(&self, shard: ShardName) -> Option<usize> {
        self.found.lock().get(&shard).copied()
    }

    /// Looks again for a shard of which this node does not know.
    fn find(&self, shard: ShardName) -> Result<usize> {
        if let Some(known) = self.holder(shard) {
            return Ok(known);
        }
        for (number, target) in self.targets.iter().enumerate() {
            match target.length(shard) {
                Ok(_) => {
                    self.begun.lock().remove(&shard);
                    self.found.lock().insert(shard, number);
                    return Ok(number);
                }
                Err(error) if error.kind() == ErrorKind::Damaged => {}
                Err(error) => return Err(error),
            }
        }
        Err(missing(&self.describe(), shard))
    }

    fn each<T>(&self, work: impl Fn(&Arc<dyn Target>) -> Result<T>) -> Result<Vec<T>> {
        self.targets.iter().map(work).collect()
    }

    /// Begins a shard that is not finished anywhere: where it was begun before, or where there is
    /// room. The targets take turns.
    fn begin(
        &self,
        shard: ShardName,
        bytes_max: u64,
        begin: impl Fn(&dyn Target) -> Result<Box<dyn ShardWriter>>,
    ) -> Result<Box<dyn ShardWriter>> {
        let count = self.targets.len();
        let first = {
            let mut next = self.next.lock();
            *next += 1;
            *next
        };
        let before = self.begun.lock().get(&shard).copied();
        let mut choices: Vec<usize> = (first..first + count).map(|it| it % count).collect();
        let room = |number: usize| {
            let free = self.targets[number].capacity().map_or(0, |it| it.free_bytes);
            (free < bytes_max.saturating_add(ROOM_BYTES), free < bytes_max)
        };
        choices.sort_by_key(|number| (room(*number), before != Some(*number)));
        let mut full = None;
        for number in choices {
            match begin(&*self.targets[number]) {
                Ok(writer) => {
                    if let Some(before) = before.filter(|before| *before != number) {
                        // Only one of two writers may finish.
                        self.targets[before].delete_unfinished(shard)?;
                    }
                    let mut begun = self.begun.lock();
                    if begun.len() >= BEGUN_MAX {
                        begun.clear();
                    }
                    begun.insert(shard, number);
                    return Ok(writer);
                }
                Err(error) if error.kind() == ErrorKind::Full => full = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(full.unwrap_or_else(|| missing(&self.describe(), shard)))
    }
}

impl Target for SpreadTarget {
    fn describe(&self) -> String {
        let names: Vec<String> = self.targets.iter().map(|target| target.describe()).collect();
        names.join(", ")
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        match self.find(shard) {
            // It is refused there.
            Ok(number) => self.targets[number].create(shard, bytes_max),
            Err(error) if error.kind() == ErrorKind::Damaged => {
                self.begin(shard, bytes_max, |target| target.create(shard, bytes_max))
            }
            Err(error) => Err(error),
        }
    }

    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        match self.find(shard) {
            Ok(number) => self.targets[number].replace(shard, bytes_max),
            Err(error) if error.kind() == ErrorKind::Damaged => {
                self.begin(shard, bytes_max, |target| target.replace(shard, bytes_max))
            }
            Err(error) => Err(error),
        }
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        match self.find(shard) {
            Ok(number) => self.targets[number].read_ranges(shard, ranges),
            Err(error) => ranges
                .into_iter()
                .map(|range| {
                    Ticket::done(Err(Fault { error: error.clone(), buffer: range.buffer }))
                })
                .collect(),
        }
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        self.targets[self.find(shard)?].length(shard)
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        let all: BTreeSet<ShardName> =
            self.each(|target| target.list())?.into_iter().flatten().collect();
        Ok(all.into_iter().collect())
    }

    fn sync(&self, shards: &[ShardName]) -> Result<()> {
        for (number, target) in self.targets.iter().enumerate() {
            let here: Vec<ShardName> =
                shards.iter().filter(|it| self.find(**it).ok() == Some(number)).copied().collect();
            if !here.is_empty() {
                target.sync(&here)?;
            }
        }
        Ok(())
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        let all: BTreeSet<ShardName> =
            self.each(|target| target.unfinished())?.into_iter().flatten().collect();
        Ok(all.into_iter().collect())
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        self.each(|target| target.delete_unfinished(shard)).map(drop)
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.each(|target| target.delete(shard))?;
        self.found.lock().remove(&shard);
        self.begun.lock().remove(&shard);
        Ok(())
    }

    fn capacity(&self) -> Result<Capacity> {
        let mut sum = Capacity { total_bytes: 0, free_bytes: 0 };
        for one in self.each(|target| target.capacity())? {
            sum.total_bytes = sum.total_bytes.saturating_add(one.total_bytes);
            sum.free_bytes = sum.free_bytes.saturating_add(one.free_bytes);
        }
        Ok(sum)
    }

    fn make_reserve(&self, bytes: u64) -> Result<()> {
        let share = bytes / self.targets.len() as u64;
        self.each(|target| target.make_reserve(share)).map(drop)
    }

    fn delete_reserve(&self) -> Result<u64> {
        Ok(self.each(|target| target.delete_reserve())?.into_iter().sum())
    }

    fn close_files(&self, all: bool) {
        self.targets.iter().for_each(|target| target.close_files(all));
    }

    fn freshen(&self, shards: &[ShardName]) -> Result<()> {
        self.each(|target| target.freshen(shards)).map(drop)
    }
}
