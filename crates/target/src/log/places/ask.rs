//! Asks several places at once, and waits no longer for the slow ones than it must.

use crate::LogMedium;
use outlive_types::{Error, Result};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How long nothing is decided without a place that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Once enough have answered, the others are given as long again, and at least this long: a place that is
/// well is to have all records.
const GRACE_MIN: Duration = Duration::from_millis(50);

/// How places are asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asking {
    /// All at once, by threads; one that hangs is left alone until it answers.
    AtOnce,
    /// One after the other, by the calling thread.
    InTurn,
}

/// One place.
#[derive(Clone)]
pub(super) struct Place {
    pub medium: Arc<dyn LogMedium>,
    /// Whether it has answered a question for which nobody waits any more.
    given_up: Arc<Mutex<Option<Arc<AtomicBool>>>>,
}

/// What one place is asked.
pub(super) type Question<T> = Box<dyn FnOnce(&dyn LogMedium) -> Result<T> + Send>;

impl Place {
    pub fn new(medium: Arc<dyn LogMedium>) -> Place {
        Place { medium, given_up: Arc::default() }
    }

    fn hangs(&self) -> bool {
        let given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        given_up.as_ref().is_some_and(|answered| !answered.load(Ordering::Acquire))
    }

    fn give_up(&self, answered: Arc<AtomicBool>) {
        *self.given_up.lock().unwrap_or_else(PoisonError::into_inner) = Some(answered);
    }

    fn hanging(&self) -> Error {
        Error::retry(format!("{} does not answer", self.medium.describe()))
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.medium.fmt(f)
    }
}

/// Asks places, each another question. `told` hears each answer, and says whether enough are in.
pub(super) fn ask<T: Send + 'static>(
    asking: Asking,
    questions: Vec<(usize, &Place, Question<T>)>,
    told: &mut dyn FnMut(usize, Result<T>) -> bool,
) {
    if asking == Asking::InTurn {
        for (number, place, question) in questions {
            told(number, question(&*place.medium));
        }
        return;
    }
    let (answers, answered) = mpsc::channel();
    let mut waiting: Vec<(usize, &Place, Arc<AtomicBool>)> = Vec::new();
    for (number, place, question) in questions {
        if place.hangs() {
            told(number, Err(place.hanging()));
            continue;
        }
        let (to, medium) = (answers.clone(), place.medium.clone());
        let is_over: Arc<AtomicBool> = Arc::default();
        let over = is_over.clone();
        let work = move || {
            let answer = question(&*medium);
            over.store(true, Ordering::Release);
            // Whoever has asked may have gone on.
            let _ = to.send((number, answer));
        };
        match thread::Builder::new().name("outlive-log".to_owned()).spawn(work) {
            Ok(_) => waiting.push((number, place, is_over)),
            Err(error) => {
                told(number, Err(Error::no_thread("a place of the log", &error)));
            }
        }
    }
    drop(answers);
    let begun = Instant::now();
    let mut until = begun + PATIENCE;
    while !waiting.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        let Ok((number, answer)) = answered.recv_timeout(left) else { break };
        waiting.retain(|(other, ..)| *other != number);
        if told(number, answer) {
            until = until.min(Instant::now() + begun.elapsed().max(GRACE_MIN));
        }
    }
    for (number, place, is_over) in waiting {
        place.give_up(is_over);
        told(number, Err(place.hanging()));
    }
}
