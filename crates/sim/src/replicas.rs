//! The log's replicas as programs see them, if it has several. A record is in the log from the
//! moment at which a majority of the replicas hold it: the program that did the last step need not
//! be its author.

use crate::world::{Me, PoolWorld, killed};
use outlive_log::replicas::{NewReplica, forget, move_to, succeed};
use outlive_log::{
    Asking, Lock, LockGuard, LogLocks, LogMedium, LogRecords, LogSeal, ManifestLog, Movable, Put,
    RecordLog, ReplicatedLog,
};
use outlive_types::sync::pause;
use outlive_types::{Error, JobName, Result};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Number of replicas of a log that has several.
pub(crate) const REPLICAS: usize = 3;

/// A configuration: the first one of the log, or one that it was moved to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Set {
    /// Number of the configuration, from 1.
    number: usize,
    count: usize,
    /// Number of replicas of the configuration before it.
    before: usize,
}

impl Set {
    const FIRST: Set = Set { number: 1, count: REPLICAS, before: 0 };

    fn text(self) -> String {
        format!("{} {} {}", self.number, self.count, self.before)
    }

    fn parse(text: &[u8]) -> Set {
        let words = String::from_utf8_lossy(text);
        let mut words = words.split(' ').map(|word| word.parse().expect("a number of a set"));
        let mut next = || words.next().expect("a set of replicas");
        Set { number: next(), count: next(), before: next() }
    }

    /// Returns the configuration that this one replaced.
    fn old(self) -> Set {
        Set { number: self.number - 1, count: self.before, before: 0 }
    }

    /// Returns the numbers of its replicas. Each number is unique; replicas at the same index of
    /// different configurations are away together.
    fn numbers(self) -> Range<usize> {
        let first = (self.number - 1) * REPLICAS;
        first..first + self.count
    }

    /// Returns its media as a program sees them; without `me`, without faults.
    fn media(
        self,
        world: &PoolWorld,
        me: Option<&Arc<Me>>,
        is_guarded: bool,
    ) -> Vec<Arc<dyn LogMedium>> {
        let seen = |number: usize| -> Arc<dyn LogMedium> {
            let all: Vec<Arc<dyn LogMedium>> =
                world.world.log_replicas(number + 1, me.map(|me| &me.process));
            let medium = all[number].clone();
            let (world, me) = (world.clone(), me.cloned());
            Arc::new(SeenReplica { set: self, number, medium, world, me, is_guarded })
        };
        self.numbers().map(seen).collect()
    }

    fn open(self, world: &PoolWorld) -> usize {
        let open = world.replicas.open.lock();
        self.numbers().filter(|replica| self.number == 1 || open.contains(replica)).count()
    }
}

/// Returns the log of a pool with several replicas; without `me`, without faults.
pub(crate) fn log_of(world: &PoolWorld, me: Option<&Arc<Me>>) -> Arc<dyn ManifestLog> {
    let (there, who) = (world.clone(), me.cloned());
    let follow = move |successor: &[u8]| {
        let set = Set::parse(successor);
        finish(&there, who.as_ref(), set, false)?;
        Ok(set.media(&there, who.as_ref(), true))
    };
    let first = Set::FIRST.media(world, me, true);
    let log = Movable::new(&first, Asking::InTurn, Box::new(follow));
    Arc::new(RecordLog::over(log.expect("an odd number of replicas")))
}

/// Completes a move, as far as needed.
fn finish(world: &PoolWorld, me: Option<&Arc<Me>>, set: Set, all: bool) -> Result<()> {
    let open = set.open(world);
    if open == set.count || !all && open > set.count / 2 {
        return Ok(());
    }
    let replica = |(number, medium): (usize, Arc<dyn LogMedium>)| {
        let (there, who) = (world.clone(), me.cloned());
        let open = move || {
            step(
                &there,
                who.as_ref(),
                number,
                || "open".to_owned(),
                || match who.as_ref().is_some_and(|me| me.is_dead()) {
                    true => Err(killed()),
                    false => {
                        there.replicas.open.lock().insert(number);
                        Ok(())
                    }
                },
            )
        };
        let is_open = world.replicas.open.lock().contains(&number);
        NewReplica { medium, is_open, open: Box::new(open) }
    };
    let look = || Ok(set.numbers().zip(set.media(world, me, false)).map(replica).collect());
    let old = set.old().media(world, me, true);
    move_to(&old, Asking::InTurn, set.text().as_bytes(), &look).map(drop)
}

/// Moves the log to `count` new replicas. With `forgets`, empties the old ones then.
pub(crate) fn move_log(world: &PoolWorld, me: &Arc<Me>, count: usize, forgets: bool) -> Result<()> {
    let mut now = Set::FIRST;
    loop {
        let sealed = world.replicas.sealed.lock();
        let Some(next) = now.numbers().find_map(|replica| sealed.get(&replica).cloned()) else {
            break;
        };
        drop(sealed);
        now = Set::parse(&next);
        finish(world, Some(me), now, false)?;
    }
    let wanted = Set { number: now.number + 1, count, before: now.count };
    let old = now.media(world, Some(me), true);
    let decided = succeed(&old, Asking::InTurn, wanted.text().as_bytes())?;
    finish(world, Some(me), Set::parse(&decided), true)?;
    if forgets && Set::parse(&decided).open(world) == Set::parse(&decided).count {
        forget(&old, Asking::InTurn, &decided)?;
    }
    Ok(())
}

struct SeenReplica {
    set: Set,
    number: usize,
    medium: Arc<dyn LogMedium>,
    world: PoolWorld,
    me: Option<Arc<Me>>,
    /// Whether it answers only if it is open.
    is_guarded: bool,
}

impl fmt::Debug for SeenReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {} of {}", self.number, self.world.name)
    }
}

/// Carries out an operation at a replica, unless a fault is drawn.
fn step<T>(
    world: &PoolWorld,
    me: Option<&Arc<Me>>,
    number: usize,
    what: impl FnOnce() -> String,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let Some(me) = me else { return work() };
    pause(&format!("{} at replica {number}", what()));
    let dice = &world.dice;
    let fails = |chance| !me.is_dead() && dice.has(chance);
    let chances = dice.chances();
    if world.replicas.away.lock().contains(&(number % REPLICAS)) {
        return Err(Error::retry("simulated: this replica is away"));
    }
    if fails(chances.error) {
        me.fail();
        return Err(Error::retry("simulated: this replica does not answer"));
    }
    let done = work()?;
    if fails(chances.lost_reply) {
        me.fail();
        return Err(Error::retry("simulated: a replica's reply was lost"));
    }
    Ok(done)
}

impl SeenReplica {
    fn step<T>(
        &self,
        what: impl FnOnce() -> String,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        step(&self.world, self.me.as_ref(), self.number, what, || {
            let is_open =
                self.set.number == 1 || self.world.replicas.open.lock().contains(&self.number);
            match self.is_guarded && !is_open {
                true => Err(Error::retry("simulated: this replica is not open")),
                false => work(),
            }
        })
    }

    fn is_dead(&self) -> bool {
        self.me.as_ref().is_some_and(|me| me.is_dead())
    }

    /// Notes a record whose last step this was. If it reaches a sealed replica, it counts only if
    /// the mover of the log finds it: then it is noted when it is copied.
    fn note(&self, job: &JobName, register: u64, record: &[u8], put: &Result<Put>) {
        let replicas = &self.world.replicas;
        let at = (self.number, job.clone(), register);
        if replicas.sealed.lock().contains_key(&self.number) {
            if matches!(put, Ok(Put::Made)) {
                replicas.late.lock().insert(at);
            }
            return;
        }
        let raw = self.world.world.log_replicas(self.set.numbers().end, None);
        let raw = &raw[self.set.numbers()];
        // If newer records exist in a single replica, this one is taken back, as in a directory.
        if let [only] = raw
            && only.list(job).is_ok_and(|there| there.last().is_some_and(|last| *last > register))
        {
            return;
        }
        let holds = |number: usize, medium: &Arc<dyn LogMedium>| {
            medium.get(job, register).is_ok_and(|there| there.is_some_and(|there| there == record))
                && !replicas.late.lock().contains(&(number, job.clone(), register))
        };
        let holding = self.set.numbers().zip(raw).filter(|(number, medium)| holds(*number, medium));
        if holding.count() <= self.set.count / 2 {
            return;
        }
        let author = replicas.author(record);
        if let Some((program, pending)) = author {
            let log: Arc<dyn ManifestLog> = match raw {
                [only] => Arc::new(RecordLog::over(only.clone())),
                several => {
                    let log = ReplicatedLog::new(several.to_vec(), Asking::InTurn);
                    Arc::new(RecordLog::over(log.expect("an odd number of replicas")))
                }
            };
            self.world.oracle.appended_by(program, pending, job, record, &*log);
        }
    }
}

impl LogRecords for SeenReplica {
    fn describe(&self) -> String {
        format!("{self:?}")
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.step(|| "list jobs".to_owned(), || self.medium.jobs())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        self.step(|| format!("list {job}"), || self.medium.list(job))
    }

    fn get(&self, job: &JobName, register: u64) -> Result<Option<Vec<u8>>> {
        self.step(|| format!("read {register:x} of {job}"), || self.medium.get(job, register))
    }

    fn put_new(&self, job: &JobName, register: u64, record: &[u8]) -> Result<Put> {
        self.step(
            || format!("put {register:x} of {job}"),
            || {
                let put = self.medium.put_new(job, register, record);
                if !job.is_reserved() || job.is_gc() {
                    self.note(job, register, record, &put);
                }
                put
            },
        )
    }

    fn delete(&self, job: &JobName, register: u64) -> Result<()> {
        self.step(|| format!("delete {register:x} of {job}"), || self.medium.delete(job, register))
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.step(|| format!("sync {job}"), || self.medium.sync(job))
    }
}

impl LogLocks for SeenReplica {
    fn lock_collecting(&self) -> Result<Lock> {
        self.step(|| "lock for collecting".to_owned(), || self.medium.lock_collecting())
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.step(|| "lock for reading".to_owned(), || self.medium.lock_reading())
    }

    fn is_read(&self) -> Result<bool> {
        self.step(|| "is a reader there?".to_owned(), || self.medium.is_read())
    }
}

impl LogSeal for SeenReplica {
    fn sealed(&self) -> Result<Option<Vec<u8>>> {
        self.step(
            || "look for a seal".to_owned(),
            || match self.is_dead() {
                true => Err(killed()),
                false => Ok(self.world.replicas.sealed.lock().get(&self.number).cloned()),
            },
        )
    }

    fn seal(&self, successor: &[u8]) -> Result<()> {
        if self.world.replicas.sealed.lock().contains_key(&self.number) {
            return Ok(());
        }
        self.step(
            || "seal".to_owned(),
            || match self.is_dead() {
                true => Err(killed()),
                false => {
                    let mut sealed = self.world.replicas.sealed.lock();
                    let there = sealed.entry(self.number).or_insert_with(|| successor.to_vec());
                    if there != successor {
                        self.world.oracle.violate("a log has two successors".to_owned());
                    }
                    Ok(())
                }
            },
        )
    }
}
