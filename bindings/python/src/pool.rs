//! A pool, opened for Python.

use crate::collect::{self, Collection, Rules};
use crate::errors::{self, OrRaise};
use crate::group::group_of;
use crate::job::Job;
use crate::named::named;
use crate::notices::Notices;
use crate::process::Opener;
use crate::trees::{self, FilesTree};
use crate::wait::tell;
use outlive_interval::Every;
use outlive_pool::{Environment, open, open_or_create};
use outlive_store::gc::listed_jobs;
use outlive_store::retention::{check_keep, parse_age};
use outlive_store::{OnFailure, parse_every, seconds_between};
use outlive_types::{Error, Event, JobName, Result};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A pool; programs use `outlive.Pool`.
#[pyclass(frozen, module = "outlive._core")]
pub struct Pool {
    pool: outlive_pool::Pool,
    notices: Arc<Notices>,
    location: PathBuf,
    opener: Opener,
}

impl Pool {
    /// Refuses a call in a forked child, before any lock is touched.
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.opener.check(py, || format!("the pool {}", self.location.display()))
    }

    /// Waits as long as a helper completes a save of an earlier program of a job. Ctrl-C ends it.
    fn await_helper(&self, name: &str, tick: &Bound<'_, PyAny>) -> PyResult<()> {
        // The job itself refuses an impossible name.
        let Ok(name) = JobName::new(name) else { return Ok(()) };
        let (py, mut raised, there) = (tick.py(), None, tick.clone().unbind());
        let mut look = || {
            let looked = |py: Python<'_>| {
                tell(&self.notices, there.bind(py)).and_then(|()| py.check_signals())
            };
            raised = Python::attach(looked).err();
            raised.is_none()
        };
        py.detach(|| outlive_client::await_helper(&self.pool, &name, &mut look));
        raised.map_or(Ok(()), Err)
    }
}

#[pymethods]
impl Pool {
    /// Opens the pool in `location`; with `create`, makes it if there is none. The other arguments
    /// override `pool.toml` for this process.
    #[new]
    #[pyo3(signature = (
        location, *, create, staging_bytes, freeze_bytes_max, index_bytes_max, threads, freeze, tracker
    ))]
    #[allow(clippy::too_many_arguments)] // by name
    fn new(
        py: Python<'_>,
        location: PathBuf,
        create: bool,
        staging_bytes: Option<u64>,
        freeze_bytes_max: Option<u64>,
        index_bytes_max: Option<u64>,
        threads: Option<u64>,
        freeze: Option<String>,
        tracker: Option<String>,
    ) -> PyResult<Pool> {
        errors::load(py)?;
        py.detach(|| {
            let notices = Arc::new(Notices::default());
            let env = Environment::observed(notices.clone());
            let pool = if create { open_or_create(&location, env)? } else { open(&location, env)? };
            check_keep(&pool).map_err(|e| e.context(location.display()))?;
            let opener = Opener::this();
            let mut config = pool.config().clone();
            let tuning = &mut config.tuning;
            set(&mut tuning.staging_bytes, staging_bytes);
            set(&mut tuning.freeze_bytes_max, freeze_bytes_max);
            set(&mut tuning.index_bytes_max, index_bytes_max);
            set(&mut tuning.threads, threads.map(count).transpose()?);
            set(&mut tuning.freeze, freeze);
            set(&mut tuning.tracker, tracker);
            if config == *pool.config() {
                return Ok(Pool { pool, notices, location, opener });
            }
            config.check()?;
            Ok(Pool { pool: pool.with_tuning(config.tuning), notices, location, opener })
        })
        .or_raise(py)
    }

    /// Opens a job of this pool. `group` connects the ranks of the program, if it has several.
    #[pyo3(signature = (
        name, *, every_s, every, slowdown_max, keep, on_failure, fail_after, group, patience_s, schedule,
        tick
    ))]
    #[allow(clippy::too_many_arguments)] // by name
    fn job(
        &self,
        py: Python<'_>,
        name: &str,
        every_s: Option<f64>,
        every: Option<&str>,
        slowdown_max: Option<f64>,
        keep: Option<&Rules>,
        on_failure: Option<&str>,
        fail_after: Option<FailAfter>,
        group: Option<&Bound<'_, PyAny>>,
        patience_s: f64,
        schedule: &str,
        tick: &Bound<'_, PyAny>,
    ) -> PyResult<Job> {
        self.check_process(py)?;
        let of = |object| group_of(object, &self.pool, name, patience_s, schedule);
        let group = group.map(of).transpose()?;
        let on_failure = on_failure.map(|said| on_failure_of(said, fail_after)).transpose();
        let on_failure = on_failure.or_raise(py)?;
        let every = every_of(every_s, every, slowdown_max).or_raise(py)?;
        self.await_helper(name, tick)?;
        let notices = self.notices.clone();
        let open = || Job::open(&self.pool, notices, name, every, on_failure, group);
        let job = py.detach(open).or_raise(py)?;
        keep.map_or(Ok(()), |rules| job.keep(rules)).or_raise(py)?;
        Ok(job)
    }

    /// Returns the names of the jobs that have a checkpoint, or a program that may save.
    fn jobs(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.check_process(py)?;
        let jobs = py.detach(|| listed_jobs(&self.pool)).or_raise(py)?;
        Ok(jobs.iter().map(|job| job.as_str().to_owned()).collect())
    }

    /// Opens the newest tree of files of a job, or that of a checkpoint; `None` if there is none.
    #[pyo3(signature = (job, epoch=None))]
    fn files(&self, py: Python<'_>, job: &str, epoch: Option<&str>) -> PyResult<Option<FilesTree>> {
        self.check_process(py)?;
        py.detach(|| trees::open(&self.pool, job, epoch)).or_raise(py)
    }

    /// Returns the names of the jobs that have files now.
    fn jobs_of_files(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.check_process(py)?;
        py.detach(|| trees::jobs(&self.pool)).or_raise(py)
    }

    /// The pool's id, the same wherever it is opened.
    #[getter]
    fn pool_id(&self) -> &str {
        &self.pool.config().format.pool_id
    }

    /// Deletes data that no checkpoint needs; returns the counts of packs.
    fn gc<'py>(
        &self,
        options: &Collection,
        tick: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.check_process(tick.py())?;
        collect::gc(&self.pool, &self.notices, options, tick)
    }

    /// Deletes a job; returns the epochs and the counts of packs.
    #[pyo3(signature = (name, options, tick, *, fence))]
    fn delete_job<'py>(
        &self,
        name: &str,
        options: &Collection,
        tick: &Bound<'py, PyAny>,
        fence: bool,
    ) -> PyResult<(Vec<u64>, Bound<'py, PyDict>)> {
        self.check_process(tick.py())?;
        let name = JobName::stored(name).or_raise(tick.py())?;
        collect::delete_job(&self.pool, &self.notices, name, options, fence, tick)
    }

    /// Renames a job; returns the epochs.
    #[pyo3(signature = (old, new, tick, *, fence))]
    fn rename_job(
        &self,
        old: &str,
        new: &str,
        tick: &Bound<'_, PyAny>,
        fence: bool,
    ) -> PyResult<Vec<u64>> {
        let py = tick.py();
        self.check_process(py)?;
        let (old, new) = (JobName::stored(old).or_raise(py)?, JobName::new(new).or_raise(py)?);
        // A rename has no middle at which it could stop: Ctrl-C waits for its end.
        let renamed = py.detach(|| outlive_client::rename_job(&self.pool, &old, &new, fence));
        tell(&self.notices, tick)?;
        renamed.or_raise(py)
    }

    /// Returns notices and progress since the last call, each in its order.
    fn take_notices<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_process(py)?;
        let (notices, progress) = (PyList::empty(py), PyList::empty(py));
        for event in self.notices.take() {
            match event {
                Event::Info(text) => notices.append(named!(py; level: "info", text: text))?,
                Event::Warning(text) => notices.append(named!(py; level: "warning", text: text))?,
                Event::Progress(p) => {
                    progress.append(named!(py; ..p { what, done_bytes, total_bytes },))?;
                }
            }
        }
        Ok(named!(py; notices: notices, progress: progress))
    }
}

/// Reads the arguments of `Pool.job` for the interval; Python gives one of them at most.
fn every_of(every_s: Option<f64>, every: Option<&str>, budget: Option<f64>) -> Result<Every> {
    match (every_s, every) {
        (_, Some(text)) => parse_every(text, budget),
        (Some(seconds), None) => seconds_between("every_s", seconds),
        (None, None) => Ok(Every::Always),
    }
}

/// A time: seconds, or text such as "1h".
#[derive(FromPyObject)]
enum FailAfter {
    Seconds(f64),
    Text(String),
}

/// Reads the arguments of `Pool.job` for saves that fail.
fn on_failure_of(said: &str, fail_after: Option<FailAfter>) -> Result<OnFailure> {
    let fail_after = match fail_after {
        None => OnFailure::FAIL_AFTER,
        Some(FailAfter::Text(text)) => parse_age(&text).map_err(|e| e.context("fail_after"))?,
        Some(FailAfter::Seconds(seconds)) => {
            Duration::try_from_secs_f64(seconds).map_err(|_| {
                Error::invalid(format!("fail_after = {seconds} s: must be a time from 0"))
            })?
        }
    };
    match said {
        "raise" => Ok(OnFailure::Raise),
        "warn" => Ok(OnFailure::Warn { fail_after }),
        other => Err(Error::invalid(format!(
            "on_failure = {other:?} is not possible: give \"raise\" or \"warn\""
        ))),
    }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

fn count(threads: u64) -> Result<u32> {
    u32::try_from(threads)
        .map_err(|_| Error::invalid(format!("threads = {threads} is not possible")))
}
