//! Target and log as one program sees them. For a program, each operation is a moment at which
//! others may run, and the operation may fail. The checks at the end are not disturbed, and their
//! reads are noted.

use crate::chance::Lie;
use crate::leases::Holder;
use crate::scheduler::{mortal, noticing};
use crate::world::{Me, is_mail, killed};
use outlive_backend::{
    Capacity, Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target, WriteTicket, read_one,
};
use outlive_format::{Body, Envelope, Record, SaveMessage};
use outlive_io::{AlignedBuf, SharedBuf, Ticket};
use outlive_log::{Append, Lease, Lock, LockGuard, LogLocks, ManifestLog, Previous};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, JobName, PackId, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns the target as a program sees it.
pub(crate) fn seen(target: Arc<dyn Target>, me: &Arc<Me>) -> Arc<dyn Target> {
    Arc::new(SeenTarget { inner: target, eyes: Eyes::Program(me.clone()) })
}

/// Returns the log as a program sees it.
pub(crate) fn seen_log(log: Arc<dyn ManifestLog>, me: &Arc<Me>) -> Arc<dyn ManifestLog> {
    Arc::new(SeenLog { inner: log, me: me.clone() })
}

/// Returns a target that notes the packs that are read.
pub(crate) fn noted(
    target: Arc<dyn Target>,
    read: &Arc<Mutex<BTreeSet<PackId>>>,
) -> Arc<dyn Target> {
    Arc::new(SeenTarget { inner: target, eyes: Eyes::Afterwards(read.clone()) })
}

/// The viewer.
#[derive(Clone, Debug)]
enum Eyes {
    Program(Arc<Me>),
    /// A check after the end, and the packs that it has read.
    Afterwards(Arc<Mutex<BTreeSet<PackId>>>),
}

impl Eyes {
    fn step<T>(
        &self,
        what: impl FnOnce() -> String,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match self {
            Eyes::Program(me) => me.step(what, work),
            Eyes::Afterwards(_) => work(),
        }
    }

    fn reads(&self, shard: ShardName) {
        if let Eyes::Afterwards(read) = self {
            read.lock().insert(shard.pack);
        }
    }

    /// May flip a bit of a finished shard.
    fn finished(&self, shard: ShardName, length: u64) {
        let Eyes::Program(me) = self else { return };
        let dice = &me.pool_world.dice;
        if dice.has(dice.chances().flip_shard) {
            let offset = dice.rng.below(length);
            // Another program may have deleted the shard meanwhile.
            let stored = me.pool_world.world.stored();
            if !stored.iter().any(|(_, there, _)| *there == shard) {
                return;
            }
            dice.turns().remark(|| format!("a bit of {shard} is flipped at {offset}"));
            me.pool_world.oracle.is_flipped();
            me.pool_world.world.corrupt(shard, offset, 1 << dice.rng.below(8));
        }
    }
}

#[derive(Debug)]
struct SeenTarget {
    inner: Arc<dyn Target>,
    eyes: Eyes,
}

impl Target for SeenTarget {
    fn describe(&self) -> String {
        match &self.eyes {
            Eyes::Program(me) => format!("the simulated target {}", me.pool_world.name),
            Eyes::Afterwards(_) => self.inner.describe(),
        }
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        let writer =
            self.eyes.step(|| format!("create {shard}"), || self.inner.create(shard, bytes_max))?;
        Ok(Box::new(SeenWriter { inner: writer, shard, eyes: self.eyes.clone() }))
    }

    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        let writer = self
            .eyes
            .step(|| format!("replace {shard}"), || self.inner.replace(shard, bytes_max))?;
        Ok(Box::new(SeenWriter { inner: writer, shard, eyes: self.eyes.clone() }))
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        self.eyes.reads(shard);
        let one = |range: ReadRange| {
            let what = format!("read {shard} at {}", range.offset);
            let offset = range.offset;
            // The step may take the buffer; it comes back whether the step succeeds or not.
            let mut buffer = Some(range.buffer);
            let stepped = self.eyes.step(
                || what,
                || {
                    let given = buffer.take().ok_or_else(|| Error::bug("a step taken twice"))?;
                    let range = ReadRange::new(offset, given);
                    match read_one(&*self.inner, shard, range).wait() {
                        Ok(filled) => {
                            buffer = Some(filled);
                            Ok(())
                        }
                        Err(fault) => {
                            buffer = Some(fault.buffer);
                            Err(fault.error)
                        }
                    }
                },
            );
            let buffer = buffer.unwrap_or_else(|| AlignedBuf::zeroed(0));
            Ticket::done(match stepped {
                Ok(()) => Ok(buffer),
                Err(error) => Err(Fault { error, buffer }),
            })
        };
        ranges.into_iter().map(one).collect()
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        self.eyes.step(|| format!("length of {shard}"), || self.inner.length(shard))
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        self.eyes.step(|| "list shards".to_owned(), || self.inner.list())
    }

    fn sync(&self, shards: &[ShardName]) -> Result<()> {
        self.eyes.step(|| "make shards durable".to_owned(), || self.inner.sync(shards))
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        self.eyes.step(|| "list unfinished shards".to_owned(), || self.inner.unfinished())
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        self.eyes.step(
            || format!("delete {shard} unless it is finished"),
            || self.inner.delete_unfinished(shard),
        )
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.eyes.step(|| format!("delete {shard}"), || self.inner.delete(shard))
    }

    fn capacity(&self) -> Result<Capacity> {
        self.inner.capacity()
    }

    fn close_files(&self, all: bool) {
        self.inner.close_files(all);
    }
}

struct SeenWriter {
    inner: Box<dyn ShardWriter>,
    shard: ShardName,
    eyes: Eyes,
}

impl ShardWriter for SeenWriter {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket {
        // No program sees the bytes of an unfinished part, so no step is needed here.
        self.inner.write(offset, bytes)
    }

    fn finish(self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        let SeenWriter { inner, shard, eyes } = *self;
        let finished = eyes.step(|| format!("finish {shard}"), || inner.finish(length).wait());
        if finished.is_ok() {
            eyes.finished(shard, length);
        }
        // A disk does it at once, or only when a thread waits for it.
        Ticket::done(finished)
    }
}

#[derive(Debug)]
struct SeenLog {
    inner: Arc<dyn ManifestLog>,
    me: Arc<Me>,
}

impl ManifestLog for SeenLog {
    fn describe(&self) -> String {
        format!("the simulated log {}", self.me.pool_world.name)
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.me.step(|| "list jobs".to_owned(), || self.inner.jobs())
    }

    fn numbers(&self, job: &JobName) -> Result<Vec<u64>> {
        self.me.step(|| format!("list records of {job}"), || self.inner.numbers(job))
    }

    fn latest(&self, job: &JobName) -> Result<u64> {
        self.me.step(|| format!("newest record of {job}"), || self.inner.latest(job))
    }

    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>> {
        self.me.step(
            || format!("read record {number} of {job}"),
            || {
                let dice = &self.me.pool_world.dice;
                if dice.has(dice.chances().unreadable) {
                    dice.turns().remark(|| "this program can never read this record".to_owned());
                    self.me.hide(self.me.number, job, number);
                }
                match self.me.sees(job, number) {
                    true if *job == JobName::targets() => {
                        let read = self.inner.read(job, number);
                        read.inspect(|record| self.me.pool_world.table_is_seen(record))
                    }
                    true => self.inner.read(job, number).map(|bytes| self.lie_of(bytes)),
                    false => Err(Error::retry("simulated: permission denied")),
                }
            },
        )
    }

    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append> {
        let number = previous.number + 1;
        self.me.step(
            || format!("append record {number} to {job}"),
            || {
                let pool_world = &self.me.pool_world;
                if *job == JobName::targets() {
                    let appended = self.alive(|| self.inner.append_if(job, previous, record));
                    if pool_world.log().read(job, number).is_ok_and(|there| there == record) {
                        pool_world.table_is_written(record, &self.me.process);
                    }
                    if matches!(appended, Ok(Append::Done)) {
                        pool_world.table_is_seen(record);
                        pool_world.check_named("a change of the targets");
                    }
                    return appended;
                }
                if is_mail(job) {
                    let appended = self.alive(|| self.inner.append_if(job, previous, record));
                    if matches!(appended, Ok(Append::Done)) {
                        let said = Envelope::decode(record).map(|envelope| envelope.message);
                        if matches!(said, Ok(SaveMessage::Changed(_))) {
                            self.me.pool_world.dice.achieved("mending of ranks");
                        }
                        self.flip(job, number, record, None);
                    }
                    return appended;
                }
                if pool_world.has_replicas() {
                    let pending = pool_world.oracle.pending(self.me.number, job);
                    pool_world.replicas.will_append(self.me.number, record, pending);
                    return self.inner.append_if(job, previous, record);
                }
                if pool_world.dice.lies(Lie::AppendsReplace) {
                    let numbers = pool_world.log().numbers(job)?.into_iter();
                    numbers.filter(|there| *there >= number).for_each(|there| {
                        pool_world.world.remove_record(job, there);
                    });
                }
                let there = || pool_world.log().read(job, number);
                let holder = pool_world.oracle.holder(job);
                let was_there = there().is_ok();
                let noted = Arc::new(AtomicBool::new(false));
                let appended = noticing(
                    "the record has its number",
                    self.me.clone().note(job.clone(), number, record.to_vec(), noted.clone()),
                    || self.alive(|| self.inner.append_if(job, previous, record)),
                );
                // In any case, since the program may have been killed half-way.
                let is_noted = noted.load(Ordering::Relaxed);
                if !is_noted && !was_there && there().is_ok_and(|bytes| bytes == record) {
                    pool_world.oracle.appended(self.me.number, job, record, &*pool_world.log());
                }
                if there().is_ok_and(|bytes| bytes == record) {
                    if !job.is_reserved() && !was_there {
                        pool_world.check_named("a commit");
                    }
                    self.flip(job, number, record, holder);
                }
                appended
            },
        )
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        self.me.step(
            || format!("remove records of {job} before {number}"),
            || self.alive(|| self.inner.remove_before(job, number)),
        )
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.me.step(|| format!("sync the log of {job}"), || self.inner.sync(job))
    }
}

impl LogLocks for SeenLog {
    fn lock_collecting(&self) -> Result<Lock> {
        self.me.step(|| "lock for collecting".to_owned(), || self.inner.lock_collecting())
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.me.step(|| "lock for reading".to_owned(), || self.inner.lock_reading())
    }

    fn is_read(&self) -> Result<bool> {
        self.me.step(|| "is a reader there?".to_owned(), || self.inner.is_read())
    }

    fn lease(&self) -> Result<Option<Lease>> {
        let pool_world = &self.me.pool_world;
        match pool_world.space.leases {
            true => {
                let me = Arc::downgrade(&self.me);
                let is_dead = Arc::new(move || me.upgrade().is_none_or(|me| me.is_dead()));
                let holder = Holder { number: self.me.number, is_dead };
                let take = || self.alive(|| Ok(Some(pool_world.leases.take(holder))));
                self.me.step(|| "take a lease".to_owned(), take)
            }
            false => Ok(None),
        }
    }

    fn has_lease_ended(&self, token: &str) -> Result<Option<bool>> {
        let look = || Ok(self.me.pool_world.leases.has_ended(token, &self.me.pool_world.dice));
        self.me.step(|| format!("has lease {token} ended?"), look)
    }
}

impl SeenLog {
    /// Does work of several steps. A program that is killed at one of them goes no further.
    fn alive<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.me.writes_files() {
            return work();
        }
        let me = self.me.clone();
        mortal(move || me.dies(), work).unwrap_or_else(|| Err(killed()))
    }

    /// Returns a wrong record now and then, if the log lies.
    fn lie_of(&self, mut record: Vec<u8>) -> Vec<u8> {
        let dice = &self.me.pool_world.dice;
        if dice.lies(Lie::ReadsWrongly) && dice.has(1 << 12) {
            record[0] ^= 1;
        }
        record
    }

    /// May flip a bit of a new record. If the record is a session, the former holder of the job may
    /// be unable to read it.
    fn flip(&self, job: &JobName, number: u64, record: &[u8], holder: Option<usize>) {
        let (dice, chances) = (&self.me.pool_world.dice, self.me.pool_world.dice.chances());
        let opens = || {
            let body = Record::decode(record).map(|record| record.body);
            matches!(body, Ok(Body::Session(_))) && !job.is_gc()
        };
        let is_session = chances.flip_session > 0 && opens() && dice.has(chances.flip_session);
        if is_session || dice.has(chances.flip_record) {
            dice.turns().remark(|| format!("a bit of record {number} is flipped"));
            let offset = dice.rng.below(record.len() as u64);
            self.me.pool_world.oracle.is_flipped();
            self.me.pool_world.world.corrupt_record(job, number, offset, 1 << dice.rng.below(8));
        }
        if is_session {
            dice.turns().remark(|| "and its writer is held up".to_owned());
            dice.turns().hold(&self.me.who, u64::MAX);
        }
        if let Some(holder) = holder.filter(|holder| *holder != self.me.number)
            && chances.hide_session > 0
            && opens()
            && dice.has(chances.hide_session)
        {
            dice.turns().remark(|| format!("{holder} can never read record {number}"));
            self.me.hide(holder, job, number);
        }
    }
}
