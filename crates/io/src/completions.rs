//! Work in flight whose outcomes are taken in the order of completion.

use crate::Ticket;
use crate::ticket::GIVEN_UP;
use outlive_types::sync::plain::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::panic::resume_unwind;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// A completion queue: it yields outcomes in the order in which the work ends, each with the key
/// that was pushed with it. Late work delays no other outcome. Dropping the queue stops no work.
///
/// It belongs to the process that made it: in a forked child the work in flight has no outcome.
pub struct Completions<K, T> {
    queue: Arc<Queue<K, T>>,
    in_flight: usize,
    pid: u32,
}

struct Queue<K, T> {
    arrived: Mutex<VecDeque<Arrival<K, T>>>,
    more: Condvar,
    told: Option<ArrivalCallback>,
}

/// Callback, called when an outcome can be taken.
type ArrivalCallback = Box<dyn Fn() + Send + Sync>;

type Arrival<K, T> = (K, thread::Result<T>);

impl<K: Send + 'static, T: Send + 'static> Completions<K, T> {
    /// Returns an empty queue.
    pub fn new() -> Completions<K, T> {
        Completions::with(None)
    }

    /// Returns an empty queue that calls `told` whenever an outcome can be taken, in the thread
    /// that ends the work.
    pub fn telling(told: impl Fn() + Send + Sync + 'static) -> Completions<K, T> {
        Completions::with(Some(Box::new(told)))
    }

    fn with(told: Option<ArrivalCallback>) -> Completions<K, T> {
        let queue = Queue { arrived: Mutex::default(), more: Condvar::new(), told };
        Completions { queue: Arc::new(queue), in_flight: 0, pid: process::id() }
    }

    /// Adds work to the queue.
    ///
    /// # Panics
    /// In a forked child.
    pub fn push(&mut self, key: K, work: Ticket<T>) {
        assert!(process::id() == self.pid, "{GIVEN_UP}");
        self.in_flight += 1;
        let queue = Arc::downgrade(&self.queue);
        work.on_done(move |outcome| {
            // If the queue is gone, the outcome is dropped at once, and its buffer with it.
            let Some(queue) = queue.upgrade() else { return };
            queue.arrived.lock().push_back((key, outcome));
            queue.more.notify_one();
            if let Some(told) = &queue.told {
                told();
            }
        });
    }

    /// Number of outcomes not yet taken.
    pub fn len(&self) -> usize {
        self.in_flight
    }

    /// True if every outcome was taken.
    pub fn is_empty(&self) -> bool {
        self.in_flight == 0
    }

    /// Returns the next outcome, if one is ready.
    ///
    /// # Panics
    /// If the work panicked, with the same payload.
    pub fn try_next(&mut self) -> Option<(K, T)> {
        let arrival = self.arrived().pop_front();
        arrival.map(|arrival| self.take(arrival))
    }

    /// Waits for the next outcome and returns it. `None` if nothing is in flight.
    ///
    /// # Panics
    /// As [`Completions::try_next`]; in a forked child, if it would wait for its parent's work.
    pub fn wait_next(&mut self) -> Option<(K, T)> {
        self.wait(None)
    }

    /// Waits for the next outcome until `deadline`. `None` if nothing is in flight, or no work ends
    /// in time.
    ///
    /// # Panics
    /// As [`Completions::wait_next`].
    pub fn wait_next_until(&mut self, deadline: Instant) -> Option<(K, T)> {
        self.wait(Some(deadline))
    }

    fn wait(&mut self, deadline: Option<Instant>) -> Option<(K, T)> {
        if self.is_empty() {
            return None;
        }
        let mut arrived = self.arrived();
        let arrival = loop {
            if let Some(arrival) = arrived.pop_front() {
                break arrival;
            }
            assert!(process::id() == self.pid, "{GIVEN_UP}");
            let more = &self.queue.more;
            arrived = match deadline {
                None => more.wait(arrived),
                Some(deadline) => {
                    let left = deadline.checked_duration_since(Instant::now())?;
                    more.wait_timeout(arrived, left).0
                }
            };
        };
        drop(arrived);
        Some(self.take(arrival))
    }

    fn arrived(&self) -> MutexGuard<'_, VecDeque<Arrival<K, T>>> {
        if process::id() == self.pid {
            return self.queue.arrived.lock();
        }
        // In a forked child the lock may have been inherited from a thread that does not exist
        // there.
        self.queue.arrived.try_lock().unwrap_or_else(|| panic!("{GIVEN_UP}"))
    }

    fn take(&mut self, (key, outcome): Arrival<K, T>) -> (K, T) {
        self.in_flight -= 1;
        (key, outcome.unwrap_or_else(|payload| resume_unwind(payload)))
    }
}

impl<K: Send + 'static, T: Send + 'static> Default for Completions<K, T> {
    fn default() -> Self {
        Completions::new()
    }
}

impl<K, T> fmt::Debug for Completions<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Completions({} in flight)", self.in_flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asleep::{this_thread, until_asleep};
    use crate::{Promise, StagingPool};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    fn filled(count: usize) -> (Vec<Promise<usize>>, Completions<usize, usize>) {
        let mut queue = Completions::new();
        let pairs = (0..count).map(|key| {
            let (promise, ticket) = Ticket::pair();
            queue.push(key, ticket);
            promise
        });
        (pairs.collect(), queue)
    }

    #[test]
    fn outcomes_come_as_the_work_ends() {
        let (mut promises, mut queue) = filled(3);
        assert!(queue.try_next().is_none());
        promises.remove(1).fulfil(10);
        assert_eq!(queue.wait_next(), Some((1, 10)));
        queue.push(7, Ticket::done(70));
        assert_eq!((queue.len(), queue.try_next()), (3, Some((7, 70))));
        assert!(queue.wait_next_until(Instant::now()).is_none(), "the rest is late");
        let waiter = this_thread();
        let worker = thread::spawn(move || {
            until_asleep(&waiter);
            for (promise, value) in promises.into_iter().zip([0, 20]).rev() {
                promise.fulfil(value);
            }
        });
        let deadline = Instant::now() + Duration::from_secs(300);
        assert_eq!(queue.wait_next_until(deadline), Some((2, 20)));
        assert_eq!(queue.wait_next(), Some((0, 0)));
        assert_eq!(queue.wait_next(), None);
        worker.join().unwrap();
    }

    #[test]
    fn one_thread_takes_thousands_of_many_threads() {
        let (promises, mut queue) = filled(20_000);
        let mut parts: Vec<Vec<_>> = (0..8).map(|_| Vec::new()).collect();
        for (number, promise) in promises.into_iter().enumerate() {
            parts[number * 7 % 8].push((number, promise));
        }
        thread::scope(|scope| {
            for part in parts {
                scope.spawn(move || part.into_iter().for_each(|(n, promise)| promise.fulfil(n)));
            }
            let mut seen = vec![false; queue.len()];
            while let Some((key, value)) = queue.wait_next() {
                assert_eq!(key, value);
                assert!(!std::mem::replace(&mut seen[key], true), "{key} came twice");
            }
            assert!(seen.into_iter().all(|seen| seen));
        });
    }

    #[test]
    fn work_that_is_given_up_is_told_and_the_rest_comes() {
        let (mut promises, mut queue) = filled(2);
        drop(promises.remove(0));
        assert!(catch_unwind(AssertUnwindSafe(|| queue.try_next())).is_err());
        promises.remove(0).fulfil(1);
        assert_eq!(queue.wait_next(), Some((1, 1)));
    }

    /// Work that has ended need not wait for work that hangs before its buffers are freed.
    #[test]
    fn results_of_a_dropped_queue_are_freed_at_once() {
        let pool = StagingPool::new(2 * 4096, 4096);
        let mut queue = Completions::new();
        let (done, ticket) = Ticket::pair();
        queue.push("done", ticket);
        let (late, ticket) = Ticket::pair();
        queue.push("late", ticket);
        let (hangs, ticket) = Ticket::pair();
        queue.push("hangs", ticket);
        done.fulfil(pool.take());
        let buffer = pool.take();
        assert!(pool.try_take().is_none());
        drop(queue);
        late.fulfil(buffer);
        assert!(pool.try_take().is_some() && pool.peak_bytes() == 2 * 4096);
        drop(hangs);
    }
}
