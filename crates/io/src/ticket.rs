//! Outcomes of work in flight.

use std::any::Any;
use std::fmt;
use std::panic::resume_unwind;
use std::process;
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};

/// The outcome of work that may still be going on. Dropping a ticket does not stop the work.
#[must_use = "the work's outcome, a failure too, is known only to who waits for it"]
pub struct Ticket<T>(Inner<T>);

enum Inner<T> {
    Done(T),
    Pending(Arc<Shared<T>>),
    Lazy { ready: Box<dyn Fn() -> bool + Send>, run: Box<dyn FnOnce() -> T + Send> },
}

/// The other end of a ticket: whoever does the work fulfils it. Dropped without that, the ticket's
/// waiter gets the pair's fallback, so nobody waits for ever.
pub struct Promise<T>(Arc<Shared<T>>);

type Fallback<T> = Box<dyn FnOnce() -> T + Send>;

struct Shared<T> {
    state: Mutex<State<T>>,
    settled: Condvar,
    // Work stays with the process that began it; a forked child must not wait for it.
    pid: u32,
}

enum State<T> {
    Waiting(Option<Fallback<T>>),
    Settled(Outcome<T>),
    Taken,
}

enum Outcome<T> {
    Value(T),
    /// The work panicked; its waiter panics in its place, as with `JoinHandle`.
    Panic(Box<dyn Any + Send>),
    Abandoned(Option<Fallback<T>>),
}

impl<T: Send + 'static> Ticket<T> {
    /// Work that is over.
    pub fn done(value: T) -> Ticket<T> {
        Ticket(Inner::Done(value))
    }

    /// Work that the waiter does itself, when it waits.
    pub fn lazy(work: impl FnOnce() -> T + Send + 'static) -> Ticket<T> {
        Ticket::lazy_when(|| true, work)
    }

    /// As [`Ticket::lazy`], with an answer to [`Ticket::ready`].
    pub fn lazy_when(
        ready: impl Fn() -> bool + Send + 'static,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Ticket<T> {
        Ticket(Inner::Lazy { ready: Box::new(ready), run: Box::new(work) })
    }

    /// A promise and its ticket. If the promise is dropped unfulfilled the waiter panics, naming
    /// this bug; where that must not be, use [`Ticket::pair_or`].
    pub fn pair() -> (Promise<T>, Ticket<T>) {
        Self::pair_with(None)
    }

    /// A promise and its ticket, whose waiter gets `fallback()` if the promise is dropped
    /// unfulfilled.
    pub fn pair_or(fallback: impl FnOnce() -> T + Send + 'static) -> (Promise<T>, Ticket<T>) {
        Self::pair_with(Some(Box::new(fallback)))
    }

    fn pair_with(fallback: Option<Fallback<T>>) -> (Promise<T>, Ticket<T>) {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::Waiting(fallback)),
            settled: Condvar::new(),
            pid: process::id(),
        });
        (Promise(shared.clone()), Ticket(Inner::Pending(shared)))
    }

    /// Waits for the outcome.
    ///
    /// # Panics
    /// If the work panicked, with what it panicked with.
    pub fn wait(self) -> T {
        match self.0 {
            Inner::Done(value) => value,
            Inner::Pending(shared) => shared.wait(),
            Inner::Lazy { run, .. } => run(),
        }
    }

    /// True if `wait` would not have to wait for somebody else's work.
    pub fn ready(&self) -> bool {
        match &self.0 {
            Inner::Done(_) => true,
            Inner::Pending(shared) => shared.ready(),
            Inner::Lazy { ready, .. } => ready(),
        }
    }

    /// The ticket of `then(outcome)`; `then` runs in the waiter.
    pub fn map<U: Send + 'static>(self, then: impl FnOnce(T) -> U + Send + 'static) -> Ticket<U> {
        match self.0 {
            Inner::Done(value) => Ticket::lazy(move || then(value)),
            Inner::Pending(shared) => {
                let probe = shared.clone();
                Ticket::lazy_when(move || probe.ready(), move || then(shared.wait()))
            }
            Inner::Lazy { ready, run } => {
                Ticket(Inner::Lazy { ready, run: Box::new(move || then(run())) })
            }
        }
    }
}

impl<T> Shared<T> {
    fn wait(&self) -> T {
        if process::id() != self.pid {
            return self.after_fork().take();
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self
            .settled
            .wait_while(state, |state| matches!(state, State::Waiting(_)))
            .unwrap_or_else(PoisonError::into_inner);
        let State::Settled(outcome) = std::mem::replace(&mut *state, State::Taken) else {
            unreachable!("a ticket is consumed by its one wait");
        };
        drop(state);
        outcome.take()
    }

    /// What a forked child can know. The lock may be held by a thread that only the parent has.
    fn after_fork(&self) -> Outcome<T> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Outcome::Abandoned(None),
        };
        match std::mem::replace(&mut *state, State::Taken) {
            State::Settled(outcome) => outcome,
            State::Waiting(fallback) => Outcome::Abandoned(fallback),
            State::Taken => Outcome::Abandoned(None),
        }
    }

    fn ready(&self) -> bool {
        process::id() != self.pid
            || !matches!(
                *self.state.lock().unwrap_or_else(PoisonError::into_inner),
                State::Waiting(_)
            )
    }

    fn settle(&self, outcome: impl FnOnce(Option<Fallback<T>>) -> Outcome<T>) {
        // A promise dropped in a forked child says nothing about the work, which the parent does.
        if process::id() != self.pid {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Waiting(fallback) = &mut *state {
            let fallback = fallback.take();
            *state = State::Settled(outcome(fallback));
            self.settled.notify_all();
        }
    }
}

impl<T> Outcome<T> {
    fn take(self) -> T {
        match self {
            Outcome::Value(value) => value,
            Outcome::Panic(payload) => resume_unwind(payload),
            Outcome::Abandoned(Some(fallback)) => fallback(),
            Outcome::Abandoned(None) => panic!(
                "the work behind this ticket was given up without an outcome (it belonged to the \
                 process before a fork, or this is a bug)"
            ),
        }
    }
}

impl<T> Promise<T> {
    /// Hands over the outcome.
    pub fn fulfil(self, value: T) {
        self.0.settle(|_| Outcome::Value(value));
    }

    /// Says that the work panicked; the waiter panics with `payload`.
    pub fn panicked(self, payload: Box<dyn Any + Send>) {
        self.0.settle(|_| Outcome::Panic(payload));
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.settle(Outcome::Abandoned);
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Inner::Done(_) => "Ticket(done)",
            Inner::Pending(_) => "Ticket(in flight)",
            Inner::Lazy { .. } => "Ticket(done by its waiter)",
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
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    #[test]
    fn a_ticket_gives_what_was_promised() {
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
        assert_eq!(Ticket::lazy(|| "now").wait(), "now");
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
    fn a_broken_promise_hangs_nobody() {
        let (promise, ticket) = Ticket::pair_or(|| -1);
        let worker = thread::spawn(move || drop(promise));
        assert_eq!(ticket.wait(), -1);
        worker.join().unwrap();
        let (promise, ticket) = Ticket::<u8>::pair();
        drop(promise);
        assert!(ticket.ready());
        assert!(catch_unwind(AssertUnwindSafe(|| ticket.wait())).is_err());
    }
}
