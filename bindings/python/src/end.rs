//! Calls that must run to their end, even if signal handlers raise exceptions meanwhile.

use pyo3::prelude::*;
use pyo3::types::PyList;

/// Calls `begin`, and then calls the result until it returns true, each time with a list of the
/// exceptions that were raised since the callee last emptied the list.
///
/// A loop in Python could not promise that. A signal handler runs between any two of its steps,
/// those of an `except` included, and an exception of the handler leaves the function. This loop
/// has no such steps.
///
/// # Errors The first exception that was raised, when all is done.
#[pyfunction]
pub fn insist(py: Python<'_>, begin: &Bound<'_, PyAny>) -> PyResult<()> {
    let raised = PyList::empty(py);
    let mut first = None;
    let mut step = None;
    loop {
        let outcome = match &step {
            None => begin.call0().map(|made| {
                step = Some(made);
                false
            }),
            Some(step) => step.call1((&raised,)).and_then(|done| done.extract()),
        };
        match outcome {
            Ok(true) => return first.map_or(Ok(()), Err),
            Ok(false) => {}
            Err(error) => {
                raised.append(error.value(py))?;
                first.get_or_insert(error);
            }
        }
    }
}
