//! Repeats what failed in passing.

use crate::Target;
use crate::log::{LogMedium, RecordLog};
use crate::operation::Manner;
use crate::wrapped::{WrappedMedium, WrappedTarget};
use outlive_io::{SystemTimer, Timer};
use outlive_types::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

/// How often to repeat, and how long to pause before.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    /// Attempts in all, the first one included; at least 1.
    pub attempts_max: u32,
    /// Pause before the second attempt; it doubles before each further one.
    pub pause_first: Duration,
    /// Longest pause.
    pub pause_max: Duration,
    /// Lets the pauses pass.
    pub timer: Arc<dyn Timer>,
}

impl Default for RetryPolicy {
    /// Five attempts over about a third of a second.
    fn default() -> Self {
        RetryPolicy {
            attempts_max: 5,
            pause_first: Duration::from_millis(20),
            pause_max: Duration::from_secs(1),
            timer: Arc::new(SystemTimer),
        }
    }
}

impl Manner for RetryPolicy {
    fn timer(&self) -> &dyn Timer {
        &*self.timer
    }

    fn pause(&self, kind: ErrorKind, failures: u32) -> Option<Duration> {
        if kind != ErrorKind::Retry || failures >= self.attempts_max {
            return None;
        }
        let doubled = 1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
        Some(self.pause_first.saturating_mul(doubled).min(self.pause_max))
    }
}

/// A target whose `Retry` errors are met by repeating the call, except `finish`, which cannot be
/// repeated: after a failed sync nobody knows what is on the medium. A write or read that is to be repeated
/// has no thread meanwhile; the calls that answer at once spend their pauses in the caller.
pub type RetryTarget = WrappedTarget<RetryPolicy>;

impl RetryTarget {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Target>, policy: RetryPolicy) -> RetryTarget {
        WrappedTarget::with(inner, Arc::new(policy))
    }
}

/// A medium whose `Retry` errors are met by repeating the call.
pub type RetryMedium = WrappedMedium<RetryPolicy>;

impl RetryMedium {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn LogMedium>, policy: RetryPolicy) -> RetryMedium {
        WrappedMedium::with(inner, Arc::new(policy))
    }
}

/// A log on a medium whose `Retry` errors are met by repeating the call. A put may be repeated because
/// an append recognises its own record.
pub type RetryLog = RecordLog<WrappedMedium<RetryPolicy>>;

impl RetryLog {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn LogMedium>, policy: RetryPolicy) -> RetryLog {
        RecordLog::with(inner, Arc::new(policy))
    }
}

#[cfg(test)]
mod tests;
