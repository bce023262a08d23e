//! What the engine tells its surroundings while it works: notices for a log, progress for a bar.

/// How far a long piece of work has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// What is being done: "save", "restore" or "verify".
    pub what: &'static str,
    /// Bytes done so far.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// Something worth telling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A normal step, for a log at level "info".
    Info(String),
    /// Something a person should know: a fallback taken, a damaged checkpoint skipped.
    Warning(String),
    /// Long work moved on.
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
