//! The metrics of a node, as Prometheus reads them.

use crate::service::Service;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns all metrics.
pub(crate) fn text(service: &Service) -> String {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (taken, peak) = service.admission.taken();
    let size = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
    let rows: [(&str, &str, &str, u64); 12] = [
        ("requests_total", "counter", "Requests of clients.", count(&service.requests)),
        (
            "refused_total",
            "counter",
            "Requests and connections that were refused, or failed.",
            service.refusals.count(),
        ),
        (
            "written_bytes_total",
            "counter",
            "Bytes received for shards.",
            count(&service.written_bytes),
        ),
        ("sent_bytes_total", "counter", "Bytes of shards asked for.", count(&service.sent_bytes)),
        ("ranges_total", "counter", "Ranges of shards asked for.", count(&service.stage.ranges)),
        ("reads_total", "counter", "Reads of the disks for them.", count(&service.stage.reads)),
        ("read_bytes_total", "counter", "Bytes of these reads.", count(&service.stage.read_bytes)),
        ("sessions", "gauge", "Clients with a session.", size(service.sessions.count())),
        ("writers", "gauge", "Shards that are being written.", size(service.writers.count())),
        ("request_bytes", "gauge", "Memory for requests in use.", size(taken)),
        ("request_bytes_peak", "gauge", "Most memory for requests in use so far.", size(peak)),
        (
            "request_bytes_max",
            "gauge",
            "Memory for requests in all: half of the staging memory.",
            size(service.admission.total()),
        ),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in rows {
        let _ = write!(
            text,
            "# HELP outlive_node_{name} {help}\n# TYPE outlive_node_{name} {kind}\n\
             outlive_node_{name} {value}\n"
        );
    }
    text
}
