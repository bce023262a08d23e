//! The engine's errors as Python exceptions: one class for each thing that the caller can do next.

use outlive_types::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The exception for an error; its class is defined in `outlive/_errors.py`.
pub fn to_py(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error.kind() {
        ErrorKind::Retry => "RetryError",
        ErrorKind::Invalid => "InvalidError",
        ErrorKind::Damaged => "DamagedError",
        ErrorKind::Full => "FullError",
        ErrorKind::Fenced => "FencedError",
        ErrorKind::Bug => "BugError",
    };
    let found = py
        .import("outlive._errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| Ok(class.cast_into::<PyType>()?));
    match found {
        Ok(class) => PyErr::from_type(class, (error.message().to_owned(),)),
        // Without its own classes the package is broken, and that is what must be told.
        Err(import) => import,
    }
}

/// Results of the engine, as Python's.
pub trait OrRaise<T> {
    /// The value, or the exception for the error.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for outlive_types::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| to_py(py, &error))
    }
}
