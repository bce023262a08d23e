//! Events that the engine reports while it works: notices for a log, progress for a bar.

/// Progress of a long operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The operation: "save", "restore" or "verify".
    pub what: &'static str,
    /// Bytes done so far.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// A notice, or progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A normal step, for a log at level "info".
    Info(String),
    /// A notice that a person should read: a fallback, a damaged checkpoint that was skipped.
    Warning(String),
    /// A long operation progressed.
    Progress(Progress),
}

/// Receives events. Called from any of the engine's threads; must return quickly.
pub trait Observer: Send + Sync {
    /// Takes one event.
    fn event(&self, event: Event);
}

/// Ignores everything.
#[derive(Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn event(&self, _event: Event) {}
}
