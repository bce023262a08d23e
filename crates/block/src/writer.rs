//! Writing one shard into its space.

use crate::locks::Guard;
use crate::slot::{Name, Slot, State};
use crate::space::{Change, Space, cut};
use outlive_backend::writes::{Writes, check_finish, check_write, exists};
use outlive_backend::{ShardName, ShardWriter, WriteTicket};
use outlive_io::{OwnEngine, SharedBuf, Ticket};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use std::process;
use std::sync::Arc;

/// A shard being written.
pub(crate) struct BlockWriter {
    part: Arc<Part>,
    writes: Arc<Writes>,
    is_finishing: bool,
    // A forked child that drops an inherited writer must leave the slot to its parent.
    process: u32,
}

/// Its slot and space.
pub(crate) struct Part {
    pub space: Arc<Space>,
    pub engine: Arc<OwnEngine>,
    pub shard: ShardName,
    pub bytes_max: u64,
    pub replaces: bool,
    pub number: u32,
    /// The slot as this writer wrote it last. It gets more space with the writes.
    pub slot: Mutex<Slot>,
    /// The lock of the slot. No other shard gets the space while it is held, so it is held until
    /// the last write has ended.
    pub _guard: Guard,
}

impl BlockWriter {
    pub(crate) fn new(part: Part) -> BlockWriter {
        let (part, writes) = (Arc::new(part), Arc::default());
        BlockWriter { part, writes, is_finishing: false, process: process::id() }
    }

    /// Does `last` after the last write, in a thread of the engine.
    fn after_all(&self, last: impl FnOnce() + Send + 'static) {
        let engine = self.part.engine.clone();
        self.writes.after_all(move || drop(engine.submit(last)));
    }
}

impl ShardWriter for BlockWriter {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket {
        let writing = self.writes.begin(offset);
        let part = self.part.clone();
        if let Err(error) = check_write(part.shard, offset, &bytes, part.bytes_max) {
            return Ticket::done(writing.end(Err(error), bytes));
        }
        self.part.engine.submit(move || {
            let outcome = part.write(offset, &bytes);
            writing.end(outcome, bytes)
        })
    }

    fn finish(mut self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        self.is_finishing = true;
        let (part, writes) = (self.part.clone(), self.writes.clone());
        let shard = self.part.shard;
        let (promise, ticket) = Ticket::pair_or(move || {
            Err(Error::bug(format!("finishing shard {shard} was given up")))
        });
        self.after_all(move || {
            let outcome = writes.check(part.shard).and_then(|()| part.publish(length));
            if outcome.is_err() {
                part.abandon();
            }
            drop(part);
            promise.fulfil(outcome);
        });
        ticket
    }
}

impl Part {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut from = 0;
        for (at, length) in self.pieces(offset, bytes.len() as u64)? {
            let to = from + length as usize;
            self.space.device.write(at, &bytes[from..to])?;
            from = to;
        }
        Ok(())
    }

    /// Returns the pieces of the device for a range of the shard.
    fn pieces(&self, offset: u64, length: u64) -> Result<Vec<(u64, u64)>> {
        let mut slot = self.slot.lock();
        if slot.room_bytes() < offset + length {
            *slot = self.space.change(|change| {
                self.check_there(change, &slot)?;
                change.extend(self.number, &slot, offset + length)
            })?;
        }
        Ok(self.space.pieces(&slot.extents, offset, length))
    }

    /// Checks that no gc and no other writer has removed the unfinished shard.
    fn check_there(&self, change: &Change<'_>, slot: &Slot) -> Result<()> {
        match change.table().slot(self.number).sequence == slot.sequence {
            true => Ok(()),
            false => Err(Error::retry(format!(
                "shard {} was removed before it was finished: a gc does that when its writer was \
                 fenced, or seemed to be gone; if it was not fenced, try again",
                self.shard
            ))),
        }
    }

    /// Makes the bytes durable, then the shard visible.
    fn publish(&self, length: u64) -> Result<()> {
        check_finish(self.shard, length, self.bytes_max)?;
        self.space.device.flush()?;
        let slot = self.slot.lock();
        self.space.change(|change| {
            self.check_there(change, &slot)?;
            let name = Name::Shard(self.shard);
            let old = change.table().find(&name, State::Shard).map(|(number, _)| number);
            if old.is_some() && !self.replaces {
                return Err(exists(&self.space.device.describe(), self.shard));
            }
            let (extents, rest) = cut(&slot.extents, length);
            let sequence = change.next_sequence();
            let state = State::Shard;
            let slot = Slot { sequence, state, name, bytes: length, checksum: 0, extents };
            change.write(vec![(self.number, slot)])?;
            self.space.discard(&rest);
            // Only now: after a power cut the old shard or the new one is there.
            change.free(&Vec::from_iter(old))
        })
    }

    /// Hides the shard while writes may be in flight.
    fn condemn(&self) {
        let _ = self.space.change(|change| {
            let now = change.table().slot(self.number);
            let is_ours = now.name == Name::Shard(self.shard) && now.state == State::Unfinished;
            if is_ours { change.give_up(&[self.number]) } else { Ok(()) }
        });
    }

    /// Frees the slot. No other writer can have it while this one holds its lock. If that fails, the
    /// slot is garbage for a gc.
    fn abandon(&self) {
        let _ = self.space.change(|change| {
            let now = change.table().slot(self.number);
            let is_ours = now.name == Name::Shard(self.shard);
            // A finish that failed late may have made the shard visible. One that replaces another
            // stays: the other one may be gone.
            match is_ours && !(self.replaces && now.state == State::Shard) {
                true => change.free(&[self.number]),
                false => Ok(()),
            }
        });
    }
}

impl Drop for BlockWriter {
    fn drop(&mut self) {
        if !self.is_finishing && process::id() == self.process {
            let part = self.part.clone();
            part.condemn();
            self.after_all(move || part.abandon());
        }
    }
}
