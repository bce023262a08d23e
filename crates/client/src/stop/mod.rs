//! Requests to stop: before a scheduler or a person ends a program, it saves once more and ends by
//! itself. A request comes as a signal, from `outlive run`, or from `outlive stop` through the pool.

pub(crate) mod run_folder;
mod signals;

pub use run_folder::{
    FOLDER_VARIABLE, JOB_VARIABLE, POOL_VARIABLE, Report, RunFolder, StopRequest, monotonic,
};
pub use signals::install as on_signals;

use outlive_pool::Pool;
use outlive_store::{CommitEvent, CommitEvents, CommitWatch};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, Error, JobName, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two looks for a request in the pool: a directory, and a backend with requests over a
/// network.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const REMOTE_LOOK_EVERY: Duration = Duration::from_secs(10);

/// Writes a request to stop into a pool, for the programs that run the job now. A program that
/// starts later does not obey it.
///
/// # Errors
/// `Invalid` for a pool without a home; errors of the backend.
pub fn ask_in_pool(pool: &Pool, job: &JobName, reason: &str) -> Result<()> {
    let mut id = [0; 16];
    pool.env().rng.fill(&mut id);
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{id}\n{}\n", reason.replace('\n', " "));
    pool.write_run_file(job, "stop", text.as_bytes())
}

/// The request in a pool: its id, and its reason.
fn request_in_pool(pool: &Pool, job: &JobName) -> Result<Option<(String, String)>> {
    let Some(bytes) = pool.read_run_file(job, "stop")? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let (id, reason) = text.split_once('\n').unwrap_or((&text, ""));
    Ok(Some((id.to_owned(), reason.trim_end().to_owned())))
}

/// A watch for requests in the pool that are newer than itself.
pub struct PoolStops {
    known: Option<String>,
    next_look: Duration,
}

impl PoolStops {
    /// Begins to watch.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn begin(pool: &Pool, job: &JobName) -> Result<PoolStops> {
        let known = request_in_pool(pool, job)?.map(|(id, _)| id);
        Ok(PoolStops { known, next_look: monotonic() + LOOK_EVERY })
    }

    /// Returns the reason of a new request. Looks once a second, or every ten seconds over a
    /// network; a look that fails is repeated then.
    pub fn look(&mut self, pool: &Pool, job: &JobName) -> Option<String> {
        let now = monotonic();
        if now < self.next_look {
            return None;
        }
        self.next_look = now + if pool.is_remote() { REMOTE_LOOK_EVERY } else { LOOK_EVERY };
        let (id, reason) = request_in_pool(pool, job).ok()??;
        (self.known.as_ref() != Some(&id)).then_some(reason)
    }
}

/// Finds out whether one client's program is to stop.
pub(crate) struct StopWatch {
    folder: Option<RunFolder>,
    /// Reports to the supervisor.
    _reports: Option<CommitWatch>,
    in_pool: Mutex<Option<PoolStops>>,
    found: Mutex<Option<StopRequest>>,
    /// Whether a save was made for the request.
    is_saved: AtomicBool,
}

impl StopWatch {
    pub fn new(pool: &Pool, job: &JobName, events: &CommitEvents) -> StopWatch {
        let folder = RunFolder::of_this_process(&pool.config().format.pool_id, job);
        let reports = folder.clone().map(|folder| {
            events.watch(move |event| match event {
                CommitEvent::Committed { epoch, .. } => folder.report(Report::Committed(*epoch)),
                CommitEvent::Failed { epoch, .. } => folder.report(Report::Failed(*epoch)),
            })
        });
        StopWatch {
            folder,
            _reports: reports,
            in_pool: Mutex::default(),
            found: Mutex::default(),
            is_saved: AtomicBool::new(false),
        }
    }

    /// Reports something to the supervisor, if there is one.
    pub fn report(&self, report: Report) {
        if let Some(folder) = &self.folder {
            folder.report(report);
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
        if let Some((signal, grace)) = signals::noted() {
            let deadline = monotonic().checked_add(grace);
            return Some(StopRequest { reason: signal.to_owned(), deadline });
        }
        if let Some(folder) = &self.folder {
            // The supervisor looks into the pool.
            return folder.stop();
        }
        let mut in_pool = self.in_pool.lock();
        match &mut *in_pool {
            Some(in_pool) => {
                in_pool.look(pool, job).map(|reason| StopRequest { reason, deadline: None })
            }
            None => {
                *in_pool = PoolStops::begin(pool, job).ok();
                None
            }
        }
    }

    /// Begins to watch the pool, so that later requests count.
    pub fn begin(&self, pool: &Pool, job: &JobName) {
        if self.folder.is_none() {
            let mut in_pool = self.in_pool.lock();
            if in_pool.is_none() {
                *in_pool = PoolStops::begin(pool, job).ok();
            }
        }
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
