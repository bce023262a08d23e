//! Keeps the events of a job's checkpoints until the program takes them.

use outlive_store::{CommitEvent, CommitEvents, CommitWatch};
use outlive_types::sync::plain::{Condvar, Mutex};
use outlive_types::{Error, JobName, Result};
use std::collections::VecDeque;
use std::process;
use std::sync::Arc;
use std::time::Duration;

/// Result of [`Subscription::next`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NextEvent {
    /// The oldest event that was not taken yet.
    Event(CommitEvent),
    /// None came in time.
    NotYet,
    /// The program has taken all events, and no other will come.
    Over,
}

/// A subscription to the events of a job: keeps each event until a call takes it. An event takes
/// about 100 bytes, plus the texts of its job's name and its error. Any thread may call any method,
/// except that a forked child gets no events of its parent.
#[derive(Debug)]
pub struct Subscription {
    job: JobName,
    /// Process that subscribed. In a forked child, locks may be locked forever.
    process_id: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<CommitEvent>,
    /// Whether no event is added any more.
    is_over: bool,
    /// Adds the events; `None` once it is over.
    subscription: Option<CommitWatch>,
}

impl Subscription {
    /// Subscribes to all events from now on.
    pub fn subscribe(events: &CommitEvents, job: &JobName) -> Arc<Subscription> {
        let queue = Arc::new(Subscription {
            job: job.clone(),
            process_id: process::id(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        // Weak, so that dropping the queue ends the subscription.
        let into = Arc::downgrade(&queue);
        let subscription = events.watch(move |event| {
            if let Some(queue) = into.upgrade() {
                queue.add(event);
            }
        });
        queue.state.lock().subscription = Some(subscription);
        queue
    }

    fn add(&self, event: &CommitEvent) {
        let mut state = self.state.lock();
        if !state.is_over {
            state.events.push_back(event.clone());
            drop(state);
            // All: one that is interrupted takes no event.
            self.changed.notify_all();
        }
    }

    /// Waits for at most `limit` until [`Subscription::next`] need not wait. Returns whether that is
    /// so. A caller that can be interrupted waits here, and loses no event.
    ///
    /// # Errors
    /// `Invalid` in a forked child.
    pub fn wait(&self, limit: Duration) -> Result<bool> {
        self.check_process()?;
        let none_yet = |state: &mut State| state.events.is_empty() && !state.is_over;
        let mut state = self.changed.wait_timeout_while(self.state.lock(), limit, none_yet).0;
        Ok(!none_yet(&mut state))
    }

    /// Takes the oldest event, and waits for one for at most `limit`; `None` waits without limit.
    ///
    /// # Errors
    /// `Invalid` in a forked child.
    pub fn next(&self, limit: Option<Duration>) -> Result<NextEvent> {
        self.check_process()?;
        let none_yet = |state: &mut State| state.events.is_empty() && !state.is_over;
        let state = self.state.lock();
        let mut state = match limit {
            None => self.changed.wait_while(state, none_yet),
            Some(limit) => self.changed.wait_timeout_while(state, limit, none_yet).0,
        };
        Ok(match state.events.pop_front() {
            Some(event) => NextEvent::Event(event),
            None if state.is_over => NextEvent::Over,
            None => NextEvent::NotYet,
        })
    }

    /// Returns whether the program has taken all events, and no other will come.
    ///
    /// # Errors
    /// `Invalid` in a forked child.
    pub fn is_over(&self) -> Result<bool> {
        self.check_process()?;
        let state = self.state.lock();
        Ok(state.is_over && state.events.is_empty())
    }

    /// Ends the subscription, and drops the events that were not taken. Calls that wait return. In
    /// a forked child it does nothing.
    pub fn close(&self) {
        self.finish(true);
    }

    /// Ends the subscription, since the job is closed. Events that were not taken stay.
    pub(crate) fn end(&self) {
        self.finish(false);
    }

    fn finish(&self, drop_events: bool) {
        if self.check_process().is_err() {
            return;
        }
        let mut state = self.state.lock();
        state.is_over = true;
        let subscription = state.subscription.take();
        let dropped = if drop_events { std::mem::take(&mut state.events) } else { VecDeque::new() };
        drop(state);
        self.changed.notify_all();
        drop((subscription, dropped));
    }

    fn check_process(&self) -> Result<()> {
        let here = process::id();
        if self.process_id == here {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the events of job {} were opened by process {} and this is process {here}, forked \
             from it: open the pool and a job of its own here",
            self.job, self.process_id
        )))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let subscription = self.state.get_mut().subscription.take();
        if self.check_process().is_err() {
            // The end of a subscription locks, and a thread of the parent may have held that lock
            // at the fork.
            std::mem::forget(subscription);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_pool::{Environment, FormatConfig, Pool, PoolConfig, Tuning, create};
    use outlive_store::{Job, JobOptions};
    use outlive_types::Epoch;
    use std::thread;

    /// Longer than a test may take.
    const FOREVER: Option<Duration> = Some(Duration::from_secs(600));

    fn job(dir: &tempfile::TempDir) -> Job {
        let config = PoolConfig::new(FormatConfig::new([3; 16]), Tuning::default());
        let pool: Pool = create(&dir.path().join("pool"), config, Environment::system()).unwrap();
        Job::open(&pool, "job", JobOptions::default()).unwrap()
    }

    fn queue(job: &Job) -> Arc<Subscription> {
        Subscription::subscribe(job.events(), job.name())
    }

    fn committed(epoch: Epoch) -> CommitEvent {
        CommitEvent::Committed { job: JobName::new("job").unwrap(), epoch }
    }

    fn failed(epoch: Epoch) -> CommitEvent {
        let (job, error) = (JobName::new("job").unwrap(), Error::retry("the disk is away"));
        CommitEvent::Failed { job, epoch, error }
    }

    fn watchers(job: &Job) -> usize {
        let shown = format!("{:?}", job.events());
        let at = shown.find("watchers: ").unwrap() + "watchers: ".len();
        shown[at..].trim_end_matches([' ', '}']).parse().unwrap()
    }

    #[test]
    fn events_are_taken_in_order_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let job = job(&dir);
        let queue = queue(&job);
        assert_eq!(queue.next(Some(Duration::ZERO)).unwrap(), NextEvent::NotYet);
        assert_eq!(queue.next(Some(Duration::from_millis(1))).unwrap(), NextEvent::NotYet);
        let given = [committed(1), failed(2), committed(2), committed(3)];
        given.iter().for_each(|event| queue.add(event));
        for event in given {
            assert_eq!(queue.next(None).unwrap(), NextEvent::Event(event));
        }
        assert_eq!(queue.next(Some(Duration::ZERO)).unwrap(), NextEvent::NotYet);
        assert!(!queue.is_over().unwrap());
    }

    #[test]
    fn the_end_of_the_job_leaves_the_events_and_a_close_drops_them() {
        let dir = tempfile::tempdir().unwrap();
        let job = job(&dir);
        let (ended, closed) = (queue(&job), queue(&job));
        for queue in [&ended, &closed] {
            queue.add(&committed(1));
        }
        ended.end();
        closed.close();
        for queue in [&ended, &closed] {
            queue.add(&committed(2)); // too late
        }
        assert!(!ended.is_over().unwrap() && closed.is_over().unwrap());
        assert_eq!(ended.next(None).unwrap(), NextEvent::Event(committed(1)));
        for queue in [ended, closed] {
            assert!(queue.is_over().unwrap());
            assert_eq!(queue.next(None).unwrap(), NextEvent::Over);
            queue.close();
            queue.end();
            assert_eq!(queue.next(FOREVER).unwrap(), NextEvent::Over);
        }
        assert_eq!(watchers(&job), 0);
    }

    #[test]
    fn an_event_and_an_end_wake_threads_that_wait() {
        let dir = tempfile::tempdir().unwrap();
        let job = job(&dir);
        for limit in [None, FOREVER] {
            let queue = queue(&job);
            thread::scope(|scope| {
                let waiting: Vec<_> =
                    (0..3).map(|_| scope.spawn(|| queue.next(limit).unwrap())).collect();
                queue.add(&committed(1));
                queue.end();
                let mut found: Vec<_> = waiting.into_iter().map(|it| it.join().unwrap()).collect();
                found.retain(|it| *it != NextEvent::Over);
                assert_eq!(found, [NextEvent::Event(committed(1))]);
            });
        }
    }

    #[test]
    fn a_dropped_subscription_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let job = job(&dir);
        let kept = queue(&job);
        for _ in 0..1000 {
            drop(queue(&job));
        }
        assert_eq!(watchers(&job), 1);
        drop(kept);
        assert_eq!(watchers(&job), 0);
    }

    /// In a forked child, a thread of the parent may have held each lock at the fork.
    #[test]
    fn a_forked_child_takes_no_lock_of_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let job = job(&dir);
        let queue = queue(&job);
        let mut queue = Arc::into_inner(queue).unwrap();
        queue.process_id = 1;
        thread::scope(|scope| {
            let held = queue.state.lock();
            let tries = || {
                queue.close();
                queue.end();
                (queue.next(None).unwrap_err(), queue.is_over().unwrap_err())
            };
            let (next, over) = scope.spawn(tries).join().unwrap();
            assert!(next.message().contains("forked from it"), "{next}");
            assert_eq!(next, over);
            drop(held);
        });
        // The drop does not end the subscription, since that locks.
        drop(queue);
        assert_eq!(watchers(&job), 1);
    }
}
