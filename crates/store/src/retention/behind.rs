//! Retention of a job: after commits, drops checkpoints that its rules do not keep, and frees their
//! space. Gain and cost decide how often.

use super::Rules;
use outlive_io::make_way;
use outlive_pool::Pool;
use outlive_types::sync::{self, Condvar, Mutex, MutexGuard};
use outlive_types::{Error, ErrorKind, JobName, Result, SessionId};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The job frees space after saves have written this many bytes, or the bytes in use divided by
/// `WRITTEN_SHARE` if that is more.
const WRITTEN_MIN: u64 = 16 << 20;
const WRITTEN_SHARE: u64 = 4;
/// After a slow drop the thread rests for this multiple of its time.
const REST: u32 = 20;
/// Passing failures in a row before a warning.
const FAILURES_MAX: u32 = 3;

/// Ends the session of a job.
pub type End<'a> = &'a mut (dyn FnMut() -> Result<()> + 'a);

/// A round of retention.
pub struct Freeing<'a> {
    pub job: &'a JobName,
    pub rules: &'a Rules,
    /// The session of the last commit: a round drops nothing once another writer has followed.
    pub session: SessionId,
    /// Whether dropped checkpoints may still take space.
    pub has_dropped: bool,
    /// Whether to free space, too.
    pub collects: bool,
    /// Whether to rewrite packs: not behind a round that was outrun, whose copies were in vain.
    pub rewrites: bool,
    /// Whether the job is closed: then nearly empty packs are rewritten, too.
    pub is_last: bool,
    /// Ends the job's session first, since it would hold packs.
    pub end: Option<End<'a>>,
}

/// How a round frees space.
struct How<'a> {
    /// See [`Freeing::end`]. With it, the round always frees space.
    end: Option<End<'a>>,
    is_last: bool,
}

/// Outcome of a round.
pub enum Freed {
    /// Another writer has followed.
    Overtaken,
    /// The rules keep all checkpoints.
    Nothing,
    /// Checkpoints were dropped.
    Dropped,
    /// The same, and no space was freed, since the program saves faster than the round can report to
    /// the job.
    Outrun,
    /// Space was freed.
    Space {
        /// Bytes in use now.
        live_bytes: u64,
        /// Bytes that only this job's session holds.
        own_bytes: u64,
        /// Whether no pack is held.
        is_all: bool,
    },
}

/// Drops checkpoints and frees space.
pub type Free = fn(&Pool, Freeing<'_>) -> Result<Freed>;

/// Applies a job's rules after commits, in a thread that ends when it is idle. Clones share their
/// state.
#[derive(Clone)]
pub struct BackgroundRetention(Arc<Shared>);

struct Shared {
    job: JobName,
    process_id: u32,
    state: Mutex<State>,
    changed: Condvar,
    free: OnceLock<Free>,
}

#[derive(Default)]
struct State {
    rules: Option<Rules>,
    /// Session of the last commit.
    session: Option<SessionId>,
    is_running: bool,
    /// Commits that the thread has not looked at.
    commits: u64,
    /// Bytes written since space was last freed.
    written_bytes: u64,
    /// Bytes in use at that time, and bytes that waited for a session.
    live_bytes: u64,
    held_bytes: u64,
    /// Whether dropped checkpoints, or a failed save, may still take space.
    has_dropped: bool,
    /// Whether the last round was outrun. The next one rests, until a save waits for it.
    is_outrun: bool,
    /// Whether space was freed, but not from nearly empty packs.
    has_let_be: bool,
    /// Time until which the thread rests.
    rests_until: Duration,
    failures: u32,
    /// Last warning.
    said: Option<String>,
}

impl State {
    /// Whether enough was written to make freeing worthwhile.
    fn must_free(&self) -> bool {
        self.written_bytes >= self.worth_bytes()
    }

    /// Whether something may remain to be dropped or freed.
    fn is_pending(&self) -> bool {
        self.commits > 0 || self.has_dropped || self.has_let_be
    }

    /// Whether saves must wait because the thread lags. After a failure they need not: the thread
    /// tries again.
    fn is_late(&self) -> bool {
        let more_bytes = self.written_bytes + self.held_bytes;
        self.rules.is_some() && self.failures == 0 && more_bytes >= 2 * self.worth_bytes()
    }

    fn worth_bytes(&self) -> u64 {
        WRITTEN_MIN.max(self.live_bytes / WRITTEN_SHARE)
    }
}

impl BackgroundRetention {
    /// Starts without rules.
    pub fn new(job: JobName) -> BackgroundRetention {
        let (process_id, state, changed) = (std::process::id(), Mutex::default(), Condvar::new());
        let free = OnceLock::new();
        BackgroundRetention(Arc::new(Shared { job, process_id, state, changed, free }))
    }

    /// Sets the function that drops and frees; its module stands above this one.
    pub fn by(&self, free: Free) {
        let _ = self.0.free.set(free);
    }

    /// Replaces the rules.
    pub fn set(&self, rules: Rules) {
        self.0.state().rules = Some(rules);
    }

    /// Counts a commit's bytes and starts the thread. Never blocks.
    pub fn committed(&self, pool: &Pool, session: SessionId, new_bytes: u64) {
        if self.0.process_id != std::process::id() {
            return; // threads do not survive a fork
        }
        let mut state = self.0.state();
        state.session = Some(session);
        state.commits += 1;
        state.written_bytes += new_bytes;
        let is_urgent = state.must_free() && state.failures == 0 && !state.is_outrun;
        let is_due = is_urgent || pool.env().clock.monotonic() >= state.rests_until;
        if state.rules.is_none() || state.is_running || !is_due {
            return;
        }
        state.is_running = true;
        drop(state);
        let (shared, there) = (self.0.clone(), pool.clone());
        if let Err(error) = sync::spawn("outlive-retain", move || shared.run(&there)) {
            self.0.state().is_running = false;
            self.0.changed.notify_all();
            self.0.tell(pool, &Err(Error::no_thread("dropping old checkpoints", &error)));
        }
    }

    /// Makes a save that gets ahead of the thread wait until space is freed. `end` ends the session
    /// that would hold packs.
    pub fn catch_up(&self, pool: &Pool, end: &mut dyn FnMut() -> Result<()>) {
        if self.0.state().is_late() {
            self.once_idle(pool, end, false, &State::is_late);
        }
    }

    /// Drops and frees now, if anything may remain to do: the job has been closed.
    pub fn finish(&self, pool: &Pool) {
        self.once_idle(pool, &mut || Ok(()), true, &State::is_pending);
    }

    /// Drops and frees now, since a save in this `session` has met a full disk and left some of its
    /// packs there. `end` is as in `catch_up`.
    pub fn make_room(&self, pool: &Pool, session: SessionId, end: &mut dyn FnMut() -> Result<()>) {
        let mut state = self.0.state();
        (state.session, state.has_dropped) = (Some(session), true);
        drop(state);
        self.once_idle(pool, end, false, &State::is_pending);
    }

    /// Waits until no thread works, which would keep another collector from the lock.
    pub fn wait_idle(&self) {
        if self.0.process_id == std::process::id() {
            drop(self.0.idle());
        }
    }

    fn once_idle(
        &self,
        pool: &Pool,
        end: &mut dyn FnMut() -> Result<()>,
        is_last: bool,
        is_wanted: &dyn Fn(&State) -> bool,
    ) {
        if self.0.process_id != std::process::id() {
            return;
        }
        // A running thread holds the collecting lock, and cannot free packs that the open session
        // holds.
        let state = self.0.idle();
        let rules = if is_wanted(&state) { state.rules.clone() } else { None };
        drop(state);
        if let Some(rules) = rules {
            self.0.work(pool, &rules, How { end: Some(end), is_last });
        }
    }
}

impl Shared {
    /// Waits until no thread works.
    fn idle(&self) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.state(), |state| state.is_running)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn run(&self, pool: &Pool) {
        make_way();
        loop {
            let rules = self.state().rules.clone();
            let is_done = rules
                .is_none_or(|rules| self.work(pool, &rules, How { end: None, is_last: false }));
            let mut state = self.state();
            // The next commit starts the thread again, unless one is already urgent.
            let is_urgent = state.commits > 0 && state.must_free() && !state.is_outrun;
            if !is_done || !is_urgent {
                state.is_running = false;
                self.changed.notify_all();
                return;
            }
        }
    }

    /// Runs a round and reports it. Returns whether it succeeded.
    fn work<'a>(&'a self, pool: &Pool, rules: &'a Rules, how: How<'a>) -> bool {
        let begun = pool.env().clock.monotonic();
        let work = AssertUnwindSafe(|| self.round(pool, rules, how));
        let done = catch_unwind(work).unwrap_or_else(|_| {
            Err(Error::bug("the retention of a job panicked; please report this"))
        });
        // A round that was outrun is neither a failure nor the end of one.
        if !self.state().is_outrun {
            self.tell(pool, &done);
        }
        let now = pool.env().clock.monotonic();
        self.state().rests_until = now + now.saturating_sub(begun) * REST;
        done.is_ok()
    }

    /// Drops, and frees space if it is worth it; with `end`, always.
    fn round<'a>(&'a self, pool: &Pool, rules: &'a Rules, how: How<'a>) -> Result<()> {
        let How { end, is_last } = how;
        let mut state = self.state();
        let commits = std::mem::take(&mut state.commits);
        let has_dropped = state.has_dropped || is_last && state.has_let_be;
        let seen_bytes = state.written_bytes;
        let collects = end.is_some() || state.must_free();
        let rewrites = end.is_some() || !state.is_outrun;
        let (session, free) = (state.session, self.free.get());
        drop(state);
        let (Some(session), Some(free)) = (session, free) else { return Ok(()) };
        let job = &self.job;
        let what = Freeing { job, rules, session, has_dropped, collects, rewrites, is_last, end };
        let freed = free(pool, what);
        let mut state = self.state();
        state.is_outrun = matches!(freed, Ok(Freed::Outrun));
        match freed {
            Ok(Freed::Overtaken) => {
                (state.session, state.has_dropped, state.written_bytes) = (None, false, 0);
            }
            Ok(Freed::Nothing) => {
                state.written_bytes = state.written_bytes.saturating_sub(seen_bytes);
            }
            Ok(Freed::Dropped | Freed::Outrun) => state.has_dropped = true,
            Ok(Freed::Space { live_bytes, own_bytes, is_all }) => {
                // The next round counts bytes written meanwhile.
                state.written_bytes = state.written_bytes.saturating_sub(seen_bytes);
                (state.live_bytes, state.held_bytes) = (live_bytes, own_bytes);
                (state.has_dropped, state.has_let_be) = (!is_all, !is_last);
            }
            Err(error) => {
                // The round may have dropped some.
                (state.commits, state.has_dropped) = (state.commits + commits, true);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Warns once about old checkpoints that stay.
    fn tell(&self, pool: &Pool, done: &Result<()>) {
        let mut state = self.state();
        let Err(error) = done else {
            state.failures = 0;
            if state.said.take().is_some() {
                drop(state);
                pool.info(format!("old checkpoints of job {} are dropped again", self.job));
            }
            return;
        };
        state.failures += 1;
        // Such failures pass: another command works, or a target is briefly away.
        let may_pass = matches!(error.kind(), ErrorKind::Retry | ErrorKind::Fenced);
        if may_pass && state.failures < FAILURES_MAX {
            return;
        }
        let text = format!(
            "cannot drop old checkpoints of job {}, or free their space: {}; the next commit tries again",
            self.job,
            error.message()
        );
        if state.said.as_ref() != Some(&text) {
            state.said = Some(text.clone());
            drop(state);
            pool.warn(text);
        }
    }
}

impl fmt::Debug for BackgroundRetention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackgroundRetention").field("job", &self.0.job).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_backend::MemoryTarget;
    use outlive_log::MemoryLog;
    use outlive_pool::{Environment, FormatConfig, PoolConfig, Tuning};
    use outlive_types::{Clock, FixedClock};
    use std::sync::atomic::{AtomicUsize, Ordering};

    static CLOCK: OnceLock<Arc<FixedClock>> = OnceLock::new();
    static ROUNDS: AtomicUsize = AtomicUsize::new(0);
    const SECOND: Duration = Duration::from_secs(1);

    /// A round that takes a second, and is always outrun unless a save waits for it.
    fn outrun(_: &Pool, what: Freeing<'_>) -> Result<Freed> {
        ROUNDS.fetch_add(1, Ordering::AcqRel);
        let clock = CLOCK.get().unwrap();
        clock.set(clock.monotonic() + SECOND);
        match what.end {
            Some(_) => Ok(Freed::Space { live_bytes: 0, own_bytes: 0, is_all: true }),
            None => Ok(Freed::Outrun),
        }
    }

    #[test]
    fn a_round_that_was_outrun_rests_until_a_save_waits_for_the_next() {
        let clock = CLOCK.get_or_init(Arc::default).clone();
        let env = Environment { clock: clock.clone(), ..Environment::system() };
        let config = PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default());
        let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::with_locks()));
        let pool = Pool::new(config, target, log, env);
        let retain = BackgroundRetention::new(JobName::new("a").unwrap());
        retain.by(outrun);
        retain.set(Rules { last: Some(1), ..Rules::default() });
        let rounds = || {
            retain.wait_idle();
            ROUNDS.load(Ordering::Acquire)
        };
        let commit = |bytes: u64| {
            retain.committed(&pool, SessionId([1; 12]), bytes);
            rounds()
        };
        assert_eq!(commit(WRITTEN_MIN), 1, "it is worth it");
        assert_eq!(commit(1), 1, "the next one would be outrun, too");
        clock.set(clock.monotonic() + SECOND * REST);
        assert_eq!(commit(1), 2, "after a rest");
        retain.catch_up(&pool, &mut || Ok(()));
        assert_eq!(rounds(), 2, "there is not much to free yet");
        assert_eq!(commit(WRITTEN_MIN), 2);
        retain.catch_up(&pool, &mut || Ok(()));
        assert_eq!(rounds(), 3, "a save waits for a round that nothing outruns");
        assert_eq!(commit(WRITTEN_MIN), 4, "which ends the rest");
    }
}
