//! Asks several replicas at once, and waits for slow ones only as long as needed.

use super::who::Asker;
use crate::medium::LogMedium;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for a replica that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Once enough have answered, the others get the same time again, and at least this: a healthy
/// replica should have all records.
const GRACE_MIN: Duration = Duration::from_millis(50);

/// A replica that takes this long to fail is left alone for a while.
const SLOW_TO_FAIL: Duration = Duration::from_millis(200);
const LEFT_ALONE: Duration = Duration::from_secs(5);

/// The way of asking replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asking {
    /// All at once, by threads; a replica that hangs is left alone until it answers.
    AtOnce,
    /// One after the other, by the calling thread.
    InTurn,
}

/// One log replica.
#[derive(Clone)]
pub(super) struct Replica {
    pub medium: Arc<dyn LogMedium>,
    asker: Asker,
    /// The reason to leave it alone now. Uses `try_lock` only: a forked child may inherit the lock
    /// in use.
    trouble: Arc<Mutex<Option<Alone>>>,
}

/// Why a replica is left alone.
enum Alone {
    /// A question has no answer yet, and its caller no longer waits.
    Until(Arc<AtomicBool>),
    /// The replica failed, slowly.
    For(Instant),
}

/// Marks a question as over when it is dropped.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A question to one replica.
pub(super) type Question<T> = Box<dyn FnOnce(&dyn LogMedium) -> Result<T> + Send>;

impl Replica {
    pub fn new(medium: Arc<dyn LogMedium>, asker: Asker) -> Replica {
        Replica { medium, asker, trouble: Arc::default() }
    }

    fn is_left_alone(&self) -> bool {
        match self.trouble.try_lock().as_deref() {
            Some(Some(Alone::Until(over))) => !over.load(Ordering::Acquire),
            Some(Some(Alone::For(since))) => since.elapsed() < LEFT_ALONE,
            Some(None) | None => false,
        }
    }

    fn leave_alone(&self, why: Alone) {
        if let Some(mut trouble) = self.trouble.try_lock() {
            *trouble = Some(why);
        }
    }

    fn hanging(&self) -> Error {
        Error::retry(format!("{} does not answer", self.medium.describe()))
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.medium.fmt(f)
    }
}

/// Asks each replica its question. `told` gets each answer, and returns whether enough came.
pub(super) fn ask<T: Send + 'static>(
    asking: Asking,
    questions: Vec<(usize, &Replica, Question<T>)>,
    told: &mut dyn FnMut(usize, Result<T>) -> bool,
) {
    if asking == Asking::InTurn {
        for (number, replica, question) in questions {
            told(number, replica.asker.ask(&*replica.medium, question));
        }
        return;
    }
    let (answers, answered) = mpsc::channel();
    let mut waiting: Vec<(usize, &Replica, Arc<AtomicBool>)> = Vec::new();
    for (number, replica, question) in questions {
        if replica.is_left_alone() {
            told(number, Err(replica.hanging()));
            continue;
        }
        let (to, medium, asker) = (answers.clone(), replica.medium.clone(), replica.asker.clone());
        let is_over: Arc<AtomicBool> = Arc::default();
        let over = Over(is_over.clone());
        let work = move || {
            let answer = asker.ask(&*medium, question);
            drop(over);
            // The caller may have gone on.
            let _ = to.send((number, answer));
        };
        match thread::Builder::new().name("outlive-log".to_owned()).spawn(work) {
            Ok(_) => waiting.push((number, replica, is_over)),
            Err(error) => {
                told(number, Err(Error::no_thread("a log replica", &error)));
            }
        }
    }
    drop(answers);
    let begun = Instant::now();
    let mut until = begun + PATIENCE;
    while !waiting.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        let Ok((number, answer)) = answered.recv_timeout(left) else { break };
        if answer.is_err()
            && begun.elapsed() > SLOW_TO_FAIL
            && let Some((_, replica, _)) = waiting.iter().find(|(other, ..)| *other == number)
        {
            replica.leave_alone(Alone::For(Instant::now()));
        }
        waiting.retain(|(other, ..)| *other != number);
        if told(number, answer) {
            until = until.min(Instant::now() + begun.elapsed().max(GRACE_MIN));
        }
    }
    for (number, replica, is_over) in waiting {
        replica.leave_alone(Alone::Until(is_over));
        told(number, Err(replica.hanging()));
    }
}
