//! Waits without the GIL, such that Ctrl-C still works and notices are reported meanwhile.

use crate::errors::{OrRaise, invalid, to_py};
use crate::notices::Notices;
use outlive_types::sync::plain::{Condvar, Mutex};
use outlive_types::{Error, Result};
use pyo3::prelude::*;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longest step of a wait, between two checks for signals and notices.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Reports notices to Python if there are any: `tick` takes them and may raise.
pub fn tell(notices: &Notices, tick: &Bound<'_, PyAny>) -> PyResult<()> {
    if notices.waiting() {
        tick.call0()?;
    }
    Ok(())
}

/// Calls `step` without the GIL, each time with the time that it may wait, until it returns a value
/// or `timeout` is over (then `None`). Between calls, signals are handled and notices reported.
///
/// # Errors An exception of a signal handler or of `tick`.
pub fn wait<T: Send>(
    notices: &Notices,
    tick: &Bound<'_, PyAny>,
    timeout: Option<Duration>,
    step: &mut (dyn FnMut(Duration) -> Option<T> + Send),
) -> PyResult<Option<T>> {
    let py = tick.py();
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let found = py.detach(|| step(left.map_or(LOOK_UP, |left| left.min(LOOK_UP))));
        if found.is_some() {
            // Notices can wait; an error in reporting them must not lose the value.
            return Ok(found);
        }
        tell(notices, tick)?;
        py.check_signals()?;
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
    }
}

/// Returns a timeout in seconds as a duration; `None` is without limit.
///
/// # Errors
/// `InvalidError` for NaN.
pub fn timeout(py: Python<'_>, timeout_s: Option<f64>) -> PyResult<Option<Duration>> {
    match timeout_s {
        None => Ok(None),
        Some(s) if s.is_nan() => Err(invalid(py, "a timeout must be a number".into())),
        // A time beyond the range of a duration means forever.
        Some(s) => Ok(Duration::try_from_secs_f64(s.max(0.0)).ok()),
    }
}

/// Calls `work` in a thread of its own and waits. If the wait is interrupted, `stop` is set, and
/// the work ends before the interruption is raised.
///
/// # Errors Errors of the work, and exceptions of a signal handler or of `tick`.
pub fn in_a_thread<T: Send + 'static>(
    notices: &Notices,
    tick: &Bound<'_, PyAny>,
    stop: &AtomicBool,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let py = tick.py();
    let (sender, receiver) = channel();
    let thread = std::thread::Builder::new()
        .name("outlive-long".to_owned())
        .spawn(move || drop(sender.send(work())))
        .map_err(|e| to_py(py, &Error::no_thread("this", &e)))?;
    let receiver = Mutex::new(receiver); // only for the compiler
    let waited = wait(notices, tick, None, &mut |limit| {
        let receiver = receiver.lock();
        match receiver.recv_timeout(limit) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(Error::bug("the thread has panicked"))),
        }
    });
    if waited.is_err() {
        stop.store(true, Ordering::Relaxed);
    }
    // The wait has reported a panic.
    py.detach(|| drop(thread.join()));
    let told = tell(notices, tick);
    match waited? {
        Some(outcome) => outcome.or_raise(py).and_then(|done| told.map(|()| done)),
        None => Err(to_py(py, &Error::bug("a wait without limit ended"))),
    }
}

/// Admits one thread at a time. Unlike a mutex, a thread can wait for it with a timeout.
#[derive(Debug, Default)]
pub struct TimedLock {
    taken: Mutex<bool>,
    freed: Condvar,
}

/// Proof that a thread has entered; it stays with that thread.
#[derive(Debug)]
pub struct TimedLockGuard<'a>(&'a TimedLock, PhantomData<*const ()>);

thread_local! {
    /// Number of locks that this thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

impl TimedLock {
    /// Enters, if that is possible within `timeout`. Refuses to wait if that might never end.
    ///
    /// While a thread is inside, Python may run other code on it: signal handlers, the progress
    /// callback and handlers of `logging`. If that code needs a lock that is taken, then this very
    /// thread holds it, or one that may wait for this thread.
    pub fn enter(&self, timeout: Duration) -> Option<Entry> {
        let taken = self.taken.lock();
        if *taken && HELD.get() > 0 {
            return Some(Entry::WouldHang);
        }
        let waited = self.freed.wait_timeout_while(taken, timeout, |taken| *taken);
        let (mut taken, _) = waited;
        if *taken {
            return None;
        }
        *taken = true;
        Some(Entry::Entered)
    }

    /// Returns the guard after [`TimedLock::enter`] has returned `Entered`.
    pub fn entered(&self) -> TimedLockGuard<'_> {
        HELD.set(HELD.get() + 1);
        TimedLockGuard(self, PhantomData)
    }
}

/// Result of an attempt to enter.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    /// This thread is in.
    Entered,
    /// This thread must not wait for the lock.
    WouldHang,
}

impl Drop for TimedLockGuard<'_> {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
        *self.0.taken.lock() = false;
        self.0.freed.notify_one();
    }
}
