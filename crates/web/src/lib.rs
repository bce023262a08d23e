//! One page about a pool: as a file, or from a small HTTP server on loopback, which may also serve
//! metrics to Prometheus.
//!
//! This crate knows no pools. The caller gives JSON, and the script of the page draws it. Names in
//! the JSON are hostile input: [`page`] escapes them, and the script never reads them as HTML.

mod owner;
mod page;
mod reply;
mod request;
mod server;

pub use page::{REPORT_START, STYLE, report};
pub use server::{Content, Metrics, Server, Source};

/// The parts of the data, in the order in which the page asks for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Jobs, checkpoints, targets, damage and attempts, from logs and targets.
    Data,
    /// The space that jobs and checkpoints need, from page trees, which takes longer.
    Space,
}

#[cfg(test)]
mod tests;
