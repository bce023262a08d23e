//! The output gate of a job, for Python, and sinks that are written in Python.

use crate::errors::OrRaise;
use crate::named::named;
use crate::shared::Core;
use crate::wait;
use outlive_gate::{Answer, FileMode, OutputKey, Sink};
use outlive_types::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// A gate; programs use `outlive.Gate`.
#[pyclass(frozen, module = "outlive._core")]
pub struct Gate {
    core: Arc<Core>,
    gate: outlive_gate::Gate,
    is_new: bool,
}

/// Opens the gate of a job.
pub fn open(core: &Arc<Core>, bytes_max: u64, tick: &Bound<'_, PyAny>) -> PyResult<Gate> {
    let py = tick.py();
    core.check_process(py)?;
    let inside = core.enter(tick)?;
    let gate = py.detach(|| core.client.open_gate(bytes_max));
    drop(inside);
    let (gate, is_new) = gate.or_raise(py)?;
    wait::tell(&core.notices, tick)?;
    Ok(Gate { core: core.clone(), gate, is_new })
}

#[pymethods]
impl Gate {
    /// Whether no other handle of the job had it open.
    #[getter]
    fn is_new(&self) -> bool {
        self.is_new
    }

    /// Opens a file for outputs, and returns the name of its sink.
    fn open_file(
        &self,
        path: PathBuf,
        truncate: bool,
        tick: &Bound<'_, PyAny>,
    ) -> PyResult<String> {
        let py = tick.py();
        self.core.check_process(py)?;
        let mode = if truncate { FileMode::Truncate } else { FileMode::Append };
        let name = py.detach(|| self.gate.open_file(&path, mode)).or_raise(py)?;
        wait::tell(&self.core.notices, tick)?;
        Ok(name)
    }

    /// Appends bytes to an open file.
    fn write_file(&self, py: Python<'_>, name: &str, bytes: &[u8]) -> PyResult<()> {
        self.core.check_process(py)?;
        self.gate.write_file(name, bytes).or_raise(py)
    }

    /// Returns the length that a file will have once everything is released.
    fn file_position(&self, py: Python<'_>, name: &str) -> PyResult<u64> {
        self.core.check_process(py)?;
        self.gate.file_position(name).or_raise(py)
    }

    /// Returns the paths of the files that the job writes, in this run or in earlier ones.
    fn files(&self, py: Python<'_>) -> PyResult<BTreeSet<String>> {
        self.core.check_process(py)?;
        Ok(self.gate.files())
    }

    /// Lets a finished file appear as `last` once the checkpoint is committed.
    fn publish(&self, py: Python<'_>, temporary: PathBuf, last: PathBuf) -> PyResult<()> {
        self.core.check_process(py)?;
        py.detach(|| self.gate.publish(&temporary, &last)).or_raise(py)
    }

    /// Opens a sink: an object with `prepare`, `recover`, `release` and `abort`.
    fn open_sink(&self, py: Python<'_>, name: &str, sink: Py<PyAny>) -> PyResult<()> {
        self.core.check_process(py)?;
        let sink = Arc::new(PySink(sink));
        py.detach(|| self.gate.open_sink(name, sink)).or_raise(py)
    }

    /// Gives an output to a sink, and returns its number.
    fn give(&self, py: Python<'_>, sink: &str, token: Vec<u8>) -> PyResult<u64> {
        self.core.check_process(py)?;
        self.gate.give(sink, token).or_raise(py)
    }

    /// Waits until everything that a save covers is released; false after `timeout_s`.
    fn wait(&self, timeout_s: Option<f64>, tick: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = tick.py();
        self.core.check_process(py)?;
        let timeout = wait::timeout(py, timeout_s)?;
        let step = &mut |limit| self.gate.wait(limit).then_some(());
        Ok(wait::wait(&self.core.notices, tick, timeout, step)?.is_some())
    }

    /// Returns whether it holds more than `bytes_max`.
    fn wants_save(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.check_process(py)?;
        Ok(self.gate.wants_save())
    }

    /// See `outlive.GateStatus`.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.core.check_process(py)?;
        let report = self.gate.report();
        let sinks: Vec<Bound<'py, PyDict>> = report
            .sinks
            .iter()
            .map(|sink| Ok(named!(py; ..sink { name, outputs, covered, is_stopped, is_open }, trouble: sink.trouble.clone())))
            .collect::<PyResult<_>>()?;
        Ok(named!(py; ..report { outputs, uncovered, bytes }, sinks: sinks))
    }
}

/// A sink that is written in Python. Its methods run on the gate's thread, or on the thread that
/// saves or restores.
struct PySink(Py<PyAny>);

/// Returns the error of a sink for an exception.
fn error_of(py: Python<'_>, raised: &PyErr) -> Error {
    let kind = raised.get_type(py).name().map_or_else(|_| String::new(), |name| name.to_string());
    Error::invalid(format!("{kind}: {}", raised.value(py)))
}

impl Sink for PySink {
    fn prepare(&self) -> Result<Vec<Vec<u8>>> {
        Python::attach(|py| {
            let tokens = self.0.bind(py).call_method0("prepare");
            let tokens = tokens.and_then(|tokens| tokens.extract());
            tokens.map_err(|raised: PyErr| error_of(py, &raised))
        })
    }

    fn is_idempotent(&self) -> bool {
        Python::attach(|py| {
            let there = self.0.bind(py).getattr("is_idempotent");
            there.and_then(|value| value.is_truthy()).unwrap_or(false)
        })
    }

    fn recover(&self, tokens: &[&[u8]]) -> Result<()> {
        Python::attach(|py| {
            let tokens: Vec<_> = tokens.iter().map(|token| PyBytes::new(py, token)).collect();
            let done = self.0.bind(py).call_method1("recover", (tokens,));
            done.map(drop).map_err(|raised| error_of(py, &raised))
        })
    }

    /// The sink returns `None` once the output is released. Otherwise it returns whether to try
    /// again, and the reason.
    fn release(&self, key: &OutputKey, token: &[u8]) -> Answer {
        Python::attach(|py| {
            let arguments = (key.to_string(), key.epoch, key.number, PyBytes::new(py, token));
            let answer = self.0.bind(py).call_method1("release", arguments);
            match answer.and_then(|answer| answer.extract::<Option<(bool, String)>>()) {
                Ok(None) => Answer::Released,
                Ok(Some((true, why))) => Answer::Later(why),
                Ok(Some((false, why))) => Answer::Failed(why),
                Err(raised) => Answer::Failed(error_of(py, &raised).to_string()),
            }
        })
    }

    fn close(&self) {
        Python::attach(|py| {
            if let Err(raised) = self.0.bind(py).call_method0("close") {
                raised.write_unraisable(py, Some(self.0.bind(py)));
            }
        });
    }

    fn abort(&self, token: &[u8]) {
        Python::attach(|py| {
            if let Err(raised) = self.0.bind(py).call_method1("abort", (PyBytes::new(py, token),)) {
                raised.write_unraisable(py, Some(self.0.bind(py)));
            }
        });
    }
}
