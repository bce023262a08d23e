//! A job: the handle through which a program saves, and restores.

mod content;
mod drain;
mod handle;
mod inner;
mod look;
mod restore;

pub use content::{Content, ContentLane, ContentStore};
pub use handle::SaveHandle;
pub use look::EpochInfo;
pub use restore::{Prepared, Restored};

use crate::fill::FinishFill;
use crate::group::{GroupOptions, Part};
use crate::retention::Rules;
use crate::save::{CommitEvents, Order, SaveNotes};
use drain::Drain;
use inner::{FrozenSave, Inner};
use outlive_pool::Pool;
use outlive_types::sync;
use outlive_types::{Error, ErrorKind, Frozen, JobName, PageSource, Rank, Result};
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// For how long somebody waits who has nothing else to do.
const A_WHILE: Duration = Duration::from_secs(3600);

/// How a job behaves.
#[derive(Clone, Debug, Default)]
pub struct JobOptions {
    /// Saves closer together than this are not due.
    pub every: Option<Duration>,
    /// The ranks of the program, if it has several: then saves, restores and [`Job::due`] are collective.
    pub group: Option<GroupOptions>,
}

/// Waits for an earlier save.
///
/// # Errors
/// Why it failed, if nobody has been told.
fn over(save: Option<&SaveHandle>) -> Result<()> {
    let Some(handle) = save else { return Ok(()) };
    handle.wait_done(None);
    match handle.unseen_failure() {
        Some(error) => Err(error.context("an earlier save failed")),
        None => Ok(()),
    }
}

/// A named series of checkpoints. All methods may be called from any thread.
pub struct Job {
    inner: Arc<Inner>,
    pool: Pool,
    /// Monotonic nanoseconds of the last save's start, plus one; 0 before the first.
    last_start_ns: AtomicU64,
    /// Saves closer together than this are not due.
    every: Option<Duration>,
}

/// A job that does not stay open by this handle.
#[derive(Clone)]
pub struct WeakJob(Weak<Inner>);

impl WeakJob {
    /// Returns the same job with the same session. Returns `None` if the job is over or fenced, or belongs to the parent
    /// process.
    pub fn join(&self, pool: &Pool, every: Option<Duration>) -> Option<Job> {
        let inner = self.0.upgrade().filter(|inner| inner.check_process().is_ok())?;
        // A save under way holds the writer, so a fence shows only later.
        let is_fenced = inner.writer.try_lock().is_some_and(|it| it.committer.head.is_refused());
        if is_fenced {
            return None;
        }
        inner.set_pool(pool);
        Some(Job::of(inner, pool, every))
    }

    /// As [`Job::end_session`]; does nothing if the job is over.
    ///
    /// # Errors
    /// What the log reports.
    pub fn end_session(&self) -> Result<()> {
        self.0.upgrade().map_or(Ok(()), |inner| inner.end_session().map(drop))
    }

    /// Whether the job has been dropped.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Job {
    /// Opens a job; nothing is read or written yet.
    pub fn open(pool: &Pool, name: &str, options: JobOptions) -> Result<Job> {
        let name = JobName::new(name)?;
        let JobOptions { every, group } = options;
        let part = group.map(|group| Arc::new(Part::new(&name, group)));
        let inner = Arc::new(Inner::new(pool, name, part));
        Ok(Job::of(inner, pool, every))
    }

    fn of(inner: Arc<Inner>, pool: &Pool, every: Option<Duration>) -> Job {
        Job { inner, pool: pool.clone(), every, last_start_ns: AtomicU64::new(0) }
    }

    /// A handle to join the job later.
    pub fn downgrade(&self) -> WeakJob {
        WeakJob(Arc::downgrade(&self.inner))
    }

    /// Sets the rules. Behind each commit the job drops the other checkpoints and frees their space. In a group the rules
    /// of the committing rank count.
    ///
    /// # Errors
    /// `Invalid` for rules that name single checkpoints, or keep none.
    pub fn keep(&self, rules: Rules) -> Result<()> {
        let is_zero = rules.last == Some(0) || rules.every == Some(0);
        if rules.none || is_zero || !rules.drop.is_empty() || rules.is_empty() {
            return Err(Error::invalid(
                "these rules may drop every checkpoint: give rules that keep at least the newest, such as \
                 \"last 10 | every 100\"",
            ));
        }
        self.inner.check_process()?;
        self.inner.retain.set(rules);
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> &JobName {
        &self.inner.name
    }

    /// Its pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Tells what becomes of its checkpoints, in the order of the saves.
    pub fn events(&self) -> &CommitEvents {
        &self.inner.events
    }

    /// Whether the program is a group of ranks, so that saves and restores are collective.
    pub fn is_group(&self) -> bool {
        self.inner.part.is_some()
    }

    /// Takes part, with an error, in the save or restore that the other ranks of the group begin: nothing
    /// is begun then. Answers what all ranks are told. Without a group that is the error itself.
    pub fn decline(&self, error: Error) -> Error {
        let Some(part) = &self.inner.part else { return error };
        let nothing = &mut || Err(Error::bug("a rank has declined, and nobody was told"));
        part.decide("", Err(error), nothing)
            .err()
            .unwrap_or_else(|| Error::bug("nobody has declined"))
    }

    /// This process's rank; 0 for a program of one.
    pub fn rank(&self) -> Rank {
        self.inner.part.as_ref().map_or(0, |part| part.rank())
    }

    /// How many ranks the program has.
    pub fn ranks(&self) -> u32 {
        self.inner.part.as_ref().map_or(1, |part| part.coordinator.size())
    }

    /// Whoever waits for something inside of a call that the other ranks may make already holds this meanwhile,
    /// so that they do not take this rank for dead.
    pub fn at_work(&self) -> Option<Box<dyn Any + Send>> {
        self.inner.part.as_ref().and_then(|part| part.coordinator.at_work())
    }

    /// What an adaptive schedule has learnt, the best first; known on rank 0.
    pub fn schedule_learnt(&self) -> Vec<String> {
        self.inner.part.as_ref().map_or_else(Vec::new, |part| part.learnt())
    }

    /// True if a save is due: always without an interval, else once it has passed since the last
    /// save began. In a group the clock of rank 0 decides for all of them; without an interval nothing
    /// has to be decided.
    ///
    /// # Errors
    /// Those of the coordinator.
    pub fn due(&self) -> Result<bool> {
        match (&self.inner.part, self.every) {
            (Some(part), Some(_)) => {
                let decided = part.decide(
                    "the question whether a save is due (every_s)",
                    Ok(()),
                    &mut || Ok(vec![u8::from(self.is_due())]),
                )?;
                Ok(decided == [1])
            }
            _ => Ok(self.is_due()),
        }
    }

    fn is_due(&self) -> bool {
        let last = self.last_start_ns.load(Ordering::Relaxed);
        match self.every {
            Some(every) if last > 0 => {
                let now = self.pool.env().clock.monotonic();
                now.saturating_sub(Duration::from_nanos(last - 1)) >= every
            }
            _ => true,
        }
    }

    /// The failure of an earlier save that nobody has been told of; told now.
    pub fn unseen_failure(&self) -> Option<Error> {
        self.inner
            .check_process()
            .err()
            .or_else(|| self.inner.starting().as_ref().and_then(SaveHandle::unseen_failure))
    }

    /// Saves what `source` holds. Returns when the program may write its memory again; the handle
    /// tells when the checkpoint is committed. Waits first for an earlier save to be over.
    ///
    /// # Errors
    /// `Invalid` in a forked child and for a state that cannot be described; `Fenced`; and the
    /// failure of an earlier save, if nobody has been told it yet (then nothing new was begun).
    pub fn save(&self, source: &mut dyn PageSource) -> Result<SaveHandle> {
        self.save_with(source, SaveNotes::default())
    }

    /// Like [`Job::save`]; `notes` are kept with the checkpoint.
    ///
    /// # Errors
    /// As [`Job::save`].
    pub fn save_with(&self, source: &mut dyn PageSource, notes: SaveNotes) -> Result<SaveHandle> {
        let inner = &self.inner;
        inner.check_process()?;
        let mut current = inner.starting();
        let at_work = self.at_work();
        let ready = inner.wait_filled().and_then(|()| over(current.as_ref()));
        drop(at_work);
        if !self.is_group() {
            ready.clone()?;
        }
        let clock = self.pool.env().clock.clone();
        let started = clock.monotonic();
        let now_ns = u64::try_from(started.as_nanos()).unwrap_or(u64::MAX - 1);
        self.last_start_ns.store(now_ns + 1, Ordering::Relaxed);

        let begun = inner.freeze(source, ready);
        let full = begun.as_ref().err().filter(|error| error.kind() == ErrorKind::Full);
        if let Some(error) = full {
            inner.make_room(&inner.pool(), Some(error));
        }
        let FrozenSave { frozen, plan, way } = begun?;
        let frozen: Arc<dyn Frozen> = Arc::from(frozen);
        let handle = SaveHandle::new(plan.epoch);
        let order = Order { started, notes };
        let (on, of) = (way.clone(), inner.pool());
        let drain =
            Drain { inner: inner.clone(), frozen, plan, way, handle: handle.clone(), order };
        if drain.plan.live_blocks == 0 {
            drain.frozen.release_live();
            handle.set_live_done();
        }
        sync::spawn("outlive-drain", move || drain.run())
            .map_err(|e| on.give_up(&of, Error::no_thread("the save", &e)))?;
        *current = Some(handle.clone());
        handle.wait_live();
        let stall = clock.monotonic().saturating_sub(started);
        handle.set_stall(stall);
        Ok(handle)
    }

    /// Does `work` when no save is under way, and lets none begin meanwhile.
    pub(crate) fn wait_for_turn<T>(&self, work: impl FnOnce(&Inner) -> Result<T>) -> Result<T> {
        self.inner.check_process()?;
        if self.is_group() {
            return Err(Error::invalid(format!(
                "job {} belongs to a group of ranks, which saves memory only: put files and copy checkpoints \
                 by a job that one process opens without a group",
                self.name()
            )));
        }
        let current = self.inner.starting();
        over(current.as_ref())?;
        let done = work(&self.inner);
        self.inner.make_room(&self.inner.pool(), done.as_ref().err());
        done
    }

    /// Whether a save is under way. Never waits: while a save is being started, or another call holds
    /// saves back, that counts as one.
    pub fn is_saving(&self) -> bool {
        let Some(current) = self.inner.starting.try_lock() else { return true };
        current.as_ref().is_some_and(|handle| !handle.done())
    }

    /// Waits until a lazy restore has filled all memory. A save and a close do so by themselves.
    ///
    /// # Errors
    /// Why it never will.
    pub fn wait_filled(&self) -> Result<()> {
        self.inner.check_process()?;
        self.inner.wait_filled()
    }

    /// Waits until no save is under way.
    ///
    /// # Errors
    /// The last save's failure, if nobody has been told it yet.
    pub fn wait(&self) -> Result<()> {
        self.inner.check_process()?;
        let current = self.inner.starting().clone();
        if let Some(handle) = current {
            handle.wait_done(None);
            if let Some(error) = handle.unseen_failure() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// The save under way or the last one.
    pub fn current(&self) -> Option<SaveHandle> {
        self.inner.check_process().ok()?;
        self.inner.starting().clone()
    }

    /// Completes the drain and ends the session in the log. Then it waits for the slow tier, if there is one, at
    /// most as long as `[tiers]` in `pool.toml` allows. The job can be used again afterwards.
    ///
    /// # Errors
    /// The last save's failure, if nobody has been told it yet; what the log reports.
    pub fn close(&self) -> Result<()> {
        self.wait_filled()?;
        self.close_at_exit()
    }

    /// The same at the end of the process, which needs no memory any more: a lazy restore that still
    /// fills it is not waited for.
    ///
    /// # Errors
    /// As [`Job::close`].
    pub fn close_at_exit(&self) -> Result<()> {
        self.inner.check_process()?;
        // Held to the end: a save that began now would be committed in a session that is over, and a
        // gc would not know of it.
        let current = self.inner.starting();
        let failure = current.as_ref().and_then(|handle| {
            handle.wait_done(None);
            handle.unseen_failure()
        });
        let mut writer = self.inner.writer();
        let closed = writer.committer.head.close(&self.pool);
        drop((writer, current));
        let mut finish = self.finish_fill();
        while !finish.wait(A_WHILE) {}
        // Behind the fill: a checkpoint that the slow tier has just got may be all that it has.
        self.inner.retain.finish(&self.pool, &mut || Ok(()));
        self.pool.close_files(true);
        failure.map_or(closed, Err)
    }

    /// Ends the session in the log, unless a save is under way or starting. The next save opens another. So packs that only
    /// this program needed, and left-overs of its failed saves, can be deleted. Returns whether no session is open.
    ///
    /// # Errors
    /// What the log reports.
    pub fn end_session(&self) -> Result<bool> {
        self.inner.end_session()
    }

    /// For whoever waits for the slow tier before the job is closed, which does it otherwise.
    pub fn finish_fill(&self) -> FinishFill {
        self.inner.writer().committer.behind.finish(&self.pool)
    }

    /// Says that the next save may leave behind what others have saved since this job restored, or was
    /// closed. Without it that save is refused as `Fenced`.
    pub fn take_over(&self) {
        self.inner.writer().committer.head.take_over();
    }
}
