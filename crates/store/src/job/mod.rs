//! A job: the handle through which a program saves, and restores.

mod content;
mod handle;
mod health;
mod inner;
mod keeper;
mod look;
mod pace;
mod persist;
mod restore;

pub use content::{Basis, Content, ContentLane, ContentStore};
pub use handle::SaveHandle;
pub use health::{JobHealth, OnFailure};
pub use keeper::{ImageKeeper, KeptSave};
pub use look::EpochInfo;
pub use pace::{PaceMemory, parse_every, seconds_between};
pub use restore::{Prepared, Restored};

use crate::commit::Reached;
use crate::fill::FinishFill;
use crate::group::{GroupMember, GroupOptions, unless_failed};
use crate::restore::LazyFill;
use crate::retention::Rules;
use crate::save::{CommitEvents, SaveNotes, SaveRequest};
use health::is_mistake;
use inner::{FrozenSave, Inner};
use outlive_interval::Every;
use outlive_pool::Pool;
use outlive_types::{
    Epoch, Error, ErrorKind, Frozen, JobName, PageSource, Rank, Result, SessionId,
};
use outlive_types::{metrics, sync};
use pace::{Asks, Pace};
use persist::Persist;
use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Longest single wait; the caller repeats it.
const A_WHILE: Duration = Duration::from_secs(3600);

/// Options of a job.
#[derive(Clone, Debug, Default)]
pub struct JobOptions {
    /// Rule by which saves become due. In a group that of rank 0 counts.
    pub every: Every,
    /// The ranks of the program, if it has several. Then saves, restores, closes and [`Job::due`]
    /// are collective.
    pub group: Option<GroupOptions>,
    /// Policy for failed saves. `None`: the policy that this process has set for the job before.
    pub on_failure: Option<OnFailure>,
    /// The newest checkpoint that this program has restored or saved. Keep a clone, and pass it
    /// again when the job is closed and opened again.
    pub reached: Reached,
    /// Process that holds the images of saves, and completes them if this one is killed.
    pub keeper: Option<Arc<dyn ImageKeeper>>,
}

/// Answer to the question whether a save is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    /// Whether it is.
    pub is_due: bool,
    /// Whether a rank of the program is to save and to end.
    pub stops: bool,
}

/// A named series of checkpoints. All methods may be called from any thread.
pub struct Job {
    inner: Arc<Inner>,
    pool: Pool,
    pace: Arc<Pace>,
}

/// A handle that does not keep its job open.
#[derive(Clone)]
pub struct WeakJob(Weak<Inner>);

impl WeakJob {
    /// Returns the same job with the same session; `None` if the job is over or fenced, or belongs
    /// to the parent process. From then on the policy of `options` holds for failed saves.
    ///
    /// # Errors
    /// As for [`Job::on_failure`].
    pub fn join(&self, pool: &Pool, options: &JobOptions) -> Result<Option<Job>> {
        let inner = self.0.upgrade().filter(|inner| inner.check_process().is_ok());
        let Some(inner) = inner else { return Ok(None) };
        // A save in progress locks the writer, so a fence shows only later.
        let is_fenced = inner.writer.try_lock().is_some_and(|it| it.committer.head.is_refused());
        if is_fenced {
            return Ok(None);
        }
        let job = Job::of(inner, pool, options.every);
        options.on_failure.map_or(Ok(()), |on_failure| job.on_failure(on_failure))?;
        job.inner.set_pool(pool);
        Ok(Some(job))
    }

    /// Ends the session as [`Job::end_session`] does; does nothing if the job is over.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn end_session(&self) -> Result<()> {
        self.0.upgrade().map_or(Ok(()), |inner| inner.end_session().map(drop))
    }

    /// Opens the session as [`Job::begin_session`] does; does nothing if the job is over.
    ///
    /// # Errors
    /// As for [`Job::begin_session`].
    pub fn begin_session(&self) -> Result<()> {
        self.0.upgrade().map_or(Ok(()), |inner| inner.begin_session())
    }

    /// Returns whether the job has been dropped.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Job {
    /// Opens a job; reads and writes nothing yet.
    ///
    /// # Errors
    /// `Invalid` for an impossible name; errors of [`Job::on_failure`].
    pub fn open(pool: &Pool, name: &str, options: JobOptions) -> Result<Job> {
        let name = JobName::new(name)?;
        let JobOptions { every, group, on_failure, reached, keeper } = options;
        let member = group.map(|group| Arc::new(GroupMember::new(&name, group)));
        let inner = Arc::new(Inner::new(pool, name, member, reached, keeper));
        let job = Job::of(inner, pool, every);
        on_failure.map_or(Ok(()), |on_failure| job.on_failure(on_failure))?;
        Ok(job)
    }

    fn of(inner: Arc<Inner>, pool: &Pool, every: Every) -> Job {
        Job { inner, pool: pool.clone(), pace: Arc::new(Pace::new(pool, every)) }
    }

    /// Sets another rule by which saves become due; `is_overridden` says that it is not the
    /// program's. A `memory` outlasts the program. All ranks of a group call it, or none.
    pub fn set_every(
        &self,
        every: Every,
        is_overridden: bool,
        memory: Option<Arc<dyn PaceMemory>>,
    ) {
        self.pace.set(every, is_overridden, memory);
    }

    /// Returns a handle to join the job later.
    pub fn downgrade(&self) -> WeakJob {
        WeakJob(Arc::downgrade(&self.inner))
    }

    /// Sets the retention rules. After each commit the job drops the other checkpoints and frees
    /// their space. In a group the rules of the committing rank count.
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

    /// Sets the policy for failed saves, for all handles of the job in this process. It must be the
    /// same on all ranks of a group; the time of rank 0 counts.
    ///
    /// # Errors
    /// `Invalid` for a time within which a failed save is not tried again.
    pub fn on_failure(&self, on_failure: OnFailure) -> Result<()> {
        self.inner.check_process()?;
        self.inner.health.set(on_failure, self.pace.every().fixed())
    }

    /// Notes a checkpoint that the program has restored without [`Job::restore`]: its next one
    /// follows it.
    pub fn note_restored(&self, epoch: Epoch) {
        self.inner.reached.add(epoch);
    }

    /// Returns the health of its saves, in this process.
    pub fn health(&self) -> JobHealth {
        self.inner.health.look()
    }

    /// Returns the failures since the last call: their number, the number in a row, and the last
    /// error. `None` if there are none, or if the program gets each as an error.
    pub fn untold_failures(&self) -> Option<(u64, u64, Error)> {
        self.inner.health.untold()
    }

    /// Returns its name.
    pub fn name(&self) -> &JobName {
        &self.inner.name
    }

    /// Returns its pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the events of its checkpoints, in the order of the saves.
    pub fn events(&self) -> &CommitEvents {
        &self.inner.events
    }

    /// Returns whether the program is a group of ranks, so that saves and restores are collective.
    pub fn is_group(&self) -> bool {
        self.inner.member.is_some()
    }

    /// Takes part, with an error, in the save or restore that the other ranks of the group begin:
    /// nothing is begun then. Returns the error that all ranks get. Without a group that is `error`
    /// itself.
    pub fn abort_collective(&self, error: Error) -> Error {
        let Some(member) = &self.inner.member else { return error };
        let nothing = &mut || Err(Error::bug("a rank has aborted, and no other rank was told"));
        member
            .decide("", Err(error), nothing)
            .err()
            .unwrap_or_else(|| Error::bug("no rank has aborted"))
    }

    /// Returns this process's rank; 0 for a program of one.
    pub fn rank(&self) -> Rank {
        self.inner.member.as_ref().map_or(0, |member| member.rank())
    }

    /// Returns the number of ranks of the program.
    pub fn ranks(&self) -> u32 {
        self.inner.member.as_ref().map_or(1, |member| member.coordinator.size())
    }

    /// Returns a keepalive, to be held during a wait. The other ranks may have made their next call
    /// already; with a keepalive they do not take this rank for dead.
    pub fn keepalive(&self) -> Option<Box<dyn Any + Send>> {
        self.inner.member.as_ref().and_then(|member| member.coordinator.keepalive())
    }

    /// Returns the findings of an adaptive schedule, the best first; known on rank 0.
    pub fn schedule_learnt(&self) -> Vec<String> {
        self.inner.member.as_ref().map_or_else(Vec::new, |member| member.learnt())
    }

    /// Returns whether a save is due, by the rule of [`JobOptions::every`]: always without an
    /// interval, else at first and once the interval has passed. If the program continues after
    /// failed saves, a save is also due one second after the first failed one, two after the second,
    /// four after the third, and so on. In a group the rule and the clock of rank 0 decide for all ranks. If it has no interval,
    /// only the first call is collective.
    ///
    /// A save is also due if `stops`: this program is to save and to end. In a group with an
    /// interval all ranks learn that of each other.
    ///
    /// # Errors
    /// Errors of the coordinator.
    pub fn due(&self, stops: bool) -> Result<Due> {
        let may_fill = self.pace.every().learns() && self.pool.has_slow_tier();
        self.pace.call(may_fill && self.inner.behind.is_filling());
        let member = self.inner.member.as_ref().filter(|_| self.pace.asks() != Asks::Alone);
        let Some(member) = member else {
            return Ok(Due { is_due: self.is_due() || stops, stops });
        };
        let what = "the question whether a save is due (every)";
        let mine = Ok(vec![u8::from(stops)]);
        let decided = member.agree(what, mine, &mut |all| {
            let stops = unless_failed(all)?.iter().any(|stops| *stops == [1]);
            let has_interval = self.pace.every().has_interval();
            Ok([self.is_due() || stops, stops, has_interval].map(u8::from).to_vec())
        })?;
        let [is_due, stops, has_interval] = [0, 1, 2].map(|at| decided.get(at) == Some(&1));
        // Another rank may have an interval where rank 0 has none, as if only the host of rank 0 has
        // the variables of `outlive run`. So all of them learn from the first call how to ask.
        self.pace.set_asks(if has_interval { Asks::Together } else { Asks::Alone });
        Ok(Due { is_due, stops })
    }

    /// Returns whether any rank of the group says yes; without a group, what this process says.
    /// Collective.
    ///
    /// # Errors
    /// Errors of the coordinator.
    pub fn any_rank(&self, what: &str, yes: bool) -> Result<bool> {
        let Some(member) = &self.inner.member else { return Ok(yes) };
        let decided = member.agree(what, Ok(vec![u8::from(yes)]), &mut |all| {
            Ok(vec![u8::from(unless_failed(all)?.iter().any(|yes| *yes == [1]))])
        })?;
        Ok(decided == [1])
    }

    fn is_due(&self) -> bool {
        self.pace.asks() == Asks::Alone || self.pace.is_due(self.inner.health.is_again_due())
    }

    /// Reports the outcome of the last save, if it is over. Never waits: a save that is starting
    /// reports it itself.
    ///
    /// # Errors
    /// Its failure, if the program must know of it ([`Job::on_failure`]) and has not seen it.
    pub fn tell_last(&self) -> Result<()> {
        self.inner.check_process()?;
        let current = self.inner.starting.try_lock();
        let last = current.as_ref().and_then(|current| current.as_ref());
        last.map_or(Ok(()), |handle| self.inner.tell(handle))
    }

    /// Returns whether a save is starting or in progress, or has failed without a call that has
    /// seen it. Never waits.
    pub fn has_unheard(&self) -> bool {
        let Some(current) = self.inner.starting.try_lock() else { return true };
        let is_unheard = |save: &SaveHandle| !save.done() || save.unseen_failure().is_some();
        current.as_ref().is_some_and(is_unheard)
    }

    /// Waits for a save of this job. After its failure the program continues as [`Job::on_failure`]
    /// says. To get every failure, use [`SaveHandle::wait`].
    ///
    /// # Errors
    /// Its failure, if the program must know of it.
    pub fn settle_save(&self, save: &SaveHandle) -> Result<()> {
        save.wait_done(None);
        // All ranks of a group decide together when the next save begins.
        match save.unseen_failure() {
            Some(error) => {
                let judged = self.inner.health.judge(error, self.inner.member.is_none());
                judged.inspect_err(|_| save.see())
            }
            None => Ok(()),
        }
    }

    /// Saves the state of `source`. Returns when the program may write its memory again; the handle
    /// shows when the checkpoint is committed. Waits first for an earlier save.
    ///
    /// # Errors
    /// `Invalid` in a forked child and for a state that cannot be described; `Fenced`. The failure
    /// of an earlier save, if the program must know of it and has not seen it; then no save has
    /// begun. If the program continues after failures ([`Job::on_failure`]), a save that fails at
    /// its beginning returns the handle of a failed save.
    pub fn save(&self, source: &mut dyn PageSource) -> Result<SaveHandle> {
        self.save_with(source, SaveNotes::default())
    }

    /// Saves as [`Job::save`] does; `notes` are kept with the checkpoint.
    ///
    /// # Errors
    /// As for [`Job::save`].
    pub fn save_with(&self, source: &mut dyn PageSource, notes: SaveNotes) -> Result<SaveHandle> {
        let inner = &self.inner;
        inner.check_process()?;
        let mut current = inner.starting();
        let keepalive = self.keepalive();
        let filled = inner.wait_filled().map_err(Error::for_program);
        let ready = filled.and_then(|()| inner.over(current.as_ref()));
        drop(keepalive);
        if !self.is_group() {
            ready.clone()?;
        }
        let begun = self.begin(source, notes, ready);
        let group_save = begun.inspect_err(|_| self.pace.fail());
        let handle =
            group_save.or_else(|error| inner.failed_at_once(error)).inspect_err(|error| {
                // The program gets this error, so the next call tries a save and does not repeat an
                // older error. A mistake of the program says nothing about the older save.
                if !is_mistake(error) {
                    current.iter().for_each(SaveHandle::see);
                }
            })?;
        *current = Some(handle.clone());
        Ok(handle)
    }

    /// Begins a save, and waits until the program may write its memory again.
    fn begin(
        &self,
        source: &mut dyn PageSource,
        notes: SaveNotes,
        ready: Result<()>,
    ) -> Result<SaveHandle> {
        let inner = &self.inner;
        let clock = self.pool.env().clock.clone();
        let started = clock.monotonic();
        self.pace.begin();

        let group_save = inner.freeze(source, ready);
        let full = group_save.as_ref().err().filter(|error| error.kind() == ErrorKind::Full);
        if let Some(error) = full {
            inner.make_room(&inner.pool(), Some(error));
        }
        let FrozenSave { frozen, plan, mode } = group_save?;
        let frozen: Arc<dyn Frozen> = Arc::from(frozen);
        let handle = SaveHandle::new(plan.epoch);
        let (held, waits) = inner.hold(source, &*frozen, (&plan, &mode), &notes);
        let failed_before = inner.health.failed_before();
        let request = SaveRequest { started, notes, failed_before, held };
        let (on, of) = (mode.clone(), inner.pool());
        let (inner, pace, done) = (inner.clone(), self.pace.clone(), handle.clone());
        let drain = Persist { inner, frozen, plan, mode, handle: done, request, pace };
        if drain.plan.live_blocks == 0 {
            drain.frozen.release_live();
            handle.set_live_done();
        }
        sync::spawn("outlive-drain", move || drain.run())
            .map_err(|e| on.give_up(&of, Error::no_thread("the save", &e)))?;
        handle.wait_live();
        if waits {
            handle.wait_done(None);
        }
        let stall = clock.monotonic().saturating_sub(started);
        handle.set_stall(stall);
        self.pace.go_on();
        metrics::SAVE_STALL.note(stall);
        Ok(handle)
    }

    /// Does `work` while no save is in progress, and lets none begin meanwhile.
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
        self.inner.over(current.as_ref())?;
        let done = work(&self.inner);
        self.inner.make_room(&self.inner.pool(), done.as_ref().err());
        done
    }

    /// Returns whether a save is in progress. Never waits: a save that is starting, or another call
    /// that delays saves, counts as one.
    pub fn is_saving(&self) -> bool {
        let Some(current) = self.inner.starting.try_lock() else { return true };
        current.as_ref().is_some_and(|handle| !handle.done())
    }

    /// Returns the time that the last save took until it was committed; `None` if there is none, or
    /// it is in progress or has failed. Never waits.
    pub fn last_save_took(&self) -> Option<Duration> {
        self.inner.starting.try_lock()?.as_ref()?.took()
    }

    /// Returns the lazy restore that still fills memory. A save, a restore and a close wait for it.
    pub fn filling(&self) -> Option<LazyFill> {
        self.inner.filling().clone().filter(|fill| !fill.done())
    }

    /// Waits until a lazy restore has filled all memory. Saves and closes do so themselves.
    ///
    /// # Errors
    /// The failure of the restore.
    pub fn wait_filled(&self) -> Result<()> {
        self.inner.check_process()?;
        self.inner.wait_filled()
    }

    /// Waits until no save is in progress.
    ///
    /// # Errors
    /// The last save's failure, if the program has not seen it.
    pub fn wait(&self) -> Result<()> {
        self.inner.check_process()?;
        let current = self.inner.starting().clone();
        if let Some(handle) = current {
            handle.wait_done(None);
            if let Some(error) = handle.tell_failure() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits until no save is in progress.
    ///
    /// # Errors
    /// The last save's failure, if the program must know of it ([`Job::on_failure`]) and has not
    /// seen it.
    pub fn settle(&self) -> Result<()> {
        self.inner.check_process()?;
        let current = self.inner.starting().clone();
        let Some(handle) = current else { return Ok(()) };
        handle.wait_done(None);
        self.inner.tell(&handle)
    }

    /// Returns the save in progress, or the last one.
    pub fn current(&self) -> Option<SaveHandle> {
        self.inner.check_process().ok()?;
        self.inner.starting().clone()
    }

    /// Completes the persist phase and ends the session in the log. Then waits for the slow tier,
    /// if there is one, at most as long as `[tiers]` in `pool.toml` allows. The job can be used
    /// again afterwards. Collective: in a group all ranks close it.
    ///
    /// # Errors
    /// The last save's failure, if the program must know of it ([`Job::on_failure`]) and has not
    /// seen it, or if no save was committed; errors of the log. In a group `Invalid` if another
    /// rank saves or restores meanwhile.
    pub fn close(&self) -> Result<()> {
        self.wait_filled()?;
        self.close_as(true)
    }

    /// Closes the job without the other ranks of a group, which may be elsewhere in the program.
    /// Informs them as far as possible.
    ///
    /// # Errors
    /// As for [`Job::close`].
    pub fn leave(&self) -> Result<()> {
        self.wait_filled()?;
        self.close_as(false)
    }

    /// Closes the job as [`Job::leave`] does when the program ends: does not wait for memory that a
    /// lazy restore still fills.
    ///
    /// # Errors
    /// As for [`Job::close`].
    pub fn close_at_exit(&self) -> Result<()> {
        self.close_as(false)
    }

    fn close_as(&self, together: bool) -> Result<()> {
        self.inner.check_process()?;
        // Locked to the end: a save that began now would commit in a session that is over, and a gc
        // would not know of it.
        let current = self.inner.starting();
        let keepalive = together.then(|| self.keepalive());
        let told = current.as_ref().map_or(Ok(()), |handle| {
            handle.wait_done(None);
            self.inner.tell_last(handle)
        });
        drop(keepalive);
        let told = match &self.inner.member {
            Some(member) if together => member.close(told),
            Some(member) => {
                member.leave();
                told
            }
            None => told,
        };
        let mut writer = self.inner.writer();
        let closed = writer.committer.head.close(&self.pool);
        drop((writer, current));
        let mut finish = self.finish_fill();
        while !finish.wait(A_WHILE) {}
        // After the fill: a checkpoint that the slow tier has just got may be its only one.
        self.inner.retain.finish(&self.pool);
        self.inner.let_held_go(together && told.is_ok());
        self.pool.close_files(true);
        told.and(closed)
    }

    /// Opens the session in the log, as the next save would: from then on this process is the job's
    /// one writer. Waits for a save in progress. Without effect in a group, whose saves do it.
    ///
    /// # Errors
    /// `Fenced` if another process has taken over this job, or has saved it since this one
    /// restored; errors of the log.
    pub fn begin_session(&self) -> Result<()> {
        self.inner.begin_session()
    }

    /// Returns the session that this job has open, unless another writer has fenced it. Waits for a
    /// save in progress.
    pub fn session(&self) -> Option<SessionId> {
        self.inner.writer().committer.head.session()
    }

    /// Ends the session in the log, unless a save is in progress or starting. The next save opens
    /// another one. So a gc can delete packs that only this program needed, and leftovers of its
    /// failed saves. Returns whether no session is open.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn end_session(&self) -> Result<bool> {
        self.inner.end_session()
    }

    /// Returns the wait for the slow tier, for callers that wait before they close the job.
    pub fn finish_fill(&self) -> FinishFill {
        self.inner.writer().committer.behind.finish(&self.pool)
    }

    /// Allows the next save although others have saved since this job restored or was closed: the
    /// job does not continue from their checkpoints. Without this call that save is refused as
    /// `Fenced`.
    pub fn take_over(&self) {
        self.inner.writer().committer.head.take_over();
    }
}
