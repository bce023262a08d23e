//! Watches whether a target answers. If a target stays silent, the watch gives it up: every call
//! that waits for the target gets an error. The target gets no more requests until it answers
//! again.
//!
//! Silence is not slowness. If operations are in progress and none ends, the watch makes a health
//! check (a *look*), which is a small request. A slow target answers it, and its work may go on. A
//! target is silent if
//!
//! - for [`Bounds::silence`] no request to it has ended, health checks included;
//! - or it answers health checks, but no small request has ended for [`Bounds::question`], or no
//!   write, or no read, for [`Bounds::hang`];
//! - or a request has failed with `Retry` after [`SLOW_TO_FAIL`]: the client of a dead server gives
//!   up by itself in the end.
//!
//! A silent target is used again when all operations that were given up have ended, and it then
//! answers a health check. So the work that hangs at one time, with its threads and its memory, is
//! that of one silence.
//!
//! Work that was given up may still succeed. docs/faults.md says why that does no harm. Deletions
//! are never given up, for that reason (see [`WatchedTarget`]).

mod keeper;
mod target;

pub use target::WatchedTarget;

use outlive_io::{DiskEngine, OwnEngine, PerProcess, Promise, Ticket, blocking};
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, ErrorKind, Event, Observer, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A request that fails with `Retry` after this time was not answered.
pub const SLOW_TO_FAIL: Duration = Duration::from_secs(2);

/// A process stood still if its keeper comes later than this.
const STOOD_STILL: Duration = Duration::from_secs(4);

/// Threads for the small requests to one target. Each may hang.
const HELPERS: usize = 8;
/// Threads for its health checks.
const LOOKS: usize = 2;

/// Limits on the silence of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Time without an answer to any request or health check.
    pub silence: Duration,
    /// Time in which health checks are answered, but no small request ends, such as one that makes
    /// a file.
    pub question: Duration,
    /// Time in which health checks are answered, but no write ends, or no read. Longer than the 120
    /// s that a bucket may take to receive a part.
    pub hang: Duration,
    /// Pause between two health checks of a silent target.
    pub look_again: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            silence: Duration::from_secs(10),
            question: Duration::from_secs(60),
            hang: Duration::from_secs(150),
            look_again: Duration::from_secs(5),
        }
    }
}

/// A kind of request. Work of one kind shows nothing about the others: writes may hang while a
/// cache answers for names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Work {
    /// A small request.
    Question,
    /// A listing. It may take any time while the target answers health checks.
    Listing,
    /// A write, or the end of a shard.
    Write,
    /// A read.
    Read,
}

/// Makes a health check, by a request that any target answers at once.
pub type HealthCheck = dyn Fn() -> Result<()> + Send + Sync;

/// The watch over one target.
pub struct TargetWatch {
    /// Name of the target in messages.
    name: String,
    bounds: Bounds,
    look: Arc<HealthCheck>,
    observer: Arc<dyn Observer>,
    helpers: OwnEngine,
    /// Threads for health checks, which must not wait for requests that hang.
    lookout: OwnEngine,
    /// Whether a thread of this process calls [`TargetWatch::tick`]; tests call it themselves.
    has_keeper: bool,
    /// A forked child begins with an empty state: the work in progress belongs to its parent.
    state: PerProcess<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Work that a caller waits for, by number: the oldest first.
    awaited: BTreeMap<u64, Awaited>,
    /// Work that was given up and has not ended.
    given_up: BTreeSet<u64>,
    /// The time of the last end of work, or of the last answered health check.
    sign: Option<Instant>,
    /// The time at which work of a kind last ended.
    ended: BTreeMap<Work, Instant>,
    /// The start of the health check in progress.
    looking: Option<Instant>,
    silent: Option<Silent>,
    /// Whether the keeper ticks this watch.
    is_kept: bool,
    /// The last time at which the keeper came.
    beat: Option<Instant>,
}

struct Awaited {
    work: Work,
    begun: Instant,
    give_up: GiveUp,
}

fn take<T>(promise: &Mutex<Option<Promise<T>>>) -> Option<Promise<T>> {
    promise.lock().take()
}

type GiveUp = Box<dyn FnOnce(Error) + Send>;

struct Silent {
    why: Error,
    /// The time at which the last health check ended without an answer.
    looked: Option<Instant>,
}

impl TargetWatch {
    /// Returns a watch over the target that messages call `name`. `look` makes a health check.
    pub fn new(
        name: impl Into<String>,
        bounds: Bounds,
        observer: Arc<dyn Observer>,
        look: Arc<HealthCheck>,
    ) -> Arc<TargetWatch> {
        TargetWatch::with(name.into(), bounds, observer, look, true)
    }

    /// Returns a watch for tests: time passes only when they call [`TargetWatch::tick`].
    pub fn ticked(
        name: impl Into<String>,
        bounds: Bounds,
        observer: Arc<dyn Observer>,
        look: Arc<HealthCheck>,
    ) -> Arc<TargetWatch> {
        TargetWatch::with(name.into(), bounds, observer, look, false)
    }

    fn with(
        name: String,
        bounds: Bounds,
        observer: Arc<dyn Observer>,
        look: Arc<HealthCheck>,
        has_keeper: bool,
    ) -> Arc<TargetWatch> {
        let (helpers, lookout) = (OwnEngine::new(HELPERS), OwnEngine::new(LOOKS));
        let state = PerProcess::new(|_| State::default());
        Arc::new(TargetWatch { name, bounds, look, observer, helpers, lookout, has_keeper, state })
    }

    /// Returns why the target is left alone, if it is.
    pub fn silent(&self) -> Option<Error> {
        self.state.lock().silent.as_ref().map(|silent| silent.why.clone())
    }

    /// Returns how much work callers wait for, and how much was given up and has not ended.
    pub fn under_way(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.awaited.len(), state.given_up.len())
    }

    /// Runs a request in another thread, and waits until the target answers or is silent.
    ///
    /// # Errors
    /// Those of `question`; `Retry` if the target is silent. A later answer is dropped.
    pub fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        work: Work,
        question: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let asked = self.begin(work, question);
        blocking(|| asked.wait())
    }

    /// Does the same without waiting.
    pub fn begin<T: Send + 'static>(
        self: &Arc<Self>,
        work: Work,
        question: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Ticket<Result<T>> {
        if let Some(why) = self.silent() {
            return Ticket::done(Err(why));
        }
        let asked = self.helpers.submit(question);
        self.follow(work, asked, Err, |answer| {
            answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Retry)
        })
    }

    /// Runs `last` in the background. It counts as given up until it ends.
    fn send_off(self: &Arc<Self>, last: impl FnOnce() + Send + 'static) {
        let number = {
            let mut state = self.state.lock();
            state.next += 1;
            let number = state.next;
            state.given_up.insert(number);
            number
        };
        let watch = self.clone();
        self.helpers.submit(last).on_done(move |_| watch.end(number, false));
    }

    /// Returns the ticket of work that the target has begun. If the target becomes silent, the
    /// outcome is `given_up(why)`, and the late outcome of the work is dropped. `has_failed` says
    /// whether an outcome is a failure that may come from silence.
    fn follow<T: Send + 'static>(
        self: &Arc<Self>,
        work: Work,
        begun: Ticket<T>,
        given_up: impl FnOnce(Error) -> T + Send + 'static,
        has_failed: fn(&T) -> bool,
    ) -> Ticket<T> {
        if begun.ready() {
            return begun;
        }
        let (promise, ticket) = Ticket::pair();
        // The first of two takes it: the end of the work, or the watch that gives the work up.
        let promise: Arc<Mutex<Option<Promise<T>>>> = Arc::new(Mutex::new(Some(promise)));
        let to_give_up = promise.clone();
        let give_up: GiveUp = Box::new(move |why| {
            if let Some(promise) = take(&to_give_up) {
                promise.settle(catch_unwind(AssertUnwindSafe(|| given_up(why))));
            }
        });
        let number = self.await_end(work, give_up);
        let watch = self.clone();
        begun.on_done(move |outcome| {
            watch.end(number, outcome.as_ref().is_ok_and(has_failed));
            if let Some(promise) = take(&promise) {
                promise.settle(outcome);
            }
        });
        ticket
    }

    /// Records work that has begun. If the target became silent meanwhile, gives the work up at
    /// once.
    fn await_end(self: &Arc<Self>, work: Work, give_up: GiveUp) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let number = state.next;
        if let Some(silent) = &state.silent {
            let why = silent.why.clone();
            state.given_up.insert(number);
            drop(state);
            give_up(why);
            return number;
        }
        let begun = Instant::now();
        state.awaited.insert(number, Awaited { work, begun, give_up });
        if !state.is_kept {
            state.beat = Some(begun);
        }
        let is_new = !std::mem::replace(&mut state.is_kept, true);
        drop(state);
        if is_new && self.has_keeper {
            keeper::keep(self);
        }
        number
    }

    /// Records the end of work.
    fn end(self: &Arc<Self>, number: u64, has_failed: bool) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let Some(Awaited { work, begun, .. }) = state.awaited.remove(&number) else {
            if state.given_up.remove(&number) && state.given_up.is_empty() {
                // The target may be back: the next tick makes a health check.
                state.silent.iter_mut().for_each(|silent| silent.looked = None);
            }
            return;
        };
        let waited = now.saturating_duration_since(begun.max(state.sign.unwrap_or(begun)));
        // The process may have stood still, and the request failed for that reason.
        let late = state.beat.map(|beat| now.saturating_duration_since(beat));
        let stood_still = late.is_none_or(|late| late > STOOD_STILL);
        if has_failed && waited >= SLOW_TO_FAIL && state.silent.is_none() && !stood_still {
            return self.fall_silent(state, ("done nothing", waited), Some(now));
        }
        state.sign = Some(now);
        state.ended.insert(work, now);
    }

    /// Records a visit of the keeper. If it comes late, the process stood still, such as a
    /// suspended one: that is no silence of the target.
    fn beat(&self, now: Instant) {
        let mut state = self.state.lock();
        let late = state.beat.replace(now).map(|beat| now.saturating_duration_since(beat));
        if late.is_some_and(|late| late > STOOD_STILL) {
            state.sign = Some(now);
            for work in [Work::Question, Work::Write, Work::Read] {
                state.ended.insert(work, now);
            }
        }
    }

    /// Checks whether the target is silent at this time, or whether a health check is due. The
    /// keeper calls it about once a second, as long as it returns true.
    pub fn tick(self: &Arc<Self>, now: Instant) -> bool {
        let mut state = self.state.lock();
        let since = |begun: Instant, sign: Option<Instant>| {
            now.saturating_duration_since(sign.map_or(begun, |sign| begun.max(sign)))
        };
        if let Some(silent) = &state.silent {
            let is_due = silent.looked.is_none_or(|looked| {
                now.saturating_duration_since(looked) >= self.bounds.look_again
            });
            if is_due && state.given_up.is_empty() && state.looking.is_none() {
                self.take_look(state, now);
            }
            return true;
        }
        let Some((_, oldest)) = state.awaited.first_key_value() else {
            state.is_kept = false;
            return false;
        };
        let waited = since(oldest.begun, state.sign);
        // If a health check hangs while the target has answered other calls since, that shows
        // nothing.
        let may_look =
            state.looking.is_none_or(|began| state.sign.is_some_and(|sign| sign > began));
        let hang = |work: Work| {
            let oldest = state.awaited.values().find(|awaited| awaited.work == work)?;
            let waited = since(oldest.begun, state.ended.get(&work).copied());
            let bound = match work {
                Work::Question => self.bounds.question,
                _ => self.bounds.hang,
            };
            (waited >= bound).then_some(waited)
        };
        if waited >= self.bounds.silence {
            self.fall_silent(state, ("not answered", waited), None);
        } else if let Some(waited) =
            [Work::Question, Work::Write, Work::Read].into_iter().find_map(hang)
        {
            self.fall_silent(state, ("not answered", waited), None);
        } else if waited >= self.bounds.silence / 2 && may_look {
            self.take_look(state, now);
        }
        true
    }

    fn take_look(self: &Arc<Self>, mut state: Guard<'_>, now: Instant) {
        state.looking = Some(now);
        drop(state);
        let (watch, look) = (self.clone(), self.look.clone());
        let begun = Instant::now();
        self.lookout.submit(move || look()).on_done(move |answer| {
            let took = begun.elapsed();
            let is_retry = |error: &Error| error.kind() == ErrorKind::Retry;
            let has_failed = answer.is_ok_and(|answer| answer.as_ref().is_err_and(is_retry));
            watch.looked(has_failed && took >= SLOW_TO_FAIL);
        });
    }

    /// Records the end of a health check. A quick failure is an answer: the target's user finds the
    /// reason.
    fn looked(self: &Arc<Self>, has_failed: bool) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.looking = None;
        let is_empty = state.given_up.is_empty();
        match &mut state.silent {
            Some(silent) if has_failed || !is_empty => silent.looked = Some(now),
            Some(_) => {
                state.silent = None;
                state.sign = Some(now);
                drop(state);
                self.observer
                    .event(Event::Info(format!("{} answers again, and is used", self.name)));
            }
            None if !has_failed => state.sign = Some(now),
            None => {}
        }
    }

    fn fall_silent(
        self: &Arc<Self>,
        mut state: Guard<'_>,
        (what, waited): (&str, Duration),
        looked: Option<Instant>,
    ) {
        let why = format!("{} has {what} for {} s", self.name, waited.as_secs());
        let error = Error::away(format!("{why}, and is left alone until it answers"));
        state.silent = Some(Silent { why: error.clone(), looked });
        let given_up = std::mem::take(&mut state.awaited);
        state.given_up.extend(given_up.keys());
        let is_new = !std::mem::replace(&mut state.is_kept, true);
        drop(state);
        if is_new && self.has_keeper {
            keeper::keep(self);
        }
        // The code behind a write or read that ends may take a lock, while the lock's holder waits
        // for an answer. So small requests are given up first, and each write and read gets a
        // thread of its own. The thread that ticks waits for none of them.
        let is_question =
            |awaited: &Awaited| matches!(awaited.work, Work::Question | Work::Listing);
        let (questions, others): (Vec<_>, Vec<_>) = given_up.into_values().partition(is_question);
        let engine = DiskEngine::new(1 + others.len());
        let of = error.clone();
        drop(engine.submit(move || {
            questions.into_iter().for_each(|awaited| (awaited.give_up)(of.clone()));
        }));
        for awaited in others {
            let error = error.clone();
            drop(engine.submit(move || (awaited.give_up)(error)));
        }
        let told = Event::Warning(format!(
            "{why}: it counts as away and is left alone; when all that was given up has ended, outlive looks every {} s \
             whether it answers",
            self.bounds.look_again.as_secs()
        ));
        // An observer may wait, too, such as for a terminal.
        let observer = self.observer.clone();
        drop(engine.submit(move || observer.event(told)));
    }
}

type Guard<'a> = MutexGuard<'a, State>;

impl fmt::Debug for TargetWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TargetWatch({})", self.name)
    }
}

#[cfg(test)]
mod tests;
