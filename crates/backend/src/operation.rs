//! The shared part of the wrappers: an operation starts after a delay, and again after a passing
//! failure. During a pause it has no thread; a timer calls it back.

use crate::Fault;
use outlive_io::{DiskEngine, Promise, Ticket, Timer};
use outlive_types::{ErrorKind, Result};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The way in which a wrapper runs operations.
pub trait Manner: fmt::Debug + Send + Sync + Sized + 'static {
    /// Returns the timer for the pauses.
    fn timer(&self) -> &dyn Timer;

    /// Returns the delay before an operation that carries `bytes` bytes.
    fn delay(&self, _bytes: usize) -> Duration {
        Duration::ZERO
    }

    /// Returns the pause after failure number `failures`, of the kind `kind`; `None` if that
    /// attempt was the last.
    fn pause(&self, _kind: ErrorKind, _failures: u32) -> Option<Duration> {
        None
    }

    /// Makes a call that carries `bytes` bytes; the calling thread spends the delays.
    ///
    /// # Errors
    /// The error of the last attempt.
    fn call<T>(&self, bytes: usize, call: impl FnMut() -> Result<T>) -> Result<T> {
        self.spend(self.delay(bytes));
        self.repeat(call)
    }

    /// Makes a call, and repeats it.
    ///
    /// # Errors
    /// As [`Manner::call`].
    fn repeat<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        let mut failures = 0;
        loop {
            let error = match call() {
                Err(error) => error,
                done => return done,
            };
            failures += 1;
            match self.pause(error.kind(), failures) {
                Some(pause) => self.timer().sleep(pause),
                None => return Err(error),
            }
        }
    }

    /// Spends a delay in this thread.
    fn spend(&self, delay: Duration) {
        if !delay.is_zero() {
            self.timer().sleep(delay);
        }
    }
}

/// The outcome of an operation on a buffer, which comes back if it failed.
pub(crate) type OperationResult<T, B> = std::result::Result<T, Fault<B>>;

type Start<T, B> = Box<dyn FnMut(B) -> Ticket<OperationResult<T, B>> + Send>;

/// An operation on a buffer `B` that returns `T`.
pub(crate) struct Operation<M, T, B> {
    pub manner: Arc<M>,
    /// Threads that work after a pause: to start an operation may take long.
    pub helpers: Arc<DiskEngine>,
    /// Starts the operation.
    pub start: Start<T, B>,
}

impl<M: Manner, T: Send + 'static, B: Send + 'static> Operation<M, T, B> {
    /// Begins the operation after `delay`.
    pub(crate) fn begin(self, delay: Duration, buffer: B) -> Ticket<OperationResult<T, B>> {
        let (promise, ticket) = Ticket::pair();
        let attempts = Attempts { operation: self, failures: 0, promise };
        match delay.is_zero() {
            true => attempts.start(buffer),
            false => attempts.start_after(delay, buffer),
        }
        ticket
    }

    /// Does the same for an operation that has started already.
    pub(crate) fn begun(
        self,
        first: Ticket<OperationResult<T, B>>,
    ) -> Ticket<OperationResult<T, B>> {
        let (promise, ticket) = Ticket::pair();
        Attempts { operation: self, failures: 0, promise }.watch(first);
        ticket
    }
}

/// An operation in progress.
struct Attempts<M, T, B> {
    operation: Operation<M, T, B>,
    failures: u32,
    promise: Promise<OperationResult<T, B>>,
}

impl<M: Manner, T: Send + 'static, B: Send + 'static> Attempts<M, T, B> {
    fn start(mut self, buffer: B) {
        let ticket = (self.operation.start)(buffer);
        self.watch(ticket);
    }

    fn start_after(self, pause: Duration, buffer: B) {
        let (manner, helpers) = (self.operation.manner.clone(), self.operation.helpers.clone());
        let start = move || self.start(buffer);
        manner.timer().after(pause, Box::new(move || drop(helpers.submit(start))));
    }

    fn watch(mut self, ticket: Ticket<OperationResult<T, B>>) {
        ticket.on_done(move |outcome| {
            let outcome = match outcome {
                Ok(Err(fault)) => {
                    self.failures += 1;
                    let manner = &self.operation.manner;
                    match manner.pause(fault.error.kind(), self.failures) {
                        // Without a thread, the timer would spend the pause here, in the code that
                        // ended this attempt. So this attempt was the last.
                        Some(pause) if manner.timer().has_thread() => {
                            return self.start_after(pause, fault.buffer);
                        }
                        _ => Ok(Err(fault)),
                    }
                }
                done => done,
            };
            self.promise.settle(outcome);
        });
    }
}
