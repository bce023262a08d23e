//! Work on the pool while a command runs. It is done by a thread, one piece after the other, so that
//! a pool that hangs keeps the supervisor from nothing for long.

use outlive_client::covered_by;
use outlive_client::past::History;
use outlive_client::stop::Span;
use outlive_format::Mark;
use outlive_pool::Pool;
use outlive_store::commit::history;
use outlive_store::{Job, JobOptions, RankImages};
use outlive_types::{Epoch, Error, JobName, Result};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

/// Longest time that the supervisor waits for an answer. The work goes on behind that.
const PATIENCE: Duration = Duration::from_secs(5);

type Work = Box<dyn FnOnce(&Pool, &JobName) + Send>;

/// The pool, as the supervisor of a job asks it.
pub(crate) struct PoolSide {
    work: Sender<Work>,
}

impl PoolSide {
    /// Starts the thread, which ends with this value and the last piece of work.
    ///
    /// # Errors
    /// `Retry` if no thread can be started.
    pub fn start(pool: &Pool, job: &JobName) -> Result<PoolSide> {
        let (work, pieces) = channel::<Work>();
        let (pool, job) = (pool.clone(), job.clone());
        let run = move || pieces.into_iter().for_each(|piece| piece(&pool, &job));
        let started = thread::Builder::new().name("outlive-run-pool".to_owned()).spawn(run);
        started.map_err(|e| Error::no_thread("work on the pool", &e))?;
        Ok(PoolSide { work })
    }

    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Pool, &JobName) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = channel();
        let piece = Box::new(move |pool: &Pool, job: &JobName| drop(reply.send(work(pool, job))));
        let hung = |_| Error::retry(format!("the pool does not answer within {PATIENCE:?}"));
        let gone = |_| Error::bug("the thread for work on the pool has ended");
        self.work.send(piece).map_err(gone)?;
        answer.recv_timeout(PATIENCE).map_err(hung)?
    }

    /// Returns the newest checkpoint of the job.
    ///
    /// # Errors
    /// Errors of the log; `Retry` if it does not answer.
    pub fn newest(&self) -> Result<Option<Epoch>> {
        Ok(self.newest_frozen()?.map(|(epoch, _)| epoch))
    }

    /// Returns the newest checkpoint, and the time at which it was frozen in nanoseconds since 1970.
    ///
    /// # Errors
    /// As [`PoolSide::newest`].
    pub fn newest_frozen(&self) -> Result<Option<(Epoch, u64)>> {
        self.ask(newest_of)
    }

    /// Returns the parts of transcripts that the newest checkpoint covers.
    ///
    /// # Errors
    /// As [`PoolSide::newest`]; `Damaged` for a checkpoint that cannot be read.
    pub fn covered(&self) -> Result<Vec<Span>> {
        self.ask(|pool, job| {
            for entry in history(pool, job)? {
                let entry = entry.unless_unread()?;
                let manifest = entry.manifest().filter(|it| !it.is_of_files() && !entry.incomplete);
                if let Some(manifest) = manifest {
                    return covered_by(&RankImages::new(pool, job, manifest, 0));
                }
            }
            Ok(Vec::new())
        })
    }

    /// Returns whether a restore would find a checkpoint before this one, as far as the log shows.
    ///
    /// # Errors
    /// As [`PoolSide::newest`].
    pub fn has_older(&self, epoch: Epoch) -> Result<bool> {
        self.ask(move |pool, job| {
            Ok(history(pool, job)?.any(|entry| {
                entry.manifest().is_some_and(|it| {
                    let is_sound = it.remarks.mark != Mark::Bad && !it.remarks.suspect;
                    it.epoch < epoch && !it.is_of_files() && is_sound && !entry.incomplete
                })
            }))
        })
    }

    /// Marks a checkpoint.
    ///
    /// # Errors
    /// As [`PoolSide::newest`].
    pub fn mark(&self, epoch: Epoch, mark: Mark) -> Result<()> {
        self.ask(move |pool, job| {
            let job = Job::open(pool, job.as_str(), JobOptions::default())?;
            job.note(epoch, |remarks| remarks.mark = mark).map(drop)
        })
    }

    /// Writes the history.
    ///
    /// # Errors
    /// Errors of the pool; `Retry` if it does not answer.
    pub fn write(&self, past: &History) -> Result<()> {
        let past = past.clone();
        self.ask(move |pool, job| past.write(pool, job))
    }
}

fn newest_of(pool: &Pool, job: &JobName) -> Result<Option<(Epoch, u64)>> {
    for entry in history(pool, job)? {
        if let Some(manifest) = entry.unless_unread()?.manifest() {
            return Ok(Some((manifest.epoch, manifest.frozen_ns)));
        }
    }
    Ok(None)
}
