//! State that a job's handles share with the persist phase of its saves.

use super::handle::SaveHandle;
use super::health::{Health, may_pass};
use super::keeper::{ImageKeeper, Keeping};
use crate::commit::{Position, Reached};
use crate::fill::BackgroundFill;
use crate::gc::free_behind;
use crate::group::{GroupMember, GroupSave};
use crate::read::MemoryImage;
use crate::recreate::{SAVE_WAIT, recreate_lost};
use crate::restore::LazyFill;
use crate::retention::BackgroundRetention;
use crate::save::{CommitEvents, PackNumbers, SaveNotes, SavePlan, Writer};
use crate::trim::trim_behind;
use outlive_pool::Pool;
use outlive_types::sync::plain::RwLock;
use outlive_types::sync::{Mutex, MutexGuard};
use outlive_types::{Epoch, Error, ErrorKind, Frozen, JobName, PageSource, Result, metrics};
use std::sync::Arc;

/// A save that has frozen the program's memory.
pub(crate) struct FrozenSave {
    pub frozen: Box<dyn Frozen>,
    pub plan: SavePlan,
    pub mode: SaveMode,
}

/// Continuation of a save after the freeze.
#[derive(Clone)]
pub(crate) enum SaveMode {
    /// The save writes these packs, and this process commits.
    Alone(PackNumbers),
    /// The save is a rank's part in the save of a group.
    Together(Arc<GroupMember>, GroupSave),
}

/// A job, opened.
pub(crate) struct Inner {
    /// The pool of the client that opened the job last.
    pool: RwLock<Pool>,
    pub name: JobName,
    /// Process that opened it. Threads do not survive a fork, so a forked child must not use it.
    pub process_id: u32,
    /// Locked during the whole persist phase.
    pub writer: Mutex<Writer>,
    /// The writer's events, for threads that cannot wait for the writer.
    pub events: CommitEvents,
    /// Shared with the writer.
    pub retain: BackgroundRetention,
    /// Shared with the writer.
    pub behind: BackgroundFill,
    /// The newest checkpoint that it has restored or saved. Shared with the writer.
    pub reached: Reached,
    /// Counts its committed and its failed saves.
    pub health: Health,
    /// The member for this rank, if the program has several ranks.
    pub member: Option<Arc<GroupMember>>,
    /// Locked while a save starts: saves start one after the other.
    pub starting: Mutex<Option<SaveHandle>>,
    /// The lazy restore that still fills memory.
    pub filling: Mutex<Option<LazyFill>>,
    /// Holds the images of saves.
    pub keeping: Keeping,
}

impl Inner {
    pub fn new(
        pool: &Pool,
        name: JobName,
        member: Option<Arc<GroupMember>>,
        reached: Reached,
        keeper: Option<Arc<dyn ImageKeeper>>,
    ) -> Inner {
        let rank = member.as_ref().map_or(0, |member| member.rank());
        let mut writer = Writer::of_rank(pool, name.clone(), rank);
        writer.committer.head.share_reached(reached.clone());
        writer.committer.behind.then(trim_behind);
        writer.committer.retain.by(free_behind);
        let (events, retain) = (writer.committer.events.clone(), writer.committer.retain.clone());
        let behind = writer.committer.behind.clone();
        Inner {
            pool: RwLock::new(pool.clone()),
            health: Health::new(pool, name.clone()),
            name,
            process_id: std::process::id(),
            writer: Mutex::new(writer),
            events,
            retain,
            behind,
            reached,
            member,
            starting: Mutex::new(None),
            filling: Mutex::new(None),
            keeping: Keeping::new(keeper),
        }
    }

    /// Returns the pool for saves.
    pub fn pool(&self) -> Pool {
        self.pool.read().clone()
    }

    /// Replaces the pool for later saves by a newer handle of the same pool, unless a save is in
    /// progress.
    pub fn set_pool(&self, pool: &Pool) {
        let Some(current) = self.starting.try_lock() else { return };
        if current.as_ref().is_none_or(SaveHandle::done) {
            *self.pool.write() = pool.clone();
        }
    }

    pub fn check_process(&self) -> Result<()> {
        if self.process_id == std::process::id() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the job {} was opened by process {} and this is process {}, forked from it: open the \
             pool and a job of its own here",
            self.name,
            self.process_id,
            std::process::id()
        )))
    }

    pub fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock()
    }

    pub fn filling(&self) -> MutexGuard<'_, Option<LazyFill>> {
        self.filling.lock()
    }

    /// Notes the log's position: a first save after this is refused if others have saved meanwhile.
    /// A job with an open session learns of others when it is fenced. Returns the newest epoch.
    pub fn note_position(&self) -> Result<Epoch> {
        Ok(self.writer().committer.head.note_position(&self.pool())?.epoch)
    }

    pub fn wait_filled(&self) -> Result<()> {
        let Some(fill) = self.filling().clone() else { return Ok(()) };
        match fill.wait(None) {
            Some(Err(error)) => Err(error.context("a lazy restore has failed")),
            _ => {
                self.filling().take();
                Ok(())
            }
        }
    }

    /// Returns whether this process decides for all ranks of its group; true without a group.
    pub fn decides(&self) -> bool {
        self.member.as_ref().is_none_or(|member| member.rank() == 0)
    }

    /// Waits for an earlier save.
    ///
    /// # Errors
    /// Its failure, if the program must know of it and has not seen it.
    pub fn over(&self, save: Option<&SaveHandle>) -> Result<()> {
        let Some(handle) = save else { return Ok(()) };
        handle.wait_done(None);
        self.tell(handle).map_err(|error| error.context("an earlier save failed"))
    }

    /// Reports the outcome of a save that is over.
    ///
    /// # Errors
    /// Its failure, if the program must know of it and has not seen it.
    pub fn tell(&self, handle: &SaveHandle) -> Result<()> {
        let Some(error) = handle.unseen_failure() else { return Ok(()) };
        self.health.judge(error, self.decides()).inspect_err(|_| handle.see())
    }

    /// Does the same for the last save before the job is closed.
    ///
    /// # Errors
    /// As for [`Inner::tell`].
    pub fn tell_last(&self, handle: &SaveHandle) -> Result<()> {
        let Some(error) = handle.tell_failure() else { return Ok(()) };
        let warning = self.health.judge_last(error, self.decides())?;
        self.pool().warn(warning);
        Ok(())
    }

    /// Counts a save that failed at its beginning. Returns the handle of a failed save if the
    /// program continues.
    ///
    /// # Errors
    /// The failure, if the program must know of it.
    pub fn failed_at_once(&self, error: Error) -> Result<SaveHandle> {
        // The failure of an earlier save, or of other ranks: this save has not begun.
        if error.must_be_told() || !may_pass(&error) {
            return Err(error);
        }
        self.health.failed(&error);
        // In a group rank 0 has judged, or judges when the next save begins, so that all ranks act
        // the same.
        self.health.judge(error.clone(), self.member.is_none())?;
        let writer = self.writer();
        let epoch = writer.committer.head.last_epoch.max(writer.rank.parent()) + 1;
        drop(writer);
        let pool = self.pool();
        pool.warn(format!("a save of job {} failed: {error}", self.name));
        self.events.failed(&pool, epoch, &error);
        metrics::SAVES_FAILED.add(1);
        Ok(SaveHandle::failed(epoch, error))
    }

    pub fn starting(&self) -> MutexGuard<'_, Option<SaveHandle>> {
        self.starting.lock()
    }

    /// Begins a save and freezes the program's memory for it. In a group all ranks do so together,
    /// unless one of them is not `ready`.
    pub fn freeze(&self, source: &mut dyn PageSource, ready: Result<()>) -> Result<FrozenSave> {
        let pool = self.pool();
        // One rank of a group does it for all.
        let is_first = self.member.as_ref().is_none_or(|member| member.rank() == 0);
        let recreate = || {
            if !is_first || !pool.wants_recreate()? {
                return Ok(());
            }
            // That may wait for a command that is at work, and the other ranks for this one.
            let member = self.member.as_ref();
            let _keepalive = member.and_then(|member| member.coordinator.keepalive());
            recreate_lost(&pool, SAVE_WAIT).map(drop)
        };
        let ready = ready.and_then(|()| recreate());
        // Before the memory of the last image is used again.
        self.keeping.end();
        let is_shared = self.keeping.begin();
        let mut writer = self.writer();
        let writer = &mut *writer;
        let Some(member) = &self.member else {
            ready?;
            let packs = writer.begin(&pool)?;
            let epoch = writer.committer.head.last_epoch + 1;
            let (frozen, plan) = writer.rank.freeze(&pool, epoch, source, is_shared)?;
            return Ok(FrozenSave { frozen, plan, mode: SaveMode::Alone(packs) });
        };
        let group_save = member.begin(
            &pool,
            writer,
            source,
            ready,
            (self.health.says(), &|error| self.health.judge_for_all(error)),
        )?;
        let frozen = writer.rank.freeze(&pool, group_save.epoch, source, is_shared);
        let (frozen, plan) =
            frozen.map_err(|error| member.give_up(&pool, group_save.save_id, error))?;
        Ok(FrozenSave { frozen, plan, mode: SaveMode::Together(member.clone(), group_save) })
    }

    /// Has the helper hold the image of a save. Returns what to add to the report of the freeze, and
    /// whether the save must wait until it is committed, since nothing else holds the image.
    pub fn hold(
        &self,
        source: &mut dyn PageSource,
        frozen: &dyn Frozen,
        (plan, mode): (&SavePlan, &SaveMode),
        notes: &SaveNotes,
    ) -> (String, bool) {
        let session = match mode {
            SaveMode::Alone(packs) => packs.session(),
            SaveMode::Together(_, group_save) => group_save.packs.session(),
        };
        let of = (session, self.member.is_some());
        let held = self.keeping.hold(source, of, frozen, plan, notes);
        match held {
            Ok(report) => report,
            Err(error) => {
                self.pool().warn(format!(
                    "job {}: no helper holds the image of checkpoint {} ({error}): it is lost if this \
                     program is killed before the commit",
                    self.name, plan.epoch
                ));
                ("; no helper holds it".to_owned(), false)
            }
        }
    }

    /// Ends the hold of the helper when the job is closed. A rank that leaves its group after a
    /// failed save leaves the image: the others may have been killed.
    pub fn let_held_go(&self, together: bool) {
        match self.member.is_some() && !together {
            true => self.keeping.leave(),
            false => self.keeping.end(),
        }
    }

    /// Drops checkpoints to make room for the next save, if the last one met a full disk, or is
    /// faster than the job's retention. No save is in progress.
    pub fn make_room(&self, pool: &Pool, failure: Option<&Error>) {
        let mut end = || self.writer().committer.head.end(pool);
        if failure.is_none_or(|error| error.kind() != ErrorKind::Full) {
            return self.retain.catch_up(pool, &mut end);
        }
        let writer = self.writer();
        let head = &writer.committer.head;
        // A writer that could not open a session still counts as the next one, unless it is
        // refused.
        let newest = || Position::of(pool, &self.name).ok().and_then(|position| position.session);
        let session = if head.is_refused() { None } else { head.session().or_else(newest) };
        drop(writer);
        if let Some(session) = session {
            self.retain.make_room(pool, session, &mut end);
        }
    }

    /// See [`Job::begin_session`](super::Job::begin_session).
    pub fn begin_session(&self) -> Result<()> {
        self.check_process()?;
        let pool = self.pool();
        if self.member.is_some() { Ok(()) } else { self.writer().begin(&pool).map(drop) }
    }

    /// See [`Job::end_session`](super::Job::end_session).
    pub fn end_session(&self) -> Result<bool> {
        self.check_process()?;
        self.retain.wait_idle();
        let Some(current) = self.starting.try_lock() else { return Ok(false) };
        if current.as_ref().is_some_and(|save| !save.done()) {
            return Ok(false);
        }
        self.writer().committer.head.end(&self.pool()).map(|()| true)
    }

    /// Makes a restored checkpoint the base of the next save.
    pub fn adopt(&self, checkpoint: &MemoryImage) {
        let mut writer = self.writer();
        writer.committer.head.follows_as_of(checkpoint.as_of());
        writer.rank.follow_restored(&self.pool(), checkpoint);
    }
}

impl Drop for Inner {
    /// Closes the session with the last handle: a clean end is worth a record, but not an error.
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            let pool = self.pool();
            let writer = self.writer.get_mut();
            if let Err(error) = writer.committer.head.close(&pool) {
                pool.warn(format!("the session of job {} was not closed: {error}", self.name));
            }
        }
    }
}
