//! Requests to stop: before a scheduler or a person ends a program, it saves once more and ends by
//! itself. A request comes as a signal, from `outlive run`, or from `outlive stop` through the pool.

mod pool_stops;
mod run_folder;
mod signals;
mod span;

pub use pool_stops::{PoolStops, ask_in_pool};
pub(crate) use run_folder::is_helped;
pub use run_folder::{
    EVERY_VARIABLE, FOLDER_VARIABLE, HELPED_VARIABLE, JOB_VARIABLE, POOL_VARIABLE, Report,
    RunFolder, StopRequest, TRANSCRIPT_VARIABLE, every_of_run, monotonic,
};
pub use signals::{TERMS_TOGETHER, install as on_signals};
pub use span::{Span, list_of, text_of};

use outlive_pool::Pool;
use outlive_store::{CommitEvent, CommitWatch, Job};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, Error, JobName, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Finds out whether one client's program is to stop.
pub(crate) struct StopWatch {
    folder: Option<RunFolder>,
    /// Reports to the supervisor.
    _reports: Option<CommitWatch>,
    /// `None` if the supervisor looks into the pool, or another rank of the group.
    in_pool: Option<PoolStops>,
    found: Mutex<Option<StopRequest>>,
    /// Whether a save was made for the request.
    is_saved: AtomicBool,
}

impl StopWatch {
    /// Begins to watch for the program of a job.
    pub fn new(pool: &Pool, job: &Job) -> StopWatch {
        let folder = RunFolder::of_this_process(&pool.config().format.pool_id, job.name());
        let reports = folder.clone().map(|folder| {
            job.events().watch(move |event| match event {
                CommitEvent::Committed { epoch, .. } => folder.report(&Report::Committed(*epoch)),
                CommitEvent::Failed { epoch, .. } => folder.report(&Report::Failed(*epoch)),
            })
        });
        if run_folder::is_supervised(&pool.config().format.pool_id, job.name())
            && let Err(error) = signals::install_in_slurm(folder.as_ref())
        {
            pool.warn(format!("a signal of Slurm ends this program without a save: {error}"));
        }
        folder.iter().for_each(RunFolder::sign_of_life);
        let looks = folder.is_none() && job.rank() == 0;
        StopWatch {
            folder,
            _reports: reports,
            in_pool: looks.then(|| PoolStops::begin(pool, job.name())),
            found: Mutex::default(),
            is_saved: AtomicBool::new(false),
        }
    }

    /// Returns the supervisor's folder, if there is one.
    pub fn folder(&self) -> Option<&RunFolder> {
        self.folder.as_ref()
    }

    /// Reports something to the supervisor, if there is one.
    pub fn report(&self, report: Report) {
        if let Some(folder) = &self.folder {
            folder.report(&report);
        }
    }

    /// Gives the supervisor a sign of life, if there is one.
    pub fn sign_of_life(&self) {
        if let Some(folder) = &self.folder {
            folder.sign_of_life();
        }
    }

    /// Returns the request to stop, if there is one. `last_save` is the time that the last save took
    /// until it was committed.
    pub fn look(
        &self,
        pool: &Pool,
        job: &JobName,
        last_save: Option<Duration>,
    ) -> Option<StopRequest> {
        let mut found = self.found.lock();
        if found.is_none() {
            *found = self.find(pool, job);
            if let Some(request) = &*found {
                self.tell(pool, job, request, last_save);
            }
        }
        found.clone()
    }

    fn find(&self, pool: &Pool, job: &JobName) -> Option<StopRequest> {
        let of_supervisor = || self.folder.as_ref().and_then(RunFolder::stop);
        if let Some((signal, grace)) = signals::noted() {
            let deadline = grace.map(|grace| monotonic().saturating_add(grace));
            let by_signal = StopRequest { reason: signal.to_owned(), deadline };
            // The supervisor knows the time that is left, if the signal has reached it, too.
            let first = if deadline.is_none() { of_supervisor() } else { None };
            return Some(first.unwrap_or(by_signal));
        }
        if self.folder.is_some() {
            return of_supervisor();
        }
        let reason = self.in_pool.as_ref()?.look(pool, job)?;
        Some(StopRequest { reason, deadline: None })
    }

    /// Notes a request that another rank of the group has found.
    pub fn join(&self, pool: &Pool, job: &JobName) {
        let mut found = self.found.lock();
        if found.is_none() {
            let request =
                StopRequest { reason: "another rank was asked to stop".into(), deadline: None };
            self.tell(pool, job, &request, None);
            *found = Some(request);
        }
    }

    fn tell(&self, pool: &Pool, job: &JobName, request: &StopRequest, last_save: Option<Duration>) {
        self.report(Report::Stopping);
        let reason = &request.reason;
        let Some(left) = request.left() else {
            return pool.info(format!("job {job} is asked to save and to end: {reason}"));
        };
        let left_s = left.as_secs_f64();
        let short = last_save.filter(|took| *took > left);
        match short {
            None => pool.info(format!(
                "job {job} is asked to save and to end within {left_s:.1} s: {reason}"
            )),
            Some(took) => pool.warn(format!(
                "job {job} is asked to save and to end within {left_s:.1} s ({reason}), and its last save \
                 took {:.1} s until it was committed: the checkpoint may come too late. Ask for more time, \
                 or save more often",
                took.as_secs_f64()
            )),
        }
    }

    /// Returns whether the next save is the one that the request asks for.
    pub fn wants_save(&self) -> bool {
        self.found.lock().is_some() && !self.is_saved.load(Ordering::Relaxed)
    }

    /// Notes that a save was made for the request, and is committed.
    pub fn saved(&self, epoch: Epoch) {
        if self.found.lock().is_some() && !self.is_saved.swap(true, Ordering::Relaxed) {
            self.report(Report::Saved(epoch));
        }
    }

    /// Lets the next save be one for the request, since the program has asked whether to stop.
    pub fn ask_again(&self) {
        self.is_saved.store(false, Ordering::Relaxed);
    }
}

/// Refuses a grace that is no time.
///
/// # Errors
/// `Invalid`, if it is negative, too long or no number.
pub fn grace(seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        Error::invalid(format!("grace_s = {seconds}: must be a number of seconds, from 0"))
    })
}
