//! The log of a [`FaultWorld`].

use super::{FaultWorld, Kept, Locks, Owner, Step, World};
use crate::directory_log::{next_number, no_record};
use crate::memory::occupied;
use crate::{Append, Lock, LockGuard, ManifestLog, Previous};
use outlive_types::{JobName, Result};
use std::sync::Arc;

const PLACE: &str = "the simulated log";

#[derive(Debug)]
pub(super) struct FaultLog {
    pub(super) world: FaultWorld,
    pub(super) owner: Owner,
}

impl FaultLog {
    fn show(&self, world: &mut World, job: &JobName, number: u64, record: &[u8]) -> Result<()> {
        let step = world.step(&self.owner, || format!("append {number} to {job}: make it visible"));
        if step.takes_effect() {
            let kept = Kept { bytes: Arc::new(record.to_vec()), durable: false };
            world.records.entry(job.clone()).or_default().insert(number, kept);
        }
        world.end(step)
    }

    /// A sync of the directory makes all of the job's records durable.
    fn show_durably(&self, world: &mut World, job: &JobName, number: u64) -> Result<Append> {
        let step = world.step(&self.owner, || format!("append {number} to {job}: make it durable"));
        if matches!(step, Step::Go) {
            let numbered = world.records.get_mut(job);
            numbered.into_iter().flatten().for_each(|(_, kept)| kept.durable = true);
        }
        world.end(step).map(|()| Append::Done)
    }
}

impl ManifestLog for FaultLog {
    fn describe(&self) -> String {
        PLACE.to_owned()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        let mut world = self.world.lock();
        world.read_step(&self.owner, || "list jobs".to_owned())?;
        let jobs = world.records.iter().filter(|(_, numbered)| !numbered.is_empty());
        Ok(jobs.map(|(job, _)| job.clone()).collect())
    }

    fn numbers(&self, job: &JobName) -> Result<Vec<u64>> {
        let mut world = self.world.lock();
        world.read_step(&self.owner, || format!("list records of {job}"))?;
        Ok(world.records.get(job).map_or(Vec::new(), |numbered| numbered.keys().copied().collect()))
    }

    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>> {
        let mut world = self.world.lock();
        world.read_step(&self.owner, || format!("read record {number} of {job}"))?;
        let kept = world.records.get(job).and_then(|numbered| numbered.get(&number));
        kept.map(|kept| kept.bytes.to_vec()).ok_or_else(|| no_record(PLACE, job, number))
    }

    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append> {
        let mut world = self.world.lock();
        world.alive(&self.owner)?;
        let number = next_number(previous.number)?;
        let numbered = world.records.get(job);
        match occupied(numbered, |kept| kept.bytes.as_slice(), PLACE, job, previous, record)? {
            Some(Append::Lost) => return Ok(Append::Lost),
            Some(Append::Done) => {} // ours already, but perhaps not durable
            None => self.show(&mut world, job, number, record)?,
        }
        self.show_durably(&mut world, job, number)
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        let mut world = self.world.lock();
        let numbered = world.records.get(job).into_iter().flatten();
        let all: Vec<u64> = numbered.map(|(number, _)| *number).collect();
        let newest = all.last().copied().unwrap_or(0);
        for old in all.into_iter().filter(|old| *old < number.min(newest)) {
            let step = world.step(&self.owner, || format!("remove record {old} of {job}"));
            if step.takes_effect()
                && let Some(numbered) = world.records.get_mut(job)
            {
                numbered.remove(&old);
            }
            world.end(step)?;
        }
        Ok(())
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        let mut world = self.world.lock();
        let step = world.step(&self.owner, || format!("sync the records of {job}"));
        if step.takes_effect() {
            let numbered = world.records.get_mut(job);
            numbered.into_iter().flatten().for_each(|(_, kept)| kept.durable = true);
        }
        world.end(step)
    }
    fn lock_collecting(&self) -> Result<Lock> {
        let mut world = self.world.lock();
        world.alive(&self.owner)?;
        Ok(match self.take(&mut world, |locks| &mut locks.collecting, true) {
            None => Lock::None,
            Some(None) => Lock::Busy,
            Some(Some(guard)) => Lock::Taken(guard),
        })
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        let mut world = self.world.lock();
        world.alive(&self.owner)?;
        Ok(self.take(&mut world, |locks| &mut locks.reading, false).flatten())
    }

    fn is_read(&self) -> Result<bool> {
        let world = self.world.lock();
        world.alive(&self.owner)?;
        let Some(locks) = &world.locks else { return Ok(false) };
        Ok(locks.reading.iter().any(|(_, owner)| world.alive(owner).is_ok()))
    }
}

/// Who holds one of the locks, and under which number.
type Holders = Vec<(u64, Owner)>;

impl FaultLog {
    /// Takes a lock; `None` if there are none, or if it is to be held `alone` and somebody has it.
    fn take(
        &self,
        world: &mut World,
        of: fn(&mut Locks) -> &mut Holders,
        alone: bool,
    ) -> Option<Option<LockGuard>> {
        let mut locks = world.locks.take()?;
        of(&mut locks).retain(|(_, owner)| world.alive(owner).is_ok());
        let is_free = !alone || of(&mut locks).is_empty();
        let guard = is_free.then(|| -> LockGuard {
            locks.given += 1;
            let number = locks.given;
            of(&mut locks).push((number, self.owner.clone()));
            Box::new(Held { world: self.world.clone(), of, number })
        });
        world.locks = Some(locks);
        Some(guard)
    }
}

/// A lock that is held.
struct Held {
    world: FaultWorld,
    of: fn(&mut Locks) -> &mut Holders,
    number: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(locks) = &mut self.world.lock().locks {
            (self.of)(locks).retain(|(number, _)| *number != self.number);
        }
    }
}
