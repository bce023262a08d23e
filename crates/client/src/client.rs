//! Opening a job, saving, and closing.

use crate::sessions::{self, collect_and_let_go, collect_behind};
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_pool::Pool;
use outlive_store::gc::{GcOptions, GcReport};
use outlive_store::{Job, JobOptions, LazyFill, SaveHandle, SaveNotes};
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Distribution, Result};
use std::sync::Arc;

/// How a program ends its work with a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// All ranks of its group close the job at the same place of the program.
    Together,
    /// This rank alone, as after an exception: it waits for no other one.
    Alone,
    /// The same at the end of the process, which waits for no memory that is still being filled.
    Exit,
}

/// A program's access to a job: the job and the tracker of its memory. Within a process, all clients of a job are
/// one writer: they share its session and tracker. Any thread may call any method.
pub struct Client {
    pub(crate) job: Job,
    /// What is remembered of the last image.
    pub(crate) tracker: Arc<ChangeTracker>,
    /// The last save, until its outcome has been looked at.
    last: Mutex<Option<SaveHandle>>,
    /// The last lazy restore, until somebody has waited for it.
    fill: Mutex<Option<LazyFill>>,
}

impl Client {
    /// Opens a job, or joins it if this process has it open already; nothing is read or written yet.
    ///
    /// # Errors
    /// `Invalid` for an impossible name, or an unknown tracker in `pool.toml`.
    pub fn open(pool: &Pool, name: &str, options: JobOptions) -> Result<Client> {
        let (job, tracker) = sessions::open(pool, name, options)?;
        Ok(Client { job, tracker, last: Mutex::default(), fill: Mutex::default() })
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Threads for hashing and copying.
    fn threads(&self) -> usize {
        self.job.pool().config().tuning.threads()
    }

    /// What a save reads: regions in the program's order, and what is kept with their image. For those
    /// who must wait for it themselves, with [`MemorySource::wait_filled`]; then see
    /// [`Client::save_source`].
    pub fn source(&self, regions: Vec<Region>, attachment: Vec<u8>) -> MemorySource {
        // What is the same on all ranks is stored once.
        let is_mine = |region: &Region| {
            self.job.rank() == 0 || *region.distribution() != Distribution::Replicated
        };
        let (mine, elsewhere): (Vec<Region>, Vec<Region>) = regions.into_iter().partition(is_mine);
        MemorySource::new(self.tracker.clone(), mine, attachment, self.threads())
            .with_elsewhere(elsewhere)
    }

    /// Saves regions, with what a front door keeps with their image. Returns when the program may
    /// write its memory again; the handle tells when the checkpoint is committed.
    ///
    /// # Errors
    /// As [`Job::save`].
    pub fn save(
        &self,
        regions: Vec<Region>,
        attachment: Vec<u8>,
        notes: SaveNotes,
    ) -> Result<SaveHandle> {
        self.save_source(&mut self.source(regions, attachment), notes)
    }

    /// The same of a source that [`Client::source`] has made.
    ///
    /// # Errors
    /// As [`Job::save`].
    pub fn save_source(&self, source: &mut MemorySource, notes: SaveNotes) -> Result<SaveHandle> {
        let handle = self.job.save_with(source, notes)?;
        *self.last() = Some(handle.clone());
        Ok(handle)
    }

    /// True if a save is due: see [`Job::due`].
    ///
    /// # Errors
    /// The failure of an earlier save, if the program must be told and was not; in a group, those of the
    /// coordinator.
    pub fn due(&self) -> Result<bool> {
        // Of a group one rank must not give up where others go on: the save raises it on all.
        if self.job.is_group() {
            return self.job.due();
        }
        let mut last = self.last();
        if last.as_ref().is_some_and(SaveHandle::done) {
            let told = self.job.tell_last();
            // With a failure of which it is not told now, the program may end: see `Client::has_unheard`.
            if !matches!(told, Ok(true)) {
                last.take();
            }
            told.map_err(|error| error.context("an earlier save failed"))?;
        }
        drop(last);
        self.job.due()
    }

    /// True if a save is under way, or over and nobody has looked at its outcome.
    pub fn has_unheard(&self) -> bool {
        self.last().is_some()
    }

    fn last(&self) -> MutexGuard<'_, Option<SaveHandle>> {
        self.last.lock()
    }

    /// The lazy restore that may still fill memory. A save, a restore and a close wait for it.
    pub fn filling(&self) -> Option<LazyFill> {
        self.fill.lock().clone()
    }

    pub(crate) fn set_filling(&self, fill: Option<LazyFill>) {
        *self.fill.lock() = fill;
    }

    /// Somebody has waited until the lazy restore was over, however it ended.
    pub fn filling_is_over(&self) {
        self.set_filling(None);
    }

    /// Nobody saves by this client any more, or what its tracker knows will be void: others may track
    /// the memory. What a save under way has frozen stays frozen.
    pub fn detach(&self) {
        self.tracker.detach();
    }

    /// Collects garbage of the pool. First ends the sessions that this process has open in it. In a group, ends only this
    /// job's session, and only on the committing rank.
    ///
    /// # Errors
    /// As [`collect_and_let_go`].
    pub fn collect(&self, options: &GcOptions) -> Result<GcReport> {
        let job = self.job();
        match job.is_group() {
            true => collect_behind(job.pool(), options, &[(job.name().clone(), job.downgrade())]),
            false => collect_and_let_go(job.pool(), options),
        }
    }

    /// Completes the drain and ends the session in the log. The client can be used again afterwards.
    ///
    /// # Errors
    /// As [`Job::close`].
    pub fn close(&self, end: End) -> Result<()> {
        let closed = match end {
            End::Together => self.job.close(),
            End::Alone => self.job.leave(),
            End::Exit => self.job.close_at_exit(),
        };
        self.tracker.detach();
        self.last().take();
        closed
    }
}
