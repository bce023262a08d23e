//! When the saves of a job are due: the learner of the interval, fed with this program's saves.

use crate::retention::parse_age;
use crate::save::SaveStats;
use outlive_interval::{Choice, Every, Learner, Past, SLOWDOWN_MAX, Stored};
use outlive_pool::Pool;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Clock, Epoch, Error, FreezeMode, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// Share of a state from which a save counts as one of the whole state, in tenths.
const WHOLE_TENTHS: u64 = 9;

/// Reads a rule for the interval: `auto`, `continuous`, or a time such as `30s`. `slowdown_max` is the
/// budget of `continuous`; `None` for the default.
///
/// # Errors
/// `Invalid` for other text, and for a budget that is no share.
pub fn parse_every(text: &str, slowdown_max: Option<f64>) -> Result<Every> {
    let slowdown_max = slowdown_max.unwrap_or(SLOWDOWN_MAX);
    if !Every::is_budget(slowdown_max) {
        return Err(Error::invalid(format!(
            "slowdown_max = {slowdown_max}: must be a share of the time above 0 and below 1, such as {SLOWDOWN_MAX}"
        )));
    }
    Every::read(text, slowdown_max, |text| parse_age(text).ok()).ok_or_else(|| {
        Error::invalid(format!(
            "every = {text:?} is no interval: give \"auto\", \"continuous\", or a number with s, m, h, d \
             or w, such as \"30s\""
        ))
    })
}

/// Returns the rule for a number of seconds; `what` is the name of the argument.
///
/// # Errors
/// `Invalid` for a number that is no time.
pub fn seconds_between(what: &str, seconds: f64) -> Result<Every> {
    let time = Duration::try_from_secs_f64(seconds);
    time.map(Every::Fixed).map_err(|_| {
        Error::invalid(format!("{what} = {seconds}: must be a number of seconds, from 0"))
    })
}

/// Knowledge of the learner that outlasts the program: other runs of the job bring it, and get it.
pub trait PaceMemory: Send + Sync {
    /// Returns the failures of the job so far. Called once, by the thread of the first save.
    fn past(&self, pool: &Pool) -> Past;
    /// Notes the choice after a commit.
    fn chose(&self, pool: &Pool, epoch: Epoch, choice: &Choice);
}

/// How the ranks of a group ask whether a save is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Asks {
    /// Not agreed yet: the next call is collective.
    Unknown = 0,
    /// Rank 0 has an interval, and decides at each call.
    Together = 1,
    /// Rank 0 has none: each call may save.
    Alone = 2,
}

/// The pace of one handle of a job.
pub(crate) struct Pace {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// An [`Asks`].
    asks: AtomicU8,
}

struct State {
    learner: Learner,
    memory: Option<Arc<dyn PaceMemory>>,
    /// Whether the memory was asked for the past.
    is_past_known: bool,
}

impl Pace {
    pub fn new(pool: &Pool, every: Every) -> Pace {
        let clock = pool.env().clock.clone();
        let learner = Learner::new(every, false, clock.monotonic());
        let state = State { learner, memory: None, is_past_known: false };
        Pace { clock, state: Mutex::new(state), asks: AtomicU8::new(Asks::Unknown as u8) }
    }

    /// Sets another rule. It forgets the costs learned before.
    pub fn set(&self, every: Every, is_overridden: bool, memory: Option<Arc<dyn PaceMemory>>) {
        let mut state = self.state.lock();
        let memory = memory.or(state.memory.take());
        let learner = Learner::new(every, is_overridden, self.clock.monotonic());
        *state = State { learner, memory, is_past_known: false };
        self.set_asks(Asks::Unknown);
    }

    pub fn every(&self) -> Every {
        self.state.lock().learner.every()
    }

    pub fn asks(&self) -> Asks {
        match self.asks.load(Ordering::Relaxed) {
            1 => Asks::Together,
            2 => Asks::Alone,
            _ => Asks::Unknown,
        }
    }

    pub fn set_asks(&self, asks: Asks) {
        self.asks.store(asks as u8, Ordering::Relaxed);
    }

    /// Notes that the program calls, at the end of a step. `is_filling` says whether the slow tier is
    /// being filled.
    pub fn call(&self, is_filling: bool) {
        let learner = &mut self.state.lock().learner;
        learner.fill(is_filling);
        learner.call(self.clock.monotonic());
    }

    /// Returns whether a save is due. `again` says that a failed save must be tried again.
    pub fn is_due(&self, again: bool) -> bool {
        let learner = &mut self.state.lock().learner;
        let may_wait = learner.every().learns() && learner.is_saving();
        learner.is_due(self.clock.monotonic()) || again && !may_wait
    }

    pub fn begin(&self) {
        self.state.lock().learner.begin(self.clock.monotonic());
    }

    /// Notes that the program goes on after the beginning of a save.
    pub fn go_on(&self) {
        self.state.lock().learner.go_on(self.clock.monotonic());
    }

    pub fn fail(&self) {
        self.state.lock().learner.fail();
    }

    /// Notes that a save is durable, and returns the choice that follows.
    pub fn durable(&self, pool: &Pool, stats: &SaveStats) -> Choice {
        let now = self.clock.monotonic();
        let changed = u128::from(stats.changed_bytes) * 10;
        let freeze = &stats.freeze;
        let copied_bytes_max = pool.config().tuning.freeze_bytes_max;
        // All changes of a small state fit, however many there are. Of others none, if saves must fork.
        let is_fork = pool.config().tuning.freeze().is_ok_and(|mode| mode == FreezeMode::Fork);
        let is_unbounded = is_fork || copied_bytes_max >= stats.state_bytes;
        let stored = Stored {
            is_whole: changed >= u128::from(stats.state_bytes) * u128::from(WHOLE_TENTHS),
            is_copied: freeze.forked_bytes + freeze.live_bytes == 0,
            held_bytes: freeze.held_bytes(),
            copied_bytes_max: if is_unbounded { u64::MAX } else { copied_bytes_max },
        };
        let mut state = self.state.lock();
        state.learner.durable(now, stored);
        let memory = state.memory.clone();
        let asks = state.learner.every().learns() && !state.is_past_known;
        drop(state);
        // Without the lock: the pool may be slow, and the program asks whether a save is due.
        let past = memory.as_ref().filter(|_| asks).map(|memory| memory.past(pool));
        let mut state = self.state.lock();
        if let Some(past) = past {
            state.learner.set_past(past, now);
            state.is_past_known = true;
        }
        let choice = state.learner.choice().clone();
        drop(state);
        if let Some(memory) = memory {
            memory.chose(pool, stats.epoch, &choice);
        }
        choice
    }
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pace").field("every", &self.every()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_nonsense_is_refused() {
        let rule = |text: &str| parse_every(text, None);
        assert_eq!(rule("auto"), Ok(Every::Auto));
        assert_eq!(rule("continuous"), Ok(Every::Continuous { slowdown_max: SLOWDOWN_MAX }));
        assert_eq!(rule("1.5m"), Ok(Every::Fixed(Duration::from_secs(90))));
        for wrong in ["", "Auto", "30", "-3s", "NaNs", "infs", "1e400d", "often", "s"] {
            let error = rule(wrong).unwrap_err();
            assert!(error.message().contains("is no interval"), "{error}");
        }
        for wrong in [0.0, 1.0, -0.1, f64::NAN, f64::INFINITY] {
            assert!(parse_every("continuous", Some(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(seconds_between("every_s", 2.0), Ok(Every::Fixed(Duration::from_secs(2))));
        for wrong in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            let error = seconds_between("every_s", wrong).unwrap_err();
            assert!(error.message().contains("every_s = "), "{error}");
        }
    }
}
