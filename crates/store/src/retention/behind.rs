//! Retention as part of a job: behind its commits, what the rules do not keep is dropped, and its space is freed.
//! How often depends on what there is to gain, and on what it costs.

use super::{Rules, plan_of};
use outlive_io::make_way;
use outlive_pool::Pool;
use outlive_types::sync::{self, Condvar, Mutex, MutexGuard};
use outlive_types::{Epoch, Error, ErrorKind, JobName, Result};
use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

/// Space is freed when so many bytes were written since it was freed last, or this share of what is in use.
const WRITTEN_MIN: u64 = 16 << 20;
const WRITTEN_SHARE: u64 = 4;
/// Checkpoints are dropped at once, unless that took long: then there is a rest, so many times as long.
const REST: u32 = 20;
/// Failures in a row for a cause that passes before a warning names it.
const FAILURES_MAX: u32 = 3;

/// What is to be dropped and freed.
pub struct Freeing<'a> {
    pub job: &'a JobName,
    pub drop: BTreeSet<Epoch>,
    /// Something stays, or nothing is to be done.
    pub keeps_any: bool,
    /// Whether space is freed as well.
    pub collects: bool,
    /// Ends the job's session before, which would hold some of it back.
    pub end: Option<&'a mut (dyn FnMut() -> Result<()> + 'a)>,
}

/// What became of it.
pub struct Freed {
    /// Space was freed, unless another command was at work.
    pub is_done: bool,
    /// Bytes in use now.
    pub live_bytes: u64,
    /// Bytes that wait for a session.
    pub held_bytes: u64,
}

/// Drops and frees.
pub type Free = fn(&Pool, Freeing<'_>) -> Result<Freed>;

/// Keeps a job's rules behind its commits, in a thread that ends when nothing is left to do. Clones are the same.
#[derive(Clone)]
pub struct RetainBehind(Arc<Shared>);

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
    is_running: bool,
    /// Commits that the thread has not looked at.
    commits: u64,
    /// Bytes written since space was freed last.
    written_bytes: u64,
    /// Bytes in use then, and bytes that waited for a session.
    live_bytes: u64,
    held_bytes: u64,
    /// Something that was dropped may still take space.
    has_dropped: bool,
    /// No drop begins before this.
    rests_until: Duration,
    failures: u32,
    /// The warning that was given last.
    said: Option<String>,
}

impl State {
    /// So much was written since space was freed last that it is worth to free some.
    fn must_free(&self) -> bool {
        self.written_bytes >= self.worth_bytes()
    }

    /// Saves are faster than the thread: so much is to be freed that the next one has to wait. What has failed is tried
    /// again by the thread.
    fn is_late(&self) -> bool {
        let more_bytes = self.written_bytes + self.held_bytes;
        self.rules.is_some() && self.failures == 0 && more_bytes >= 2 * self.worth_bytes()
    }

    fn worth_bytes(&self) -> u64 {
        WRITTEN_MIN.max(self.live_bytes / WRITTEN_SHARE)
    }
}

impl RetainBehind {
    /// Of a job without rules.
    pub fn new(job: JobName) -> RetainBehind {
        let (process_id, state, changed) = (std::process::id(), Mutex::default(), Condvar::new());
        let free = OnceLock::new();
        RetainBehind(Arc::new(Shared { job, process_id, state, changed, free }))
    }

    /// What drops and frees.
    pub fn by(&self, free: Free) {
        let _ = self.0.free.set(free);
    }

    /// The rules that hold from now on.
    pub fn set(&self, rules: Rules) {
        self.0.state().rules = Some(rules);
    }

    /// Notes what a commit has written, and begins to drop what the rules do not keep. Never waits.
    pub fn committed(&self, pool: &Pool, new_bytes: u64) {
        if self.0.process_id != std::process::id() {
            return; // threads do not survive a fork
        }
        let mut state = self.0.state();
        state.commits += 1;
        state.written_bytes += new_bytes;
        let is_urgent = state.must_free() && state.failures == 0;
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

    /// If saves are faster than the thread, the one that has just committed waits until enough is freed. `end` ends the
    /// job's session, which would hold some of it back.
    pub fn catch_up(&self, pool: &Pool, end: &mut dyn FnMut() -> Result<()>) {
        if self.0.state().is_late() {
            self.once_idle(pool, end, &State::is_late);
        }
    }

    /// Drops what the rules do not keep, and frees all that can be freed, now, if there is anything. `end` is as above.
    pub fn finish(&self, pool: &Pool, end: &mut dyn FnMut() -> Result<()>) {
        self.once_idle(pool, end, &|state| state.commits > 0 || state.has_dropped);
    }

    fn once_idle(
        &self,
        pool: &Pool,
        end: &mut dyn FnMut() -> Result<()>,
        is_wanted: &dyn Fn(&State) -> bool,
    ) {
        if self.0.process_id != std::process::id() {
            return;
        }
        // A thread at work has the collectors' lock, and frees nothing that a session holds back which was open when it
        // began.
        let waited = self.0.changed.wait_while(self.0.state(), |state| state.is_running);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        let rules = if is_wanted(&state) { state.rules.clone() } else { None };
        drop(state);
        if let Some(rules) = rules {
            self.0.work(pool, &rules, Some(end));
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, pool: &Pool) {
        make_way();
        loop {
            let rules = self.state().rules.clone();
            let is_done = rules.is_none_or(|rules| self.work(pool, &rules, None));
            let mut state = self.state();
            // Until the next commit, unless there was one that cannot wait.
            if !is_done || state.commits == 0 || !state.must_free() {
                state.is_running = false;
                self.changed.notify_all();
                return;
            }
        }
    }

    /// A round, and what is to be said of it. Answers whether it succeeded.
    fn work(
        &self,
        pool: &Pool,
        rules: &Rules,
        end: Option<&mut dyn FnMut() -> Result<()>>,
    ) -> bool {
        let begun = pool.env().clock.monotonic();
        let work = AssertUnwindSafe(|| match end {
            Some(end) => self.round(pool, rules, Some(&mut *end)),
            None => self.round(pool, rules, None),
        });
        let done = catch_unwind(work).unwrap_or_else(|_| {
            Err(Error::bug("the retention of a job panicked; please report this"))
        });
        self.tell(pool, &done);
        let now = pool.env().clock.monotonic();
        self.state().rests_until = now + now.saturating_sub(begun) * REST;
        done.is_ok()
    }

    /// Drops, and frees what is worth it; all that can be freed once `end` has succeeded.
    fn round<'a>(
        &'a self,
        pool: &Pool,
        rules: &Rules,
        end: Option<&'a mut (dyn FnMut() -> Result<()> + 'a)>,
    ) -> Result<()> {
        let mut state = self.state();
        state.commits = 0;
        drop(state);
        let plan = plan_of(pool, &self.job, rules)?;
        let (drop, keeps_any) = (plan.dropped(), plan.keeps_any());
        let mut state = self.state();
        state.has_dropped |= !drop.is_empty();
        if !state.has_dropped {
            // All is kept, whatever was written.
            state.written_bytes = 0;
            return Ok(());
        }
        let collects = end.is_some() || state.must_free();
        let seen_bytes = state.written_bytes;
        std::mem::drop(state);
        let Some(free) = self.free.get() else { return Ok(()) };
        let freed = free(pool, Freeing { job: &self.job, drop, keeps_any, collects, end })?;
        if freed.is_done {
            let mut state = self.state();
            // What was written meanwhile is looked at the next time.
            state.written_bytes = state.written_bytes.saturating_sub(seen_bytes);
            (state.live_bytes, state.held_bytes) = (freed.live_bytes, freed.held_bytes);
            state.has_dropped = freed.held_bytes > 0;
        }
        Ok(())
    }

    /// Says once why old checkpoints stay.
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
        // Another command is at work, or a target is away for a moment.
        let passes = error.kind() == ErrorKind::Retry && state.failures < FAILURES_MAX;
        if passes || error.kind() == ErrorKind::Fenced {
            return;
        }
        let text = format!(
            "old checkpoints of job {} are not dropped, or still take space: {}; the next commit tries again",
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

impl fmt::Debug for RetainBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetainBehind").field("job", &self.0.job).finish()
    }
}
