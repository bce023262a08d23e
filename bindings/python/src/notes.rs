//! Label, tags, pin and metrics of a checkpoint.

use crate::errors::OrRaise;
use outlive_format::Remarks;
use outlive_store::SaveNotes;
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// Label, tags, pin and metrics of a checkpoint.
#[pyclass(frozen, module = "outlive._core")]
pub struct Notes(pub SaveNotes);

#[pymethods]
impl Notes {
    #[new]
    #[pyo3(signature = (*, label, tags, pin, metrics))]
    fn new(
        py: Python<'_>,
        label: String,
        tags: Vec<String>,
        pin: bool,
        metrics: BTreeMap<String, f64>,
    ) -> PyResult<Notes> {
        let remarks = Remarks { pinned: pin, label, tags, ..Remarks::default() };
        SaveNotes::new(remarks, metrics.into_iter().collect()).or_raise(py).map(Notes)
    }
}
