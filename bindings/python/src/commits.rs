//! The fate of each checkpoint of a job, for Python.

use crate::errors::{OrRaise, to_py};
use crate::notices::Notices;
use crate::wait;
use outlive_client::{NextEvent, Subscription};
use outlive_store::CommitEvent;
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A subscription; programs use `outlive.CommitEvents`. It does not keep its job open.
#[pyclass(frozen, module = "outlive._core")]
pub struct CommitEvents {
    subscription: Arc<Subscription>,
    /// Notices of the job's pool, which a wait reports.
    notices: Arc<Notices>,
}

impl CommitEvents {
    /// A subscription to a job of the pool with these notices.
    pub fn new(subscription: Arc<Subscription>, notices: &Arc<Notices>) -> CommitEvents {
        CommitEvents { subscription, notices: notices.clone() }
    }
}

/// The epoch and the job of a checkpoint, and the error of a save that failed.
type Fate = (u64, String, Option<Py<PyBaseException>>);

fn fate(py: Python<'_>, event: CommitEvent) -> Fate {
    match event {
        CommitEvent::Committed { job, epoch } => (epoch, job.as_str().to_owned(), None),
        CommitEvent::Failed { job, epoch, error } => {
            let error = to_py(py, &error).into_value(py);
            (epoch, job.as_str().to_owned(), Some(error))
        }
    }
}

#[pymethods]
impl CommitEvents {
    /// Takes the next event; `None` if none came within `timeout_s`, or none will come.
    fn next(&self, timeout_s: Option<f64>, tick: &Bound<'_, PyAny>) -> PyResult<Option<Fate>> {
        let py = tick.py();
        let timeout = wait::timeout(py, timeout_s)?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let step = &mut |limit| match self.subscription.wait(limit) {
                Ok(false) => None,
                Ok(true) => Some(Ok(())),
                Err(error) => Some(Err(error)),
            };
            let Some(ready) = wait::wait(&self.notices, tick, left, step)? else { return Ok(None) };
            ready.or_raise(py)?;
            // Before an event is taken: an exception of a signal handler would lose it.
            py.check_signals()?;
            match self.subscription.next(Some(Duration::ZERO)).or_raise(py)? {
                NextEvent::Event(event) => return Ok(Some(fate(py, event))),
                NextEvent::Over => return Ok(None),
                // Another thread has taken it.
                NextEvent::NotYet => {}
            }
        }
    }

    /// True if no event is left, and none will come.
    fn ended(&self, py: Python<'_>) -> PyResult<bool> {
        self.subscription.is_over().or_raise(py)
    }

    /// Ends the subscription, and wakes the threads that wait. Does nothing in a forked child.
    fn close(&self) {
        self.subscription.close();
    }
}
