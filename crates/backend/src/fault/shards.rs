//! The target of a [`FaultWorld`].

use super::{CutMode, FaultWorld, Kept, Owner, Part, Step, World};
use crate::memory::{put, read};
use crate::writes::{Writes, check_finish, check_write, exists, missing};
use crate::{Capacity, Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target, WriteTicket};
use outlive_io::{SharedBuf, Ticket};
use outlive_types::sync::pause;
use outlive_types::{Error, Result};
use std::sync::Arc;

const PLACE: &str = "the simulated target";

#[derive(Debug)]
pub(super) struct FaultTarget {
    pub(super) world: FaultWorld,
    pub(super) owner: Owner,
    /// Number of the target in its world.
    pub(super) number: usize,
}

impl FaultTarget {
    /// Returns a finished shard of this target.
    fn kept<'a>(&self, world: &'a World, shard: ShardName) -> Option<&'a Kept> {
        world.shards.get(&(self.number, shard))
    }

    fn forget_part(&self, world: &mut World, shard: ShardName) {
        world.parts.remove(&(self.number, shard));
    }

    /// Begins a part, which replaces another one of that name.
    fn begin(
        &self,
        world: &mut World,
        shard: ShardName,
        bytes_max: u64,
        replaces: bool,
    ) -> FaultWriter {
        world.parts_begun += 1;
        let part = Part { number: world.parts_begun, bytes: Vec::new() };
        world.parts.insert((self.number, shard), part);
        FaultWriter {
            on: self.number,
            world: self.world.clone(),
            owner: self.owner.clone(),
            shard,
            part: world.parts_begun,
            bytes_max,
            replaces,
            is_late: false,
            writes: Arc::default(),
        }
    }
}

impl Target for FaultTarget {
    fn describe(&self) -> String {
        PLACE.to_owned()
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        let mut world = self.world.lock();
        let step = world.target_step(&self.owner, self.number, || format!("create {shard}"));
        world.end(step)?;
        if self.kept(&world, shard).is_some() {
            return Err(exists(PLACE, shard));
        }
        Ok(Box::new(self.begin(&mut world, shard, bytes_max, false)))
    }

    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        let mut world = self.world.lock();
        let step = world.target_step(&self.owner, self.number, || format!("replace {shard}"));
        world.end(step)?;
        Ok(Box::new(self.begin(&mut world, shard, bytes_max, true)))
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        let one = |range: ReadRange| {
            let mut world = self.world.lock();
            let what = || format!("read {shard} at {}", range.offset);
            if let Err(error) = world.target_read_step(&self.owner, self.number, what) {
                return Err(Fault { error, buffer: range.buffer });
            }
            let bytes = self.kept(&world, shard).map(|kept| kept.bytes.clone());
            drop(world);
            read(PLACE, shard, bytes.as_deref(), range)
        };
        ranges.into_iter().map(|range| Ticket::done(one(range))).collect()
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        let mut world = self.world.lock();
        world.target_read_step(&self.owner, self.number, || format!("length of {shard}"))?;
        let kept = self.kept(&world, shard).ok_or_else(|| missing(PLACE, shard))?;
        Ok(kept.bytes.len() as u64)
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        let mut world = self.world.lock();
        let what = || format!("list shards of target {}", self.number);
        world.target_read_step(&self.owner, self.number, what)?;
        let mine = world.shards.keys().filter(|(on, _)| *on == self.number);
        Ok(mine.map(|(_, shard)| *shard).collect())
    }

    fn sync(&self, shards: &[ShardName]) -> Result<()> {
        let mut world = self.world.lock();
        let step = world.target_step(&self.owner, self.number, || "sync shards".to_owned());
        if step.takes_effect() {
            for shard in shards {
                if let Some(kept) = world.shards.get_mut(&(self.number, *shard)) {
                    kept.make_durable();
                }
            }
        }
        world.end(step)
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        let mut world = self.world.lock();
        world.target_read_step(&self.owner, self.number, || "list unfinished shards".to_owned())?;
        let mine = world.parts.keys().filter(|(on, _)| *on == self.number);
        Ok(mine.map(|(_, shard)| *shard).collect())
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        let mut world = self.world.lock();
        let (number, name) = (self.number, || format!("delete {shard} unless it is finished"));
        world.delay((&self.owner, number), name, None, move |world| {
            world.parts.remove(&(number, shard));
        })?;
        let step = world.target_step(&self.owner, self.number, || {
            format!("delete {shard} unless it is finished")
        });
        if step.takes_effect() {
            self.forget_part(&mut world, shard);
        }
        world.end(step)
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        let mut world = self.world.lock();
        let (number, name) = (self.number, || format!("delete {shard}"));
        world.delay((&self.owner, number), name, Some(shard), move |world| {
            world.shards.remove(&(number, shard));
            world.parts.remove(&(number, shard));
        })?;
        let step = world.target_step(&self.owner, self.number, || format!("delete {shard}"));
        if step.takes_effect() {
            world.shards.remove(&(self.number, shard));
            self.forget_part(&mut world, shard);
        }
        world.end(step)
    }

    fn capacity(&self) -> Result<Capacity> {
        let mut world = self.world.lock();
        world.target_read_step(&self.owner, self.number, || "capacity".to_owned())?;
        Ok(Capacity { total_bytes: u64::MAX, free_bytes: u64::MAX })
    }
}

impl World {
    /// Removes and returns a writer's part, if it is still there.
    fn take_part(&mut self, key: (usize, ShardName), part: u64) -> Option<Part> {
        let is_there = self.parts.get(&key).is_some_and(|there| there.number == part);
        if is_there { self.parts.remove(&key) } else { None }
    }

    /// Makes the shard of a writer's part visible.
    fn show_part(
        &mut self,
        key: (usize, ShardName),
        part: u64,
        replaces: bool,
        length: u64,
    ) -> Result<()> {
        let shard = key.1;
        if !replaces && self.shards.contains_key(&key) {
            return Err(exists(PLACE, shard));
        }
        let gone = || Error::retry(format!("shard {shard} was deleted while it was written"));
        let mut bytes = self.take_part(key, part).ok_or_else(gone)?.bytes;
        bytes.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
        let before = self.shards.remove(&key);
        self.shards.insert(key, Kept { part, ..Kept::visible(bytes, before) });
        Ok(())
    }
}

struct FaultWriter {
    on: usize,
    world: FaultWorld,
    owner: Owner,
    shard: ShardName,
    /// Number of the writer's part.
    part: u64,
    bytes_max: u64,
    /// Whether the shard replaces a finished one.
    replaces: bool,
    /// Whether its finish was given up, and happens later.
    is_late: bool,
    writes: Arc<Writes>,
}

impl FaultWriter {
    fn write_step(&self, world: &mut World, offset: u64, bytes: &[u8]) -> Result<()> {
        let shard = self.shard;
        let step = world.target_step(&self.owner, self.on, || format!("write {shard} at {offset}"));
        let effect = match step {
            Step::Go | Step::Cut(CutMode::Kept) => bytes,
            Step::Cut(CutMode::Torn) => &bytes[..bytes.len() / 2],
            _ => &[],
        };
        if let Some(part) = world.parts.get_mut(&(self.on, shard)).filter(|it| self.is_mine(it)) {
            put(&mut part.bytes, offset, effect);
        }
        world.end(step)
    }

    /// Whether the part is this writer's: no writer has begun another part of the shard since.
    fn is_mine(&self, part: &Part) -> bool {
        part.number == self.part
    }

    /// Keeps the whole finish for later, if the target is slow.
    fn delay(&mut self, length: u64) -> Result<()> {
        let (on, shard, number, replaces) = (self.on, self.shard, self.part, self.replaces);
        let name = || format!("finish {shard}");
        let mut world = self.world.lock();
        let delayed = world.delay((&self.owner, on), name, None, move |world| {
            let key = (on, shard);
            match world.show_part(key, number, replaces, length) {
                Ok(()) => drop(world.shards.entry(key).and_modify(Kept::make_durable)),
                // As when a writer is dropped.
                Err(_) => drop(world.take_part(key, number)),
            }
        });
        drop(world);
        self.is_late = delayed.is_err();
        delayed
    }

    /// Makes the shard visible: its bytes are durable then, but its name is not.
    fn show(&self, world: &mut World, length: u64) -> Result<()> {
        let shard = self.shard;
        let step =
            world.target_step(&self.owner, self.on, || format!("finish {shard}: make it visible"));
        if step.takes_effect() {
            world.show_part((self.on, shard), self.part, self.replaces, length)?;
        }
        world.end(step)
    }

    fn sync(&self, world: &mut World) -> Result<()> {
        let shard = self.shard;
        let step =
            world.target_step(&self.owner, self.on, || format!("finish {shard}: make it durable"));
        match step {
            Step::Go => {
                if let Some(one) = world.shards.get_mut(&(self.on, shard)) {
                    one.make_durable();
                }
            }
            // A shard that replaced another one is all that is left. And another writer may have
            // replaced this one.
            Step::Fail(_) if !self.replaces && world.alive(&self.owner).is_ok() => {
                let key = (self.on, shard);
                if world.shards.get(&key).is_some_and(|kept| kept.part == self.part) {
                    world.shards.remove(&key);
                }
            }
            _ => {}
        }
        world.end(step)
    }

    /// Removes the part after a failed or missing finish, if the machine still runs.
    fn clean(&self, world: &mut World) {
        if !self.is_late && world.alive(&self.owner).is_ok() {
            world.take_part((self.on, self.shard), self.part);
        }
    }
}

impl ShardWriter for FaultWriter {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket {
        let writing = self.writes.begin(offset);
        let outcome = check_write(self.shard, offset, &bytes, self.bytes_max)
            .and_then(|()| self.write_step(&mut self.world.lock(), offset, &bytes));
        Ticket::done(writing.end(outcome, bytes))
    }

    fn finish(mut self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        let outcome = self
            .writes
            .check(self.shard)
            .and_then(|()| check_finish(self.shard, length, self.bytes_max))
            .and_then(|()| self.delay(length))
            .and_then(|()| self.show(&mut self.world.lock(), length))
            .and_then(|()| {
                pause("make the shard durable");
                self.sync(&mut self.world.lock())
            });
        Ticket::done(outcome) // and dropping `self` removes the rest of the part
    }
}

impl Drop for FaultWriter {
    fn drop(&mut self) {
        self.clean(&mut self.world.lock());
    }
}
