//! Fills the slow tier behind the commits of one job, in a thread that ends when nothing is left to copy.

use super::choice::Choice;
use outlive_io::{Pace, make_way};
use outlive_pool::{FillNeed, Pool};
use outlive_target::Lock;
use outlive_types::sync::{self, Condvar, Mutex, MutexGuard};
use outlive_types::{Epoch, Error, ErrorKind, JobName, PackId, Result};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

/// The lock of collectors is given back after so long, and at the end of the pack.
const TURN: Duration = Duration::from_secs(1);
/// Then whoever waits for it has as long to take it: longer than their pauses ([`Pool::lock_collecting`]).
const REST: Duration = Duration::from_millis(60);
/// Between two looks whether another command has ended.
const PAUSE: Duration = Duration::from_millis(500);
/// So often: a minute.
const TRIES: usize = 120;
/// So often a round begins again because a gc has moved what was to be copied.
const ROUNDS: usize = 16;

/// Fills the slow tier with what a job has committed. Clones are the same.
///
/// There is no state but what lies on the targets: a program that is killed, or gives up, leaves work to its
/// next commit, to its successor, or to `pool fill`.
#[derive(Clone)]
pub struct FillBehind(Arc<Shared>);

struct Shared {
    job: JobName,
    process_id: u32,
    state: Mutex<State>,
    changed: Condvar,
    /// What is done with the fast tier when the slow one has what it should.
    then: OnceLock<Then>,
}

/// Something to be done with a pool.
type Then = fn(&Pool) -> Result<()>;

#[derive(Default)]
struct State {
    /// Commits so far.
    commits: u64,
    /// Those for which a close has waited, as long as it may.
    waited_for: u64,
    /// A thread is at work.
    is_running: bool,
    /// How the last round ended.
    outcome: Option<Result<()>>,
    /// The warning that was given last.
    said: Option<String>,
    /// What one round leaves to the next.
    memory: Option<Memory>,
}

/// How a round ended in which nothing failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// What was chosen is on the slow tier, or there is a newer checkpoint to begin with.
    Done,
    /// Packs were moved meanwhile, or another command is at work.
    Moved,
}

/// What is known of the slow tier, and of the checkpoints.
struct Memory {
    need: FillNeed,
    choice: Choice,
    /// The newest record of collectors then: whoever moves packs appends one.
    collections: u64,
}

impl FillBehind {
    /// Of a job of which nothing is known yet.
    pub fn new(job: JobName) -> FillBehind {
        let (state, changed, then) = Default::default();
        FillBehind(Arc::new(Shared { job, process_id: std::process::id(), state, changed, then }))
    }

    /// Has something done with the fast tier whenever the slow one has what it should.
    pub(crate) fn then(&self, then: Then) {
        let _ = self.0.then.set(then);
    }

    /// Begins to copy what has been committed. Never waits.
    pub fn committed(&self, pool: &Pool) {
        if !pool.config().tiers.fill || !pool.has_slow_tier() || !self.is_mine() {
            return;
        }
        let mut state = self.0.state();
        state.commits += 1;
        self.start(pool, state);
    }

    /// For whoever waits for it, as a job does that is closed.
    pub fn finish(&self, pool: &Pool) -> Finish {
        let (behind, pool, begun) = (self.clone(), pool.clone(), pool.env().clock.monotonic());
        Finish { behind, pool, begun, begins: true }
    }

    /// Threads do not survive a fork.
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

/// A wait until what `[tiers]` chooses of a job is on the slow tier, but no longer than that allows.
pub struct Finish {
    behind: FillBehind,
    pool: Pool,
    begun: Duration,
    /// What failed before is tried once more.
    begins: bool,
}

impl Finish {
    /// Waits at most so long. True if that was all: what could not be copied by then, the pool's observer has
    /// been told of. It is still being copied until the process ends.
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
            // That of an earlier close is not repeated.
            if state.waited_for == state.commits {
                return true;
            }
            let now = clock.monotonic();
            let left = finish.saturating_sub(now.saturating_sub(self.begun));
            let moment = left.min(returns.saturating_sub(now));
            if state.is_running && !moment.is_zero() {
                let waited = behind.0.changed.wait_timeout(state, moment);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            let is_late = match &state.outcome {
                Some(Ok(())) if !state.is_running => false,
                // Why was told.
                Some(Err(_)) if !state.is_running && !self.begins => false,
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, pool: &Pool) {
        make_way();
        loop {
            let mut state = self.state();
            let (commits, mut memory) = (state.commits, state.memory.take());
            drop(state);
            let work = AssertUnwindSafe(|| self.rounds(pool, commits, &mut memory));
            let outcome = catch_unwind(work).unwrap_or_else(|_| {
                Err(Error::bug("the fill of the slow tier panicked; please report this"))
            });
            if outcome.is_err() {
                // What is known may be why.
                memory = None;
            }
            self.tell(pool, &outcome);
            if outcome.is_ok() && self.state().commits == commits {
                self.end(pool);
            }
            let mut state = self.state();
            (state.memory, state.outcome) = (memory, Some(outcome));
            state.is_running = state.commits != commits;
            self.changed.notify_all();
            if !state.is_running {
                return;
            }
        }
    }

    /// Has the rest done, such as a trim of the fast tier.
    fn end(&self, pool: &Pool) {
        let Some(then) = self.then.get() else { return };
        let outcome = catch_unwind(AssertUnwindSafe(|| then(pool)))
            .unwrap_or_else(|_| Err(Error::bug("the trim panicked; please report this")));
        // Another command is at work, or has moved something: the next commit tries again.
        if let Err(error) = outcome
            && error.kind() != ErrorKind::Retry
        {
            pool.warn(format!(
                "the fast tier was not trimmed as it should be: {}",
                error.message()
            ));
        }
    }

    /// Says once why something cannot be copied.
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

    /// Copies until nothing is left, or a newer checkpoint is there to be copied first.
    fn rounds(&self, pool: &Pool, commits: u64, memory: &mut Option<Memory>) -> Result<()> {
        for _ in 0..ROUNDS {
            match self.round(pool, commits, memory)? {
                Round::Done => return Ok(()),
                Round::Moved => *memory = None,
            }
        }
        Err(Error::retry("packs are moved faster than they can be copied"))
    }

    fn round(&self, pool: &Pool, commits: u64, memory: &mut Option<Memory>) -> Result<Round> {
        pool.refresh_targets()?;
        // Before anything is looked at: what is moved behind this is noticed.
        let collections = pool.log().latest(&JobName::gc())?;
        let memory = match memory.take() {
            Some(known) if known.collections == collections && known.need.is_of(pool) => {
                memory.insert(known)
            }
            _ => {
                let (need, choice) = (pool.fill_need()?, Choice::default());
                memory.insert(Memory { need, choice, collections })
            }
        };
        let limit = Some(pool.config().tiers.bytes_per_s).filter(|limit| *limit > 0);
        let (pace, mut failed) = (Pace::new(limit), None);
        let mut turn = Turn::default();
        for manifest in memory.choice.left(pool, &self.job)? {
            let mut is_whole = true;
            for pack in memory.choice.packs(pool, &manifest)? {
                if memory.need.missing(pack) == 0 {
                    continue;
                }
                if self.state().commits != commits {
                    // The newest goes first.
                    return failed.map_or(Ok(Round::Done), Err);
                }
                match turn.take(pool, memory.collections)? {
                    Round::Done => {}
                    stopped => return Ok(stopped),
                }
                let fill = pool.fill_pack(pack, &memory.need)?;
                memory.need.add(pack, &fill);
                let bytes = fill.bytes;
                if let Some(why) = fill.why {
                    is_whole = false;
                    // The next one would have to wait as long for the same answer.
                    if why.kind() != ErrorKind::Damaged {
                        return Err(of(manifest.epoch, pack, why));
                    }
                    failed = failed.or(Some(of(manifest.epoch, pack, why)));
                }
                if limit.is_some() || turn.is_over(pool) {
                    turn.end();
                    pace.spend(bytes);
                }
            }
            if is_whole {
                memory.choice.done(manifest.epoch);
            }
        }
        turn.end();
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

/// The lock of collectors, for a while.
#[derive(Default)]
struct Turn(Option<(Lock, Duration)>);

impl Turn {
    /// Takes the lock, if it is not taken already, and waits for it. Answers whether somebody has collected since then.
    fn take(&mut self, pool: &Pool, collections: u64) -> Result<Round> {
        if self.0.is_some() {
            return Ok(Round::Done);
        }
        let mut lock = pool.log().lock_collecting()?;
        for _ in 0..TRIES {
            if !matches!(lock, Lock::Busy) {
                break;
            }
            sync::sleep(PAUSE);
            lock = pool.log().lock_collecting()?;
        }
        if matches!(lock, Lock::Busy) {
            return Err(Error::retry("a gc, scrub, repair or fill is at work in this pool"));
        }
        if pool.log().latest(&JobName::gc())? != collections {
            return Ok(Round::Moved);
        }
        self.0 = Some((lock, pool.env().clock.monotonic()));
        Ok(Round::Done)
    }

    fn is_over(&self, pool: &Pool) -> bool {
        let now = pool.env().clock.monotonic();
        self.0.as_ref().is_some_and(|(_, begun)| now.saturating_sub(*begun) >= TURN)
    }

    /// Lets others take it.
    fn end(&mut self) {
        if self.0.take().is_some_and(|(lock, _)| matches!(lock, Lock::Taken(_))) {
            sync::sleep(REST);
        }
    }
}

impl fmt::Debug for FillBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FillBehind").field("job", &self.0.job).finish()
    }
}
