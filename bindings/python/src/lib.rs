//! The native half of the Python binding: takes leaves of a state tree, hands their memory to the
//! engine without the GIL, and converts the engine's results into Python objects.
//!
//! It knows nothing about state trees; `python/outlive/_tree.py` does.

mod buffer;
mod collect;
mod commits;
mod dlpack;
mod end;
mod errors;
mod files;
mod gate;
mod group;
mod job;
mod lazy;
mod metrics_server;
mod named;
mod notes;
mod notices;
mod plain;
mod pool;
mod process;
mod remembered;
mod restore;
mod save;
mod shared;
mod trees;
mod values;
mod wait;

use pyo3::prelude::*;

/// Native half of the package `outlive`; use that instead.
#[pymodule]
mod _core {
    use crate::remembered::Remembered;
    use outlive_types::metrics::{NamedValue, Value, text, values};
    use pyo3::prelude::*;
    use pyo3::types::{PyBytes, PyDict, PyFrozenSet};
    use std::ffi::OsString;

    /// The package's version.
    #[pymodule_export]
    #[allow(non_upper_case_globals)] // the name is Python's
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// Runs the `outlive` command with `args`, the program's name first; returns its exit code.
    #[pyfunction]
    fn command(py: Python<'_>, args: Vec<OsString>) -> i32 {
        py.detach(|| outlive_cli::run(args))
    }

    /// Sets the command line that starts a helper, up to its subcommand.
    #[pyfunction]
    fn set_helper_command(command: Vec<OsString>) {
        outlive_client::set_helper_command(command);
    }

    /// Returns the CRC-32C of bytes.
    #[pyfunction]
    fn crc32c(data: &[u8]) -> u64 {
        crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, data)
    }

    /// Returns the metrics of this process by name: numbers; of a histogram a dict.
    #[pyfunction]
    fn process_metrics(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let all = PyDict::new(py);
        for NamedValue { name, value, .. } in values() {
            match value {
                Value::Counter(value) | Value::Gauge(value) => all.set_item(name, value)?,
                Value::Histogram { buckets, count, sum_s } => {
                    let histogram = PyDict::new(py);
                    histogram.set_item("count", count)?;
                    histogram.set_item("sum", sum_s)?;
                    histogram.set_item("buckets", buckets)?;
                    all.set_item(name, histogram)?;
                }
            }
        }
        Ok(all)
    }

    /// Returns the metrics of this process in the text format of Prometheus.
    #[pyfunction]
    fn process_metrics_text() -> String {
        text(None)
    }

    /// Returns a picture in SVG as PNG.
    #[pyfunction]
    fn picture_png<'py>(py: Python<'py>, svg: &str) -> PyResult<Bound<'py, PyBytes>> {
        let drawn = py.detach(|| outlive_cli::png(svg));
        drawn.map(|png| PyBytes::new(py, &png)).map_err(|error| crate::errors::to_py(py, &error))
    }

    /// Lets SIGTERM, SIGUSR1 and SIGUSR2 ask this process to stop, `grace_s` seconds before its end.
    #[pyfunction]
    fn on_preempt(py: Python<'_>, grace_s: f64) -> PyResult<()> {
        let grace = outlive_client::stop::grace(grace_s);
        let done = grace.and_then(outlive_client::stop::on_signals);
        done.map_err(|error| crate::errors::to_py(py, &error))
    }

    /// Returns ids of the containers in `state` that become one leaf each: the outermost that hold
    /// only plain values, with `least` values or more.
    #[pyfunction]
    fn plain_containers<'py>(
        state: &Bound<'py, PyAny>,
        least: usize,
    ) -> PyResult<Bound<'py, PyFrozenSet>> {
        PyFrozenSet::new(
            state.py(),
            crate::plain::outermost(state, least, &mut Remembered::default()),
        )
    }

    /// Offers the mapping of a new array, a private anonymous one that no code has used: it gets
    /// the pages that cost least on this machine, which is measured. Returns an object to keep
    /// until the mapping goes, and a notice of the choice if it is new.
    #[pyfunction]
    #[allow(unsafe_code)]
    fn offer(mapping: &Bound<'_, PyAny>) -> PyResult<(Offered, Option<String>)> {
        let buffer = crate::buffer::Buffer::write(mapping)?;
        // SAFETY: `outlive.zeros` has just made the mapping in this way, no other code has seen it,
        // and the mapping's own object keeps the result until it is deallocated.
        let (offered, news) = unsafe { buffer.offer() };
        Ok((Offered { _kept: offered }, news))
    }

    /// Marks a mapping as existing, while this object exists.
    #[pyclass(frozen)]
    struct Offered {
        _kept: outlive_io::fresh::Offered,
    }

    #[pymodule_export]
    use crate::collect::{Collection, Rules};
    #[pymodule_export]
    use crate::commits::CommitEvents;
    #[pymodule_export]
    use crate::dlpack::{Lent, borrow};
    #[pymodule_export]
    use crate::end::insist;
    #[pymodule_export]
    use crate::gate::Gate;
    #[pymodule_export]
    use crate::job::Job;
    #[pymodule_export]
    use crate::lazy::FillHandle;
    #[pymodule_export]
    use crate::metrics_server::MetricsServer;
    #[pymodule_export]
    use crate::notes::Notes;
    #[pymodule_export]
    use crate::pool::Pool;
    #[pymodule_export]
    use crate::save::Save;
    #[pymodule_export]
    use crate::trees::{FilesTree, StoredFile};
}
