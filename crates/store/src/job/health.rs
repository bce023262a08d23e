//! The health of a job: its failed saves, and when an error must report them to the program.

use outlive_pool::Pool;
use outlive_types::sync::{Mutex, MutexGuard};
use outlive_types::{Clock, Error, ErrorKind, JobName, Result};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Delay of the next save after a failed one; each further failure doubles it.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause doubles at most this often: the interval of the job bounds it long before.
const DOUBLED_MAX: u32 = 20;

/// Policy for saves that fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnFailure {
    /// The next save, wait or close returns the failure.
    #[default]
    Raise,
    /// The program continues, with a warning, until no save has been committed for `fail_after`.
    Warn {
        /// Counted from the last commit, or from the time at which this was set.
        fail_after: Duration,
    },
}

impl OnFailure {
    /// Default time for which a program continues.
    pub const FAIL_AFTER: Duration = Duration::from_secs(3600);
}

/// Health of a job in this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobHealth {
    /// Policy for saves that fail.
    pub on_failure: OnFailure,
    /// Saves that have failed since the last committed one.
    pub failed_in_a_row: u64,
    /// All saves that have failed.
    pub failed: u64,
    /// Saves that were committed.
    pub committed: u64,
    /// Error of the last failed save.
    pub last_error: Option<Error>,
    /// Time since the last commit.
    pub since_commit: Option<Duration>,
}

/// Counts the saves of a job, and judges their failures.
pub(crate) struct Health {
    job: JobName,
    /// The clock of one pool: pools that are opened later have clocks of their own.
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    on_failure: OnFailure,
    failed_in_a_row: u64,
    failed: u64,
    /// Failures that a warning has reported to the program.
    warned: u64,
    committed: u64,
    last_error: Option<Error>,
    failed_at: Duration,
    committed_at: Option<Duration>,
    /// Start of the time that `fail_after` limits.
    counts_from: Duration,
}

impl Health {
    pub fn new(pool: &Pool, job: JobName) -> Health {
        let clock = pool.env().clock.clone();
        let state = State { counts_from: clock.monotonic(), ..State::default() };
        Health { job, clock, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Sets the policy for saves that fail; `every` is the interval of the handle that sets it.
    ///
    /// # Errors
    /// `Invalid` for a time of zero, or one within which no second save is due.
    pub fn set(&self, on_failure: OnFailure, every: Option<Duration>) -> Result<()> {
        if let OnFailure::Warn { fail_after } = on_failure {
            let seconds = fail_after.as_secs_f64();
            if fail_after.is_zero() {
                return Err(Error::invalid(
                    "fail_after = 0 s: give a longer time, or on_failure \"raise\", which tells the program \
                     of each failed save",
                ));
            }
            if let Some(every) = every.filter(|every| *every >= fail_after) {
                return Err(Error::invalid(format!(
                    "fail_after = {seconds} s, and saves are due every {} s: give a longer fail_after, so \
                     that a failed save can be tried again within it",
                    every.as_secs_f64()
                )));
            }
        }
        let mut state = self.state();
        if state.on_failure != on_failure {
            state.counts_from = self.clock.monotonic();
        }
        state.on_failure = on_failure;
        Ok(())
    }

    /// Counts a committed save.
    pub fn committed(&self) {
        let (now, mut state) = (self.clock.monotonic(), self.state());
        state.committed += 1;
        state.failed_in_a_row = 0;
        (state.committed_at, state.counts_from) = (Some(now), now);
    }

    /// Counts a failed save.
    pub fn failed(&self, error: &Error) {
        let (now, mut state) = (self.clock.monotonic(), self.state());
        state.failed += 1;
        state.failed_in_a_row += 1;
        (state.failed_at, state.last_error) = (now, Some(error.clone()));
    }

    /// Returns the policy, in words.
    pub fn says(&self) -> &'static str {
        match self.state().on_failure {
            OnFailure::Raise => "on_failure \"raise\"",
            OnFailure::Warn { .. } => "on_failure \"warn\"",
        }
    }

    /// Returns the health of the job.
    pub fn look(&self) -> JobHealth {
        let (now, state) = (self.clock.monotonic(), self.state());
        JobHealth {
            on_failure: state.on_failure,
            failed_in_a_row: state.failed_in_a_row,
            failed: state.failed,
            committed: state.committed,
            last_error: state.last_error.clone(),
            since_commit: state.committed_at.map(|at| now.saturating_sub(at)),
        }
    }

    /// See [`Job::untold_failures`](super::Job::untold_failures).
    pub fn untold(&self) -> Option<(u64, u64, Error)> {
        let mut state = self.state();
        let count = state.failed - state.warned;
        state.warned = state.failed;
        let warns = state.on_failure != OnFailure::Raise && count > 0;
        let error = state.last_error.clone().filter(|_| warns)?;
        Some((count, state.failed_in_a_row, error))
    }

    /// Returns the number of failed saves since the last commit, for the next manifest.
    pub fn failed_before(&self) -> u16 {
        u16::try_from(self.state().failed_in_a_row).unwrap_or(u16::MAX)
    }

    /// Returns whether a failed save must be tried again by now, although the interval has not
    /// passed.
    pub fn is_again_due(&self) -> bool {
        let (now, state) = (self.clock.monotonic(), self.state());
        let Some(before) = state.failed_in_a_row.checked_sub(1) else { return false };
        let doubled = u32::try_from(before).unwrap_or(u32::MAX).min(DOUBLED_MAX);
        let pause = PAUSE.saturating_mul(1 << doubled);
        state.on_failure != OnFailure::Raise && now.saturating_sub(state.failed_at) >= pause
    }

    /// Lets the program continue after the failure of the last save. In a group, the rank that
    /// `decides` when failures have lasted too long decides for all ranks.
    ///
    /// # Errors
    /// The failure, if the program must know of it.
    pub fn judge(&self, error: Error, decides: bool) -> Result<()> {
        let failed_at = self.state().failed_at;
        self.judge_as_of(error, decides, failed_at)
    }

    /// Judges a failure of this moment, which is not counted yet. Returns the error for all ranks.
    pub fn judge_for_all(&self, error: Error) -> Error {
        let raises = self.state().on_failure == OnFailure::Raise;
        let judged = || self.judge_as_of(error.clone(), true, self.clock.monotonic());
        if raises { error } else { judged().err().unwrap_or(error) }
    }

    fn judge_as_of(&self, error: Error, decides: bool, at: Duration) -> Result<()> {
        let state = self.state();
        let OnFailure::Warn { fail_after } = state.on_failure else {
            return Err(error.for_program());
        };
        if error.must_be_told() || !may_pass(&error) {
            return Err(error.for_program());
        }
        let lasted = at.saturating_sub(state.counts_from);
        if decides && lasted >= fail_after {
            return Err(error.context(self.too_long(&state, lasted, fail_after)).for_program());
        }
        Ok(())
    }

    fn too_long(&self, state: &State, lasted: Duration, fail_after: Duration) -> String {
        format!(
            "no save of job {} was committed for {:.1} s (fail_after = {} s), {} in a row have failed; the \
             last one",
            self.job,
            lasted.as_secs_f64(),
            fail_after.as_secs_f64(),
            state.failed_in_a_row.max(1)
        )
    }

    /// Judges as [`Health::judge`] when the job is closed: no other save will follow. Returns a
    /// warning where the program continues.
    ///
    /// # Errors
    /// The failure, if the program must know of it.
    pub fn judge_last(&self, error: Error, decides: bool) -> Result<String> {
        self.judge(error.clone(), decides)?;
        let state = self.state();
        if decides && state.committed == 0 {
            let context =
                format!("job {} is closed, and none of its saves was committed", self.job);
            return Err(error.context(context).for_program());
        }
        Ok(format!(
            "job {} is closed, and its last save failed: the newest checkpoint is {:.1} s old, and what the \
             program did since is not saved ({error})",
            self.job,
            self.clock.monotonic().saturating_sub(state.counts_from).as_secs_f64()
        ))
    }
}

/// Returns whether a failure may end by itself, or by an operator's action: one of a target, a disk
/// or a log. A wrong request of the program stays wrong.
pub(crate) fn may_pass(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Retry | ErrorKind::Full | ErrorKind::Damaged => true,
        // The system refuses: permissions, a file system that became read-only, an error of the
        // device.
        ErrorKind::Invalid => !is_mistake(error),
        ErrorKind::Fenced | ErrorKind::Bug => false,
    }
}

/// Returns whether the program requests the impossible, such as to save a state that no save can
/// store.
pub(crate) fn is_mistake(error: &Error) -> bool {
    error.kind() == ErrorKind::Invalid && error.os().is_none() && !error.is_newer()
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("job", &self.job).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::path::Path;

    #[test]
    fn a_refusal_of_the_system_is_no_mistake_of_the_program() {
        let refused = io::Error::from(io::ErrorKind::ReadOnlyFilesystem);
        let refused = Error::io("writing", Path::new("/p"), &refused).context("the last one");
        assert!(
            refused.kind() == ErrorKind::Invalid && !is_mistake(&refused) && may_pass(&refused)
        );
        let mistake = Error::invalid("a region has no name");
        assert!(is_mistake(&mistake) && !may_pass(&mistake));
        assert!(!is_mistake(&Error::bug("something else")));
    }
}
