//! Wrappers that repeat operations after passing failures.

use crate::Target;
use crate::operation::Manner;
use crate::wrapped::{WrappedMedium, WrappedTarget};
use outlive_io::{SystemTimer, Timer};
use outlive_log::LogMedium;
use outlive_types::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

/// The number of attempts, and the pauses between them.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    /// Number of attempts, the first included; at least 1.
    pub attempts_max: u32,
    /// Pause before the second attempt; it doubles before each further one.
    pub pause_first: Duration,
    /// Longest pause.
    pub pause_max: Duration,
    /// Timer for the pauses.
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

/// A target that repeats calls after `Retry` errors, except `finish`: after a failed sync the state
/// of the medium is unknown. A write or read that waits for its repetition has no thread meanwhile;
/// other calls spend their pauses in the caller.
pub type RetryTarget = WrappedTarget<RetryPolicy>;

impl RetryTarget {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Target>, policy: RetryPolicy) -> RetryTarget {
        WrappedTarget::with(inner, Arc::new(policy))
    }
}

/// A medium that repeats calls after `Retry` errors. A put may be repeated because an append above
/// it recognises its own record.
pub type RetryMedium = WrappedMedium<RetryPolicy>;

impl RetryMedium {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn LogMedium>, policy: RetryPolicy) -> RetryMedium {
        WrappedMedium::with(inner, Arc::new(policy))
    }
}

#[cfg(test)]
mod tests;
