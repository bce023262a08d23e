//! A watched target.

use super::{TargetWatch, Work};
use crate::{Capacity, Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target, WriteTicket};
use outlive_io::{AlignedBuf, SharedBuf, Ticket};
use outlive_types::{Error, Result};
use std::process;
use std::sync::Arc;

/// A target that is left alone while it does not answer. No call waits longer than its
/// [`TargetWatch`] allows, except deletions.
///
/// Starting a write, a finish or a read must not wait; the started operation may hang. `delete` and
/// `delete_unfinished` fail while the target is silent, and otherwise wait as long as they take.
/// The caller must not go on during a deletion: a late one might delete a shard that was stored
/// again meanwhile.
#[derive(Debug)]
pub struct WatchedTarget {
    inner: Arc<dyn Target>,
    watch: Arc<TargetWatch>,
}

impl WatchedTarget {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Target>, watch: Arc<TargetWatch>) -> WatchedTarget {
        WatchedTarget { inner, watch }
    }

    fn ask<T: Send + 'static>(
        &self,
        work: Work,
        question: impl FnOnce(&dyn Target) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = self.inner.clone();
        self.watch.ask(work, move || question(&*inner))
    }

    fn writer(&self, inner: Box<dyn ShardWriter>) -> Box<dyn ShardWriter> {
        Box::new(WatchedWriter {
            inner: Some(inner),
            watch: self.watch.clone(),
            pid: process::id(),
        })
    }

    fn refuse_if_silent(&self) -> Result<()> {
        self.watch.silent().map_or(Ok(()), Err)
    }
}

impl Target for WatchedTarget {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        // A writer that comes too late is dropped, which removes its unfinished shard.
        self.ask(Work::Question, move |target| target.create(shard, bytes_max))
            .map(|inner| self.writer(inner))
    }

    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.ask(Work::Question, move |target| target.replace(shard, bytes_max))
            .map(|inner| self.writer(inner))
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        if let Some(error) = self.watch.silent() {
            let refused = |range: ReadRange| {
                Ticket::done(Err(Fault { error: error.clone(), buffer: range.buffer }))
            };
            return ranges.into_iter().map(refused).collect();
        }
        let holds: Vec<_> = ranges.iter().map(|range| range.buffer.hold()).collect();
        let follow = |(begun, hold): (ReadTicket, outlive_io::WeakBuffer)| {
            let given_up = move |error| {
                // The hanging read keeps the buffer.
                hold.write_off();
                Err(Fault { error, buffer: AlignedBuf::zeroed(0) })
            };
            self.watch.follow(Work::Read, begun, given_up, |_| false)
        };
        self.inner.read_ranges(shard, ranges).into_iter().zip(holds).map(follow).collect()
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        self.ask(Work::Question, move |target| target.length(shard))
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        self.ask(Work::Listing, |target| target.list())
    }

    fn sync(&self, shards: &[ShardName]) -> Result<()> {
        let shards = shards.to_vec();
        self.ask(Work::Listing, move |target| target.sync(&shards))
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        self.ask(Work::Listing, |target| target.unfinished())
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        self.refuse_if_silent()?;
        self.inner.delete_unfinished(shard)
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.refuse_if_silent()?;
        self.inner.delete(shard)
    }

    fn capacity(&self) -> Result<Capacity> {
        self.ask(Work::Question, |target| target.capacity())
    }

    fn make_reserve(&self, bytes: u64) -> Result<()> {
        self.ask(Work::Question, move |target| target.make_reserve(bytes))
    }

    fn delete_reserve(&self) -> Result<u64> {
        self.ask(Work::Question, |target| target.delete_reserve())
    }

    fn freshen(&self, shards: &[ShardName]) -> Result<()> {
        let shards = shards.to_vec();
        self.ask(Work::Listing, move |target| target.freshen(&shards))
    }

    fn close_files(&self, all: bool) {
        let close = move |target: &dyn Target| {
            target.close_files(all);
            Ok(())
        };
        // A silent target closes its files later.
        let _ = self.ask(Work::Question, close);
    }
}

/// A writer that is given up with its target.
struct WatchedWriter {
    inner: Option<Box<dyn ShardWriter>>,
    watch: Arc<TargetWatch>,
    // The threads that could wait for it belong to the process that began it.
    pid: u32,
}

impl ShardWriter for WatchedWriter {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket {
        let error = match (self.watch.silent(), &mut self.inner) {
            (None, Some(inner)) => {
                let kept = bytes.clone();
                let begun = inner.write(offset, bytes);
                let given_up = move |error| {
                    // The hanging write keeps the buffer, too.
                    kept.hold().write_off();
                    Err(Fault { error, buffer: kept })
                };
                return self.watch.follow(Work::Write, begun, given_up, |_| false);
            }
            (Some(silent), _) => silent,
            (None, None) => Error::bug("a write behind the end of a shard"),
        };
        Ticket::done(Err(Fault { error, buffer: bytes }))
    }

    fn finish(mut self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        if let Some(silent) = self.watch.silent() {
            return Ticket::done(Err(silent)); // dropping the writer abandons the shard
        }
        match self.inner.take() {
            // The finish may succeed after it was given up: see docs/faults.md.
            Some(inner) => self.watch.follow(Work::Write, inner.finish(length), Err, |_| false),
            None => Ticket::done(Err(Error::bug("a shard is finished twice"))),
        }
    }
}

impl Drop for WatchedWriter {
    /// Abandons the shard. That may call the target, so it may hang.
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        if process::id() != self.pid {
            return drop(inner);
        }
        match self.watch.silent() {
            Some(_) => self.watch.send_off(move || drop(inner)),
            None => {
                let abandon = move || {
                    drop(inner);
                    Ok(())
                };
                let _ = self.watch.ask(Work::Question, abandon);
            }
        }
    }
}
