//! A pool, opened for Python.

use crate::collect;
use crate::errors::{self, OrRaise};
use crate::events::Events;
use crate::job::Job;
use crate::named::named;
use crate::process::Opener;
use outlive_pool::{Environment, PoolConfig, Tuning, open, open_or_create};
use outlive_store::retention::check_keep;
use outlive_types::{Error, Event, Result};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use std::sync::Arc;

/// A pool; `outlive.Pool` is what programs use.
#[pyclass(frozen, module = "outlive._core")]
pub struct Pool {
    pool: outlive_pool::Pool,
    events: Arc<Events>,
    location: PathBuf,
    opener: Opener,
}

impl Pool {
    /// Refuses in a forked child, before any lock is touched.
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.opener.check(py, || format!("the pool {}", self.location.display()))
    }
}

#[pymethods]
impl Pool {
    /// Opens the pool in `location`, made if `create` and there is none. `tuning` overrides what
    /// `pool.toml` says, for this process.
    #[new]
    fn new(
        py: Python<'_>,
        location: PathBuf,
        create: bool,
        tuning: Vec<(String, TuningValue)>,
    ) -> PyResult<Pool> {
        errors::load(py)?;
        py.detach(|| {
            let events = Arc::new(Events::default());
            let env = Environment::observed(events.clone());
            let pool = if create { open_or_create(&location, env)? } else { open(&location, env)? };
            check_keep(&pool).map_err(|e| e.context(location.display()))?;
            let opener = Opener::this();
            if tuning.is_empty() {
                return Ok(Pool { pool, events, location, opener });
            }
            let mut config = pool.config().clone();
            for (key, value) in &tuning {
                tune(&mut config, key, value)?;
            }
            config.check()?;
            Ok(Pool { pool: pool.with_tuning(config.tuning), events, location, opener })
        })
        .or_raise(py)
    }

    /// Opens a job of this pool.
    fn job(&self, py: Python<'_>, name: &str, every_s: Option<f64>) -> PyResult<Job> {
        self.check_process(py)?;
        Job::open(&self.pool, self.events.clone(), name, every_s).or_raise(py)
    }

    /// Names of the jobs that have ever saved here.
    fn jobs(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.check_process(py)?;
        let jobs = py.detach(|| self.pool.jobs()).or_raise(py)?;
        Ok(jobs.iter().map(|job| job.as_str().to_owned()).collect())
    }

    /// Deletes what no checkpoint needs; answers what became of the packs.
    fn gc<'py>(
        &self,
        options: collect::OptionValues,
        tick: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.check_process(tick.py())?;
        collect::gc(&self.pool, &self.events, options, tick)
    }

    /// Notices and progress since the last call, each in its order.
    fn take_events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_process(py)?;
        let (notices, progress) = (PyList::empty(py), PyList::empty(py));
        for event in self.events.take() {
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

/// The value of a tuning key.
#[derive(FromPyObject)]
enum TuningValue {
    Number(u64),
    Word(String),
}

fn tune(config: &mut PoolConfig, key: &str, value: &TuningValue) -> Result<()> {
    let Tuning {
        staging_bytes, freeze_bytes_max, index_bytes_max, threads, freeze, tracker, ..
    } = &mut config.tuning;
    match (key, value) {
        ("staging_bytes", TuningValue::Number(value)) => *staging_bytes = *value,
        ("freeze_bytes_max", TuningValue::Number(value)) => *freeze_bytes_max = *value,
        ("index_bytes_max", TuningValue::Number(value)) => *index_bytes_max = *value,
        ("threads", TuningValue::Number(value)) => {
            *threads = u32::try_from(*value)
                .map_err(|_| Error::invalid(format!("threads = {value} is not possible")))?;
        }
        ("freeze", TuningValue::Word(word)) => freeze.clone_from(word),
        ("tracker", TuningValue::Word(word)) => tracker.clone_from(word),
        _ => return Err(Error::invalid(format!("there is no tuning key {key:?} of this type"))),
    }
    Ok(())
}
