//! Repeats what failed in passing.

use crate::log::{LogMedium, RecordLog};
use crate::relay::{Around, Written};
use crate::wrapped::{Manner, WrappedMedium, WrappedTarget, read_one};
use crate::{ReadRange, ShardName, Target};
use outlive_io::{AlignedBuf, Ticket};
use outlive_types::{ErrorKind, Result};
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How often to repeat, and how long to pause before.
#[derive(Clone)]
pub struct RetryPolicy {
    /// Attempts in all, the first one included; at least 1.
    pub attempts_max: u32,
    /// Pause before the second attempt; it doubles before each further one.
    pub pause_first: Duration,
    /// Longest pause.
    pub pause_max: Duration,
    /// Spends a pause. Tests count instead.
    pub sleep: Arc<dyn Fn(Duration) + Send + Sync>,
}

impl Default for RetryPolicy {
    /// Five attempts over about a third of a second.
    fn default() -> Self {
        RetryPolicy {
            attempts_max: 5,
            pause_first: Duration::from_millis(20),
            pause_max: Duration::from_secs(1),
            sleep: Arc::new(thread::sleep),
        }
    }
}

impl RetryPolicy {
    /// True, after a pause, if a call that has failed with `kind` for the `failures`-th time should
    /// be repeated.
    fn again(&self, kind: ErrorKind, failures: u32) -> bool {
        if kind != ErrorKind::Retry || failures >= self.attempts_max {
            return false;
        }
        let doubled = 1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
        (self.sleep)(self.pause_first.saturating_mul(doubled).min(self.pause_max));
        true
    }

    fn run<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        let mut failures = 0;
        loop {
            match call() {
                Err(error) => {
                    failures += 1;
                    if !self.again(error.kind(), failures) {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }
}

impl fmt::Debug for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryPolicy")
            .field("attempts_max", &self.attempts_max)
            .field("pause_first", &self.pause_first)
            .field("pause_max", &self.pause_max)
            .finish_non_exhaustive()
    }
}

impl Around for RetryPolicy {
    fn write(
        &self,
        _length: usize,
        mut buffer: AlignedBuf,
        attempt: &mut dyn FnMut(AlignedBuf) -> Written,
    ) -> Written {
        let mut failures = 0;
        loop {
            match attempt(buffer) {
                Err(fault) => {
                    failures += 1;
                    if !self.again(fault.error.kind(), failures) {
                        return Err(fault);
                    }
                    buffer = fault.buffer;
                }
                done => return done,
            }
        }
    }
}

/// A target whose `Retry` errors are met by repeating the call, except `finish`, which cannot be
/// repeated: after a failed sync nobody knows what is on the medium.
pub type RetryTarget = WrappedTarget<RetryPolicy>;

impl RetryTarget {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Target>, policy: RetryPolicy) -> RetryTarget {
        WrappedTarget::with(inner, Arc::new(policy))
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

impl Manner for RetryPolicy {
    fn call<T>(&self, _bytes: usize, call: impl FnMut() -> Result<T>) -> Result<T> {
        self.run(call)
    }

    fn read_ranges(
        this: &RetryTarget,
        shard: ShardName,
        ranges: Vec<ReadRange>,
    ) -> Vec<Ticket<Result<AlignedBuf>>> {
        let places: Vec<_> =
            ranges.iter().map(|range| (range.offset, range.length, range.buffer.len())).collect();
        let tickets = this.inner.read_ranges(shard, ranges);
        let repeated = tickets.into_iter().zip(places).map(|(ticket, (offset, length, room))| {
            let (inner, policy) = (this.inner.clone(), this.manner.clone());
            // In the waiter: reads that fail are rare, and somebody waits for each.
            ticket.map(move |first| {
                let mut first = Some(first);
                policy.run(|| {
                    if let Some(first) = first.take() {
                        return first;
                    }
                    // The first buffer went down with the error.
                    let buffer = AlignedBuf::zeroed(room);
                    read_one(&*inner, shard, ReadRange { offset, length, buffer })
                })
            })
        });
        repeated.collect()
    }
}

#[cfg(test)]
mod tests;
