//! Keeps the chosen interval where people and later runs find it.

use super::failures::past_of;
use super::history::History;
use super::own_attempt::OwnAttempt;
use crate::stop::{Report, RunFolder, monotonic};
use outlive_interval::{Choice, Past};
use outlive_pool::{Pool, host_name};
use outlive_store::PaceMemory;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, JobName, Result};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Name of the file in the pool.
const KIND: &str = "interval";
/// Time after which a choice is noted again, although it is nearly the same.
const NOTE_EVERY: Duration = Duration::from_secs(600);

/// The interval that a program has chosen, kept in the pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ChosenInterval {
    /// Checkpoint after whose commit it was chosen.
    pub epoch: Epoch,
    /// Time of that, in nanoseconds since 1970.
    pub chosen_ns: u64,
    /// The interval and its reasons.
    pub choice: Choice,
}

impl ChosenInterval {
    /// Reads the interval that was noted last; `None` if there is none, or it cannot be understood.
    ///
    /// # Errors
    /// Errors of the pool.
    pub fn read(pool: &Pool, job: &JobName) -> Result<Option<ChosenInterval>> {
        let bytes = pool.read_run_file(job, KIND)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }
}

/// The memory of one program's job.
pub struct IntervalMemory {
    job: JobName,
    folder: Option<RunFolder>,
    /// The last choice that was noted, and when.
    noted: Mutex<Option<(Choice, Duration)>>,
    /// When this program has begun.
    began: Duration,
    /// Its attempt, once it is noted: `outlive run` notes those of its commands.
    attempt: Mutex<Option<OwnAttempt>>,
}

impl IntervalMemory {
    /// Makes the memory of a job; `folder` is that of its supervisor.
    pub fn new(job: &JobName, folder: Option<RunFolder>) -> IntervalMemory {
        let (noted, attempt) = Default::default();
        IntervalMemory { job: job.clone(), folder, noted, began: monotonic(), attempt }
    }

    /// Notes that the program has ended its work with the job in order.
    pub fn ended(&self, pool: &Pool) {
        if let Some(attempt) = &mut *self.attempt.lock() {
            // The history then says that it is gone, which costs a better interval, and no data.
            let _ = attempt.end(pool, &self.job);
        }
    }

    /// Returns the history before this program; the first time it notes the program there.
    fn history(&self, pool: &Pool) -> Result<History> {
        let mut attempt = self.attempt.lock();
        if self.folder.is_some() {
            return History::read(pool, &self.job);
        }
        if let Some(own) = &*attempt {
            let mut history = History::read(pool, &self.job)?;
            history.attempts.retain(|entry| !own.is(entry));
            return Ok(history);
        }
        let (before, own) = OwnAttempt::begin(pool, &self.job, self.began)?;
        *attempt = Some(own);
        Ok(before)
    }
}

impl PaceMemory for IntervalMemory {
    fn past(&self, pool: &Pool) -> Past {
        if !pool.has_home() {
            return Past::default();
        }
        match self.history(pool) {
            Ok(history) => past_of(&history, &host_name(), self.folder.is_some()),
            Err(error) => {
                pool.warn(format!(
                    "job {}: its interval rests on the prior, one failure a day, as {error}",
                    self.job
                ));
                let trouble = Some("the history cannot be read".to_owned());
                Past { trouble, ..Past::default() }
            }
        }
    }

    fn chose(&self, pool: &Pool, epoch: Epoch, choice: &Choice) {
        let is_learned = choice.every == "auto" || choice.every == "continuous";
        let mut attempt = self.attempt.lock();
        if let Some(attempt) = &mut *attempt {
            attempt.committed(epoch, choice);
        }
        if self.folder.is_none() && !is_learned {
            return;
        }
        let (now, mut noted) = (monotonic(), self.noted.lock());
        let is_news = noted.as_ref().is_none_or(|(last, at)| {
            last.differs(choice) || is_learned && now.saturating_sub(*at) >= NOTE_EVERY
        });
        if !is_news {
            return;
        }
        *noted = Some((choice.clone(), now));
        drop(noted);
        if let Some(folder) = &self.folder {
            folder.report(&Report::Interval(Box::new(choice.clone())));
        }
        if is_learned && pool.has_home() {
            let chosen_ns = pool.env().clock.unix_ns();
            let chosen = ChosenInterval { epoch, chosen_ns, choice: choice.clone() };
            // A pool that cannot keep the note has reported worse: the program goes on.
            let _ = serde_json::to_vec_pretty(&chosen)
                .map(|bytes| pool.write_run_file(&self.job, KIND, &bytes));
            let _ = attempt.as_ref().map(|attempt| attempt.write(pool, &self.job));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_interval::{Bound, Every, Learner};
    use outlive_pool::{Environment, FormatConfig, PoolConfig, Tuning, create};

    #[test]
    fn a_choice_is_noted_where_people_and_the_supervisor_look() {
        let dir = tempfile::tempdir().unwrap();
        let config = PoolConfig::new(FormatConfig::new([3; 16]), Tuning::default());
        let pool = create(&dir.path().join("pool"), config, Environment::system()).unwrap();
        let job = JobName::new("job").unwrap();
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let folder = RunFolder::create(&folder).unwrap();
        let memory = IntervalMemory::new(&job, Some(folder.clone()));
        assert_eq!(ChosenInterval::read(&pool, &job), Ok(None));

        let first = Learner::new(Every::Auto, false, Duration::ZERO).choice().clone();
        let nearly = Choice { saves: 9, ..first.clone() };
        let other = Choice { seconds: 60.0, bound: Bound::Optimum, ..first.clone() };
        for (epoch, choice) in [(1, &first), (2, &nearly), (3, &other), (4, &other)] {
            memory.chose(&pool, epoch, choice);
        }
        let told = folder.reports(&mut 0).unwrap();
        let all = [&first, &other].map(|choice| Report::Interval(Box::new(choice.clone())));
        assert_eq!(told, all, "only news");
        let noted = ChosenInterval::read(&pool, &job).unwrap().unwrap();
        assert_eq!((noted.epoch, noted.choice), (3, other));

        // A program of its own notes only what it has learned.
        let alone = IntervalMemory::new(&JobName::new("alone").unwrap(), None);
        let given = Learner::new(Every::Fixed(Duration::ZERO), false, Duration::ZERO);
        alone.chose(&pool, 1, given.choice());
        assert_eq!(ChosenInterval::read(&pool, &alone.job), Ok(None));

        // Damaged notes are none, and a damaged history leaves the prior.
        pool.write_run_file(&job, KIND, b"{").unwrap();
        assert_eq!(ChosenInterval::read(&pool, &job), Ok(None));
        assert_eq!(memory.past(&pool), Past::default());
        pool.write_run_file(&job, "history", b"\0").unwrap();
        let past = memory.past(&pool);
        assert_eq!((past.failures, past.trouble.is_some()), (0.0, true));
    }
}
