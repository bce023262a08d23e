//! Fills the slow tier behind the commits of one job, in a thread that ends when nothing is left to
//! copy.

use super::lock_filling;
use super::selection::{FillSelection, LearnedStep};
use crate::paced_lock::{LockTurn, PacedLock, Rest};
use outlive_io::make_way;
use outlive_pool::{FillNeed, Pool};
use outlive_types::sync::{self, Condvar, Mutex, MutexGuard};
use outlive_types::{Epoch, Error, ErrorKind, JobName, PackId, Result};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Maximum number of rounds: a round begins again if a gc has moved packs that it was to copy.
const ROUNDS: usize = 16;
/// Attempts to trim that fail in a row for one cause before a warning names it, if the cause may
/// pass: another program may just have been faster.
const UNTRIMMED_MAX: u32 = 3;

/// Fills the slow tier with the commits of a job. Clones are the same.
///
/// All its state lies on the targets: a program that is killed, or gives up, leaves work to its
/// next commit, to its successor, or to `pool fill`.
#[derive(Clone)]
pub struct BackgroundFill(Arc<Shared>);

struct Shared {
    job: JobName,
    process_id: u32,
    state: Mutex<State>,
    changed: Condvar,
    /// Work on the fast tier once the slow one has all that it should.
    then: OnceLock<FollowUp>,
}

/// Work on a pool, with a paced lock.
type FollowUp = fn(&Pool, &mut PacedLock, Rest<'_>) -> Result<()>;

#[derive(Default)]
struct State {
    /// Number of commits so far.
    commits: u64,
    /// Number of commits for which a close has waited, as long as it may.
    waited_for: u64,
    /// Whether a thread works.
    is_running: bool,
    /// Outcome of the last round, and the number of commits when it began.
    outcome: Option<Result<()>>,
    ended: u64,
    /// Last warning.
    said: Option<String>,
    /// Knowledge that one round leaves to the next.
    memory: Option<Memory>,
    learned: LearnedStep,
    paces: Option<Paces>,
    /// Whether a close waits, or has waited. A trim then ends at its next rest.
    closes: bool,
    /// Whether the close ends one rest of the fill: the next one, or the present one.
    hurries: bool,
    untrimmed: Untrimmed,
}

/// Paces of fill and trim in bytes per second; they outlast the rounds.
struct Paces {
    fill: PacedLock,
    then: PacedLock,
}

impl Paces {
    fn of(pool: &Pool) -> Paces {
        let limit = Some(pool.config().tiers.bytes_per_s).filter(|limit| *limit > 0);
        Paces { fill: PacedLock::new(limit), then: PacedLock::new(limit) }
    }
}

/// Reasons why the fast tier could not be trimmed lately.
#[derive(Default)]
struct Untrimmed {
    cause: Option<String>,
    /// Number of failures in a row for this cause.
    times: u32,
    /// The cause that the last warning named.
    said: Option<String>,
}

/// End of a round in which nothing failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// The slow tier has all that was chosen, or a newer checkpoint goes first.
    Done,
    /// Packs were moved meanwhile, or another command collects.
    Moved,
}

/// Work that rests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PacedWork {
    Fill,
    Trim,
}

/// Knowledge about the slow tier and the checkpoints.
struct Memory {
    need: FillNeed,
    choice: FillSelection,
    /// The newest record of collectors at that time; a command that moves packs appends one.
    collections: u64,
}

impl BackgroundFill {
    /// Begins without any knowledge about the job.
    pub fn new(job: JobName) -> BackgroundFill {
        let (state, changed, then) = Default::default();
        BackgroundFill(Arc::new(Shared {
            job,
            process_id: std::process::id(),
            state,
            changed,
            then,
        }))
    }

    /// Sets the work on the fast tier for whenever the slow one has all that it should.
    pub(crate) fn then(&self, then: FollowUp) {
        let _ = self.0.then.set(then);
    }

    /// Sets the number of checkpoints for each one on the slow tier, for `every = "auto"`.
    pub(crate) fn set_step(&self, step: u64) {
        if self.is_mine() {
            self.0.state().learned.step = step;
        }
    }

    /// Begins to copy the commits. Never waits.
    pub fn committed(&self, pool: &Pool) {
        if !pool.config().tiers.fill || !pool.has_slow_tier() || !self.is_mine() {
            return;
        }
        let mut state = self.0.state();
        state.commits += 1;
        // The newest goes first: a rest ends.
        (state.closes, state.hurries) = (false, false);
        self.0.changed.notify_all();
        self.start(pool, state);
    }

    /// Returns whether a thread fills the slow tier, or trims the fast one, now.
    pub fn is_filling(&self) -> bool {
        self.is_mine() && self.0.state().is_running
    }

    /// Returns a wait for the fill, as for a job that is closed.
    pub fn finish(&self, pool: &Pool) -> Finish {
        let (behind, pool, begun) = (self.clone(), pool.clone(), pool.env().clock.monotonic());
        Finish { behind, pool, begun, begins: true, hurries: true }
    }

    /// Whether this process has made it: threads do not survive a fork.
    fn is_mine(&self) -> bool {
        self.0.process_id == std::process::id()
    }

    fn start(&self, pool: &Pool, mut state: MutexGuard<'_, State>) {
        if state.is_running {
            return;
        }
        state.is_running = true;
        drop(state);
        let (shared, there) = (self.0.clone(), pool.clone());
        if let Err(error) = sync::spawn("outlive-fill", move || shared.run(&there)) {
            let mut state = self.0.state();
            state.is_running = false;
            self.0.changed.notify_all();
            drop(state);
            self.0.tell(pool, &Err(Error::no_thread("filling the slow tier", &error)));
        }
    }
}

/// A wait until the slow tier has all that `[tiers]` chooses of a job, but no longer than it
/// allows.
pub struct Finish {
    behind: BackgroundFill,
    pool: Pool,
    begun: Duration,
    /// Whether a failed copy is tried once more.
    begins: bool,
    /// Whether a rest of the work is ended once.
    hurries: bool,
}

impl Finish {
    /// Waits for `timeout` at most. Returns true if the wait is over. The pool's observer then
    /// knows if something is not copied yet; copying goes on until the process ends.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let Finish { behind, pool, .. } = self;
        if !behind.is_mine() {
            return true;
        }
        let finish = Duration::from_secs(pool.config().tiers.finish_s);
        let clock = pool.env().clock.clone();
        let returns = clock.monotonic() + timeout;
        loop {
            let mut state = behind.0.state();
            // The wait of an earlier close is not repeated.
            if state.waited_for == state.commits {
                return true;
            }
            let now = clock.monotonic();
            let left = finish.saturating_sub(now.saturating_sub(self.begun));
            let moment = left.min(returns.saturating_sub(now));
            let has_ended = state.ended == state.commits && state.outcome.is_some();
            if state.is_running && !moment.is_zero() {
                if self.hurries {
                    self.hurries = false;
                    (state.closes, state.hurries) = (true, true);
                    behind.0.changed.notify_all();
                }
                let waited = behind.0.changed.wait_timeout(state, moment);
                drop(waited);
                continue;
            }
            let is_late = match &state.outcome {
                // The slow tier has all that it should. The fast one is still being trimmed, or
                // was.
                Some(Ok(())) if has_ended && (!state.is_running || left.is_zero()) => false,
                // The reason was reported.
                _ if !state.is_running && !self.begins => !has_ended,
                _ if left.is_zero() => true,
                _ if state.is_running => return false,
                _ => {
                    self.begins = false;
                    behind.start(pool, state);
                    continue;
                }
            };
            state.waited_for = state.commits;
            drop(state);
            if is_late {
                pool.warn(format!(
                    "job {} was closed before the slow tier had all of it; it is safe on the fast tier. For the \
                     rest, run: {}",
                    behind.0.job,
                    pool.command("pool fill", &[])
                ));
            }
            return true;
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn run(&self, pool: &Pool) {
        make_way();
        loop {
            let mut state = self.state();
            let (commits, mut memory) = (state.commits, state.memory.take());
            let mut paces = state.paces.take().unwrap_or_else(|| Paces::of(pool));
            drop(state);
            let fill = &mut paces.fill;
            let work = AssertUnwindSafe(|| self.rounds(pool, commits, &mut memory, fill));
            let outcome = catch_unwind(work).unwrap_or_else(|_| {
                Err(Error::bug("the fill of the slow tier panicked; please report this"))
            });
            paces.fill.end(pool);
            if outcome.is_err() {
                // This knowledge may be the cause.
                memory = None;
            }
            self.tell(pool, &outcome);
            let mut state = self.state();
            let is_whole = outcome.is_ok() && state.commits == commits;
            (state.memory, state.outcome, state.ended) = (memory, Some(outcome), commits);
            self.changed.notify_all();
            drop(state);
            if is_whole {
                self.end(pool, commits, &mut paces.then);
            }
            let mut state = self.state();
            state.paces = Some(paces);
            state.is_running = state.commits != commits;
            self.changed.notify_all();
            if !state.is_running {
                return;
            }
        }
    }

    /// Rests for the pace. Returns false if something new was committed, or if a trim must end
    /// because a close waits. For a close, a fill skips one rest and goes on.
    fn rest(&self, pool: &Pool, commits: u64, time: Duration, work: PacedWork) -> bool {
        let clock = &pool.env().clock;
        let until = clock.monotonic().saturating_add(time);
        let mut state = self.state();
        loop {
            if state.commits != commits {
                return false;
            }
            match work {
                PacedWork::Fill if !time.is_zero() && std::mem::take(&mut state.hurries) => {
                    return true;
                }
                PacedWork::Trim if state.closes => return false,
                _ => {}
            }
            let left = until.saturating_sub(clock.monotonic());
            if left.is_zero() {
                return true;
            }
            let waited = self.changed.wait_timeout(state, left);
            let (guard, is_over) = waited;
            if is_over {
                return true;
            }
            state = guard;
        }
    }

    /// Does the other work, such as a trim of the fast tier.
    fn end(&self, pool: &Pool, commits: u64, turns: &mut PacedLock) {
        let Some(then) = self.then.get() else { return };
        let rest = |time| self.rest(pool, commits, time, PacedWork::Trim);
        let work = AssertUnwindSafe(|| then(pool, turns, &rest));
        let outcome = catch_unwind(work)
            .unwrap_or_else(|_| Err(Error::bug("the trim panicked; please report this")));
        turns.end(pool);
        let mut state = self.state();
        let told = state.untrimmed.tells(outcome.err());
        drop(state);
        match told {
            Some(Ok(())) => pool.info("the fast tier is trimmed again"),
            Some(Err(cause)) => pool.warn(format!(
                "the fast tier keeps packs that only older checkpoints need: it cannot be trimmed, and every commit \
                 of job {} tries again. The cause: {cause}",
                self.job
            )),
            None => {}
        }
    }

    /// Warns once if something cannot be copied.
    fn tell(&self, pool: &Pool, outcome: &Result<()>) {
        let text = outcome.as_ref().err().map(|error| {
            format!(
                "job {}: the slow tier lacks checkpoints that it should have: {}; the next commit tries again",
                self.job,
                error.message()
            )
        });
        let mut state = self.state();
        if state.said != text {
            state.said.clone_from(&text);
            drop(state);
            match text {
                Some(text) => pool.warn(text),
                None => pool.info(format!("job {}: the slow tier has what it lacked", self.job)),
            }
        }
    }

    /// Copies until nothing is left, or until a newer checkpoint goes first.
    fn rounds(
        &self,
        pool: &Pool,
        commits: u64,
        memory: &mut Option<Memory>,
        turns: &mut PacedLock,
    ) -> Result<()> {
        for _ in 0..ROUNDS {
            match self.round(pool, commits, memory, turns)? {
                Round::Done => return Ok(()),
                Round::Moved => {
                    *memory = None;
                    turns.end(pool);
                }
            }
        }
        Err(Error::retry("packs are moved faster than they can be copied"))
    }

    fn round(
        &self,
        pool: &Pool,
        commits: u64,
        memory: &mut Option<Memory>,
        turns: &mut PacedLock,
    ) -> Result<Round> {
        pool.refresh_targets()?;
        // Before any other look: a later move is noticed.
        let collections = pool.log().latest(&JobName::gc())?;
        let memory = match memory.take() {
            Some(known) if known.collections == collections && known.need.is_of(pool) => {
                memory.insert(known)
            }
            _ => {
                let (need, choice) = (pool.fill_need()?, FillSelection::default());
                memory.insert(Memory { need, choice, collections })
            }
        };
        let mut failed = None;
        let rest = |time| self.rest(pool, commits, time, PacedWork::Fill);
        let learned = self.state().learned;
        for manifest in memory.choice.left(pool, &self.job, learned)? {
            let mut is_whole = true;
            for pack in memory.choice.packs(pool, &manifest)? {
                if memory.need.missing(pack) == 0 {
                    continue;
                }
                if self.state().commits != commits {
                    // The newest goes first.
                    return failed.map_or(Ok(Round::Done), Err);
                }
                match turns.take(pool, &rest, || lock_filling(pool))? {
                    LockTurn::Same => {}
                    LockTurn::New => {
                        pool.refresh_targets()?;
                        let collections = pool.log().latest(&JobName::gc())?;
                        if collections != memory.collections || !memory.need.is_of(pool) {
                            return Ok(Round::Moved);
                        }
                    }
                    // The newest goes first.
                    LockTurn::Over => return failed.map_or(Ok(Round::Done), Err),
                }
                let fill = pool.fill_pack(pack, &memory.need)?;
                memory.need.add(pack, &fill);
                let bytes = fill.bytes;
                if let Some(why) = fill.why {
                    is_whole = false;
                    // The next pack would wait as long for the same error.
                    if why.kind() != ErrorKind::Damaged {
                        return Err(of(manifest.epoch, pack, why));
                    }
                    failed = failed.or(Some(of(manifest.epoch, pack, why)));
                }
                turns.moved(pool, bytes);
            }
            if is_whole {
                memory.choice.done(manifest.epoch);
                let learned = &mut self.state().learned;
                learned.last = learned.last.max(manifest.epoch);
            }
        }
        match failed {
            Some(error) => Err(error),
            None => {
                memory.choice.all_done(pool);
                Ok(Round::Done)
            }
        }
    }
}

fn of(epoch: Epoch, pack: PackId, why: Error) -> Error {
    why.context(format!("checkpoint {epoch}, pack {pack}"))
}

impl Untrimmed {
    /// Notes how a trim has ended. Returns the message: a cause, once, or that none is left.
    fn tells(&mut self, error: Option<Error>) -> Option<std::result::Result<(), String>> {
        let Some(error) = error else {
            (self.cause, self.times) = (None, 0);
            return self.said.take().map(|_| Ok(()));
        };
        let cause = Some(error.message().to_owned());
        self.times = if self.cause == cause { self.times.saturating_add(1) } else { 1 };
        self.cause = cause;
        let is_lasting = error.kind() != ErrorKind::Retry || self.times >= UNTRIMMED_MAX;
        if !is_lasting || self.said == self.cause {
            return None;
        }
        self.said.clone_from(&self.cause);
        self.cause.clone().map(Err)
    }
}

impl fmt::Debug for BackgroundFill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackgroundFill").field("job", &self.0.job).finish()
    }
}
