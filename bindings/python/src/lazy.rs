//! Memory that a lazy restore fills while Python runs. Threads of the fill never need the GIL, as
//! the thread that waits for a page may hold it.

use crate::errors::to_py;
use crate::named::named;
use crate::shared::Core;
use crate::wait;
use outlive_capture::lazy::Mode;
use outlive_client::MemoryFill;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use std::time::Duration;

/// Memory that is being filled; programs use `outlive.LazyRestored`.
#[pyclass(frozen, module = "outlive._core")]
pub struct FillHandle {
    core: Arc<Core>,
    rest: MemoryFill,
}

impl FillHandle {
    /// The handle for a lazy restore of a job.
    pub fn new(core: &Arc<Core>, rest: MemoryFill) -> FillHandle {
        FillHandle { core: core.clone(), rest }
    }
}

#[pymethods]
impl FillHandle {
    /// True once all bytes are there.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.check_process(py)?;
        Ok(self.rest.done())
    }

    /// Bytes that the background has brought so far, and in total.
    fn progress(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.core.check_process(py)?;
        Ok(self.rest.progress())
    }

    /// Returns the mode, the bytes that are filled lazily, and why other large memory is not. Mode:
    /// "full" if system calls may touch missing pages, "user-only" if only the program's own
    /// instructions may, "eager" if nothing is filled lazily.
    fn how<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let how = self.rest.how();
        let mode = match how.mode {
            Some(Mode::Full) => "full",
            Some(Mode::UserOnly) => "user-only",
            None => "eager",
        };
        Ok(named!(py; ..how { lazy_bytes, eager_because }, mode: mode))
    }

    /// Waits until the named regions, or all if none is named, are there; false if that takes
    /// longer than `timeout_s`.
    fn wait(
        &self,
        names: Option<Vec<String>>,
        timeout_s: Option<f64>,
        tick: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let py = tick.py();
        self.core.check_process(py)?;
        let timeout = wait::timeout(py, timeout_s)?;
        let mut step = |limit: Duration| self.rest.wait(names.as_deref(), limit);
        let outcome = wait::wait(&self.core.notices, tick, timeout, &mut step)?;
        wait::tell(&self.core.notices, tick)?;
        match outcome {
            None => Ok(false),
            Some(outcome) => outcome.map(|()| true).map_err(|e| to_py(py, &e)),
        }
    }
}
