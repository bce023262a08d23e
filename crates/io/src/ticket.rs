//! Outcomes of work in flight.
//!
//! A caller has three ways to get an outcome. It waits for it ([`Ticket::wait`],
//! [`Ticket::wait_until`]); it registers what to do with it ([`Ticket::on_done`], [`Ticket::map`]);
//! or it queues the ticket with others and takes outcomes as they come
//! ([`Completions`](crate::Completions)). Only the first two functions block, so one thread serves
//! thousands.

use outlive_types::sync::plain::{Condvar, Mutex};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// The outcome of work that may still be running. Dropping a ticket does not stop the work.
///
/// In a forked child, work that its parent began has no outcome. Work that ended before the fork
/// has its outcome, but the memory of a pool's buffers holds zeros there.
#[must_use = "the work's outcome, a failure too, is known only to who asks for it"]
pub struct Ticket<T>(Inner<T>);

enum Inner<T> {
    Done(T),
    Pending(Arc<Shared<T>>),
}

/// The other end of a ticket: the worker fulfils it. If it is dropped without that, the waiter gets
/// the fallback of the pair, so no thread waits forever.
pub struct Promise<T>(Arc<Shared<T>>);

type Fallback<T> = Box<dyn FnOnce() -> T + Send>;
type Callback<T> = Box<dyn FnOnce(thread::Result<T>) + Send>;

struct Shared<T> {
    state: Mutex<State<T>>,
    settled: Condvar,
    // Work stays with the process that began it; a forked child must not wait for it.
    pid: u32,
}

enum State<T> {
    Waiting { fallback: Option<Fallback<T>>, callback: Option<Callback<T>> },
    Settled(TicketOutcome<T>),
    Taken,
}

enum TicketOutcome<T> {
    Value(T),
    /// The work panicked; its waiter panics in its place, as with `JoinHandle`.
    Panic(Box<dyn Any + Send>),
    Abandoned(Option<Fallback<T>>),
}

/// Reason why there is no outcome.
pub(crate) const GIVEN_UP: &str = "the work behind this ticket was given up without an outcome (it belonged \
    to the process before a fork, or this is a bug)";

impl<T: Send + 'static> Ticket<T> {
    /// Returns the ticket of work that has ended.
    pub fn done(value: T) -> Ticket<T> {
        Ticket(Inner::Done(value))
    }

    /// Returns a promise and its ticket. If the promise is dropped unfulfilled, the waiter panics
    /// and names this bug; to avoid that, use [`Ticket::pair_or`].
    pub fn pair() -> (Promise<T>, Ticket<T>) {
        Self::pair_with(None)
    }

    /// Returns a promise and its ticket. If the promise is dropped unfulfilled, the waiter gets
    /// `fallback()`.
    pub fn pair_or(fallback: impl FnOnce() -> T + Send + 'static) -> (Promise<T>, Ticket<T>) {
        Self::pair_with(Some(Box::new(fallback)))
    }

    fn pair_with(fallback: Option<Fallback<T>>) -> (Promise<T>, Ticket<T>) {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::Waiting { fallback, callback: None }),
            settled: Condvar::new(),
            pid: process::id(),
        });
        (Promise(shared.clone()), Ticket(Inner::Pending(shared)))
    }

    /// Waits for the outcome.
    ///
    /// # Panics
    /// If the work panicked, with the same payload.
    pub fn wait(self) -> T {
        match self.0 {
            Inner::Done(value) => value,
            Inner::Pending(shared) => match shared.outcome(None) {
                Some(outcome) => outcome.take(),
                None => unreachable!("without a deadline no work is late"),
            },
        }
    }

    /// Waits for the outcome until `deadline`.
    ///
    /// # Errors
    /// The ticket, if the work is late. The work continues.
    ///
    /// # Panics
    /// As [`Ticket::wait`].
    pub fn wait_until(self, deadline: Instant) -> Result<T, Ticket<T>> {
        match self.0 {
            Inner::Done(value) => Ok(value),
            Inner::Pending(shared) => match shared.outcome(Some(deadline)) {
                Some(outcome) => Ok(outcome.take()),
                None => Err(Ticket(Inner::Pending(shared))),
            },
        }
    }

    /// True if `wait` would not block.
    pub fn ready(&self) -> bool {
        match &self.0 {
            Inner::Done(_) => true,
            Inner::Pending(shared) => shared.ready(),
        }
    }

    /// Calls `callback` with the outcome, or with the payload of a panic: at once if the work has
    /// ended, else in the thread that ends it. So a callback must neither wait nor take long. A
    /// forked child never calls a callback that its parent registered.
    pub fn on_done(self, callback: impl FnOnce(thread::Result<T>) + Send + 'static) {
        match self.0 {
            Inner::Done(value) => callback(Ok(value)),
            Inner::Pending(shared) => shared.call_back(Box::new(callback)),
        }
    }

    /// Returns the ticket of `then(outcome)`. [`Ticket::on_done`] says where `then` runs and what
    /// it must not do.
    pub fn map<U: Send + 'static>(self, then: impl FnOnce(T) -> U + Send + 'static) -> Ticket<U> {
        if let Inner::Done(value) = self.0 {
            return Ticket::done(then(value));
        }
        let (promise, ticket) = Ticket::pair();
        self.on_done(move |outcome| {
            promise
                .settle(outcome.and_then(|value| catch_unwind(AssertUnwindSafe(|| then(value)))));
        });
        ticket
    }
}

impl<T> Shared<T> {
    /// Waits, until the deadline if there is one; `None` if that comes first.
    fn outcome(&self, deadline: Option<Instant>) -> Option<TicketOutcome<T>> {
        if process::id() != self.pid {
            return Some(self.after_fork());
        }
        let mut state = self.state.lock();
        while matches!(*state, State::Waiting { .. }) {
            state = match deadline {
                None => self.settled.wait(state),
                Some(deadline) => {
                    let left = deadline.checked_duration_since(Instant::now())?;
                    let waited = self.settled.wait_timeout(state, left);
                    waited.0
                }
            };
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Settled(outcome) => Some(outcome),
            _ => unreachable!("a ticket has one outcome, and is consumed by who takes it"),
        }
    }

    fn call_back(&self, callback: Callback<T>) {
        let outcome = if process::id() == self.pid {
            let mut state = self.state.lock();
            match &mut *state {
                State::Waiting { callback: place, .. } => {
                    *place = Some(callback);
                    return;
                }
                over => match std::mem::replace(over, State::Taken) {
                    State::Settled(outcome) => outcome,
                    _ => unreachable!("a ticket has one outcome, and is consumed by who takes it"),
                },
            }
        } else {
            self.after_fork()
        };
        callback(outcome.into_result());
    }

    /// Returns the outcome as far as a forked child can know it. The lock may be held by a thread
    /// that exists only in the parent.
    fn after_fork(&self) -> TicketOutcome<T> {
        let Some(mut state) = self.state.try_lock() else { return TicketOutcome::Abandoned(None) };
        match std::mem::replace(&mut *state, State::Taken) {
            State::Settled(outcome) => outcome,
            State::Waiting { fallback, .. } => TicketOutcome::Abandoned(fallback),
            State::Taken => TicketOutcome::Abandoned(None),
        }
    }

    fn ready(&self) -> bool {
        process::id() != self.pid || !matches!(*self.state.lock(), State::Waiting { .. })
    }

    fn settle(&self, outcome: impl FnOnce(Option<Fallback<T>>) -> TicketOutcome<T>) {
        // A promise dropped in a forked child says nothing about the work, which runs in the
        // parent.
        if process::id() != self.pid {
            return;
        }
        let mut state = self.state.lock();
        let State::Waiting { fallback, callback } = &mut *state else { return };
        let outcome = outcome(fallback.take());
        let Some(callback) = callback.take() else {
            *state = State::Settled(outcome);
            drop(state);
            self.settled.notify_all();
            return;
        };
        *state = State::Taken;
        drop(state);
        // A callback that panics has reported it; the thread that ended the work is not concerned.
        let _ = catch_unwind(AssertUnwindSafe(|| callback(outcome.into_result())));
    }
}

impl<T> TicketOutcome<T> {
    fn take(self) -> T {
        match self {
            TicketOutcome::Value(value) => value,
            TicketOutcome::Panic(payload) => resume_unwind(payload),
            TicketOutcome::Abandoned(Some(fallback)) => fallback(),
            TicketOutcome::Abandoned(None) => panic!("{GIVEN_UP}"),
        }
    }

    fn into_result(self) -> thread::Result<T> {
        match self {
            TicketOutcome::Value(value) => Ok(value),
            TicketOutcome::Panic(payload) => Err(payload),
            TicketOutcome::Abandoned(Some(fallback)) => catch_unwind(AssertUnwindSafe(fallback)),
            TicketOutcome::Abandoned(None) => Err(Box::new(GIVEN_UP)),
        }
    }
}

impl<T> Promise<T> {
    /// Sets the outcome.
    pub fn fulfil(self, value: T) {
        self.settle(Ok(value));
    }

    /// Reports that the work panicked; the waiter panics with `payload`.
    pub fn panicked(self, payload: Box<dyn Any + Send>) {
        self.settle(Err(payload));
    }

    /// Sets the outcome, or the payload of the work's panic.
    pub fn settle(self, outcome: thread::Result<T>) {
        self.0.settle(|fallback| {
            drop(fallback);
            outcome.map_or_else(TicketOutcome::Panic, TicketOutcome::Value)
        });
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.settle(TicketOutcome::Abandoned);
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Inner::Done(_) => "Ticket(done)",
            Inner::Pending(_) => "Ticket(in flight)",
        })
    }
}

impl<T> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Promise")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asleep::{this_thread, until_asleep};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_ticket_gives_the_promised_value() {
        let (promise, ticket) = Ticket::pair();
        let mapped = ticket.map(|n: u32| n + 1);
        assert!(!mapped.ready());
        let waiter = this_thread();
        let worker = thread::spawn(move || {
            until_asleep(&waiter);
            promise.fulfil(41);
        });
        assert_eq!(mapped.wait(), 42);
        worker.join().unwrap();
        assert_eq!(Ticket::done(1).map(|n| n * 2).map(|n| n + 1).wait(), 3);
    }

    #[test]
    fn a_ticket_is_ready_once_its_promise_is_kept() {
        let (promise, ticket) = Ticket::pair();
        let mapped = ticket.map(|n: u32| n);
        promise.fulfil(1);
        assert!(mapped.ready());
        assert!(Ticket::done(()).ready());
    }

    #[test]
    fn a_broken_promise_hangs_no_waiter() {
        let (promise, ticket) = Ticket::pair_or(|| -1);
        let worker = thread::spawn(move || drop(promise));
        assert_eq!(ticket.wait(), -1);
        worker.join().unwrap();
        let (promise, ticket) = Ticket::<u8>::pair();
        drop(promise);
        assert!(ticket.ready());
        assert!(catch_unwind(AssertUnwindSafe(|| ticket.wait())).is_err());
        let (promise, ticket) = Ticket::pair_or(|| -2);
        let mapped = ticket.map(|n| n - 1);
        drop(promise);
        assert_eq!(mapped.wait(), -3);
    }

    /// The waiter may be absent when the work ends, and the worker when the waiter comes.
    #[test]
    fn a_callback_is_called_once_by_the_thread_that_comes_last() {
        let (sender, heard) = channel();
        let tell = |name: &'static str| {
            let sender = sender.clone();
            move |outcome: thread::Result<u8>| {
                sender.send((name, outcome.ok(), thread::current().id())).unwrap();
            }
        };
        let me = thread::current().id();
        Ticket::done(1).on_done(tell("done"));
        assert_eq!(heard.try_recv(), Ok(("done", Some(1), me)));
        let (promise, ticket) = Ticket::pair();
        promise.fulfil(2);
        ticket.on_done(tell("settled"));
        assert_eq!(heard.try_recv(), Ok(("settled", Some(2), me)));
        let (promise, ticket) = Ticket::pair();
        ticket.on_done(tell("later"));
        assert!(heard.try_recv().is_err());
        let worker = thread::spawn(move || promise.fulfil(3));
        let its_id = worker.thread().id();
        worker.join().unwrap();
        assert_eq!(heard.try_recv(), Ok(("later", Some(3), its_id)));
        let (promise, ticket) = Ticket::pair();
        ticket.on_done(tell("panicked"));
        promise.panicked(Box::new("no"));
        assert_eq!(heard.try_recv(), Ok(("panicked", None, me)));
        let (promise, ticket) = Ticket::pair();
        ticket.on_done(tell("given up"));
        drop(promise);
        assert_eq!(heard.try_recv(), Ok(("given up", None, me)));
        drop(sender);
        assert!(heard.recv().is_err(), "none is called twice");
    }

    #[test]
    fn a_panic_goes_to_the_waiter_only() {
        let (promise, ticket) = Ticket::<u8>::pair();
        let mapped = ticket.map(|_| panic!("in a map")).map(|n: u8| n + 1);
        promise.fulfil(1); // and does not panic here
        let payload = catch_unwind(AssertUnwindSafe(|| mapped.wait())).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"in a map"));
    }

    #[test]
    fn a_late_ticket_can_be_waited_for_again() {
        let (promise, ticket) = Ticket::pair();
        let past = Instant::now();
        let ticket = ticket.wait_until(past).expect_err("no thread has begun");
        let ticket = ticket.wait_until(Instant::now() + Duration::from_millis(2)).unwrap_err();
        let waiter = this_thread();
        let worker = thread::spawn(move || {
            until_asleep(&waiter);
            promise.fulfil(5);
        });
        assert_eq!(ticket.wait_until(Instant::now() + Duration::from_secs(300)).unwrap(), 5);
        worker.join().unwrap();
        let (promise, ticket) = Ticket::pair();
        promise.fulfil(6);
        assert_eq!(ticket.wait_until(past).unwrap(), 6, "what is there is never late");
    }
}
