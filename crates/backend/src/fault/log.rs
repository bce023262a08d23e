//! The records of a [`FaultWorld`]: a log medium, below the protocol of appending.

use super::{FaultWorld, Kept, Locks, Owner, World};
use outlive_log::{Lock, LockGuard};
use outlive_log::{LogLocks, LogRecords, LogSeal, Put};
use outlive_types::{Error, JobName, Result};

#[derive(Debug)]
pub(super) struct FaultMedium {
    pub(super) world: FaultWorld,
    pub(super) owner: Owner,
    /// Number of the log replica.
    pub(super) place: usize,
}

impl LogRecords for FaultMedium {
    fn describe(&self) -> String {
        "the simulated log".to_owned()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        let mut world = self.world.lock();
        world.read_step(&self.owner, || "list jobs".to_owned())?;
        let here = world.records.keys().filter(|(place, _)| *place == self.place);
        Ok(here.map(|(_, job)| job.clone()).filter(|job| job.is_listed()).collect())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        let mut world = self.world.lock();
        world.read_step(&self.owner, || format!("list records of {job}"))?;
        Ok(world
            .records
            .get(&self.of(job))
            .map_or(Vec::new(), |numbered| numbered.keys().copied().collect()))
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        let mut world = self.world.lock();
        world.read_step(&self.owner, || format!("read record {number} of {job}"))?;
        let kept = world.records.get(&self.of(job)).and_then(|numbered| numbered.get(&number));
        Ok(kept.map(|kept| kept.bytes.to_vec()))
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        let mut world = self.world.lock();
        let step = world.step(&self.owner, || format!("append {number} to {job}: make it visible"));
        let mut put = Put::Made;
        if step.takes_effect() {
            let numbered = world.records.entry(self.of(job)).or_default();
            match numbered.contains_key(&number) {
                true => put = Put::Taken,
                false => {
                    numbered.insert(number, Kept::visible(record.to_vec(), None));
                }
            }
        }
        world.end(step).map(|()| put)
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        let mut world = self.world.lock();
        let step = world.step(&self.owner, || format!("remove record {number} of {job}"));
        if step.takes_effect()
            && let Some(kept) =
                world.records.get_mut(&self.of(job)).and_then(|numbered| numbered.remove(&number))
            && kept.durable
        {
            world.removed.entry(self.of(job)).or_default().insert(number, kept);
        }
        world.end(step)
    }

    /// Like a sync of a job's directory: makes all names in it durable.
    fn sync(&self, job: &JobName) -> Result<()> {
        let mut world = self.world.lock();
        let step =
            world.step(&self.owner, || format!("sync the records of {job}: make them durable"));
        if step.takes_effect() {
            world.removed.remove(&self.of(job));
            let numbered = world.records.get_mut(&self.of(job));
            numbered.into_iter().flatten().for_each(|(_, kept)| kept.make_durable());
        }
        world.end(step)
    }
}

impl LogLocks for FaultMedium {
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

impl LogSeal for FaultMedium {}

/// The holders of one lock, with the number of their hold.
type Holders = Vec<(u64, Owner)>;

impl FaultMedium {
    fn of(&self, job: &JobName) -> (usize, JobName) {
        (self.place, job.clone())
    }

    /// Takes a lock; `None` if the world has no locks, or if an exclusive (`alone`) lock is not
    /// free.
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
            let (world, taken_by) = (self.world.clone(), self.owner.clone());
            let is_held = move || {
                let mut world = world.lock();
                world.alive(&taken_by)?;
                let mut holders = world.locks.iter_mut().flat_map(|locks| of(locks).iter());
                match holders.any(|(held, _)| *held == number) {
                    true => Ok(()),
                    false => Err(Error::fenced("the lock has ended, and others may have taken it")),
                }
            };
            LockGuard::ending(HeldLock { world: self.world.clone(), of, number }, is_held)
        });
        world.locks = Some(locks);
        Some(guard)
    }
}

/// A hold on a lock.
struct HeldLock {
    world: FaultWorld,
    of: fn(&mut Locks) -> &mut Holders,
    number: u64,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if let Some(locks) = &mut self.world.lock().locks {
            (self.of)(locks).retain(|(number, _)| *number != self.number);
        }
    }
}
