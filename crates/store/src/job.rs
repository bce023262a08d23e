//! A job: the handle through which a program saves and restores.

use crate::commit::{Entry, append_note, history};
use crate::drain::Drain;
use crate::handle::SaveHandle;
use crate::inner::Inner;
use crate::restore::{
    Checkpoint, LazyEnds, LazyFill, LazySink, RestoreSink, RestoreStats, Runner, Select, Skipped,
    View, first_good, first_of_rank, refuse_suspect,
};
use crate::retention::{RetentionPlan, Rules};
use crate::save::{Order, SaveNotes, Writer};
use outlive_format::{Manifest, Note, Remarks};
use outlive_pool::Pool;
use outlive_types::sync::{self, Mutex};
use outlive_types::{Epoch, Error, Frozen, JobName, PageSource, Rank, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How a job behaves.
#[derive(Clone, Debug, Default)]
pub struct JobOptions {
    /// Saves closer together than this are not due.
    pub every: Option<Duration>,
}

/// Which streams to read, and the sink to put them into.
pub type Prepared<S> = (Vec<usize>, S);

/// What a restore did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restored {
    /// The epoch that was restored.
    pub epoch: Epoch,
    /// Figures.
    pub stats: RestoreStats,
    /// Newer checkpoints that were passed over, and why.
    pub skipped: Skipped,
}

/// A committed checkpoint, as the log tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EpochInfo {
    /// The epoch.
    pub epoch: Epoch,
    /// Its manifest.
    pub manifest: Manifest,
    /// Length of the manifest's record.
    pub record_bytes: u64,
}

/// A named series of checkpoints. All methods may be called from any thread.
pub struct Job {
    inner: Arc<Inner>,
}

impl Job {
    /// Opens a job; nothing is read or written yet.
    pub fn open(pool: &Pool, name: &str, options: JobOptions) -> Result<Job> {
        let name = JobName::new(name)?;
        let writer = Writer::new(pool, name.clone());
        let inner = Inner {
            pool: pool.clone(),
            name,
            every: options.every,
            process_id: std::process::id(),
            writer: Mutex::new(writer),
            starting: Mutex::new(None),
            filling: Mutex::new(None),
            last_start_ns: AtomicU64::new(0),
        };
        Ok(Job { inner: Arc::new(inner) })
    }

    /// Its name.
    pub fn name(&self) -> &JobName {
        &self.inner.name
    }

    /// Its pool.
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// True if a save is due: always without an interval, else once it has passed since the last
    /// save began.
    pub fn due(&self) -> bool {
        let last = self.inner.last_start_ns.load(Ordering::Relaxed);
        match self.inner.every {
            Some(every) if last > 0 => {
                let now = self.inner.pool.env().clock.monotonic();
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
        inner.wait_filled()?;
        if let Some(handle) = current.as_ref() {
            handle.wait_done(None);
            if let Some(error) = handle.unseen_failure() {
                return Err(error.context("an earlier save failed"));
            }
        }
        let clock = inner.pool.env().clock.clone();
        let started = clock.monotonic();
        let now_ns = u64::try_from(started.as_nanos()).unwrap_or(u64::MAX - 1);
        inner.last_start_ns.store(now_ns + 1, Ordering::Relaxed);

        let (frozen, packs, plan) = inner.freeze(source)?;
        let frozen: Arc<dyn Frozen> = Arc::from(frozen);
        let handle = SaveHandle::new(plan.epoch);
        let order = Order { started, notes };
        let drain =
            Drain { inner: inner.clone(), frozen, plan, packs, handle: handle.clone(), order };
        if drain.plan.live_blocks == 0 {
            drain.frozen.release_live();
            handle.set_live_done();
        }
        sync::spawn("outlive-drain", move || drain.run())
            .map_err(|e| Error::no_thread("the save", &e))?;
        *current = Some(handle.clone());
        handle.wait_live();
        let stall = clock.monotonic().saturating_sub(started);
        handle.set_stall(stall);
        Ok(handle)
    }

    /// Does `work` when no save is under way, and lets none begin meanwhile.
    pub(crate) fn wait_for_turn<T>(&self, work: impl FnOnce(&Inner) -> Result<T>) -> Result<T> {
        self.inner.check_process()?;
        let current = self.inner.starting();
        if let Some(handle) = current.as_ref() {
            handle.wait_done(None);
            if let Some(error) = handle.unseen_failure() {
                return Err(error.context("an earlier save failed"));
            }
        }
        work(&self.inner)
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

    /// Completes the drain and ends the session in the log. The job can be used again afterwards.
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
        let closed = self.inner.writer().committer.head.close(&self.inner.pool);
        failure.map_or(closed, Err)
    }

    /// The committed checkpoints, oldest first. Manifests that cannot be read are left out; `verify`
    /// names them.
    ///
    /// # Errors
    /// What the log reports.
    pub fn epochs(&self) -> Result<Vec<EpochInfo>> {
        let mut epochs = Vec::new();
        for entry in history(&self.inner.pool, &self.inner.name)? {
            let entry = entry.unless_unread()?;
            if let Some(manifest) = entry.manifest().cloned() {
                let (epoch, record_bytes) = (manifest.epoch, entry.bytes);
                epochs.push(EpochInfo { epoch, manifest, record_bytes });
            }
        }
        epochs.reverse();
        Ok(epochs)
    }

    /// What rules would make of the job's checkpoints; without any, those that `pool.toml` gives.
    ///
    /// # Errors
    /// Those of [`Rules::plan`], and what the log reports.
    pub fn retention(&self, rules: &Rules) -> Result<RetentionPlan> {
        let mut rules = rules.clone();
        let keep = &self.pool().config().tuning.keep;
        if rules.is_empty() && !keep.is_empty() {
            rules.add(keep).map_err(|e| e.context("tuning.keep in pool.toml"))?;
        }
        let (mut manifests, mut hurt) = (Vec::new(), BTreeSet::new());
        for entry in history(self.pool(), &self.inner.name)? {
            let entry = entry.unless_unread()?;
            if let Some(manifest) = entry.manifest() {
                hurt.extend(entry.hurt.then_some(manifest.epoch));
                manifests.push(manifest.clone());
            }
        }
        rules.plan(&manifests, &hurt, self.pool().env().clock.unix_ns())
    }

    /// Changes what is said about a checkpoint, and answers what holds then. Its program may save
    /// meanwhile.
    ///
    /// # Errors
    /// `Invalid` if there is no such checkpoint, or the label is too long; what the log reports.
    pub fn note(&self, epoch: Epoch, change: impl Fn(&mut Remarks)) -> Result<Remarks> {
        let found = self.epochs()?.into_iter().find(|info| info.epoch == epoch);
        let Some(info) = found else {
            return Err(Error::invalid(format!("job {} has no checkpoint {epoch}", self.name())));
        };
        let mut remarks = info.manifest.remarks;
        change(&mut remarks);
        let SaveNotes { remarks, .. } = SaveNotes::new(remarks, Vec::new())?;
        append_note(self.pool(), self.name(), Note { epoch, remarks: remarks.clone() })?;
        Ok(remarks)
    }

    /// Opens a checkpoint for reading. `None` if the job has none.
    ///
    /// # Errors
    /// `Invalid` if the epoch asked for does not exist; `Damaged` if it, or every checkpoint, is
    /// damaged.
    pub fn checkpoint(&self, select: Select) -> Result<Option<(Checkpoint, Skipped)>> {
        first_good(self.pool(), self.name(), select, &mut |_| Ok(()))
            .map(|found| found.map(|(checkpoint, (), skipped)| (checkpoint, skipped)))
    }

    /// Opens what one rank has of a checkpoint, and reads nothing of what other ranks have. `None` if
    /// the job has no checkpoint.
    ///
    /// # Errors
    /// As [`Job::checkpoint`]; `Invalid` if the checkpoint has no such rank.
    pub fn checkpoint_of_rank(
        &self,
        select: Select,
        rank: Rank,
    ) -> Result<Option<(Checkpoint, Skipped)>> {
        self.attempt_rank(select, rank, &mut |_| Ok(()))
            .map(|found| found.map(|(checkpoint, (), skipped)| (checkpoint, skipped)))
    }

    /// The same, and does `attempt` with it: reads its streams, say. If something proves damaged then,
    /// the next older checkpoint takes its place, unless an epoch was asked for. If a gc has moved
    /// something meanwhile, `attempt` is called again.
    ///
    /// # Errors
    /// As [`Job::checkpoint_of_rank`], and those of `attempt`.
    pub fn attempt_rank<T>(
        &self,
        select: Select,
        rank: Rank,
        attempt: &mut dyn FnMut(&Checkpoint) -> Result<T>,
    ) -> Result<Option<(Checkpoint, T, Skipped)>> {
        first_of_rank(self.pool(), self.name(), select, rank, attempt)
    }

    /// Restores. For each checkpoint that comes into question, newest first, `prepare` looks at its
    /// regions and answers which streams to read and where to put them; an error from it ends the
    /// restore before anything was written. If the data then prove damaged, the next older one
    /// takes its place. `done` is called with the sink that holds the restored bytes.
    ///
    /// When every stream was read, the next save is incremental to what was restored: the source
    /// must then be given memory that holds just these bytes as its baseline.
    ///
    /// # Errors
    /// As [`Job::checkpoint`], and those of `prepare` and `done`.
    pub fn restore<S: RestoreSink>(
        &self,
        select: Select,
        prepare: &mut dyn FnMut(&Checkpoint) -> Result<Prepared<S>>,
        done: &mut dyn FnMut(&Checkpoint, S) -> Result<()>,
    ) -> Result<Option<Restored>> {
        self.wait()?;
        self.wait_filled()?;
        self.inner.note_position()?;
        let mut attempt = |checkpoint: &Checkpoint| {
            let (selected, sink) = prepare(checkpoint)?;
            let stats = checkpoint.read(&selected, &sink)?;
            Ok((selected.len(), sink, stats))
        };
        let Some((checkpoint, (selected, sink, stats), skipped)) =
            first_good(self.pool(), self.name(), select, &mut attempt)?
        else {
            return Ok(None);
        };
        done(&checkpoint, sink)?;
        if selected == checkpoint.streams().len() {
            // A save that began meanwhile goes on from the base it was planned for.
            let current = self.inner.starting();
            if let Some(handle) = current.as_ref() {
                handle.wait_done(None);
            }
            self.inner.adopt(&checkpoint);
        }
        Ok(Some(Restored { epoch: checkpoint.epoch(), stats, skipped }))
    }

    /// Restores lazily: returns when the page tree is read, and what the sink does not fill lazily. The
    /// rest follows while the program runs; saves, closes and restores wait for it. Otherwise as
    /// [`Job::restore`], but that damage found after the return ends the fill: `ends` says what
    /// becomes of the program then, whose memory has holes. If no thread can be started for the rest,
    /// memory is whole when this returns. Checkpoints of which somebody has said before that something
    /// is damaged are passed over.
    ///
    /// # Errors
    /// As [`Job::restore`].
    pub fn restore_lazily<S: LazySink>(
        &self,
        select: Select,
        prepare: &mut dyn FnMut(&Checkpoint) -> Result<Prepared<S>>,
        ends: LazyEnds<S>,
    ) -> Result<Option<(Restored, LazyFill)>> {
        self.wait()?;
        self.wait_filled()?;
        let (pool, name) = (self.pool(), self.name());
        self.inner.note_position()?;
        // Taken before the log is read: what is in use then stays until memory is filled.
        let reading = pool.log().lock_reading()?;
        let listed = pool.log().latest(name)?;
        let mut attempt = |checkpoint: &Checkpoint| {
            let is_it = |entry: &Entry| {
                entry.manifest().is_some_and(|manifest| manifest.epoch == checkpoint.epoch())
            };
            let hurt = history(pool, name)?.find(is_it).is_some_and(|entry| entry.hurt);
            refuse_suspect(checkpoint, hurt, select)?;
            let (selected, sink) = prepare(checkpoint)?;
            let stats = Runner::read_eager(checkpoint, &selected, &sink)?;
            Ok((selected, sink, stats))
        };
        let Some((checkpoint, (selected, sink, stats), skipped)) =
            first_good(pool, name, select, &mut attempt)?
        else {
            return Ok(None);
        };
        if reading.is_none() {
            pool.warn(format!(
                "{} has no locks that this program can take: until the lazy restore of job {name} has \
                 filled memory, let no `outlive gc` or prune run on the pool, or it may delete what is \
                 still to be read",
                pool.log().describe()
            ));
        }
        let restored = Restored { epoch: checkpoint.epoch(), stats, skipped };
        let job = Job { inner: self.inner.clone() };
        // From the moment at which nothing drains any more until the fill is known, no save begins;
        // those that come later wait for the fill, so no base is replaced under a drain.
        let current = self.inner.starting();
        if let Some(handle) = current.as_ref() {
            handle.wait_done(None);
        }
        let view = View { checkpoint: Arc::new(checkpoint), listed, reading };
        let fill = Runner::start(job, view, &selected, sink, ends);
        *self.inner.filling() = Some(fill.clone());
        Ok(Some((restored, fill)))
    }

    pub(crate) fn adopt(&self, checkpoint: &Checkpoint) {
        self.inner.adopt(checkpoint);
    }

    /// Says that the next save may leave behind what others have saved since this job restored, or was
    /// closed. Without it that save is refused as `Fenced`.
    pub fn take_over(&self) {
        self.inner.writer().committer.head.take_over();
    }
}
