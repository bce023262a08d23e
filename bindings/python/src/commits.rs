//! The fate of each checkpoint of a job, for Python.

use crate::errors::{OrRaise, invalid, to_py};
use crate::events::Events;
use crate::wait;
use outlive_client::{EventQueue, NextEvent};
use outlive_store::CommitEvent;
use outlive_types::Result;
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// A subscription; programs use `outlive.CommitEvents`. It does not keep its job open.
#[pyclass(frozen, module = "outlive._core")]
pub struct CommitEvents {
    queue: Arc<EventQueue>,
    /// Events of the job's pool, which a wait reports.
    events: Arc<Events>,
}

impl CommitEvents {
    /// A subscription of a job of the pool with these events.
    pub fn new(queue: Arc<EventQueue>, events: &Arc<Events>) -> CommitEvents {
        CommitEvents { queue, events: events.clone() }
    }
}

/// The epoch and the job of a checkpoint, and the error of a save that failed.
type Fate = (u64, String, Option<Py<PyBaseException>>);

#[pymethods]
impl CommitEvents {
    /// Takes the next event; `None` if none came within `timeout_s`, or none will come.
    fn next(&self, timeout_s: Option<f64>, tick: &Bound<'_, PyAny>) -> PyResult<Option<Fate>> {
        let py = tick.py();
        let timeout = match timeout_s {
            None => None,
            Some(s) if s.is_nan() => return Err(invalid(py, "a timeout must be a number".into())),
            // A time beyond the range of a duration means forever.
            Some(s) => Duration::try_from_secs_f64(s.max(0.0)).ok(),
        };
        let step = &mut |limit| match self.queue.next(Some(limit)) {
            Ok(NextEvent::NotYet) => None,
            Ok(NextEvent::Over) => Some(Ok(None)),
            Ok(NextEvent::Event(event)) => Some(Ok(Some(event))),
            Err(error) => Some(Err(error)),
        };
        let taken: Option<Result<Option<CommitEvent>>> =
            wait::wait(&self.events, tick, timeout, step)?;
        let Some(event) = taken.transpose().or_raise(py)?.flatten() else { return Ok(None) };
        Ok(Some(match event {
            CommitEvent::Committed { job, epoch } => (epoch, job.as_str().to_owned(), None),
            CommitEvent::Failed { job, epoch, error } => {
                let error = to_py(py, &error).into_value(py);
                (epoch, job.as_str().to_owned(), Some(error))
            }
        }))
    }

    /// True if no event is left, and none will come.
    fn ended(&self, py: Python<'_>) -> PyResult<bool> {
        self.queue.is_over().or_raise(py)
    }

    /// Ends the subscription, and wakes the threads that wait. Does nothing in a forked child.
    fn close(&self) {
        self.queue.close();
    }
}
