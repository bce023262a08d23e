//! The result of `save`, which waits for the commit.

use crate::save::SaveStats;
use outlive_types::sync::{Condvar, Mutex, MutexGuard};
use outlive_types::{Epoch, Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A save, in progress or over. Clones refer to the same save.
#[derive(Clone, Debug)]
pub struct SaveHandle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    epoch: Epoch,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    live_done: bool,
    outcome: Option<Result<SaveStats>>,
    stall: Duration,
    /// Whether the program has seen the outcome.
    seen: bool,
}

impl SaveHandle {
    pub(crate) fn new(epoch: Epoch) -> SaveHandle {
        SaveHandle(Arc::new(Shared { epoch, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// Returns the handle of a save that failed at its beginning.
    pub(crate) fn failed(epoch: Epoch, error: Error) -> SaveHandle {
        let handle = SaveHandle::new(epoch);
        handle.settle(Err(error));
        handle
    }

    /// Returns the epoch that the checkpoint has once it is committed.
    pub fn epoch(&self) -> Epoch {
        self.0.epoch
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    pub(crate) fn set_live_done(&self) {
        self.state().live_done = true;
        self.0.changed.notify_all();
    }

    pub(crate) fn settle(&self, outcome: Result<SaveStats>) {
        let mut state = self.state();
        state.live_done = true;
        let stall = state.stall;
        state.outcome = Some(outcome.map(|stats| SaveStats { stall, ..stats }));
        self.0.changed.notify_all();
    }

    /// Waits until the program may write its memory again.
    pub(crate) fn wait_live(&self) {
        let state = self.state();
        drop(self.0.changed.wait_while(state, |state| !state.live_done));
    }

    /// Sets the stall; known only when `save` returns, perhaps after the commit.
    pub(crate) fn set_stall(&self, stall: Duration) {
        let mut state = self.state();
        state.stall = stall;
        if let Some(Ok(stats)) = &mut state.outcome {
            stats.stall = stall;
        }
    }

    /// Waits until the save is over, at most `timeout`; true if it is over. A failure stays unseen.
    pub fn wait_done(&self, timeout: Option<Duration>) -> bool {
        self.wait_over(timeout).is_some()
    }

    fn wait_over(&self, timeout: Option<Duration>) -> Option<MutexGuard<'_, State>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.state();
        while state.outcome.is_none() {
            state = match deadline {
                None => self.0.changed.wait(state),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let waited = self.0.changed.wait_timeout(state, left);
                    waited.0
                }
            };
        }
        Some(state)
    }

    /// Returns the failure, if the program has not seen it yet.
    pub(crate) fn unseen_failure(&self) -> Option<Error> {
        let state = self.state();
        match &state.outcome {
            Some(Err(error)) if !state.seen => Some(error.clone()),
            _ => None,
        }
    }

    /// Notes that the program has seen the outcome.
    pub(crate) fn see(&self) {
        self.state().seen = true;
    }

    /// Returns the failure as [`SaveHandle::unseen_failure`] does, and notes that the program has
    /// seen it.
    pub(crate) fn tell_failure(&self) -> Option<Error> {
        let error = self.unseen_failure()?;
        self.see();
        Some(error)
    }

    /// Returns true once the checkpoint is committed, or has failed.
    pub fn done(&self) -> bool {
        self.state().outcome.is_some()
    }

    /// Returns the time from the call to the commit; `None` unless the save is committed.
    pub fn took(&self) -> Option<Duration> {
        self.state().outcome.as_ref()?.as_ref().ok().map(|stats| stats.total)
    }

    /// Waits for the commit, at most `timeout` (forever without one); `None` if the save is not
    /// over by then.
    ///
    /// # Errors
    /// Inside: the error of the save. The program has seen it then, so the next save does not raise
    /// it.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Result<SaveStats>> {
        let mut state = self.wait_over(timeout)?;
        state.seen = true;
        state.outcome.clone()
    }
}
