//! Threads that do blocking I/O, so that other threads need not wait for it.
//!
//! Why threads and not io_uring: `docs/design/002-disk-engine.md`.
#![allow(unsafe_code)]

use crate::Ticket;
use outlive_types::sync::plain::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;

/// Jobs that the shared engine has in flight at once: enough to keep an SSD busy.
pub const DEPTH_DEFAULT: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs on at most `depth` threads, started in the order of submission. A job must not wait
/// for another job of the same engine: all of them might wait.
///
/// An engine belongs to the process that made it. In a forked child, where its threads do not
/// exist, `submit` runs the job at once itself, and [`DiskEngine::shared`] makes a new engine.
pub struct DiskEngine {
    queue: Arc<Queue>,
    depth: usize,
    pid: u32,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

/// The engine of this process, leaked. A pointer, not a lock: a forked child could inherit a lock
/// in the locked state.
static SHARED: AtomicPtr<DiskEngine> = AtomicPtr::new(ptr::null_mut());

impl DiskEngine {
    /// Returns an engine of at most `depth` threads (at least one); each starts when it is first
    /// needed.
    pub fn new(depth: usize) -> DiskEngine {
        DiskEngine { queue: Arc::default(), depth: depth.max(1), pid: process::id() }
    }

    /// Returns the engine that everything in this process shares, with [`DEPTH_DEFAULT`] jobs at
    /// once.
    pub fn shared() -> &'static DiskEngine {
        let mut seen = SHARED.load(Ordering::Acquire);
        loop {
            // SAFETY: the pointer is null or came from `Box::leak` below, fully initialised before
            // it was published. The engine behind it is never freed or changed.
            if let Some(engine) = unsafe { seen.as_ref() }
                && engine.pid == process::id()
            {
                return engine;
            }
            let fresh = Box::into_raw(Box::new(DiskEngine::new(DEPTH_DEFAULT)));
            match SHARED.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: `fresh` came from a box, and from now on it is shared and never freed.
                Ok(_) => return unsafe { &*fresh },
                Err(now) => {
                    // SAFETY: `fresh` was not published, so this is its only owner.
                    drop(unsafe { Box::from_raw(fresh) });
                    seen = now;
                }
            }
        }
    }

    /// Largest number of jobs in flight at once.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Queues `job`. If it panics, so does the thread that waits for its ticket; the engine
    /// continues.
    pub fn submit<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Ticket<T> {
        if process::id() != self.pid {
            return Ticket::done(job());
        }
        let (promise, ticket) = Ticket::pair();
        self.push(Box::new(move || match catch_unwind(AssertUnwindSafe(job)) {
            Ok(value) => promise.fulfil(value),
            Err(payload) => promise.panicked(payload),
        }));
        ticket
    }

    fn push(&self, job: Job) {
        let mut state = self.queue.lock();
        state.jobs.push_back(job);
        if state.jobs.len() > state.idle && state.threads < self.depth {
            state.threads += 1;
            drop(state);
            self.start_thread();
        } else {
            drop(state);
            self.queue.arrived.notify_one();
        }
    }

    fn start_thread(&self) {
        let queue = self.queue.clone();
        let started =
            thread::Builder::new().name("outlive-disk".to_owned()).spawn(move || queue.serve());
        if started.is_err() {
            // This user may start no more threads: the existing ones do the jobs, or this one if
            // there are none.
            let mut state = self.queue.lock();
            state.threads -= 1;
            while state.threads == 0
                && let Some(job) = state.jobs.pop_front()
            {
                drop(state);
                job();
                state = self.queue.lock();
            }
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.lock();
            } else if state.closed {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                state = self.arrived.wait(state);
                state.idle -= 1;
            }
        }
    }
}

impl Drop for DiskEngine {
    /// Closes the queue without waiting. Jobs already queued still run.
    fn drop(&mut self) {
        if process::id() == self.pid {
            self.queue.lock().closed = true;
            self.queue.arrived.notify_all();
        }
    }
}

impl fmt::Debug for DiskEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskEngine(depth {})", self.depth)
    }
}

#[cfg(test)]
mod tests;
