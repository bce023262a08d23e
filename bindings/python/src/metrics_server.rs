//! A server of metrics for Prometheus, in a thread of this process.

use crate::errors::{OrRaise, to_py};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result, metrics};
use outlive_web::{Content, Server};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A server of metrics; programs use `outlive.MetricsServer`.
#[pyclass(frozen, module = "outlive._core")]
pub struct MetricsServer {
    port: u16,
    /// The process that has the thread: a forked child has none.
    process: u32,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[pymethods]
impl MetricsServer {
    /// Serves the metrics of this process, and those of a pool.
    #[new]
    #[pyo3(signature = (port, pool))]
    fn new(py: Python<'_>, port: u16, pool: Option<PathBuf>) -> PyResult<MetricsServer> {
        py.detach(|| -> Result<MetricsServer> {
            if let Some(pool) = &pool {
                // Refused now, and not only at the first scrape.
                outlive_cli::pool_metrics_text(pool)?;
            }
            let text = move || -> Result<String> {
                let mut text = metrics::text(None);
                if let Some(pool) = &pool {
                    text.push_str(&outlive_cli::pool_metrics_text(pool)?);
                }
                Ok(text)
            };
            let server = Server::bind(port, Content::metrics(Box::new(text)))?;
            let (port, stop) = (server.port(), Arc::new(AtomicBool::new(false)));
            let asked = stop.clone();
            let serve = move || drop(server.serve(&asked));
            let thread = std::thread::Builder::new().name("outlive-metrics".to_owned());
            let thread = thread.spawn(serve).map_err(|e| Error::no_thread("this", &e))?;
            let (process, thread) = (std::process::id(), Mutex::new(Some(thread)));
            Ok(MetricsServer { port, process, stop, thread })
        })
        .or_raise(py)
    }

    /// The port.
    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    /// Ends the server; later calls do nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.process != std::process::id() {
            return Ok(());
        }
        py.detach(|| -> Result<()> {
            self.stop.store(true, Ordering::Relaxed);
            match self.thread.lock().take().map(JoinHandle::join) {
                Some(Err(_)) => Err(Error::bug("the thread of the metrics has panicked")),
                _ => Ok(()),
            }
        })
        .map_err(|error| to_py(py, &error))
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
