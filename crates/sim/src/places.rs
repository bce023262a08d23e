//! The log's places as programs see them, where it has several. A record is in the log from the moment in
//! which a majority of the places hold it: the program that did the last step need not be its author.

use crate::luck::lock;
use crate::world::{Me, PoolWorld, is_mail};
use outlive_target::{Asking, Lock, LockGuard, LogMedium, ManifestLog, Places, Put, RecordLog};
use outlive_types::sync::pause;
use outlive_types::{Error, JobName, Result};
use std::fmt;
use std::sync::Arc;

/// Places of a log that has several.
pub(crate) const PLACES: usize = 3;

/// The log of a pool whose log has several places; without `me` nobody is in its way.
pub(crate) fn log_of(world: &PoolWorld, me: Option<&Arc<Me>>) -> Arc<dyn ManifestLog> {
    let media = world.world.log_places(PLACES, me.map(|me| &me.process)).into_iter();
    let seen = media.enumerate().map(|(number, medium)| -> Arc<dyn LogMedium> {
        Arc::new(SeenPlace { number, medium, world: world.clone(), me: me.cloned() })
    });
    let places = Places::new(seen.collect(), Asking::InTurn).expect("an odd number of places");
    Arc::new(RecordLog::over(places))
}

struct SeenPlace {
    number: usize,
    medium: Arc<dyn LogMedium>,
    world: PoolWorld,
    me: Option<Arc<Me>>,
}

impl fmt::Debug for SeenPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "place {} of {}", self.number, self.world.name)
    }
}

impl SeenPlace {
    fn step<T>(
        &self,
        what: impl FnOnce() -> String,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(me) = &self.me else { return work() };
        pause(&format!("{} at place {}", what(), self.number));
        let luck = &self.world.luck;
        let fails = |chance| !me.is_dead() && luck.has(chance);
        let chances = luck.chances();
        if lock(&self.world.places.away).contains(&self.number) {
            return Err(Error::retry("simulated: this place is away"));
        }
        if fails(chances.error) {
            me.fail();
            return Err(Error::retry("simulated: this place does not answer"));
        }
        let done = work()?;
        if fails(chances.lost_reply) {
            me.fail();
            return Err(Error::retry("simulated: a place's reply was lost"));
        }
        Ok(done)
    }

    /// Notes the record, if it is one, and this was the step that put it into the log.
    fn note(&self, job: &JobName, register: u64, record: &[u8]) {
        let raw = self.world.world.log_places(PLACES, None);
        let holds = |medium: &&Arc<dyn LogMedium>| {
            medium.get(job, register).is_ok_and(|there| there.is_some_and(|there| there == record))
        };
        if raw.iter().filter(holds).count() <= PLACES / 2 {
            return;
        }
        let author = self.world.places.author(record);
        if let Some((program, pending)) = author {
            self.world.truth.appended_by(
                program,
                pending,
                job,
                record,
                &*log_of(&self.world, None),
            );
        }
    }
}

impl LogMedium for SeenPlace {
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
                if !is_mail(job) {
                    self.note(job, register, record);
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

    fn lock_collecting(&self) -> Result<Lock> {
        self.step(|| "lock for collecting".to_owned(), || self.medium.lock_collecting())
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.step(|| "lock for reading".to_owned(), || self.medium.lock_reading())
    }

    fn is_read(&self) -> Result<bool> {
        self.step(|| "is somebody reading?".to_owned(), || self.medium.is_read())
    }
}
