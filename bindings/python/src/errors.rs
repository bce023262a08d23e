//! The engine's errors as Python exceptions: one class for each thing that the caller can do next.

use outlive_types::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyType};

/// The module `outlive._errors`, kept since an import fails at the end of the interpreter.
static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Imports the classes, unless that was done already.
///
/// # Errors
/// If the package is broken.
pub fn load(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    let import = || py.import("outlive._errors").map(Bound::unbind);
    Ok(MODULE.get_or_try_init(py, import)?.bind(py))
}

/// Returns the exception for an error; its class is defined in `outlive/_errors.py`.
pub fn to_py(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error.kind() {
        ErrorKind::Retry => "RetryError",
        ErrorKind::Invalid => "InvalidError",
        ErrorKind::Damaged => "DamagedError",
        ErrorKind::Full => "FullError",
        ErrorKind::Fenced => "FencedError",
        ErrorKind::Bug => "BugError",
    };
    let found = load(py)
        .and_then(|module| module.getattr(class))
        .and_then(|class| Ok(class.cast_into::<PyType>()?));
    match found {
        Ok(class) => PyErr::from_type(class, (error.message().to_owned(),)),
        // Without its own classes the package is broken, so report that error instead.
        Err(import) => import,
    }
}

/// Results of the engine, as Python results.
pub trait OrRaise<T> {
    /// Returns the value, or the exception for the error.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for outlive_types::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| to_py(py, &error))
    }
}

/// Returns the exception for a mistake of the caller.
pub fn invalid(py: Python<'_>, message: String) -> PyErr {
    to_py(py, &Error::invalid(message))
}
