//! What must be done to its end, whatever signal handlers raise meanwhile.

use pyo3::prelude::*;
use pyo3::types::PyList;

/// Calls `begin`, and then what that gave until it gives true, each time with a list of what was raised
/// since it has last emptied the list.
///
/// A loop in Python could not promise that: a signal's handler runs between any two of its steps, those
/// of an `except` included, and what it raises there leaves the function. Here are no such steps.
///
/// # Errors
/// The first thing that was raised, when all is done.
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
