//! The lock of collectors for long work: the work holds it for a while, gives it back, and rests as
//! long as its pace requires before it goes on.

use outlive_pool::Pool;
use outlive_types::sync;
use outlive_types::{Error, Result};
use std::fmt;
use std::time::Duration;

/// Time after which the lock is given back, at the end of a pack.
const TURN: Duration = Duration::from_secs(1);
/// Time that programs then have to take it: longer than their pauses ([`Pool::lock_collecting`]).
const REST: Duration = Duration::from_millis(60);
/// Pause between two checks whether another command has ended.
const PAUSE: Duration = Duration::from_millis(500);
/// Number of these pauses: a minute.
const TRIES: usize = 120;

/// A lock that ends when it is dropped.
pub(crate) type LockHold = Box<dyn Send>;

/// Rests for the pace. Returns false if the work must end.
pub(crate) type Rest<'a> = &'a dyn Fn(Duration) -> bool;

/// Rests as a command does: nothing ends it.
pub(crate) fn sleep(time: Duration) -> bool {
    sync::sleep(time);
    true
}

/// How [`PacedLock::take`] has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockTurn {
    /// The lock was held already.
    Same,
    /// It was taken. Earlier findings may be out of date.
    New,
    /// It was not taken: the work must end.
    Over,
}

/// The lock and the pace of some work.
pub(crate) struct PacedLock {
    bytes_per_s: Option<u64>,
    /// The lock, and when it was taken.
    held: Option<(LockHold, Duration)>,
    /// Time when it was given back.
    given_back: Option<Duration>,
    /// Whether the present work has held the lock.
    has_begun: bool,
    /// Time at which the bytes moved so far are paid for.
    paid: Duration,
}

impl PacedLock {
    /// Begins without the lock. `None` sets no limit.
    pub fn new(bytes_per_s: Option<u64>) -> PacedLock {
        let (held, given_back) = (None, None);
        PacedLock { bytes_per_s, held, given_back, has_begun: false, paid: Duration::ZERO }
    }

    /// Takes the lock by `lock`, unless it is held. Before that it rests for the pace, and for the
    /// programs that wait for the lock. `lock` returns `None` while another process has the lock;
    /// then it is called again for about a minute.
    ///
    /// # Errors
    /// Errors of `lock`; `Retry` if the other process keeps it.
    pub fn take(
        &mut self,
        pool: &Pool,
        rest: Rest<'_>,
        mut lock: impl FnMut() -> Result<Option<LockHold>>,
    ) -> Result<LockTurn> {
        if self.held.is_some() {
            return Ok(LockTurn::Same);
        }
        let debt = self.debt(pool);
        // A rest between two turns is due even without a pace: the work may have to end.
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

    /// Notes the bytes that were moved. Gives the lock back if the turn is over, or a rest is due.
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

    /// Gives the lock back, if it is held: the work is over, or begins again. Does not wait.
    pub fn end(&mut self, pool: &Pool) {
        self.give_back(pool);
        self.has_begun = false;
    }

    fn give_back(&mut self, pool: &Pool) {
        if self.held.take().is_some() {
            self.given_back = Some(now(pool));
        }
    }

    /// Returns the time until the moved bytes are paid for.
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
