//! PacedLock of long work: it has the lock of collectors for a while, gives it back, and rests as long as its
//! pace wants before it goes on.

use outlive_pool::Pool;
use outlive_types::sync;
use outlive_types::{Error, Result};
use std::fmt;
use std::time::Duration;

/// The lock is given back after so long, and at the end of the pack.
const TURN: Duration = Duration::from_secs(1);
/// Then programs that wait for it have as long to take it: longer than their pauses ([`Pool::lock_collecting`]).
const REST: Duration = Duration::from_millis(60);
/// Between two looks whether another command has ended.
const PAUSE: Duration = Duration::from_millis(500);
/// So often: a minute.
const TRIES: usize = 120;

/// A lock that ends when it is dropped.
pub(crate) type Held = Box<dyn Send>;

/// Lets time pass, for the pace. False if the work is to end instead of going on.
pub(crate) type Rest<'a> = &'a dyn Fn(Duration) -> bool;

/// As a command rests: nothing ends it.
pub(crate) fn sleep(time: Duration) -> bool {
    sync::sleep(time);
    true
}

/// How a turn begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockTurn {
    /// The lock was held already.
    Same,
    /// It was taken. What was known before may have changed.
    New,
    /// It was not taken: the work is to end.
    Over,
}

/// The turns of some work.
pub(crate) struct PacedLock {
    bytes_per_s: Option<u64>,
    /// The lock, and when it was taken.
    held: Option<(Held, Duration)>,
    /// When it was given back.
    given_back: Option<Duration>,
    /// Whether the work that goes on has had a turn.
    has_begun: bool,
    /// When the bytes that were moved so far are paid for.
    paid: Duration,
}

impl PacedLock {
    /// Of work that moves at most so many bytes a second; `None` for no limit.
    pub fn new(bytes_per_s: Option<u64>) -> PacedLock {
        let (held, given_back) = (None, None);
        PacedLock { bytes_per_s, held, given_back, has_begun: false, paid: Duration::ZERO }
    }

    /// Takes the lock by `lock`, unless it is held. Before that it rests as long as the pace wants, and as
    /// programs need that wait for the lock. `lock` returns `None` while another has the lock; then it is
    /// called again for about a minute.
    ///
    /// # Errors
    /// Those of `lock`; `Retry` if another does not end.
    pub fn take(
        &mut self,
        pool: &Pool,
        rest: Rest<'_>,
        mut lock: impl FnMut() -> Result<Option<Held>>,
    ) -> Result<LockTurn> {
        if self.held.is_some() {
            return Ok(LockTurn::Same);
        }
        let debt = self.debt(pool);
        // Between two turns also where there is no pace: the work may be to end.
        if (self.has_begun || !debt.is_zero()) && !rest(debt) {
            return Ok(LockTurn::Over);
        }
        if let Some(since) = self.given_back {
            let passed = now(pool).saturating_sub(since);
            let left = REST.saturating_sub(passed);
            if !left.is_zero() {
                sync::sleep(left);
            }
        }
        for attempt in 0..=TRIES {
            if attempt > 0 {
                sync::sleep(PAUSE);
            }
            if let Some(held) = lock()? {
                (self.held, self.has_begun) = (Some((held, now(pool))), true);
                return Ok(LockTurn::New);
            }
        }
        Err(Error::retry("a gc, scrub, repair or fill is at work in this pool"))
    }

    /// Notes that so many bytes were moved. Gives the lock back if the turn is over, or a rest is due.
    pub fn moved(&mut self, pool: &Pool, bytes: u64) {
        if let Some(limit) = self.bytes_per_s {
            let cost = Duration::from_secs_f64(bytes as f64 / limit.max(1) as f64);
            // Time in which nothing was moved is not saved up.
            self.paid = self.paid.max(now(pool)).saturating_add(cost);
        }
        let begun = self.held.as_ref().map_or(Duration::MAX, |(_, begun)| *begun);
        if now(pool).saturating_sub(begun) >= TURN || !self.debt(pool).is_zero() {
            self.give_back(pool);
        }
    }

    /// Gives the lock back, if it is held: the work is over, or begins anew. Does not wait.
    pub fn end(&mut self, pool: &Pool) {
        self.give_back(pool);
        self.has_begun = false;
    }

    fn give_back(&mut self, pool: &Pool) {
        if self.held.take().is_some() {
            self.given_back = Some(now(pool));
        }
    }

    /// How long it takes until what was moved is paid for.
    fn debt(&self, pool: &Pool) -> Duration {
        self.paid.saturating_sub(now(pool))
    }
}

fn now(pool: &Pool) -> Duration {
    pool.env().clock.monotonic()
}

impl fmt::Debug for PacedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_held = self.held.is_some();
        f.debug_struct("PacedLock").field("is_held", &is_held).field("paid", &self.paid).finish()
    }
}
